package deletion

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// A delete beyond the limit waits, with its list in the result. One that was tried and not done does not count.
func TestDeleteBeyondTheLimit(t *testing.T) {
	w := newWorld(t)
	w.topic.limits = Limits{1, 1}
	if _, r, err := w.run(order()); err != nil || r.GetResult() != "deleted" || r.GetList() != "" {
		t.Fatalf("got %v, %v", r, err)
	}
	w.put("2", "hello")
	w.rows["2"] = &pb.Record{State: live, Time: stamp(3), SourceTime: stamp(2)}
	_, r, err := w.run(order())
	w.must(err)
	if r.GetResult() != "awaiting-approval" || ReasonOf(r.GetList()) != ReasonBrake || r.GetDecision() != "C7" ||
		r.GetDetail() != "the brake: deletes.max_count within an hour" || !r.GetChangeTime().AsTime().Equal(hour(4)) {
		t.Errorf("got %v", r)
	}
	w.present(true)
}

func TestUnknownCountsDeleteNothing(t *testing.T) {
	w := newWorld(t)
	w.topic.unknown = errors.New("no answer")
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	w.present(true)
	w.topic.unknown, w.topic.fail = nil, func(schemas.Message) error { return errors.New("refused") }
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("the checkpoint is refused: got %v", err)
	}
	w.present(true)
}

// An approval is one of the delete that was on the list, and of nothing else.
func TestApprovedDelete(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*world)
		result  string
	}{
		"passes the brake":     {func(w *world) { w.topic.limits = Limits{} }, "deleted"},
		"passes the rule":      {func(w *world) { w.rules.Deletes = policy.Approve }, "deleted"},
		"was a guess":          {func(w *world) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP }, "deleted"},
		"the rule is keep now": {func(w *world) { w.rules.Deletes = policy.KeepCopy }, "kept"},
		"the source is back":   {func(w *world) { w.put("1", "new") }, "not-deleted"},
		"the copy is newer":    {func(w *world) { w.rows["2"].SourceTime = stamp(5) }, "kept-newer"},
		"the source is on record": {func(w *world) {
			w.rows["1"] = &pb.Record{State: live, Time: stamp(5)}
		}, "not-deleted"},
		"the source was deleted again": {func(w *world) { w.rows["1"].Time = stamp(5) }, "awaiting-approval"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.prepare(w)
			c := order()
			c.List, c.Approved, c.Command = "brake-1", "ann", "brake-1"
			_, r, err := w.run(c)
			w.must(err)
			if r.GetResult() != tt.result || r.GetCause() != "brake-1" || tt.result == "deleted" && r.GetList() != "brake-1" {
				t.Errorf("got %v", r)
			}
			w.present(tt.result != "deleted")
			if n := len(w.topic.checkpoints); tt.result == "deleted" && n > 0 {
				t.Errorf("an approved delete is counted: %d checkpoints", n)
			}
		})
	}
}

func approval(list string) *schemas.Delivery {
	return &schemas.Delivery{Topic: schemas.Deletions, Attempt: 1, Body: &pb.DeletionCommand{Id: "o", Account: "acme",
		Space: "photos", DestinationStore: "2", ApproveList: list, Approved: "ann", Cause: "action", Time: stamp(6)}}
}

// An approved list is closed, and its deletes are ordered: those that were put on it later without the approval. A
// repetition orders them under the same ids.
func TestOrderList(t *testing.T) {
	w := newWorld(t)
	held := order()
	held.NeedsApproval = true
	_, r, err := w.run(held)
	w.must(err)
	list := r.GetList()
	w.topic.pages = [][]Listed{
		{{Item: "a", SourceStore: "1", Deleted: hour(4), Approved: true}, {Item: "b", SourceStore: "1", Deleted: hour(4)}},
		{{Item: "c", SourceStore: "1", Deleted: hour(4), Approved: true}},
	}
	w.topic.fail = func(m schemas.Message) error { // killed between the pages
		if c, ok := m.Body.(*pb.DeletionCommand); ok && c.GetItem() == "c" {
			return errors.New("refused")
		}
		return nil
	}
	if _, err := w.deleter.Handle(t.Context(), approval(list)); err == nil {
		t.Fatal("no error")
	}
	before := w.topic.ordered
	w.topic.ordered, w.topic.fail = nil, nil
	out, err := w.deleter.Handle(t.Context(), approval(list))
	w.must(err)
	if r := out[0].Body.(*pb.DuplicationResult); r.GetResult() != "deletes-ordered" || r.GetItem() != "" ||
		r.GetDetail() != "2 deletes; 1 that were put on the list after the decision are ordered without approval" {
		t.Errorf("got %v", r)
	}
	got := w.topic.ordered
	if len(got) != 3 || len(before) != 2 || got[0].GetId() != before[0].GetId() || got[1].GetId() != before[1].GetId() {
		t.Fatalf("ordered %v, before %v", got, before)
	}
	for i, c := range got {
		approved := i != 1
		if (c.GetList() == list) != approved || (c.GetApproved() == "ann") != approved || c.GetNeedsApproval() == approved ||
			c.GetCommand() != list || c.GetCause() != list || !c.GetDeleted().AsTime().Equal(hour(4)) {
			t.Errorf("got %v", c)
		}
		if err := schemas.Validate(c); err != nil {
			t.Error(err)
		}
	}
	if len(w.topic.reported) != 1 || w.topic.reported[0] != (Approval{"ann", "action"}) {
		t.Errorf("reported %v", w.topic.reported)
	}
	if _, r, err = w.run(held); err != nil || r.GetList() == list {
		t.Errorf("the next delete is on %s, %v", r.GetList(), err)
	}
	w.topic.closed[list] = true
	if out, err = w.deleter.Handle(t.Context(), approval(list)); err != nil ||
		out[0].Body.(*pb.DuplicationResult).GetResult() != "not-ordered" {
		t.Errorf("a closed list: got %v, %v", out, err)
	}
}

// While the records are unknown, an approval waits.
func TestOrderListWaits(t *testing.T) {
	w := newWorld(t)
	w.topic.unknown = errors.New("no answer")
	if _, err := w.deleter.Handle(t.Context(), approval(UnlistedDeletes)); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if len(w.topic.ordered) > 0 {
		t.Errorf("ordered %v", w.topic.ordered)
	}
}
