package duplicate

import (
	"context"
	"io"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A forgetful store does not keep the source content that its items are copies of.
type forgetful struct{ *storagetest.Faulty }

func (s forgetful) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	o.Original = storage.Original{}
	return s.Faulty.Put(ctx, space, item, r, o)
}

type stores map[string]storage.Store

func (s stores) Store(_, id string) (storage.Store, bool) {
	store, ok := s[id]
	return store, ok
}

// publish puts some of an execution's Changes into the journal.
func (w *world) publish(changes ...*pb.Change) {
	for _, c := range changes {
		w.journal.add(c)
	}
}

// The source is deleted while it is copied, and the executor is killed after the write: the copy is recorded and
// deleted, and is not taken for a copy of later content.
func TestDeletedWhileCopiedThenKilled(t *testing.T) {
	for name, forgets := range map[string]bool{"the store keeps what it is a copy of": false, "the store does not": true} {
		for _, fault := range []string{"killed", "failed, and persisted"} {
			t.Run(name+", "+fault, func(t *testing.T) {
				w := newWorld(t)
				if forgets {
					var err error
					both := stores{"1": w.faulty["1"], "2": forgetful{w.faulty["2"]}}
					w.executor, err = New(Config{Now: w.time, WaitIntervals: intervals}, both, w, w.journal)
					w.must(err)
				}
				c := command(w.added("1", "one"))
				var gone *pb.Change
				w.once("2", "Put", func() { gone = w.gone("1") })
				if fault == "killed" {
					_, err := w.crash(c, 0)
					w.must(err)
				} else {
					w.faulty["2"].Script(storagetest.Fault{Method: "Put", Applied: true})
					if _, err := w.run(c, 0); retry.ClassOf(err) != retry.Transient {
						t.Fatalf("got %v", err)
					}
				}
				w.holds("2", "one")
				if _, err := w.crash(c, 0); err != nil { // killed again: its messages are lost
					t.Fatal(err)
				}
				got := w.mustRun(c)
				got.ends("C7", "deletion-ordered", handedOn, 1, 1)
				if len(got.orders) != 1 || !got.orders[0].GetDeleted().AsTime().Equal(gone.GetTime().AsTime()) {
					t.Errorf("orders: %v", got.orders)
				}
				r := w.journal.rows[at("2")]
				if r.GetState() != live || r.GetSourceVersion() != c.GetChangeVersion() ||
					!r.GetSourceTime().AsTime().Equal(c.GetChangeTime().AsTime()) {
					t.Errorf("on record: %v", r)
				}
				w.mustRun(c).ends("C7", "deletion-ordered", handedOn, 0, 0)
				w.mustRun(command(gone)).ends("C7", "deletion-ordered", handedOn, 0, 0)
			})
		}
	}
}

// The command of the delete has the same effect if it is executed before the one that was killed.
func TestDeleteIsExecutedBeforeTheCopyThatWasKilled(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "one"))
	var gone *pb.Change
	w.once("2", "Put", func() { gone = w.gone("1") })
	_, err := w.crash(c, 0)
	w.must(err)
	w.mustRun(command(gone)).ends("C7", "deletion-ordered", handedOn, 1, 1)
	w.mustRun(c).ends("C7", "deletion-ordered", handedOn, 0, 0)
}

// An item that another program put beside the copies is recorded as found by a sweep, never as a copy.
func TestOrphanIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.put("2", "mine")
	got := w.mustRun(manual())
	got.ends("C7c", "orphan", nothing, 1, 1)
	if c := got.changes[0]; c.GetOrigin() != pb.Origin_ORIGIN_SWEEP || c.GetSourceTime() != nil ||
		c.GetOp() != pb.Op_OP_ADD {
		t.Errorf("change: %v", c)
	}
	w.mustRun(manual()).ends("C7c", "orphan", nothing, 0, 0)
	w.holds("2", "mine")
}

