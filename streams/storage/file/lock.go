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

// Items are locked in stripes: within a process by a channel, between processes by a
// lock on one byte of the file of locks. A call holds at most one stripe.
const (
	stripeCount = 256
	openByte    = stripeCount // who opens the store and looks for the dead
)

// The file of locks also has the times of deletes, so that no process dates a Put before a delete that came first,
// whatever its clock says: of each slot of items the newest, as nanoseconds since 1970 in 8 bytes. All items of
// a slot are of one stripe. The blocks are written when the file is made, so that a delete needs no room.
const slotCount = 16 * stripeCount

func hashOf(names ...string) uint32 {
	h := fnv.New32a()
	for _, name := range names {
		fmt.Fprintf(h, "%d:%s", len(name), name)
	}
	return h.Sum32()
}

// slot is where the file of locks has the time of the newest delete of p's slot.
func (p itemPath) slot() int64 { return 8 * int64(hashOf(p.space, p.item)%slotCount) }

// makeSlots makes room for the times of deletes. No other process does that now.
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

// deleted returns the time of the newest delete in p's slot, whose stripe the caller has locked.
func (s *session) lastDelete(p itemPath) (time.Time, error) {
	var b [8]byte
	err := retryEINTR(func() error { _, err := unix.Pread(s.lockFD, b[:], p.slot()); return err })
	return time.Unix(0, int64(binary.LittleEndian.Uint64(b[:]))), pathError("read", lockFile, err)
}

// setDeleted records the time of a delete of p and has it on disk. The caller has locked p's stripe.
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

// lock locks the stripe of what is named until unlock is called.
func (s *Store) lock(ctx context.Context, sess *session, names ...string) (unlock func(), err error) {
	i := int64(hashOf(names...) % stripeCount)
	held := s.locks[i]
	select {
	case held <- struct{}{}:
	default:
		select {
		case held <- struct{}{}:
		case <-ctx.Done():
			return nil, storage.Ended(ctx)
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
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) { // another process has it
			if retry.Sleep(ctx, wait) == nil {
				continue
			}
			err = storage.Ended(ctx)
		}
		<-held
		return nil, pathError("lock", lockFile, err)
	}
}

// hasLocks returns an error if the file of locks was removed. The next call makes a new session, and the file with it.
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

// setLock sets or removes a lock on one byte of a file, which belongs to this opening of it.
func setLock(fd int, at int64, kind int16, cmd int) error {
	l := unix.Flock_t{Type: kind, Start: at, Len: 1}
	return retryEINTR(func() error { return unix.FcntlFlock(uintptr(fd), cmd, &l) })
}
