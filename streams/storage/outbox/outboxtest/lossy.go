package outboxtest

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage/outbox/disk"
)

// A Lossy loses the data of a failed fsync, as Linux does: the error is returned to one caller, the
// pages count as clean from then on, and the next fsync succeeds without them.
type Lossy struct {
	*Disk
	fail   atomic.Int32 // counts down to the fsync that fails; 0: none
	During func()       // called during the failing fsync
	inside atomic.Int32 // fsyncs in progress
	most   atomic.Int32

	pages sync.Mutex // guards clean
	// clean has the offsets of bytes that count as written and are not on disk, by file.
	clean map[*memFile]map[int]bool
}

type lossyFile struct {
	*memFile
	d *Lossy
}

// NewLossy returns an empty disk.
func NewLossy() *Lossy {
	return &Lossy{Disk: New(), clean: map[*memFile]map[int]bool{}}
}

// FailSync makes the nth fsync from now fail; 1 is the next.
func (d *Lossy) FailSync(n int) { d.fail.Store(int32(n)) }

// SyncFailed reports whether the fsync of FailSync was reached.
func (d *Lossy) SyncFailed() bool { return d.fail.Load() <= 0 }

// Syncing returns the number of fsyncs in progress.
func (d *Lossy) Syncing() int { return int(d.inside.Load()) }

// MostSyncing returns the greatest number of concurrent fsyncs so far.
func (d *Lossy) MostSyncing() int { return int(d.most.Load()) }

// Open implements disk.Disk.
func (d *Lossy) Open(name string, create bool) (disk.File, error) {
	f, err := d.Disk.Open(name, create)
	if err != nil {
		return nil, err
	}
	return lossyFile{f.(*memFile), d}, nil
}

func (f lossyFile) WriteAt(b []byte, at int64) (int, error) {
	f.d.pages.Lock()
	defer f.d.pages.Unlock()
	for i := range b {
		delete(f.d.clean[f.memFile], int(at)+i)
	}
	return f.memFile.WriteAt(b, at)
}

func (f lossyFile) Sync() error {
	d := f.d
	now := d.inside.Add(1)
	defer d.inside.Add(-1)
	d.most.Store(max(d.most.Load(), now))
	fails := d.fail.Load() > 0 && d.fail.Add(-1) == 0
	if fails && d.During != nil {
		d.During()
	}
	d.pages.Lock()
	defer d.pages.Unlock()
	d.Disk.mu.Lock()
	was, all := slices.Clone(f.synced), len(f.bytes)
	d.Disk.mu.Unlock()
	if fails {
		if d.clean[f.memFile] == nil {
			d.clean[f.memFile] = map[int]bool{}
		}
		for i := len(was); i < all; i++ {
			d.clean[f.memFile][i] = true
		}
		return unix.EIO
	}
	if err := f.memFile.Sync(); err != nil {
		return err
	}
	d.Disk.mu.Lock()
	defer d.Disk.mu.Unlock()
	for i := range d.clean[f.memFile] { // these pages were not written
		if i >= len(f.synced) {
			continue
		}
		if f.synced[i] = 0; i < len(was) {
			f.synced[i] = was[i]
		}
	}
	return nil
}

// Sync makes the names durable; it may be the fsync that fails, and is never retried.
func (d *Lossy) Sync() error {
	if d.fail.Load() > 0 && d.fail.Add(-1) == 0 {
		return unix.EIO
	}
	return d.Disk.Sync()
}
