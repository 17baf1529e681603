package watch

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A mark determines up to which time the kernel's events have been read. It writes to a file of its own; the event of
// that write follows all earlier events.
type mark struct {
	file    *os.File  // unlinked; nil if there is none
	watch   int       // watch of the file; 0 if there is none
	written time.Time // time of the write with a pending event; zero if there is none
	passed  time.Time // all events before this time have been read
}

func newMark(notify *notifier) (*mark, error) {
	f, err := os.CreateTemp("", "millrace-watch-")
	if err != nil {
		return nil, fmt.Errorf("make a file to mark events with: %w", err)
	}
	watch, err := notify.add(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.IN_MODIFY)
	if err := errors.Join(os.Remove(f.Name()), err); err != nil {
		return nil, errors.Join(fmt.Errorf("mark events: %w", err), f.Close())
	}
	return &mark{file: f, watch: watch}, nil
}

// set writes to the file, unless the event of the last write is pending.
func (m *mark) set(now time.Time) {
	if m.file == nil || !m.written.IsZero() {
		return
	}
	if _, err := m.file.WriteAt([]byte{0}, 0); err == nil { // on an error, the next call tries again
		m.written = now
	}
}

func (m *mark) close() {
	if m.file != nil {
		_ = m.file.Close() // the content does not matter
	}
}

// consume reports whether e is the event of the mark, and if so, updates passed.
func (m *mark) consume(e event) bool {
	if e.watch != m.watch {
		return false
	}
	m.passed, m.written = m.written, time.Time{}
	return true
}
