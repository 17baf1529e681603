package file

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A root is the directory of a store, as it is now: disks come and go.
type root struct {
	dir string
	// known says of a directory that came in the root's place whether it is a store.
	isStore func(*session) bool

	mu     sync.Mutex // guards what follows
	sess   *session
	closed bool
}

var errClosed = errors.New("file store is closed")

// Close lets go of the tree. Calls that are under way may end first; others fail.
func (r *root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.retire()
	}
	return nil
}

// retire forgets the session, which is closed when the last call leaves it; r.mu is held.
func (r *root) retire() {
	if sess := r.sess; sess != nil {
		r.sess = nil
		if sess.retired = true; sess.users == 0 {
			sess.close()
		}
	}
}

// enter returns the session of the root as it is now; the caller leaves it. A root that
// is gone, or that is another directory now that is no store (a disk that is not
// mounted), is none either: all of it is unknown.
func (r *root) acquire() (*session, error) {
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Stat(r.dir, &st) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	if err != nil {
		return nil, r.unavailable(err)
	}
	if r.sess == nil || !r.sess.sameDir(&st) || r.sess.locksRemoved.Load() {
		sess, err := openSession(r.dir)
		if err != nil {
			return nil, r.unavailable(err)
		}
		if !r.isStore(sess) {
			sess.close()
			return nil, r.unavailable(errors.New("another directory is in its place"))
		}
		r.retire()
		r.sess = sess
	}
	r.sess.users++
	return r.sess, nil
}

func (r *root) release(sess *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sess.users--; sess.users == 0 && sess.retired {
		sess.close()
	}
}

func (r *root) unavailable(err error) error {
	return retry.Unavailable(fmt.Errorf("root %s: %w: %w", r.dir, storage.ErrNoMarker, err))
}
