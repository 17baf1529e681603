package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

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
	file, err := f.disk.Open(name, false)
	if isNotExist(err) {
		if file, err = f.disk.Open(name, true); err == nil {
			err = f.syncReport(f.disk.Sync)
		}
	}
	if err != nil {
		return 0, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return 0, err
	}
	if size > 0 { // an incomplete last line stays a line of its own
		end := make([]byte, 1)
		if _, err := file.ReadAt(end, size-1); err != nil {
			return 0, err
		}
		if end[0] != '\n' {
			b = append([]byte{'\n'}, b...)
		}
	}
	if err := writeAt(file, b, size); err != nil {
		_ = file.Truncate(size) // if that fails, an incomplete line stays
		return 0, err
	}
	return int64(len(b)), f.syncReport(file.Sync)
}

func (f *File) syncReport(sync func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sync(sync)
}

// countReports counts the reports of earlier processes.
func (f *File) countReports() error {
	for name, n := range map[string]*int{rejectedName: &f.stats.Rejected, undecidedName: &f.stats.Undecided} {
		file, err := f.disk.Open(name, false)
		if isNotExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		size, err := file.Size()
		if err == nil {
			*n, err = countLines(io.NewSectionReader(file, 0, size))
			f.reported += size
		}
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	return nil
}

func countLines(r io.Reader) (n int, err error) {
	b := make([]byte, 64<<10)
	for {
		k, err := r.Read(b)
		n += bytes.Count(b[:k], []byte{'\n'})
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// reportBytes returns the current size of the report files; f.mu is held.
func (f *File) reportBytes() (n int64) {
	for _, name := range []string{rejectedName, undecidedName} {
		file, err := f.disk.Open(name, false)
		if err != nil {
			continue
		}
		if size, err := file.Size(); err == nil {
			n += size
		}
		file.Close()
	}
	return n
}
