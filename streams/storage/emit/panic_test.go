package emit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// mustPanic calls f, which must panic with a scripted fault.
func mustPanic(t *testing.T, f func() error) {
	t.Helper()
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, storagetest.ErrFault) && !errors.Is(err, errUnavailable) {
			t.Errorf("recovered %v, want the scripted panic", err)
		}
	}()
	t.Errorf("got %v, want a panic", f())
}

// The inner store panics before or after it has made a mutation, and the caller recovers: the next mutation
// of the item resolves it, and so do Flush and Run. A mutation that was made is published once.
func TestInnerPanics(t *testing.T) {
	for method, m := range testMutations() {
		again := []string{m.op} // the same call twice
		switch method {
		case "Put":
			again = []string{"ADD", "UPDATE"}
		case "SetSpace", "SetProperties":
			again = []string{m.op, m.op}
		}
		for _, done := range []bool{false, true} {
			panics := storagetest.Fault{Method: method, Applied: done, Panic: true}
			var want []string
			if done {
				want = []string{m.op}
			}
			t.Run(fmt.Sprintf("%s done %v, next mutation", method, done), func(t *testing.T) {
				w, _ := newMutationWorld(t)
				w.faulty.Script(panics)
				mustPanic(t, func() error { return m.call(w) })
				w.wantOps(1)
				if err := m.call(w); err != nil { // already present, or already absent
					if !storage.IsNotApplied(err) {
						t.Errorf("got %v, want a refusal", err)
					}
					must(t, w.s.Flush(t.Context()))
				}
				if done {
					w.wantOps(0, again...)
				} else {
					w.wantOps(0, m.op)
				}
				w.wantNoQueues()
			})
			t.Run(fmt.Sprintf("%s done %v, Flush", method, done), func(t *testing.T) {
				w, _ := newMutationWorld(t)
				w.faulty.Script(panics)
				mustPanic(t, func() error { return m.call(w) })
				must(t, w.s.Flush(t.Context()))
				w.wantOps(0, want...)
				w.wantNoQueues()
			})
			t.Run(fmt.Sprintf("%s done %v, Run", method, done), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, _ := newMutationWorld(t)
					w.faulty.Script(panics)
					mustPanic(t, func() error { return m.call(w) })
					ran, stop := running(t, w.s)
					synctest.Wait()
					w.wantOps(0, want...)
					stop()
					must(t, <-ran)
				})
			})
		}
	}
}

// wantNoQueues checks that no queue is left and no report was made.
func (w *world) wantNoQueues() {
	w.t.Helper()
	if len(w.s.queues) != 0 || len(w.undecided) != 0 {
		w.t.Errorf("got queues %v and undecided %v, want none", w.s.queues, w.undecided)
	}
}

// The inner store panics in the Stat before a mutation: no mutation was begun.
func TestLookPanics(t *testing.T) {
	for method, m := range testMutations() {
		look := "Stat"
		if strings.HasSuffix(method, "Space") {
			look = "StatSpace"
		}
		t.Run(method, func(t *testing.T) {
			w, _ := newMutationWorld(t)
			w.faulty.Script(storagetest.Fault{Method: look, Panic: true})
			mustPanic(t, func() error { return m.call(w) })
			w.wantOps(0)
			w.wantNoQueues()
			must(t, m.call(w))
			w.wantOps(0, m.op)
		})
	}
}

// The store panics while a mutation is resolved: the next attempt is not blocked.
func TestSecondLookPanics(t *testing.T) {
	w := newWorld(t)
	w.faulty.Script(storagetest.Fault{Method: "Put", Applied: true},
		storagetest.Fault{Method: "Stat", Skip: 1, Panic: true})
	mustPanic(t, func() error { return w.putItem("a", "one") })
	w.wantOps(1)
	must(t, w.putItem("a", "two"))
	w.wantOps(0, "ADD", "UPDATE")
	w.wantNoQueues()
}

// The publisher panics, and the caller recovers: the Change and those after it are published later.
func TestPublisherPanics(t *testing.T) {
	for _, published := range []bool{false, true} {
		t.Run(fmt.Sprint("published ", published), func(t *testing.T) {
			w := newWorld(t)
			var first []*pb.Change
			w.topic.set(func(c *pb.Change) (bool, error) {
				if published {
					first = append(first, c)
				}
				panic(errUnavailable)
			})
			mustPanic(t, func() error { return w.putItem("a", "one") })
			w.topic.set(nil)
			_, err := w.s.SetProperties(t.Context(), sp, "a", storage.Properties{MediaType: "x/y"}, storage.Condition{})
			must(t, err)
			got := w.wantOps(0, "ADD", "SET_PROPERTIES")
			if slices.ContainsFunc(first, func(c *pb.Change) bool { return c.GetId() != got[0].GetId() }) {
				t.Errorf("got id %s, want that of %v", got[0].GetId(), first)
			}
			w.wantNoQueues()
		})
	}
}
