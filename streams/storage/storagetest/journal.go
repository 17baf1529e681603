package storagetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"
)

// A Journal is a file of JSON lines in which a process records its actions before it is killed. A line is
// complete once Add has returned; a kill during Add leaves a part of it, or nothing.
type Journal struct {
	mu sync.Mutex
	f  *os.File
}

// OpenJournal opens or creates a journal for appending. An incomplete last line is terminated first.
func OpenJournal(name string) (*Journal, error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	end := []byte{'\n'}
	if err == nil && info.Size() > 0 {
		_, err = f.ReadAt(end, info.Size()-1)
	}
	if err == nil && end[0] != '\n' {
		_, err = f.WriteString("\n")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Journal{f: f}, nil
}

// Add appends a line.
func (j *Journal) Add(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err = j.f.Write(append(b, '\n'))
	return err
}

// ReadJournal returns the lines of a journal; none if the file is absent. It skips incomplete lines and
// fails the test if there are more than kills.
func ReadJournal[T any](t *testing.T, name string, kills int) (all []T) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var v T
		if err := json.Unmarshal(line, &v); err == nil {
			all = append(all, v)
		} else if kills--; kills < 0 {
			t.Fatalf("%s: more torn lines than kills: %v: %q", name, err, line)
		}
	}
	return all
}
