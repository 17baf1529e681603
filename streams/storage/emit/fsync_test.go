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

// A forgetful disk loses what a failed fsync was to write, as Linux does: the error is returned to one caller, the pages
// count as clean from then on, and an fsync that follows succeeds without them.
type lossyDisk struct {
	*memDisk
	fail   atomic.Int32 // the fsync of a segment that fails, counted down; 0: none
	during func()       // called while it is under way
	inside atomic.Int32 // fsyncs of one file that are under way
	most   atomic.Int32

	pages sync.Mutex // guards clean
	// clean are the bytes of files, by offset, that count as written and are not on disk.
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

// sync has the names on disk; it may be the fsync that fails, and is never tried again.
func (d *lossyDisk) sync() error {
	if d.fail.Load() > 0 && d.fail.Add(-1) == 0 {
		return unix.EIO
	}
	return d.memDisk.sync()
}

// An fsync that fails is never made good by one that succeeds: neither one at the same time, for a segment that is
// full, nor one after it. Nobody is told that an intent is on disk which is not.
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
		t.Error("the outbox goes on after an fsync that failed")
	}
	if got := d.most.Load(); got > 1 {
		t.Errorf("%d fsyncs at a time, want one", got)
	}
}

// The same for each fsync of a segment, or of the directory, that fails once, whoever made it: nothing is noted any more.
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
				t.Fatalf("fsync %d: the outbox notes again after an fsync that failed", n)
			}
			failed = failed || err != nil
			if d.fail.Load() <= 0 && !failed {
				t.Fatalf("fsync %d failed, and nobody had its error", n)
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

// What a process that starts again finds after an fsync that failed is in memory, and not on disk: it is written once
// more, so that it outlives the machine.
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
