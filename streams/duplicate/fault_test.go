package duplicate

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func fault(method string, err error) storagetest.Fault {
	return storagetest.Fault{Method: method, Err: err}
}

// gone deletes an item from a store and puts the Change into the journal.
func (w *world) gone(store string) *pb.Change {
	return w.reported(record.Delete(at(store), w.remove(store)))
}

// once calls f before the first call of a method of a store.
func (w *world) once(store, method string, f func()) {
	ran := false
	w.faulty[store].Before(func(_ context.Context, c storagetest.Call) error {
		if c.Method == method && !ran {
			ran = true
			f()
		}
		return nil
	})
}

func TestFaultsAreNeverFacts(t *testing.T) {
	unavailable := retry.Unavailable(errors.New("unavailable"))
	tests := map[string]struct {
		store   string
		fault   storagetest.Fault
		class   retry.Class
		visible bool // present after the failure
	}{
		"source stat":                     {"1", fault("Stat", nil), retry.Transient, false},
		"source is unavailable":           {"1", fault("Stat", unavailable), retry.ClassUnavailable, false},
		"destination stat":                {"2", fault("Stat", nil), retry.Transient, false},
		"destination is unavailable":      {"2", fault("Stat", unavailable), retry.ClassUnavailable, false},
		"destination marker":              {"2", fault("Marker", nil), retry.ClassUnavailable, false},
		"destination marker is another's": {"2", fault("Marker", storage.ErrWrongMarker), retry.ClassUnavailable, false},
		"open":                            {"1", fault("Open", nil), retry.Transient, false},
		"source is archived": {"1",
			fault("Open", retry.Wait(errors.New("its return was asked for"), time.Now())), retry.ClassWait, false},
		"source ends mid-stream": {"1", storagetest.Fault{Method: "Open", Mid: true, After: 3}, retry.Transient,
			false},
		"put: not persisted": {"2", fault("Put", nil), retry.Transient, false},
		"put: mid-stream": {"2", storagetest.Fault{Method: "Put", Mid: true, After: 2}, retry.Transient,
			false},
		"put: persisted": {"2", storagetest.Fault{Method: "Put", Applied: true}, retry.Transient, true},
		"put: the store is full": {"2", fault("Put", retry.Unavailable(syscall.ENOSPC)), retry.ClassUnavailable,
			false},
		"put: refused for good": {"2", fault("Put", retry.Permanent(storage.ErrName)), retry.ClassPermanent, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			w.faulty[tt.store].Script(tt.fault)
			_, err := w.run(c, 0)
			if err == nil || retry.ClassOf(err) != tt.class {
				t.Fatalf("got class %v of %v, want %v", retry.ClassOf(err), err, tt.class)
			}
			held := map[bool]string{true: "hello"}
			w.holds("2", held[tt.visible])
			// The second try ends as if there had been no fault: one Change, one task.
			got := w.mustRun(c)
			if tt.visible {
				got.ends("C2", "in-sync", nothing, 1, 1)
			} else {
				got.ends("C5", "copied", done, 1, 1)
			}
			w.holds("2", "hello")
			w.untouched("1")
		})
	}
}

// The process dies while it publishes: the Change was sent, the task of its check was not.
func TestCrashBetweenOutputs(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	first, err := w.crash(c, 0)
	w.must(err)
	w.journal.add(first.changes[0])
	w.journal.unchecked = true
	again := w.mustRun(c)
	again.ends("C2", "in-sync", nothing, 0, 1)
	lost, got := first.tasks[schemas.FixityHigh][0], again.tasks[schemas.FixityHigh][0]
	if got.GetId() != lost.GetId() || !proto.Equal(got.GetKnown(), lost.GetKnown()) {
		t.Errorf("the task is\n%v\nand was\n%v", got, lost)
	}
	w.journal.unchecked = false
	w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
}

func TestCrashBetweenWriteAndPublish(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	first, err := w.crash(c, 0)
	w.must(err)
	again := w.mustRun(c)
	again.ends("C2", "in-sync", nothing, 1, 1)
	if got, want := again.changes[0].GetId(), first.changes[0].GetId(); got != want {
		t.Errorf("the Change has id %s, and had %s", got, want)
	}
	w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
	if n := w.faulty["2"].Count("Put"); n != 1 {
		t.Errorf("%d puts", n)
	}
}

func TestRecordsUnknown(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.mustRun(c)
	w.journal.err = errors.New("no answer")
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("C2: got %v", err)
	}
	if _, err := w.run(command(w.gone("1")), 0); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("C7: got %v", err)
	}
	w.holds("2", "hello")
}

func TestMarkerMissing(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.mustRun(c)
	w.remove("1")
	w.mem["1"].Mark("") // the disk is not mounted: absence is not confirmed
	if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassUnavailable || !errors.Is(err, storage.ErrNoMarker) {
		t.Errorf("source: got %v", err)
	}
	w.holds("2", "hello")
}

