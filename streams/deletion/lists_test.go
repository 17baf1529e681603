package deletion

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// A delete beyond the limit waits, with its list in the result. One that was tried and not done does not count.
func TestDeleteBeyondTheLimit(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1}
	if _, r, err := w.run(order()); err != nil || r.GetResult() != "deleted" || r.GetList() != "" {
		t.Fatalf("got %v, %v", r, err)
	}
	o := w.put("2", "hello")
	w.rows["2"] = &pb.Record{State: live, Time: stamp(3), Version: o.Version, SourceTime: stamp(2)}
	_, r, err := w.run(order())
	w.must(err)
	if r.GetResult() != "awaiting-approval" || r.GetDecision() != "C7" ||
		brake.ReasonOf(r.GetList()) != brake.ReasonBrake ||
		r.GetDetail() != "the brake: deletes.max_count within an hour" || !r.GetChangeTime().AsTime().Equal(hour(4)) {
		t.Errorf("got %v", r)
	}
	w.present(true)
}

// A delete that is executed again, as when its result was not acknowledged in time, counts once and reports nothing
// new.
func TestDeleteThatIsDoneAgainCountsOnce(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 2}
	for n, want := range []string{"deleted", "deleted", "awaiting-approval"} {
		if n > 0 {
			w.seen = w.put("2", "hello")
		}
		w.rows["2"] = &pb.Record{State: live, Time: stamp(3), Version: w.seen.Version, SourceTime: stamp(2)}
		if _, r, err := w.run(order()); err != nil || r.GetResult() != want {
			t.Fatalf("delete %d: got %v, %v, want %s", n, r, err, want)
		}
		if want == "deleted" {
			w.rows["2"] = &pb.Record{State: tomb, Time: stamp(4)}
			changes, r, err := w.run(order())
			if err != nil || len(changes) != 0 || r.GetDecision() != "C8" || r.GetId() == "" {
				t.Fatalf("delete %d, again: got %v, %v, %v", n, changes, r, err)
			}
		}
	}
}

