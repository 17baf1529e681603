package outbox

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
)

// A successful fsync never hides a failed one: neither a concurrent one, for a full segment, nor a later
// one. Intend never succeeds for an intent that is not on disk.
func TestFsyncErrorIsNotSwallowed(t *testing.T) {
	small := func(c *Config) { c.Segment = 2048 }
	d := outboxtest.NewLossy()
	f := fileOn(t, d, small)
	x := intend(t, f, "x")
	full := make(chan struct{})
	d.During = func() {
		go func() { // until the segment is full
			defer close(full)
			for i := range 100 {
				if _, err := f.Outcome(x, changeOf("x", int64(i))); err != nil {
					return
				}
			}
		}()
		for i := 0; i < 10_000 && d.Syncing() == 1; i++ { // a second one may begin
			runtime.Gosched()
		}
	}
	d.FailSync(1)
	_, err := f.Intend(t.Context(), intentOf("a"))
	<-full
	if err == nil {
		t.Error("the fsync of an intent failed, and Intend returned no error")
	}
	if f.Stats().Err == nil {
		t.Error("the outbox continues after a failed fsync")
	}
	if got := d.MostSyncing(); got > 1 {
		t.Errorf("%d fsyncs at a time, want one", got)
	}
}

// The same for each fsync of a segment or of the directory, whichever call made it: nothing is recorded
// after the first failure.
func TestEveryFsyncErrorStays(t *testing.T) {
	for n := 1; ; n++ {
		d := outboxtest.NewLossy()
		f := fileOn(t, d, func(c *Config) { c.Limit, c.Segment = 1<<20, 900 })
		d.FailSync(n)
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
			if d.SyncFailed() && !failed {
				t.Fatalf("fsync %d failed, and no call returned its error", n)
			}
		}
		if !d.SyncFailed() {
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
	d := outboxtest.NewLossy()
	f := fileOn(t, d)
	a := intend(t, f, "a")
	_, err := f.Outcome(a, changeOf("a", 1))
	must(t, err)
	d.FailSync(1)
	if err := f.Safe(t.Context()); err == nil {
		t.Fatal("an fsync failed, and Safe returned no error")
	}
	f = fileOn(t, d)
	want := state(t, f)
	if len(want) != 1 || !strings.Contains(want[0], "change 1") {
		t.Fatalf("got %q, want the outcome", want)
	}
	intend(t, f, "b")
	lost, err := tryFile(d.After(true, rand.New(rand.NewPCG(1, 1))))
	must(t, err)
	if got := state(t, lost); len(got) != 2 || got[0] != want[0] {
		t.Errorf("after a power failure: got %q, want %q and b", got, want)
	}
}
