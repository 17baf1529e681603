package fixity

import (
	"context"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func TestMismatchOfTransport(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.store.Before(func(_ context.Context, c storagetest.Call) error {
			if c.Method == "Open" { // only the first reading is damaged
				w.mem.Corrupt(at.Space, at.Item, []byte(map[int]string{1: rot}[w.store.Count("Open")]))
				if w.store.Count("Open") > 1 {
					w.mem.Corrupt(at.Space, at.Item, []byte(good))
				}
			}
			return nil
		})
		o := w.handle(task(w.record))
		w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
		if r := o.result; r.GetDetail() != "transport" ||
			maps.Equal(r.GetContent().GetDigests(), r.GetConfirmed().GetDigests()) {
			t.Errorf("detail %q, content %v, confirmed %v", r.GetDetail(), r.GetContent(), r.GetConfirmed())
		}
	})
}

func TestStoreThatDoesNotAnswer(t *testing.T) {
	tests := map[string][]storagetest.Fault{
		"first stat":                    {{Method: "Stat"}},
		"second stat":                   {{Method: "Stat", Skip: 1}},
		"open":                          {{Method: "Open"}},
		"open, whole store unavailable": {{Method: "Open", Err: retry.Unavailable(errors.New("connection refused"))}},
		"in the midst of bytes":         {{Method: "Open", Mid: true, After: 5}},
		"bytes that end early":          {{Method: "Open", Mid: true, After: 5, Err: io.EOF}},
	}
	for name, faults := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.store.Script(faults...)
				o := w.handle(task(w.record))
				w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
				if got, want := o.due, time.Now().Add(5*time.Minute); !got.Equal(want) || o.again.GetRecheck() != 1 {
					t.Errorf("re-check %d due %v, want 1 at %v", o.again.GetRecheck(), got, want)
				}
				time.Sleep(time.Until(o.due))
				w.is(w.handle(o.again), 1, pb.Verdict_VERDICT_PASS, true)
			})
		})
	}
}

// An object that is absent at the second reading has changed: the check starts over.
func TestObjectGoneAtTheSecondReading(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mem.Corrupt(at.Space, at.Item, []byte(rot))
		w.store.Script(storagetest.Fault{Method: "Open", Skip: 1, Err: storage.ErrNotFound})
		w.is(w.handle(task(w.record)), 2, pb.Verdict_VERDICT_FAIL, true)
		if n := w.store.Count("Open"); n != 4 {
			t.Errorf("%d readings, want 4", n)
		}
	})
}

func TestStoreAwayAtTheSecondReading(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.mem.Corrupt(at.Space, at.Item, []byte(rot))
		w.store.Script(storagetest.Fault{Method: "Open", Skip: 1, Mid: true, After: 3})
		w.is(w.handle(task(w.record)), 12, pb.Verdict_VERDICT_UNKNOWN, false)
	})
}

func TestAbsenceNeedsTheMarker(t *testing.T) {
	for name, mark := range map[string]string{"no marker": "", "another store's": "9"} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.mem.Lose(at.Space, at.Item)
				w.mem.Mark(mark)
				next := task(w.record)
				for range 6 {
					o := w.handle(next)
					w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
					if o.result.GetContent().GetState() != stUnknown || o.result.GetStored().GetState() != stUnknown {
						t.Errorf("C %v, S %v", o.result.GetContent(), o.result.GetStored())
					}
					time.Sleep(time.Until(o.due))
					next = o.again
				}
				w.mem.Mark(at.Store)
				o := w.handle(next)
				w.is(o, 8, pb.Verdict_VERDICT_UNDECIDED, false) // re-checked
				time.Sleep(time.Until(o.due))
				w.is(w.handle(o.again), 8, pb.Verdict_VERDICT_MISSING, true)
			})
		})
	}
}

func TestChangeDuringTheCheck(t *testing.T) {
	when := map[string]storagetest.Call{
		"before the bytes": {Method: "Open", Space: at.Space, Item: at.Item},
		"after the bytes":  {Method: "Stat", Space: at.Space, Item: at.Item},
	}
	for name, call := range when {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.store.Before(func(_ context.Context, c storagetest.Call) error {
					time.Sleep(time.Second)
					if c == call && w.store.Count("Stat")+w.store.Count("Open") == map[string]int{"Open": 2, "Stat": 3}[c.Method] {
						w.put(rot)
						w.record = w.now()
					}
					return nil
				})
				start := time.Now()
				o := w.handle(task(w.record))
				w.is(o, 1, pb.Verdict_VERDICT_PASS, true)
				if got := digest.Set(o.result.GetContent().GetDigests()); got.Compare(sums(rot)) != digest.Agree {
					t.Errorf("passed with %v, want %v", got, sums(rot))
				}
				if o.result.GetOvertaken() || !o.result.GetStarted().AsTime().After(start) {
					t.Errorf("started %v, overtaken %v: the second attempt is the check", o.result.GetStarted(),
						o.result.GetOvertaken())
				}
			})
		})
	}
}

