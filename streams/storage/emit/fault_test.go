package emit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

var errUnavailable = errors.New("broker is unavailable")

// A testMutation is a mutation of a world with an item b in space photos and a space named empty.
type testMutation struct {
	op   string
	call func(w *world) error
}

// testMutations returns a call of each mutating method, by method.
func testMutations() map[string]testMutation {
	ctx := context.Background()
	return map[string]testMutation{
		"Put":         {"ADD", func(w *world) error { _, err := w.put("new"); return err }},
		"CreateSpace": {"CREATE_SPACE", func(w *world) error { return w.s.CreateSpace(ctx, storage.Space{Name: "s"}) }},
		"SetSpace": {"SET_SPACE_PROPERTIES", func(w *world) error {
			return w.s.SetSpace(ctx, storage.Space{Name: sp, Properties: map[string]string{"k": "v"}})
		}},
		"DeleteSpace": {"DELETE_SPACE", func(w *world) error { return w.s.DeleteSpace(ctx, "empty") }},
		"SetProperties": {"SET_PROPERTIES", func(w *world) error {
			_, err := w.s.SetProperties(ctx, sp, "b", storage.Properties{MediaType: "x/y"}, storage.Condition{})
			return err
		}},
		"Delete": {"DELETE", func(w *world) error {
			_, err := w.s.Delete(ctx, sp, "b", storage.DeleteOptions{})
			return err
		}},
	}
}

// newMutationWorld returns a world for testMutations, and item b.
func newMutationWorld(t *testing.T) (*world, storage.Object) {
	t.Helper()
	w := newWorld(t)
	must(t, w.mem.CreateSpace(t.Context(), storage.Space{Name: "empty"}))
	was, err := w.mem.Put(t.Context(), sp, "b", strings.NewReader("b"), storage.PutOptions{Size: 1})
	must(t, err)
	return w, was
}

// The inner call fails and was not applied, or fails but was applied. Only applied mutations are published;
// the caller gets the error in both cases.
func TestInnerTwins(t *testing.T) {
	for method, m := range testMutations() {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s done %v", method, done), func(t *testing.T) {
				w, was := newMutationWorld(t)
				w.faulty.Script(storagetest.Fault{Method: method, Applied: done})
				if err := m.call(w); !errors.Is(err, storagetest.ErrFault) || errors.Is(err, ErrNotPublished) {
					t.Errorf("got %v, want the store's error", err)
				}
				if !done {
					w.wantOps(0)
					return
				}
				c := w.wantOps(0, m.op)[0]
				if m.op == "DELETE" && (c.GetVersion() != was.Version || c.GetDigests()["md5"] != was.Digests["md5"]) {
					t.Errorf("got %v, want the deleted content", c)
				}
				if m.op == "ADD" && (c.GetUser() != "ann" || c.GetOrigin() != pb.Origin_ORIGIN_CLIENT || len(c.GetDigests()) == 0) {
					t.Errorf("got %v, want the client's change", c)
				}
			})
		}
	}
}

// A sentinel in an error's chain is no proof that nothing was applied: a driver may return it after a
// write. Only storage.NotApplied is. The caller gets the sentinel in each case, and the mark only with its
// proof.
func TestOnlyTheMarkProves(t *testing.T) {
	sentinels := []error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged,
		storage.ErrDigest,
		storage.ErrName, storage.ErrReadOnly, storage.ErrUnsupported, storage.ErrTooLarge, storage.ErrSlowDown,
	}
	for method, m := range testMutations() {
		for _, sentinel := range sentinels {
			for name, fault := range map[string]storagetest.Fault{
				"done":             {Applied: true, Err: fmt.Errorf("driver: %w", sentinel)},
				"not done":         {Err: fmt.Errorf("driver: %w", sentinel)},
				"not done, proven": {Err: retry.Permanent(storage.NotApplied(fmt.Errorf("driver: %w", sentinel)))},
			} {
				t.Run(fmt.Sprintf("%s %v %s", method, sentinel, name), func(t *testing.T) {
					w, _ := newMutationWorld(t)
					fault.Method = method
					w.faulty.Script(fault)
					err := m.call(w)
					marked := storage.IsNotApplied(fault.Err) || method == "Put" && !fault.Applied // the Put read no byte
					if !errors.Is(err, sentinel) || storage.IsNotApplied(err) != marked {
						t.Errorf("got %v, marked %v, want the store's error, marked %v", err, storage.IsNotApplied(err), marked)
					}
					if fault.Applied {
						w.wantOps(0, m.op)
					} else {
						w.wantOps(0)
					}
					looks := w.faulty.Count("Stat") + w.faulty.Count("StatSpace")
					want := 2
					if marked {
						want = 1
					}
					if looks != want || len(w.undecided) != 0 {
						t.Errorf("got %d looks and undecided %v, want %d looks", looks, w.undecided, want)
					}
				})
			}
		}
	}
}

