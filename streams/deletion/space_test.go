package deletion

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// newSpaceWorld is a source whose space a client deleted at hour 4, and an empty space of hour 2 at the destination.
func newSpaceWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	_, err := w.mem["2"].Delete(t.Context(), "photos", "a.jpg", storage.DeleteOptions{})
	w.must(err)
	w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
	w.rows = map[string]*pb.Record{"1": {State: none}, "2": {State: none}}
	w.spaces = map[string]*pb.Record{
		"1": {State: tomb, Time: stamp(4), Origin: pb.Origin_ORIGIN_CLIENT},
		"2": {State: live, Time: stamp(2), Origin: pb.Origin_ORIGIN_DUPLICATION},
	}
	return w
}

func spaceOrder() *pb.DeletionCommand {
	c := order()
	c.Item = ""
	return c
}

func (w *world) hasSpace(want bool) {
	w.t.Helper()
	_, err := w.mem["2"].StatSpace(w.t.Context(), "photos")
	if want && err != nil || !want && !errors.Is(err, storage.ErrNoSpace) {
		w.t.Errorf("the space: got %v, want it present: %v", err, want)
	}
}

func TestDeleteSpace(t *testing.T) {
	w := newSpaceWorld(t)
	changes, r, err := w.run(spaceOrder())
	w.must(err)
	w.hasSpace(false)
	if r.GetDecision() != "S2" || r.GetResult() != "deleted" || r.GetOutcome() != done ||
		r.GetItem() != "" || w.orders != 0 {
		t.Errorf("got %v, %d orders", r, w.orders)
	}
	if len(changes) != 1 || changes[0].GetOp() != pb.Op_OP_DELETE_SPACE || changes[0].GetStore() != "2" ||
		changes[0].GetOrigin() != pb.Origin_ORIGIN_DUPLICATION || changes[0].GetAgent() != "deleter" ||
		!changes[0].GetTime().AsTime().Equal(hour(4)) || changes[0].GetId() != schemas.ChangeID(changes[0]) {
		t.Errorf("changes: %v", changes)
	}
	if n := len(w.topic.Checkpoints); n != 2 { // of the space and of the store
		t.Errorf("%d checkpoints: the delete must be counted", n)
	}
}

func TestSpaceIsNotDeleted(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare     func(*world, *pb.DeletionCommand)
		row, result string
		orders      int
	}{
		"the source is back": {func(w *world, _ *pb.DeletionCommand) {
			w.must(w.mem["1"].CreateSpace(w.t.Context(), storage.Space{Name: "photos"}))
		}, "S2", "not-deleted", 1},
		"it holds an item": {func(w *world, _ *pb.DeletionCommand) { w.put("2", "mine") }, "S3", "not-empty", 0},
		"nothing proves it": {func(w *world, _ *pb.DeletionCommand) {
			w.spaces["1"] = &pb.Record{State: none}
		}, "S2", "orphan", 0},
		"only the command says so": {func(w *world, _ *pb.DeletionCommand) {
			w.spaces["1"] = &pb.Record{State: live, Time: stamp(3), Origin: pb.Origin_ORIGIN_CLIENT}
		}, "S2", "orphan", 0},
		"the rule keeps now":  {func(w *world, _ *pb.DeletionCommand) { w.rules.Deletes = policy.KeepCopy }, "S2", "kept", 0},
		"older than the rule": {func(w *world, _ *pb.DeletionCommand) { w.rules.Since = hour(5) }, "S2", "kept", 0},
		"a hold began": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Holds = []policy.Hold{{Until: time.Now().Add(time.Hour), Reason: "a lawsuit"}}
		}, "S2", "held", 0},
		"not in the policy any more": {func(w *world, _ *pb.DeletionCommand) { w.rules.Pairs = nil },
			"C12", "not-in-policy", 0},
		"by approval, says the rule": {func(w *world, _ *pb.DeletionCommand) { w.rules.Deletes = policy.Approve },
			"S2", "awaiting-approval", 0},
		"by approval, says the command": {func(_ *world, c *pb.DeletionCommand) { c.NeedsApproval = true },
			"S2", "awaiting-approval", 0},
		"as a sweep guesses": {func(w *world, _ *pb.DeletionCommand) {
			w.spaces["1"].Origin = pb.Origin_ORIGIN_SWEEP
		}, "S2", "awaiting-approval", 0},
		"the limit is reached": {func(w *world, _ *pb.DeletionCommand) { w.topic.Limits = brake.Limits{MaxShare: 1} },
			"S2", "awaiting-approval", 0},
		"the store says it is not empty": {func(w *world, _ *pb.DeletionCommand) {
			w.faulty["2"].Script(storagetest.Fault{Method: "DeleteSpace", Err: storage.ErrNotEmpty})
		}, "S2", "not-empty", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpaceWorld(t)
			c := spaceOrder()
			tt.prepare(w, c)
			changes, r, err := w.run(c)
			w.must(err)
			if r.GetDecision() != tt.row || r.GetResult() != tt.result || len(changes) != 0 || w.orders != tt.orders {
				t.Errorf("got %v, %d changes, %d orders", r, len(changes), w.orders)
			}
			w.hasSpace(true)
		})
	}
}

