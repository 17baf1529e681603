package watch

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A mark finds out up to when the kernel's events were read: a write to a file of its own makes an event that comes behind all
// that were there before.
type mark struct {
	file    *os.File  // which has no name; nil: there is none
	name    string    // under which it is watched
	written time.Time // zero: its event was read
	passed  time.Time // all that was before is read
}

func newMark(notify *fsnotify.Watcher) (*mark, error) {
	f, err := os.CreateTemp("", "millrace-watch-")
	if err != nil {
		return nil, fmt.Errorf("make a file to mark events with: %w", err)
	}
	m := &mark{file: f, name: fmt.Sprintf("/proc/self/fd/%d", f.Fd())}
	if err := errors.Join(os.Remove(f.Name()), notify.Add(m.name)); err != nil {
		return nil, errors.Join(fmt.Errorf("mark events: %w", err), f.Close())
	}
	return m, nil
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
func (m *mark) is(e fsnotify.Event) bool {
	if e.Name != m.name {
		return false
	}
	m.passed, m.written = m.written, time.Time{}
	return true
}