// After an unmarked error, a failed look-up and a kill, the next process resolves the mutation.
func TestUnprovenErrorThenKill(t *testing.T) {
	for name, tt := range map[string]struct {
		fault storagetest.Fault
		held  int
		want  []string
	}{
		"done":             {storagetest.Fault{Applied: true, Err: storage.ErrReadOnly}, 1, []string{"DELETE"}},
		"not done":         {storagetest.Fault{Err: storage.ErrReadOnly}, 1, nil},
		"not done, proven": {storagetest.Fault{Err: storage.NotApplied(storage.ErrReadOnly)}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d, m := outboxtest.New(), memory(t)
			_, err := m.Put(t.Context(), sp, "a", strings.NewReader("x"), storage.PutOptions{Size: 1})
			must(t, err)
			w := durable(t, d, m)
			tt.fault.Method = "Delete"
			w.faulty.Script(tt.fault, storagetest.Fault{Method: "Stat", Skip: 1, Times: -1})
			if _, err := w.s.Delete(t.Context(), sp, "a", storage.DeleteOptions{}); !errors.Is(err, storage.ErrReadOnly) {
				t.Errorf("got %v, want the store's error", err)
			}
			w = durable(t, d.After(false, nil), m)
			if got := w.held(); got != tt.held {
				t.Errorf("%d are in the outbox, want %d", got, tt.held)
			}
			must(t, w.s.Flush(t.Context()))
			if got := ops(w.topic.take()); fmt.Sprint(got) != fmt.Sprint(tt.want) || w.held() != 0 {
				t.Errorf("got %v, %d left, want %v", got, w.held(), tt.want)
			}
		})
	}
}

// The store fails a mutation and then does not answer: the intent stays until the store can be observed.
func TestInnerUnknown(t *testing.T) {
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprint("done ", done), func(t *testing.T) {
			w := newWorld(t)
			if _, err := w.mem.Put(t.Context(), sp, "a", strings.NewReader("x"), storage.PutOptions{Size: 1}); err != nil {
				t.Fatal(err)
			}
			w.faulty.Script(storagetest.Fault{Method: "Delete", Applied: done},
				storagetest.Fault{Method: "Stat", Skip: 1, Times: 2})
			if _, err := w.s.Delete(t.Context(), sp, "a", storage.DeleteOptions{}); !errors.Is(err, storagetest.ErrFault) {
				t.Errorf("got %v, want the store's error", err)
			}
			w.wantOps(1)
			if err := w.s.Flush(t.Context()); !errors.Is(err, storagetest.ErrFault) {
				t.Errorf("Flush while the store is unavailable: got %v", err)
			}
			w.wantOps(1)
			if err := w.s.Flush(t.Context()); err != nil {
				t.Errorf("Flush: %v", err)
			}
			if done {
				w.wantOps(0, "DELETE")
			} else {
				w.wantOps(0)
			}
		})
	}
}

// If the store's state does not decide the outcome of a Put, that state is published without a user, and
// the intent is reported.
func TestUndecided(t *testing.T) {
	w := newWorld(t)
	w.faulty.Script(storagetest.Fault{Method: "Put", Applied: true}, storagetest.Fault{Method: "Stat", Skip: 1})
	if _, err := w.put("one"); !errors.Is(err, storagetest.ErrFault) {
		t.Fatalf("got %v, want the store's error", err)
	}
	w.wantOps(1)
	if _, err := w.mem.Put(t.Context(), sp, "a", strings.NewReader("by another"),
		storage.PutOptions{Size: 10}); err != nil {
		t.Fatal(err)
	}
	if err := w.s.Flush(t.Context()); err != nil {
		t.Errorf("Flush: %v", err)
	}
	c := w.wantOps(0, "UPDATE")[0]
	if c.GetOrigin() != pb.Origin_ORIGIN_SWEEP || c.GetUser() != "" || len(w.undecided) != 1 ||
		w.undecided[0].Draft.GetUser() != "ann" {
		t.Errorf("got %v and undecided %+v, want origin sweep, no user, and ann's intent reported", c, w.undecided)
	}
	if got := w.outbox.Stats().Undecided; got != 1 {
		t.Errorf("got %d undecided, want 1", got)
	}
}

