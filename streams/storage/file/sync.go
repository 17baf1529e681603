package file

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Shared syncs are of directories in which several calls change names at a time: one sync is enough for all that was
// changed before it began.
type syncGroup struct {
	mu   sync.Mutex
	dirs map[dirID]*dirSync
}

// A dirID is a directory, whatever its path.
type dirID struct{ dev, ino uint64 }

type dirSync struct {
	users int           // calls under way; guarded by syncs.mu
	next  *syncBatch    // has not begun; guarded by syncs.mu
	sem   chan struct{} // full while a round syncs
}

// A round is one sync. err is set before done is closed. Before the round begins it is the error of the round before:
// the kernel reports to one sync only what it could not write, and that may be what callers of this round changed.
type syncBatch struct {
	done chan struct{}
	err  error
}

// share returns the result of a sync of a directory that begins after the call: of one that others wait for too, or of
// do.
func (s *syncGroup) do(id dirID, do func() error) error {
	s.mu.Lock()
	d := s.dirs[id]
	if d == nil {
		d = &dirSync{sem: make(chan struct{}, 1)}
		if s.dirs == nil {
			s.dirs = map[dirID]*dirSync{}
		}
		s.dirs[id] = d
	}
	d.users++
	r, leads := d.next, false
	if r == nil {
		r, leads = &syncBatch{done: make(chan struct{})}, true
		d.next = r
	}
	s.mu.Unlock()
	if leads {
		d.sem <- struct{}{}
		s.mu.Lock()
		d.next = nil // who comes from now on may have changed something that this sync does not see
		s.mu.Unlock()
		if err := do(); err != nil {
			r.err = err
			s.mu.Lock()
			if d.next != nil {
				d.next.err = err
			}
			s.mu.Unlock()
		}
		close(r.done)
		<-d.sem
	}
	<-r.done
	s.mu.Lock()
	if d.users--; d.users == 0 {
		delete(s.dirs, id)
	}
	s.mu.Unlock()
	return r.err
}

// syncShared has all names in an opened directory on disk.
func (s *session) syncShared(dir int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return pathError("stat", path, err)
	}
	return s.syncs.do(dirID{st.Dev, st.Ino}, func() error { return fsync(dir, path) })
}