func TestChangeWhileRecordsAreRead(t *testing.T) {
	tests := map[string]struct {
		before, meanwhile func(*world)
		row               int32
	}{
		"written over": {func(*world) {}, func(w *world) { w.put(rot); w.record = w.now() }, 1},
		"written over, unread": {func(w *world) {
			w.settings.NeverRead = true
		}, func(w *world) { w.put(rot); w.record = w.now() }, 1},
		"written anew": {(*world).delete, func(w *world) { w.put(rot); w.record = w.now() }, 1},
		"deleted":      {func(*world) {}, func(w *world) { w.delete(); w.record = nothing() }, 11},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				tt.before(w)
				w.fresh = func() ([]*pb.CopyRecord, error) {
					if w.asked == 1 {
						tt.meanwhile(w)
					}
					return []*pb.CopyRecord{w.record}, nil
				}
				o := w.handle(task(nil))
				if o.result.GetRow() != tt.row || !o.result.GetFinal() || w.asked != 2 {
					t.Errorf("got row %d (%s) after %d readings of the records, want row %d after 2",
						o.result.GetRow(), o.result.GetDetail(), w.asked, tt.row)
				}
			})
		})
	}
}

func TestStoreAwayAfterRecordsAreRead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.record.Audit = nothing().Audit
		w.store.Script(storagetest.Fault{Method: "Stat", Skip: 2})
		w.is(w.handle(task(nil)), 12, pb.Verdict_VERDICT_UNKNOWN, false)
	})
}

func TestObjectThatKeepsChanging(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.store.Before(func(_ context.Context, c storagetest.Call) error {
			if c.Method == "Stat" {
				w.put(good)
			}
			return nil
		})
		o := w.handle(task(w.record))
		w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
		if !o.result.GetOvertaken() || o.result.GetDetail() != detailChanging || w.store.Count("Stat") != 2*(3+1) {
			t.Errorf("overtaken %v, detail %q, %d stats", o.result.GetOvertaken(), o.result.GetDetail(), w.store.Count("Stat"))
		}
	})
}

func TestRecordsUnknown(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.fresh = func() ([]*pb.CopyRecord, error) { return nil, errors.New("has not caught up") }
		w.mem.Corrupt(at.Space, at.Item, []byte(rot))
		o := w.handle(task(w.record))
		w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
		if m, a := o.result.GetManifest().GetState(), o.result.GetAudit().GetState(); m != stUnknown || a != stUnknown {
			t.Errorf("M %v, A %v", m, a)
		}
		if !strings.Contains(o.result.GetDetail(), "has not caught up") {
			t.Errorf("detail %q does not say why", o.result.GetDetail())
		}
	})
}

func TestBrieflyMissing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.store.Script(storagetest.Fault{Method: "Stat", Times: 3, Err: storage.ErrNotFound},
			storagetest.Fault{Method: "Open", Err: storage.ErrNotFound})
		o := w.handle(task(w.record))
		w.is(o, 8, pb.Verdict_VERDICT_UNDECIDED, false)
		time.Sleep(time.Until(o.due))
		w.is(w.handle(o.again), 1, pb.Verdict_VERDICT_PASS, true)
	})
}

func TestCancelled(t *testing.T) {
	reason := errors.New("partition revoked")
	for _, method := range []string{"Stat", "Open", "Marker", "Fresh"} {
		t.Run(method, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				w.fresh = func() ([]*pb.CopyRecord, error) { cancel(reason); return nil, ctx.Err() }
				w.store.Before(func(_ context.Context, c storagetest.Call) error {
					if c.Method != method {
						return nil
					}
					cancel(reason)
					return ctx.Err()
				})
				if method == "Marker" {
					w.mem.Lose(at.Space, at.Item)
				}
				got, err := w.checker().Handle(ctx, &schemas.Delivery{Body: task(nil)})
				if !errors.Is(err, reason) || got != nil {
					t.Errorf("got %v, %v, want only the reason", got, err)
				}
			})
		})
	}
}
