package emit

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// A lossyDisk loses the data of a failed fsync, as Linux does: the error is returned to one caller, the
// pages count as clean from then on, and the next fsync succeeds without them.
type lossyDisk struct {
	*memDisk
	fail   atomic.Int32 // counts down to the fsync that fails; 0: none
	during func()       // called during the failing fsync
	inside atomic.Int32 // fsyncs in progress
	most   atomic.Int32

	pages sync.Mutex // guards clean
	// clean has the offsets of bytes that count as written and are not on disk, by file.
	clean map[*memFile]map[int]bool
}

type lossyFile struct {
	*memFile
	d *lossyDisk
}

func newLossyDisk() *lossyDisk {
	return &lossyDisk{memDisk: newMemDisk(), clean: map[*memFile]map[int]bool{}}
}

func (d *lossyDisk) open(name string, create bool) (diskFile, error) {
	f, err := d.memDisk.open(name, create)
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
	if fails && d.during != nil {
		d.during()
	}
	d.pages.Lock()
	defer d.pages.Unlock()
	d.memDisk.mu.Lock()
	was, all := slices.Clone(f.synced), len(f.bytes)
	d.memDisk.mu.Unlock()
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
	d.memDisk.mu.Lock()
	defer d.memDisk.mu.Unlock()
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

// sync makes the names durable; it may be the fsync that fails, and is never retried.
func (d *lossyDisk) sync() error {
	if d.fail.Load() > 0 && d.fail.Add(-1) == 0 {
		return unix.EIO
	}
	return d.memDisk.sync()
}

// A successful fsync never hides a failed one: neither a concurrent one, for a full segment, nor a later
// one. Intend never succeeds for an intent that is not on disk.
func TestFsyncErrorIsNotSwallowed(t *testing.T) {
	small := func(c *FileConfig) { c.Segment = 2048 }
	d := newLossyDisk()
	f := fileOn(t, d, small)
	x := intend(t, f, "x")
	full := make(chan struct{})
	d.during = func() {
		go func() { // until the segment is full
			defer close(full)
			for i := range 100 {
				if _, err := f.Outcome(x, changeOf("x", int64(i))); err != nil {
					return
				}
			}
		}()
		for i := 0; i < 10_000 && d.inside.Load() == 1; i++ { // a second one may begin
			runtime.Gosched()
		}
	}
	d.fail.Store(1)
	_, err := f.Intend(t.Context(), intentOf("a"))
	<-full
	if err == nil {
		t.Error("the fsync of an intent failed, and Intend returned no error")
	}
	if f.Stats().Err == nil {
		t.Error("the outbox continues after a failed fsync")
	}
	if got := d.most.Load(); got > 1 {
		t.Errorf("%d fsyncs at a time, want one", got)
	}
}

// The same for each fsync of a segment or of the directory, whichever call made it: nothing is recorded
// after the first failure.
func TestEveryFsyncErrorStays(t *testing.T) {
	for n := int32(1); ; n++ {
		d := newLossyDisk()
		f := fileOn(t, d, func(c *FileConfig) { c.Limit, c.Segment = 1<<20, 900 })
		d.fail.Store(n)
		failed := false
		for i := range 60 {
			ticket, err := f.Intend(t.Context(), intentOf(fmt.Sprint(i)))
			if err == nil {
				_, err = f.Outcome(ticket, changeOf(fmt.Sprint(i), int64(i)))
			}
			if err == nil && i%3 > 0 {
				err = f.Done(ticket)
			}
			if failed && err == nil {
				t.Fatalf("fsync %d: the outbox records again after a failed fsync", n)
			}
			failed = failed || err != nil
			if d.fail.Load() <= 0 && !failed {
				t.Fatalf("fsync %d failed, and no call returned its error", n)
			}
		}
		if d.fail.Load() > 0 {
			if n < 60 {
				t.Errorf("only %d fsyncs", n-1)
			}
			return
		}
		if st := f.Stats(); st.Err == nil {
			t.Fatalf("fsync %d failed, and Stats do not say so", n)
		}
	}
}

// After a failed fsync and a restart, the data is in the page cache but not on disk: it is written again,
// so that it survives a power failure.
func TestReopenedAfterFsyncError(t *testing.T) {
	d := newLossyDisk()
	f := fileOn(t, d)
	a := intend(t, f, "a")
	_, err := f.Outcome(a, changeOf("a", 1))
	must(t, err)
	d.fail.Store(1)
	if err := f.Safe(t.Context()); err == nil {
		t.Fatal("an fsync failed, and Safe returned no error")
	}
	f = fileOn(t, d)
	want := state(t, f)
	if len(want) != 1 || !strings.Contains(want[0], "change 1") {
		t.Fatalf("got %q, want the outcome", want)
	}
	intend(t, f, "b")
	lost, err := tryFile(d.after(true, rand.New(rand.NewPCG(1, 1))))
	must(t, err)
	if got := state(t, lost); len(got) != 2 || got[0] != want[0] {
		t.Errorf("after a power failure: got %q, want %q and b", got, want)
	}
}
