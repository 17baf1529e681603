package watch

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A mark finds out up to when the kernel's events were read: a write to a file of its own makes an event that comes behind all
// that were there before.
type mark struct {
	file    *os.File  // which has no name; nil: there is none
	watch   int       // of the file; 0: none
	written time.Time // zero: its event was read
	passed  time.Time // all that was before is read
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

// set writes, unless the event of the last time is still to come.
func (m *mark) set(now time.Time) {
	if m.file == nil || !m.written.IsZero() {
		return
	}
	if _, err := m.file.WriteAt([]byte{0}, 0); err == nil { // else it is tried again
		m.written = now
	}
}

func (m *mark) close() {
	if m.file != nil {
		_ = m.file.Close() // nothing in it counts
	}
}

// is says whether an event is the mark's, and notes that it came.
func (m *mark) is(e event) bool {
	if e.watch != m.watch {
		return false
	}
	m.passed, m.written = m.written, time.Time{}
	return true
}