func TestSourceIsSuspect(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO"))
	got := w.mustRun(c)
	got.ends("C4s", "source-suspect", handedOn, 0, 1)
	for _, tasks := range got.tasks {
		if tasks[0].GetStore() != "1" || tasks[0].GetReason() != pb.FixityReason_FIXITY_REASON_SUSPECT {
			t.Errorf("task: %v", tasks[0])
		}
	}
	w.holds("2", "")
	if n := w.faulty["1"].Count("Open"); n != 2 {
		t.Errorf("the source was read %d times, want 2", n)
	}
	w.put("2", "older")
	w.mustRun(c).ends("C4s", "source-suspect", handedOn, 0, 2)
	w.holds("2", "older")
}

func TestMismatchIsReadAgainOnce(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.faulty["2"].Script(fault("Put", storage.ErrDigest))
	w.mustRun(c).ends("C5", "copied", done, 1, 1)
}

func TestSourceChangesUnderTheCopy(t *testing.T) {
	t.Run("before it is opened, with a Change", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("1", "Open", func() { w.added("1", "two") })
		got := w.mustRun(c)
		got.ends("C5", "copied", done, 1, 1)
		if !got.result.GetNewer() {
			t.Error("C11: the result does not say that the source was newer")
		}
		w.holds("2", "two")
	})
	t.Run("before it is opened, without a Change", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("1", "Open", func() { w.put("1", "two") })
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.ClassWait {
			t.Errorf("C4w: got %v", err)
		}
		w.holds("2", "")
	})
	t.Run("while it is read", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.faulty["1"].Script(storagetest.Fault{Method: "Open", Mid: true, After: 1, Err: storage.ErrChanged})
		w.mustRun(c).ends("C5", "copied", done, 1, 1)
		w.holds("2", "one")
	})
	t.Run("during the write, with a Change", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("2", "Put", func() { w.added("1", "two") })
		got := w.mustRun(c)
		got.ends("C4", "copied", done, 2, 1)
		w.holds("2", "two")
		if got.result.GetBytes() != 6 || !got.result.GetNewer() {
			t.Errorf("result: %v", got.result)
		}
	})
	t.Run("during the write, without a Change", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("2", "Put", func() { w.put("1", "two") })
		w.mustRun(c).ends("C5", "copied", done, 1, 1)
		w.holds("2", "one")
	})
	t.Run("deleted during the write", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("2", "Put", func() { w.gone("1") })
		got := w.mustRun(c)
		got.ends("C7", "deletion-ordered", handedOn, 1, 1)
		if len(got.orders) != 1 {
			t.Errorf("orders: %v", got.orders)
		}
	})
	t.Run("for ever", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.faulty["1"].Script(storagetest.Fault{Method: "Open", Times: -1, Err: storage.ErrChanged})
		if _, err := w.run(c, 0); retry.ClassOf(err) != retry.Transient || !errors.Is(err, storage.ErrChanged) {
			t.Errorf("got %v", err)
		}
		w.holds("2", "")
	})
}

func TestDestinationChangesUnderTheCopy(t *testing.T) {
	t.Run("the same appears", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("2", "Put", func() { w.added("2", "one") })
		w.mustRun(c).ends("C2", "in-sync", nothing, 0, 0)
	})
	t.Run("another appears", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("2", "Put", func() { w.added("2", "else") })
		got, err := w.run(c, len(intervals))
		w.must(err)
		got.ends("C4o", "copy-differs", nothing, 0, 0)
		w.holds("2", "else")
	})
	t.Run("another appears, and no client reports it", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.once("2", "Put", func() { w.put("2", "else") })
		w.mustRun(c).ends("C4", "copied", done, 1, 1)
		w.holds("2", "one")
		if kept := w.mem["2"].AllKept(); len(kept) != 1 || string(kept[0].Bytes) != "else" {
			t.Errorf("kept: %v", kept)
		}
	})
	t.Run("there and back again", func(t *testing.T) {
		w := newWorld(t)
		w.put("2", "old")
		c := command(w.added("1", "one"))
		w.once("2", "Put", func() { w.put("2", "else"); w.put("2", "old") })
		w.mustRun(c).ends("C4", "copied", done, 1, 1)
		if n := w.faulty["2"].Count("Put"); n != 2 {
			t.Errorf("%d puts, want one refused and one done", n)
		}
		w.holds("2", "one")
	})
	t.Run("the second observation fails", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "one"))
		w.faulty["2"].Script(storagetest.Fault{Method: "Stat", Skip: 1})
		got := w.mustRun(c)
		got.ends("C5", "copied", done, 1, 1)
		if len(got.again) != 1 || got.again[0].GetId() == c.GetId() {
			t.Fatalf("to observe again: %v", got.again)
		}
		w.mustRun(got.again[0]).ends("C2", "in-sync", nothing, 0, 0)
	})
}

