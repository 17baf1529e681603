package file

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/denied"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A root is the root directory of a store. It opens a new session if another directory has the path, for example after
// a disk was mounted again.
type root struct {
	dir      string
	readOnly bool // this process writes nothing there
	// isStore reports whether a directory that has replaced the root is a store.
	isStore func(*session) bool

	mu     sync.Mutex // guards the fields below
	sess   *session
	closed bool
}

var errClosed = errors.New("file store is closed")

// Close closes the store. Active calls may finish; later ones fail.
func (r *root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.retire()
	}
	return nil
}

// retire drops the session, which is closed when its last call releases it. The caller holds r.mu.
func (r *root) retire() {
	if sess := r.sess; sess != nil {
		r.sess = nil
		if sess.retired = true; sess.users == 0 {
			sess.close()
		}
	}
}

// acquire returns the session of the current root directory. The caller releases it. If the root does not exist, or
// another directory that is not a store has its path (the disk is not mounted), the store is unavailable: its items are
// unknown, not absent.
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
	return retry.Unavailable(fmt.Errorf("root %s: %w: %w", r.dir, storage.ErrNoMarker, r.explain(err)))
}

// explain names the owner and the remedy in an error that reports a lack of permission.
func (r *root) explain(err error) error {
	if r.readOnly {
		return denied.ExplainRead(r.dir, err)
	}
	return denied.Explain(r.dir, err)
}