// The recorded digests of the stream decide the outcome, also when the next mutation resolves it.
func TestResolvedByNextMutation(t *testing.T) {
	w := newWorld(t)
	w.faulty.Script(storagetest.Fault{Method: "Put", Applied: true}, storagetest.Fault{Method: "Stat", Skip: 1})
	if _, err := w.put("one"); !errors.Is(err, storagetest.ErrFault) {
		t.Fatalf("got %v, want the store's error", err)
	}
	w.wantOps(1)
	if _, err := w.put("two"); err != nil {
		t.Fatal(err)
	}
	c := w.wantOps(0, "ADD", "UPDATE")
	if c[0].GetUser() != "ann" || len(w.undecided) != 0 {
		t.Errorf("got %v and undecided %v, want ann's", c[0], w.undecided)
	}
}

// An absence proves nothing in a store without the right marker.
func TestAbsentInWrongStore(t *testing.T) {
	w := newWorld(t)
	if _, err := w.put("one"); err != nil {
		t.Fatal(err)
	}
	w.topic.take()
	w.faulty.Script(storagetest.Fault{Method: "Delete", Applied: true})
	w.mem.Mark("")
	if _, err := w.s.Delete(t.Context(), sp, "a", storage.DeleteOptions{}); !errors.Is(err, storagetest.ErrFault) {
		t.Errorf("got %v, want the store's error", err)
	}
	w.wantOps(1)
	w.mem.Mark("1")
	if err := w.s.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	w.wantOps(0, "DELETE")
}

// A failing reader proves that nothing was applied: the store is not observed.
func TestStreamBreaks(t *testing.T) {
	w := newWorld(t)
	boom := errors.New("boom")
	r := storagetest.FailingReader(strings.NewReader("content"), 3, boom)
	if _, err := w.s.Put(t.Context(), sp, "a", r, storage.PutOptions{Size: storage.UnknownSize}); !errors.Is(err, boom) {
		t.Errorf("got %v, want the reader's error", err)
	}
	w.wantOps(0)
	if n := w.faulty.Count("Stat"); n != 1 {
		t.Errorf("got %d looks at the item, want that before the put only", n)
	}
}

// Publishing fails, or fails although it was published. In both cases the mutation succeeds, and the Change is
// published later with the same id.
func TestPublishTwins(t *testing.T) {
	for _, published := range []bool{false, true} {
		t.Run(fmt.Sprint("published ", published), func(t *testing.T) {
			w := newWorld(t)
			w.topic.set(func(*pb.Change) (bool, error) { return published, errUnavailable })
			o, err := w.put("one")
			if err != nil || o.Version == "" || w.held() != 1 {
				t.Fatalf("got %+v, %v, and %d in the outbox, want the stored object", o, err, w.held())
			}
			held, err := w.outbox.Read(w.pending()[0].Ticket)
			must(t, err)
			first := w.topic.take()
			if err := w.s.Flush(t.Context()); !errors.Is(err, errUnavailable) {
				t.Errorf("Flush while the broker is unavailable: got %v", err)
			}
			w.topic.take()
			w.topic.set(nil)
			if err := w.s.Flush(t.Context()); err != nil {
				t.Errorf("Flush: %v", err)
			}
			c := w.wantOps(0, "ADD")[0]
			if want := held.Change.GetId(); c.GetId() != want || published && first[0].GetId() != want {
				t.Errorf("got id %s, want %s", c.GetId(), want)
			}
			if err := w.s.Flush(t.Context()); err != nil {
				t.Errorf("Flush of nothing: %v", err)
			}
			w.wantOps(0)
		})
	}
}