// A client deletes an item while it is copied, and another process executes the command of the delete before the copy
// is visible. Then the observation after the write fails, or does not come because the item changes all the time: the
// command is ordered once more, and deletes the copy.
func TestDeletedBeforeTheCopyIsVisible(t *testing.T) {
	for name, fails := range map[string]bool{"the source answers": false, "the source does not answer": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			w.once("2", "Put", func() {
				w.mustRun(command(w.gone("1"))).ends("C8", "gone", nothing, 0, 0)
				if fails {
					w.faulty["1"].Script(fault("Stat", nil))
				}
			})
			got := w.mustRun(c)
			if fails {
				got.ends("C5", "copied", done, 1, 1)
				got = w.mustRun(got.again[0])
			}
			if len(got.orders) != 1 || got.orders[0].GetNeedsApproval() {
				t.Errorf("got %v, orders %v", got.result, got.orders)
			}
		})
	}
	t.Run("the source is replaced after each copy", func(t *testing.T) {
		w := newWorld(t)
		c := command(w.added("1", "0"))
		n := 0
		w.faulty["2"].Before(func(_ context.Context, call storagetest.Call) error {
			if call.Method == "Put" {
				n++
				w.added("1", strconv.Itoa(n))
			}
			return nil
		})
		got := w.mustRun(c)
		w.faulty["2"].Before(func(context.Context, storagetest.Call) error { return nil })
		if n != maxIterations || len(got.again) != 1 {
			t.Fatalf("%d puts, again: %v", n, got.again)
		}
		w.mustRun(got.again[0])
		w.holds("2", strconv.Itoa(n))
	})
}

func TestWaits(t *testing.T) {
	tests := map[string]struct {
		command     func(*world) *pb.DuplicationCommand
		intervals   []time.Duration
		row, result string
		outcome     pb.Outcome
		tasks       int
	}{
		"C4w": {func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "one"))
			w.put("1", "two")
			return c
		}, intervals, "C4w", "source-newer", handedOn, 1},
		"C4": {func(w *world) *pb.DuplicationCommand { // a check found it, and no client has reported it
			w.mustRun(command(w.added("1", "one")))
			c := record.Content(at("1"), w.put("1", "two"))
			c.Origin = pb.Origin_ORIGIN_FIXITY
			w.journal.add(record.Seal(c))
			return command(c)
		}, intervals, "C4", "copy-differs", nothing, 0},
		"C6": {func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "one"))
			w.mustRun(c)
			w.remove("1")
			return c
		}, missing, "C6", "source-missing", nothing, 0},
		"C8x": {func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "one"))
			w.remove("1")
			return c
		}, missing, "C8x", "all-copies-missing", nothing, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := tt.command(w)
			for n, wait := range tt.intervals {
				from := time.Now()
				_, err := w.run(c, n)
				if due := retry.Due(err); retry.ClassOf(err) != retry.ClassWait || due.Before(from.Add(wait)) ||
					due.After(time.Now().Add(wait)) {
					t.Errorf("wait %d: got %v, due %v", n, err, due)
				}
			}
			got, err := w.run(c, len(tt.intervals))
			w.must(err)
			got.ends(tt.row, tt.result, tt.outcome, 0, tt.tasks)
		})
	}
}

// Waits for one cause do not shorten those for another.
func TestWaitsAreCountedByCause(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "one"))
	w.put("1", "two")
	if _, err := w.waited(c, map[string]int{"source-missing": len(missing)}); retry.CauseOf(err) != "source-newer" {
		t.Errorf("C4w: got %v", err)
	}
	w.remove("1")
	for _, copied := range []bool{false, true} {
		if copied {
			w.put("2", "one")
		}
		_, err := w.waited(c, map[string]int{"source-newer": len(intervals), "source-missing": 1})
		if wait := time.Until(retry.Due(err)); retry.CauseOf(err) != "source-missing" || wait > missing[1] ||
			wait < missing[1]-time.Minute {
			t.Errorf("copy present %t: got %v, due in %v", copied, err, wait)
		}
	}
}

func TestDeleteIsHandedToTheDeleter(t *testing.T) {
	w := newWorld(t)
	w.mustRun(command(w.added("1", "one")))
	gone := w.gone("1")
	c := command(gone)
	got := w.mustRun(c)
	got.ends("C7", "deletion-ordered", handedOn, 0, 0)
	w.holds("2", "one")
	o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	if len(got.orders) != 1 || got.orders[0].GetCommand() != c.GetId() || !record.Is(o, got.orders[0].GetDestination()) ||
		!got.orders[0].GetDeleted().AsTime().Equal(gone.GetTime().AsTime()) {
		t.Errorf("orders: %v", got.orders)
	}
	if again := w.mustRun(c); again.orders[0].GetId() != got.orders[0].GetId() {
		t.Error("twice the same delete has two ids")
	}
	// The destination is absent too, and no delete was reported.
	w.remove("2")
	first := w.mustRun(c)
	first.ends("C8", "gone", nothing, 1, 0)
	if d := first.changes[0]; d.GetOp() != pb.Op_OP_DELETE || d.GetStore() != "2" ||
		d.GetTime().AsTime().Before(gone.GetTime().AsTime()) {
		t.Errorf("change: %v", d)
	}
	w.mustRun(c).ends("C8", "gone", nothing, 0, 0)
}