func TestUnknownDeletesNoSpace(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*world)
		class   retry.Class
	}{
		"source does not answer": {func(w *world) {
			w.faulty["1"].Script(storagetest.Fault{Method: "StatSpace"})
		}, retry.Transient},
		"source is not mounted": {func(w *world) { w.mem["1"].Mark("") }, retry.ClassUnavailable},
		"the listing breaks off": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "List"})
		}, retry.Transient},
		"records do not answer":    {func(w *world) { w.err = errors.New("no answer") }, retry.ClassUnavailable},
		"a record is unknown":      {func(w *world) { w.spaces["1"] = nil }, retry.ClassUnavailable},
		"the space is expected":    {func(w *world) { w.rows["1"] = &pb.Record{State: live} }, retry.ClassUnavailable},
		"the counts are not known": {func(w *world) { w.topic.Unknown = errors.New("no answer") }, retry.ClassUnavailable},
		"the delete fails": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "DeleteSpace"})
		}, retry.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpaceWorld(t)
			tt.prepare(w)
			if _, _, err := w.run(spaceOrder()); err == nil || retry.ClassOf(err) != tt.class {
				t.Errorf("got class %v of %v, want %v", retry.ClassOf(err), err, tt.class)
			}
			w.hasSpace(true)
		})
	}
}

// A deleter that died after its delete, or whose store failed after it, leaves a live record: the next execution
// publishes the same Change, and the one after that none.
func TestSpaceDeletedButNotReported(t *testing.T) {
	for name, approved := range map[string]bool{"by the rule": false, "by an approved list": true} {
		for _, fault := range []string{"killed", "failed, but persisted"} {
			t.Run(name+", "+fault, func(t *testing.T) {
				w := newSpaceWorld(t)
				c := spaceOrder()
				if approved {
					w.rules.Deletes, c.List, c.Approved = policy.Approve, "approve-1", "ann"
					c.Effect = duplicate.DeleteEffect(destination.WithoutItem(), hour(4), storage.Object{})
				}
				var lost []*pb.Change
				if fault == "killed" {
					var err error
					lost, _, err = w.run(c)
					w.must(err)
				} else {
					w.faulty["2"].Script(storagetest.Fault{Method: "DeleteSpace", Applied: true})
					if _, _, err := w.run(c); err == nil {
						t.Fatal("no error")
					}
				}
				w.hasSpace(false)
				changes, r, err := w.run(c)
				w.must(err)
				if r.GetDecision() != "S4" || r.GetResult() != "gone" || len(changes) != 1 ||
					len(lost) == 1 && lost[0].GetId() != changes[0].GetId() {
					t.Errorf("got %v, %v, lost %v", r, changes, lost)
				}
				w.spaces["2"] = &pb.Record{State: tomb, Time: changes[0].GetTime()}
				if changes, r, err = w.run(c); err != nil || len(changes) != 0 || r.GetResult() != "gone" {
					t.Errorf("once it is on record: got %v, %v, %v", r, changes, err)
				}
			})
		}
	}
}

// A space that is lost at the destination is not reported as deleted, unless the delete would have been carried out.
func TestLostSpaceIsNoDelete(t *testing.T) {
	w := newSpaceWorld(t)
	w.rules.Deletes = policy.Approve
	w.must(w.mem["2"].DeleteSpace(t.Context(), "photos"))
	another := spaceOrder() // approved
	another.List, another.Effect = "approve-1", "the delete before"
	for _, c := range []*pb.DeletionCommand{spaceOrder(), another} {
		changes, r, err := w.run(c)
		w.must(err)
		if r.GetResult() != "gone" || len(changes) != 0 {
			t.Errorf("got %v, %v", r, changes)
		}
	}
}

