package file

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
)

// Items are locked in stripes: within a process by a channel, between processes by a
// lock on one byte of the file of locks. A call holds at most one stripe.
const (
	stripeCount = 256
	openStripe  = stripeCount // who opens the store and looks for the dead
)

type stripes [stripeCount]chan struct{}

func newStripes() *stripes {
	var s stripes
	for i := range s {
		s[i] = make(chan struct{}, 1)
	}
	return &s
}

// lock locks the stripe of what is named until unlock is called.
func (s *Store) lock(ctx context.Context, sess *session, names ...string) (unlock func(), err error) {
	h := fnv.New32a()
	for _, name := range names {
		fmt.Fprintf(h, "%d:%s", len(name), name)
	}
	i := int64(h.Sum32() % stripeCount)
	held := s.locks[i]
	select {
	case held <- struct{}{}:
	default:
		select {
		case held <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := setLock(sess.lockFD, i, unix.F_WRLCK, unix.F_OFD_SETLK)
		if err == nil {
			return func() {
				_ = setLock(sess.lockFD, i, unix.F_UNLCK, unix.F_OFD_SETLK) // cannot fail on a lock that is held
				<-held
			}, nil
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) { // another process has it
			if err = retry.Sleep(ctx, wait); err == nil {
				continue
			}
		}
		<-held
		return nil, named("lock", lockFile, err)
	}
}

// setLock sets or removes a lock on one byte of a file, which belongs to this opening of it.
func setLock(fd int, at int64, kind int16, cmd int) error {
	l := unix.Flock_t{Type: kind, Start: at, Len: 1}
	return retryEINTR(func() error { return unix.FcntlFlock(uintptr(fd), cmd, &l) })
}
