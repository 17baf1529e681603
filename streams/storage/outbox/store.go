package outbox

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	bolt "go.etcd.io/bbolt"

	"github.com/millrace/millrace/streams/retry"
)

// usable returns why nothing is recorded any more; f.mu is held.
func (f *File) usable() error {
	if f.closed {
		return errClosed
	}
	return f.err
}

// record stores one record, and returns when it is on disk; f.mu is held, but not during the transaction.
func (f *File) record(stop <-chan struct{}, t Ticket, b []byte) error {
	if err := f.usable(); err != nil {
		return err
	}
	f.waiting.records[t] = b
	return f.await(stop, f.waiting)
}

// errStopped is the error of an await that was stopped.
var errStopped = errors.New("stopped")

// await returns when the transaction of b has ended. One of the waiting callers carries it out for all. f.mu is held
// on entry and return, but not meanwhile.
func (f *File) await(stop <-chan struct{}, b *batch) error {
	for !b.ended {
		if f.storing == nil {
			f.store()
			continue
		}
		done := f.storing.done
		f.mu.Unlock()
		select {
		case <-done:
			f.mu.Lock()
		case <-stop:
			f.mu.Lock()
			return errStopped
		}
	}
	return b.err
}

// store stores the records that wait. If that fails they wait on, and can be read.
func (f *File) store() {
	b := f.waiting
	f.waiting, f.storing = newBatch(), b
	err, last, observer := f.usable(), f.last, f.observer
	if err == nil && len(b.records) > 0 {
		f.mu.Unlock()
		began := time.Now()
		err = f.commit(b, last)
		if observer != nil {
			observer(time.Since(began))
		}
		f.mu.Lock()
	}
	f.refused = nil
	if err != nil {
		err = f.failed(err)
		for t, r := range b.records {
			if _, newer := f.waiting.records[t]; !newer {
				f.waiting.records[t] = r
			}
		}
	}
	f.storing, b.ended, b.err = nil, true, err
	close(b.done)
}

// failed returns the error of a failed transaction, and keeps it; f.mu is held.
func (f *File) failed(err error) error {
	switch {
	case isFull(err):
		f.refused = retry.Unavailable(fmt.Errorf("write to the outbox: %w", err))
		return f.refused
	case f.usable() == nil:
		f.err = retry.Unavailable(fmt.Errorf("%w: %w", ErrFailed, err))
	}
	return f.usable()
}

// commit carries out the transaction of a batch.
func (f *File) commit(b *batch, last Ticket) error {
	commit := func() error { return storeRecords(f.db, b.records, last) }
	if f.cfg.Commit != nil {
		return f.cfg.Commit(commit)
	}
	return commit()
}

// isFull reports whether a transaction failed because there was no space for it on the disk. Nothing of it took effect
// then. After any other error, such as that of an fsync, the content on disk is unknown: the kernel reports a write
// error once and treats the pages as clean from then on, so a later fsync may succeed although data is lost.
func isFull(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && path.Op == "write" && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT))
}

// guard calls a function of bbolt that reads, which panics if a page is not what it expects, and faults if a page
// cannot be read. A transaction that writes ends the process then: to roll it back, bbolt reads all pages in a
// goroutine.
func guard(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return do()
}

// read reads a held mutation; f.mu is held.
func (f *File) read(t Ticket) (m Mutation, err error) {
	b := f.waiting.records[t]
	if b == nil && f.storing != nil {
		b = f.storing.records[t]
	}
	if b != nil {
		return parseRecord(t, b)
	}
	if f.closed {
		return m, errClosed
	}
	err = guard(func() error {
		return f.db.View(func(tx *bolt.Tx) error {
			m, err = parseRecord(t, tx.Bucket(bucketName).Get(recordKey(t)))
			return err
		})
	})
	if err != nil {
		return Mutation{}, fmt.Errorf("read the outbox: %w", err)
	}
	return m, nil
}
