package file

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Items are locked in stripes: within a process by a channel, between processes by a lock on one byte of the lock file.
// A call holds at most one stripe.
const (
	stripeCount = 256
	openByte    = stripeCount // held by a session that opens the store and removes scratch of dead processes
)

// The lock file also holds the times of deletes, so that no process dates a Put before an earlier delete, whatever its
// clock says. Items are hashed into slots; a slot holds the time of the last delete of one of its items, 8 bytes in
// nanoseconds since 1970. All items of a slot have the same stripe. The slots are written when the file is created, so
// that a delete needs no disk space.
const slotCount = 16 * stripeCount

func hashOf(names ...string) uint32 {
	h := fnv.New32a()
	for _, name := range names {
		fmt.Fprintf(h, "%d:%s", len(name), name)
	}
	return h.Sum32()
}

// slot returns the offset of p's slot in the lock file.
func (p itemPath) slot() int64 { return 8 * int64(hashOf(p.space, p.item)%slotCount) }

// initSlots extends the lock file to hold all slots. The caller holds the lock on openByte.
func (s *session) initSlots() error {
	var st unix.Stat_t
	if err := unix.Fstat(s.lockFD, &st); err != nil {
		return pathError("stat", lockFile, err)
	}
	missing := slotCount*8 - st.Size
	if missing <= 0 {
		return nil
	}
	n, err := unix.Pwrite(s.lockFD, make([]byte, missing), st.Size)
	if err == nil && int64(n) < missing {
		err = unix.ENOSPC
	}
	if err != nil {
		return pathError("write", lockFile, err)
	}
	if err := fsync(s.lockFD, lockFile); err != nil {
		return err
	}
	return s.syncDir(ownDir)
}

// lastDelete returns the time of the last delete in p's slot. The caller holds the stripe of p.
func (s *session) lastDelete(p itemPath) (time.Time, error) {
	var b [8]byte
	err := retryEINTR(func() error { _, err := unix.Pread(s.lockFD, b[:], p.slot()); return err })
	return time.Unix(0, int64(binary.LittleEndian.Uint64(b[:]))), pathError("read", lockFile, err)
}

// recordDelete records the time of a delete of p durably. The caller holds the stripe of p.
func (s *session) recordDelete(p itemPath, at time.Time) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(at.UnixNano()))
	err := retryEINTR(func() error { _, err := unix.Pwrite(s.lockFD, b, p.slot()); return err })
	if err == nil {
		err = retryEINTR(func() error { return unix.Fdatasync(s.lockFD) })
	}
	return pathError("write", lockFile, err)
}

type stripes [stripeCount]chan struct{}

func newStripes() *stripes {
	var s stripes
	for i := range s {
		s[i] = make(chan struct{}, 1)
	}
	return &s
}

// lock locks the stripe of the given names until unlock is called.
func (s *Store) lock(ctx context.Context, sess *session, names ...string) (unlock func(), err error) {
	i := int64(hashOf(names...) % stripeCount)
	held := s.locks[i]
	select {
	case held <- struct{}{}:
	default:
		select {
		case held <- struct{}{}:
		case <-ctx.Done():
			return nil, storage.ContextErr(ctx)
		}
	}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := setLock(sess.lockFD, i, unix.F_WRLCK, unix.F_OFD_SETLK)
		unlock := func() {
			_ = setLock(sess.lockFD, i, unix.F_UNLCK, unix.F_OFD_SETLK) // cannot fail on a lock that is held
			<-held
		}
		if err == nil {
			if err := sess.checkLockFile(); err != nil {
				unlock()
				return nil, err
			}
			return unlock, nil
		}
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) { // another process holds it
			if retry.Sleep(ctx, wait) == nil {
				continue
			}
			err = storage.ContextErr(ctx)
		}
		<-held
		return nil, pathError("lock", lockFile, err)
	}
}

// checkLockFile returns an error if the lock file was removed. The next call then opens a new session, which creates
// it.
func (s *session) checkLockFile() error {
	var st unix.Stat_t
	if err := unix.Fstat(s.lockFD, &st); err != nil {
		return pathError("stat", lockFile, err)
	}
	if st.Nlink == 0 {
		s.locksRemoved.Store(true)
		return retry.Unavailable(fmt.Errorf("%s was removed while the store is in use", lockFile))
	}
	return nil
}

// setLock sets or removes a lock on one byte of a file. It is an open file description lock.
func setLock(fd int, at int64, kind int16, cmd int) error {
	l := unix.Flock_t{Type: kind, Start: at, Len: 1}
	return retryEINTR(func() error { return unix.FcntlFlock(uintptr(fd), cmd, &l) })
}