// If no digests of the source are on record, the streamed ones become the reference. They are published wherever the
// executor is killed.
func TestReferenceIsPublishedAfterAKill(t *testing.T) {
	prepare := map[string]func(*world){
		"C5":  func(w *world) { w.put("1", "hello") },
		"C4n": func(w *world) { w.put("1", "hello"); w.put("2", "other") },
		"C5, known without digests": func(w *world) {
			w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello"))
			o, err := w.mem["1"].Stat(w.t.Context(), "photos", "a.jpg")
			w.must(err)
			w.reported(record.Content(at("1"), o))
		},
	}
	published := map[string]func(*world, did){
		"nothing is published":                  func(*world, did) {},
		"the copy's Change is published":        func(w *world, d did) { w.publish(d.changes[0]) },
		"only the source's Change is published": func(w *world, d did) { w.publish(d.changes[1]) },
		"both are":                              func(w *world, d did) { w.publish(d.changes...) },
	}
	for row, prepare := range prepare {
		for name, publish := range published {
			t.Run(row+", "+name, func(t *testing.T) {
				w := newWorld(t)
				w.put("1", "hello")
				prepare(w)
				first, err := w.crash(bare(), 0)
				w.must(err)
				if len(first.changes) != 2 {
					t.Fatalf("changes: %v", first.changes)
				}
				publish(w, first)
				again := w.mustRun(bare())
				if again.result.GetDecision() != "C2" {
					t.Errorf("result: %v", again.result)
				}
				r := w.journal.rows[at("1")]
				if want := digest.Set(first.changes[0].GetDigests()); r.GetState() != live || len(want) == 0 ||
					want.Compare(r.GetDigests()) != digest.Agree {
					t.Errorf("on record of the source: %v, want digests %v", r, want)
				}
				for _, c := range again.changes {
					if c.GetId() != first.changes[0].GetId() && c.GetId() != first.changes[1].GetId() {
						t.Errorf("another Change: %v", c)
					}
				}
				w.mustRun(bare()).ends("C2", "in-sync", nothing, 0, 0)
			})
		}
	}
}

// A source that rots before its digests are on record does not become the reference: the copy of that very version
// speaks against it, whichever Changes were published.
func TestRottenReferenceAfterAKill(t *testing.T) {
	for name, published := range map[string]int{"nothing is published": 0, "the copy's Change is": 1, "both are": 2} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put("1", "hello")
			w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello"))
			o, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
			w.must(err)
			c := command(w.reported(record.Content(at("1"), o)))
			first, err := w.crash(c, 0)
			w.must(err)
			w.publish(first.changes[:published]...)
			w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO"))
			again := w.mustRun(c)
			again.ends("C4s", "source-suspect", handedOn, 0, 2)
			w.holds("2", "hello")
		})
	}
}

// Setting properties does not keep the source's digests off the record.
func TestReferenceIsPublishedWithProperties(t *testing.T) {
	w := newWorld(t)
	w.put("1", "hello")
	w.put("2", "hello")
	if _, err := w.mem["2"].SetProperties(t.Context(), "photos", "a.jpg", storage.Properties{},
		storage.Condition{}); err != nil {
		t.Fatal(err)
	}
	w.mustRun(manual()).ends("C3", "properties-set", done, 3, 0)
	if r := w.journal.rows[at("1")]; r.GetState() != live || len(r.GetDigests()) == 0 {
		t.Errorf("on record of the source: %v", r)
	}
	w.mustRun(manual()).ends("C2", "in-sync", nothing, 0, 0)
}

// If nothing changes meanwhile, records are read once although both sides are observed three times.
func TestRecordsAreReadOnce(t *testing.T) {
	found := func(w *world) *pb.DuplicationCommand {
		c := command(w.added("1", "hello"))
		c.IfAbsent = true
		return c
	}
	for name, prepare := range map[string]func(*world) *pb.DuplicationCommand{
		"nothing is known of the source": func(w *world) *pb.DuplicationCommand { w.put("1", "hello"); return manual() },
		"it was found by a sweep":        found,
		"a sweep carries a row without digests": func(w *world) *pb.DuplicationCommand {
			w.put("1", "hello")
			w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello"))
			o, err := w.mem["1"].Stat(w.t.Context(), "photos", "a.jpg")
			w.must(err)
			w.reported(record.Content(at("1"), o))
			c := swept()
			c.SourceRecord, c.DestinationRecord = w.journal.rows[at("1")], &pb.Record{State: none}
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			got := w.mustRun(prepare(w)).result
			if n := w.journal.asked; n != 1 || got.GetDecision() != "C5" {
				t.Errorf("records were read %d times: %v", n, got)
			}
		})
	}
}