func TestUnknownCountsDeleteNothing(t *testing.T) {
	w := newWorld(t)
	w.topic.Unknown = errors.New("no answer")
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	w.present(true)
	w.topic.Unknown, w.topic.Fail = nil, func(schemas.Message) error { return errors.New("refused") }
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
		"passes the brake":     {func(w *world) { w.topic.Limits = brake.Limits{} }, "deleted"},
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
			if n := len(w.topic.Checkpoints); tt.result == "deleted" && n > 0 {
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
	w.lists.pages = [][]Listed{
		{{Item: "a", SourceStore: "1", Deleted: hour(4), Approved: true}, {Item: "b", SourceStore: "1", Deleted: hour(4)}},
		{{Item: "c", SourceStore: "1", Deleted: hour(4), Approved: true}},
	}
	w.topic.Fail = func(m schemas.Message) error { // killed between the pages
		if c, ok := m.Body.(*pb.DeletionCommand); ok && c.GetItem() == "c" {
			return errors.New("refused")
		}
		return nil
	}
	if _, err := w.deleter.Handle(t.Context(), approval(list)); err == nil {
		t.Fatal("no error")
	}
	before := w.ordered()
	w.topic.Published, w.topic.Fail = nil, nil
	out, err := w.deleter.Handle(t.Context(), approval(list))
	w.must(err)
	if r := out[0].Body.(*pb.DuplicationResult); r.GetResult() != "deletes-ordered" || r.GetItem() != "" ||
		r.GetDetail() != "2 deletes; 1 that were put on the list after the decision are ordered without approval" {
		t.Errorf("got %v", r)
	}
	got := w.ordered()
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
	if len(w.lists.reported) != 1 || *w.lists.decided != (Decision{Who: "ann", Action: "action"}) {
		t.Errorf("reported %v, decided %v", w.lists.reported, w.lists.decided)
	}
	if _, r, err = w.run(held); err != nil || r.GetList() == list {
		t.Errorf("the next delete is on %s, %v", r.GetList(), err)
	}
	w.topic.Closed[list], w.topic.Published = true, nil
	out, err = w.deleter.Handle(t.Context(), approval(list)) // again, after a kill before the result
	w.must(err)
	if r := out[0].Body.(*pb.DuplicationResult); r.GetResult() != "deletes-ordered" || r.GetDetail() != orderedBefore ||
		len(w.topic.Published) > 0 {
		t.Errorf("a list that was closed when all had ended: got %v, published %v", r, w.topic.Published)
	}
	w.lists.decided.Action = "another"
	if out, err = w.deleter.Handle(t.Context(), approval(list)); err != nil ||
		out[0].Body.(*pb.DuplicationResult).GetResult() != "not-ordered" {
		t.Errorf("a closed list: got %v, %v", out, err)
	}
}

// The rewrites of an approved list are ordered as commands of class low, each with the content that was on the list.
func TestOrderListOfRewrites(t *testing.T) {
	w := newWorld(t)
	topic := braketest.New(brake.Rewrites)
	c := w.config(Config{})
	c.Rewrites = topic.Process()
	var err error
	w.deleter, err = New(c, w, w, w)
	w.must(err)
	var list string
	hold := func() {
		w.must(topic.Process().Hold(t.Context(), schemas.Copy{Account: "acme", Store: "2", Space: "photos"},
			brake.Held{Reason: brake.ReasonRewrites, Cause: "limit"}, func(_ context.Context, l string) error {
				list = l
				return nil
			}))
	}
	hold()
	first := list
	reason := pb.DuplicationReason_DUPLICATION_REASON_CHANGE
	w.lists.pages = [][]Listed{{
		{Item: "a", SourceStore: "1", Changed: hour(4), Approved: true, Reason: reason, Version: "v2",
			Digests: map[string]string{"md5": "d41d8cd98f00b204e9800998ecf8427e"}},
		{Item: "b", SourceStore: "1", Changed: hour(4), Reason: reason, Version: "v3"},
	}}
	topic.Fail = func(m schemas.Message) error { // killed before the list is closed
		if m.Topic == schemas.Checkpoints {
			return errors.New("refused")
		}
		return nil
	}
	if _, err := w.deleter.Handle(t.Context(), approval(first)); err == nil || len(topic.Published) > 0 {
		t.Fatalf("got %v, ordered %v", err, topic.Published)
	}
	topic.Fail = nil
	for range 2 { // the second time after a kill before the commit
		topic.Published = nil
		out, err := w.deleter.Handle(t.Context(), approval(first))
		w.must(err)
		if r := out[0].Body.(*pb.DuplicationResult); r.GetResult() != "rewrites-ordered" || r.GetDecision() != "C4" ||
			!strings.HasPrefix(r.GetDetail(), "1 rewrites; 1 that") {
			t.Errorf("got %v", r)
		}
		if len(topic.Published) != 2 {
			t.Fatalf("ordered %v", topic.Published)
		}
		a, b := topic.Published[0].(*pb.DuplicationCommand), topic.Published[1].(*pb.DuplicationCommand)
		if a.GetId() != schemas.ID("listed", first, "acme", "2", "photos", "a") || a.GetList() != first ||
			a.GetApproved() != "ann" || a.GetChangeVersion() != "v2" || len(a.GetDigests()) != 1 || a.GetCause() != first ||
			b.GetList() != "" || b.GetApproved() != "" || b.GetChangeVersion() != "v3" || b.GetId() == a.GetId() {
			t.Errorf("got %v and %v", a, b)
		}
		for _, c := range topic.Published {
			if err := schemas.Validate(c); err != nil {
				t.Error(err)
			}
		}
	}
	if hold(); list == first {
		t.Error("the next rewrite is on the closed list")
	}
}

// While the records are unknown, an approval waits.
func TestOrderListWaits(t *testing.T) {
	w := newWorld(t)
	w.lists.unknown = errors.New("no answer")
	_, err := w.deleter.Handle(t.Context(), approval("brake-1"))
	if retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if len(w.ordered()) > 0 {
		t.Errorf("ordered %v", w.ordered())
	}
}
