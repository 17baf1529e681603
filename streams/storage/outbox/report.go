package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

const (
	rejectedName  = "rejected.jsonl"
	undecidedName = "undecided.jsonl"
)

// A reportJSON is a line of a report file.
type reportJSON struct {
	Ticket   uint64          `json:"ticket"`
	At       time.Time       `json:"at"`
	Error    string          `json:"error,omitempty"`
	Change   json.RawMessage `json:"change,omitempty"` // rejected, or the observed state
	Intent   json.RawMessage `json:"intent,omitempty"`
	Before   json.RawMessage `json:"before,omitempty"`
	Began    *time.Time      `json:"began,omitempty"`
	Streamed *Content        `json:"streamed,omitempty"`
}

// Report implements Outbox.
func (f *File) Report(m Mutation, rejected error) error {
	name, b, err := encodeReport(m, rejected)
	if err != nil {
		return err
	}
	f.reports.Lock()
	defer f.reports.Unlock()
	n, err := f.appendReport(name, b)
	if err != nil {
		return fmt.Errorf("write to %s: %w", name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reported += n
	f.stats.count(rejected)
	return nil
}

func encodeReport(m Mutation, rejected error) (name string, b []byte, err error) {
	l := reportJSON{Ticket: uint64(m.Ticket), At: time.Now().UTC(), Streamed: m.Streamed}
	if rejected != nil {
		name, l.Error = rejectedName, rejected.Error()
	} else {
		name, l.Began = undecidedName, &m.Began
	}
	for _, x := range []struct {
		to *json.RawMessage
		c  *pb.Change
	}{{&l.Change, m.Change}, {&l.Intent, m.Draft}, {&l.Before, m.Before}} {
		if x.c == nil {
			continue
		}
		if *x.to, err = protojson.Marshal(x.c); err != nil {
			return "", nil, err
		}
	}
	if b, err = json.Marshal(l); err != nil {
		return "", nil, err
	}
	return name, append(b, '\n'), nil
}

// appendReport appends a line, syncs the file and returns by how much it has grown.
func (f *File) appendReport(name string, b []byte) (int64, error) {
	file, err := os.OpenFile(filepath.Join(f.cfg.Dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return 0, err
	}
	size := st.Size()
	if size > 0 { // an incomplete last line stays a line of its own
		end := make([]byte, 1)
		if _, err := file.ReadAt(end, size-1); err != nil {
			return 0, err
		}
		if end[0] != '\n' {
			b = append([]byte{'\n'}, b...)
		}
	}
	if _, err := file.WriteAt(b, size); err != nil {
		_ = file.Truncate(size) // if that fails, an incomplete line stays
		return 0, err
	}
	if err := errors.Join(file.Sync(), f.dir.Sync()); err != nil {
		return 0, err
	}
	return int64(len(b)), nil
}

// countReports counts the reports in a directory, and their bytes.
func countReports(dir string) (s Stats, size int64, err error) {
	for name, n := range map[string]*int{rejectedName: &s.Rejected, undecidedName: &s.Undecided} {
		file, err := os.Open(filepath.Join(dir, name))
		if isNotExist(err) {
			continue
		}
		if err != nil {
			return s, 0, err
		}
		lines, bytes, err := countLines(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return s, 0, fmt.Errorf("read %s: %w", name, err)
		}
		*n = lines
		size += bytes
	}
	return s, size, nil
}

func countLines(r io.Reader) (lines int, size int64, err error) {
	b := make([]byte, 64<<10)
	for {
		k, err := r.Read(b)
		lines += bytes.Count(b[:k], []byte{'\n'})
		size += int64(k)
		if errors.Is(err, io.EOF) {
			return lines, size, nil
		}
		if err != nil {
			return lines, size, err
		}
	}
}

// reportBytes returns the current size of the report files.
func reportBytes(dir string) (n int64) {
	for _, name := range []string{rejectedName, undecidedName} {
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil {
			n += st.Size()
		}
	}
	return n
}