// Pending Changes of an item are published before its next one; other items do not wait for them.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.topic.set(func(c *pb.Change) (bool, error) {
		if c.GetItem() == "a" {
			return false, errUnavailable
		}
		return true, nil
	})
	for _, content := range []string{"one", "two"} {
		if _, err := w.put(content); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.s.Put(ctx, sp, "b", strings.NewReader(""), storage.PutOptions{}); err != nil {
		t.Errorf("another item waits: %v", err)
	}
	w.wantOps(2, "ADD")
	w.topic.set(nil)
	if _, err := w.s.Delete(ctx, sp, "a", storage.DeleteOptions{}); err != nil {
		t.Errorf("Delete: %v", err)
	}
	w.wantOps(0, "ADD", "UPDATE", "DELETE")
}

// A Change that is rejected permanently does not block the next one.
func TestRejectedChange(t *testing.T) {
	w := newWorld(t)
	w.topic.set(func(c *pb.Change) (bool, error) { return false, retry.Permanent(errUnavailable) })
	if _, err := w.put("one"); !errors.Is(err, ErrNotPublished) || !retry.IsPermanent(err) {
		t.Errorf("got %v, want a permanent ErrNotPublished", err)
	}
	w.topic.set(nil)
	if _, err := w.put("two"); err != nil {
		t.Errorf("the next change: %v", err)
	}
	w.wantOps(0, "UPDATE")
	if got := w.outbox.Stats().Rejected; got != 1 {
		t.Errorf("got %d rejected, want 1", got)
	}
}

// A badOutbox returns the errors that are set.
type badOutbox struct {
	*outbox.File
	intend, outcome, done error
}

func (b *badOutbox) Intend(ctx context.Context, in outbox.Mutation) (outbox.Ticket, error) {
	if b.intend != nil {
		return 0, b.intend
	}
	return b.File.Intend(ctx, in)
}

func (b *badOutbox) Outcome(t outbox.Ticket, c *pb.Change) (outbox.Ticket, error) {
	if b.outcome != nil {
		return 1 << 40, b.outcome
	}
	return b.File.Outcome(t, c)
}

func (b *badOutbox) Done(t outbox.Ticket) error {
	if b.done != nil {
		return b.done
	}
	return b.File.Done(t)
}

func TestOutboxFails(t *testing.T) {
	boom := errors.New("disk is full")
	tests := map[string]struct {
		outbox    badOutbox
		puts      int      // calls of the inner store
		published []string // ops published at once
		want      error
		later     []string // ops published by Flush when the outbox works again
	}{
		"intent":  {badOutbox{intend: boom}, 0, nil, boom, nil},
		"outcome": {badOutbox{outcome: boom}, 1, []string{"ADD"}, nil, nil},
		"done":    {badOutbox{done: boom}, 1, []string{"ADD"}, nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.outbox.File = w.outbox
			w.s.cfg.Outbox = &tt.outbox
			if _, err := w.put("one"); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if got := w.faulty.Count("Put"); got != tt.puts {
				t.Errorf("got %d puts, want %d", got, tt.puts)
			}
			if got := ops(w.topic.take()); fmt.Sprint(got) != fmt.Sprint(tt.published) {
				t.Errorf("got %v, want %v", got, tt.published)
			}
			tt.outbox.outcome, tt.outbox.done = nil, nil
			if err := w.s.Flush(t.Context()); err != nil {
				t.Error(err)
			}
			w.wantOps(0, tt.later...)
		})
	}
}

// If a caller gives up after its bytes are stored, its Change stays in the outbox. Flush ignores mutations
// with an active call.
func TestCallerGivesUp(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.topic.set(func(*pb.Change) (bool, error) { return ctx.Err() == nil, ctx.Err() })
	_, err := w.s.Put(ctx, sp, "a", strings.NewReader("x"),
		storage.PutOptions{Size: 1, Verify: func(digest.Set, int64) error {
			if err := w.s.Flush(t.Context()); err != nil {
				t.Errorf("Flush while a put is under way: %v", err)
			}
			w.wantOps(1)
			cancel()
			return nil
		}})
	if err != nil {
		t.Error(err)
	}
	w.wantOps(1)
	w.topic.set(nil)
	if err := w.s.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	w.wantOps(0, "ADD")
}
