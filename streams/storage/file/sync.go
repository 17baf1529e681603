package file

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A syncGroup shares syncs of a directory between concurrent calls: one fsync makes all names durable that were
// changed before it began.
type syncGroup struct {
	mu   sync.Mutex
	dirs map[dirID]*dirSync
}

// A dirID identifies a directory independently of its path.
type dirID struct{ dev, ino uint64 }

type dirSync struct {
	users int           // active calls; guarded by syncGroup.mu
	next  *syncBatch    // has not begun; guarded by syncGroup.mu
	sem   chan struct{} // full while a batch syncs
}

// A syncBatch is one fsync for several callers. err is set before done is closed. If the preceding batch fails, its
// error is also stored here: the kernel reports a write error to one fsync only, and the lost change may be one of
// this batch.
type syncBatch struct {
	done chan struct{}
	err  error
}

// do returns the result of a sync of the directory that begins after the call. It calls run, or waits for the sync of
// another caller.
func (s *syncGroup) do(id dirID, run func() error) error {
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
		d.next = nil // this sync may miss the changes of later callers
		s.mu.Unlock()
		if err := run(); err != nil {
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

// syncShared makes all names in an opened directory durable, with a sync that concurrent calls share.
func (s *session) syncShared(dir int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return pathError("stat", path, err)
	}
	return s.syncs.do(dirID{st.Dev, st.Ino}, func() error { return fsync(dir, path) })
}