// A client that creates the space again, or puts an item, at any moment of the delete loses nothing.
func TestSpaceCreatedAgainMeanwhile(t *testing.T) {
	create := func(w *world) { w.must(w.mem["1"].CreateSpace(w.t.Context(), storage.Space{Name: "photos"})) }
	for name, tt := range map[string]struct {
		meanwhile func(*world)
		result    string
		present   bool
		orders    int
	}{
		"the source's, before the last look": {func(w *world) {
			n := 0
			w.on("1", "StatSpace", func() {
				if n++; n == 3 { // after two observations
					create(w)
				}
			})
		}, "not-deleted", true, 1},
		"the source's, while it is deleted": {func(w *world) {
			w.on("2", "DeleteSpace", func() { create(w) })
		}, "deleted", false, 1},
		"an item of the destination, while it is deleted": {func(w *world) {
			w.on("2", "DeleteSpace", func() { w.put("2", "mine") })
		}, "not-empty", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpaceWorld(t)
			tt.meanwhile(w)
			_, r, err := w.run(spaceOrder())
			w.must(err)
			if r.GetResult() != tt.result || w.orders != tt.orders {
				t.Errorf("got %v, %d orders", r, w.orders)
			}
			w.hasSpace(tt.present)
		})
	}
}

// Two deleters at once: one deletes, and both end.
func TestSpaceIsDeletedByTwoAtOnce(t *testing.T) {
	w := newSpaceWorld(t)
	again := false
	w.on("2", "DeleteSpace", func() {
		if again {
			return
		}
		again = true
		_, r, err := w.run(spaceOrder())
		w.must(err)
		if r.GetResult() != "deleted" {
			t.Errorf("the second: got %v", r)
		}
	})
	_, r, err := w.run(spaceOrder())
	w.must(err)
	if r.GetDecision() != "S4" || r.GetResult() != "gone" {
		t.Errorf("the first: got %v", r)
	}
	w.hasSpace(false)
}

// A list may have only the delete of the space.
func TestOrderListOfSpace(t *testing.T) {
	for name, tt := range map[string]struct {
		then   func(*world)
		result string
		list   string
	}{
		"as it was held": {func(*world) {}, "deleted", "unreported-1"},
		"the source was deleted again": {func(w *world) {
			w.spaces["1"] = &pb.Record{State: tomb, Time: stamp(5), Origin: pb.Origin_ORIGIN_SWEEP}
		}, "awaiting-approval", "unreported-2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpaceWorld(t)
			w.spaces["1"].Origin = pb.Origin_ORIGIN_SWEEP
			ordered := w.approve(w.held(spaceOrder()))
			if len(ordered) != 1 || ordered[0].GetItem() != "" {
				t.Fatalf("ordered %v", ordered)
			}
			tt.then(w)
			changes, r, err := w.run(ordered[0])
			w.must(err)
			if r.GetResult() != tt.result || r.GetList() != tt.list || (len(changes) == 1) != (tt.result == "deleted") {
				t.Errorf("got %v, %v", r, changes)
			}
			w.hasSpace(tt.result != "deleted")
		})
	}
}

// A space whose list was closed, or refused, is kept; nothing is restored.
func TestKeptSpace(t *testing.T) {
	w := newSpaceWorld(t)
	w.rules.Deletes = policy.Approve
	l := w.held(spaceOrder())
	if r := w.handles(refusalOf(l, w.decide(l, held.ActionRefuse))); r.GetResult() != "restores-ordered" {
		t.Errorf("got %v", r)
	}
	results := w.results()
	if len(results) != 1 || results[0].GetItem() != "" || results[0].GetResult() != "restore-moot" ||
		results[0].GetCause() != l.Name() {
		t.Errorf("got %v", results)
	}
	if orders := published[*pb.DuplicationCommand](w); len(orders) > 0 {
		t.Errorf("ordered %v", orders)
	}
	w.lists.Closed[l] = true
	changes, r, err := w.run(spaceOrder())
	w.must(err)
	if r.GetResult() != "kept" || r.GetOutcome() != nothing || len(changes) > 0 {
		t.Errorf("got %v, %v", r, changes)
	}
	w.hasSpace(true)
}