// A repaired copy keeps its source content, whichever store it is repaired from and whenever that was written, also if
// the executor is killed.
func TestRepairedCopyKeepsItsOriginal(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	w.mustRun(c)
	before := w.journal.rows[at("2")]
	again := func() {
		w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
		w.put("1", "hello") // the source of the repair is rewritten
	}
	check := func(what string, got did, err error) {
		t.Helper()
		w.must(err)
		o, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
		w.must(err)
		if len(got.changes) != 1 {
			t.Fatalf("%s: changes %v", what, got.changes)
		}
		change := got.changes[0]
		if !change.GetSourceTime().AsTime().Equal(before.GetSourceTime().AsTime()) ||
			change.GetSourceVersion() != before.GetSourceVersion() {
			t.Errorf("%s: published as a copy of %v, %s; want %v", what, change.GetSourceTime().AsTime(),
				change.GetSourceVersion(), before)
		}
		if o.Original.Version != before.GetSourceVersion() || !o.Original.Modified.Equal(before.GetSourceTime().AsTime()) {
			t.Errorf("%s: the store keeps %+v", what, o.Original)
		}
	}
	again()
	order := w.repair(digest.Set(before.GetDigests()))
	got, err := w.crash(order, 0)
	check("repaired", got, err)
	got, err = w.run(order, 0)
	got.ends("C0", "repair-moot", nothing, 1, 1)
	check("killed", got, err)
	again()
	order = w.repair(digest.Set(before.GetDigests()))
	w.faulty["2"].Script(storagetest.Fault{Method: "Put", Applied: true})
	if _, err := w.run(order, 0); retry.ClassOf(err) != retry.Transient {
		t.Fatalf("got %v", err)
	}
	got, err = w.run(order, 0)
	check("failed, and persisted", got, err)
}

// A primary that is repaired from a secondary is not recorded as a copy of it.
func TestRepairedPrimaryIsNoCopy(t *testing.T) {
	w := newWorld(t)
	change := w.added("1", "hello")
	w.mustRun(command(change))
	w.mem["1"].Lose("photos", "a.jpg")
	c := w.repair(digest.Set(change.GetDigests()))
	c.SourceStore, c.DestinationStore, c.Repair.Failed = "2", "1", nil
	got := w.mustRun(c)
	got.ends("C0", "repaired", done, 1, 1)
	if got.changes[0].GetSourceTime() != nil || got.changes[0].GetSourceVersion() != "" {
		t.Errorf("change: %v", got.changes[0])
	}
}

// A repair that was ordered before its store left the policy does not bring data back.
func TestNoRepairOutsideOfThePolicy(t *testing.T) {
	w := newWorld(t)
	change := w.added("1", "hello")
	w.mustRun(command(change))
	w.mem["2"].Lose("photos", "a.jpg")
	w.rules.Pairs = nil
	w.mustRun(w.repair(digest.Set(change.GetDigests()))).ends("C0", "repair-moot", handedOn, 0, 1)
	w.holds("2", "")
}

// A DeletionCommand names the operator who approved the delete.
func TestDeletionCarriesTheApproval(t *testing.T) {
	w := newWorld(t)
	w.mustRun(command(w.added("1", "one")))
	c := command(w.gone("1"))
	c.Approved = "eve"
	got := w.mustRun(c)
	if len(got.orders) != 1 || got.orders[0].GetApproved() != "eve" {
		t.Errorf("orders: %v", got.orders)
	}
}
