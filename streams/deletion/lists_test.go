package deletion

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
)

func approval(l held.List, action string) *pb.DeletionCommand {
	return &pb.DeletionCommand{Id: "o", Account: "acme", Space: "photos", DestinationStore: "2", ApproveList: l.Name(),
		Approved: "ann", Cause: action, Time: stamp(6)}
}

// The deletes of an approved list are ordered. A repetition orders those without a result, under the same ids.
func TestOrderList(t *testing.T) {
	w := newWorld(t)
	list := w.hold("a", "b", "c")
	effects := map[string]string{}
	for _, r := range w.lists.On(list) {
		effects[r.GetItem()] = r.GetEffect()
	}
	action := w.decide(list, held.ActionApprove)
	w.topic.Fail = func(m schemas.Message) error { // killed between the pages
		if c, ok := m.Body.(*pb.DeletionCommand); ok && c.GetItem() == "c" {
			return errors.New("refused")
		}
		return nil
	}
	if _, _, err := w.run(approval(list, action)); err == nil || len(w.lists.reported) > 0 {
		t.Fatalf("got %v, reported %v", err, w.lists.reported)
	}
	before := w.ordered()
	w.topic.Published, w.topic.Fail = nil, nil
	if r := w.handles(approval(list, action)); r.GetResult() != "deletes-ordered" || r.GetDetail() != "3 deletes" ||
		r.GetList() != list.Name() || r.GetOutcome() != handedOn {
		t.Errorf("got %v", r)
	}
	got := w.ordered()
	if len(got) != 3 || len(before) != 2 || got[0].GetId() != before[0].GetId() || got[1].GetId() != before[1].GetId() {
		t.Fatalf("ordered %v, before %v", got, before)
	}
	for i, item := range []string{"a", "b", "c"} {
		want := &pb.DeletionCommand{
			Id:      schemas.ID("listed", "unreported-1", "acme", "2", "photos", item, effects[item]),
			Account: "acme", Space: "photos", Item: item, SourceStore: "1", DestinationStore: "2",
			Command: "unreported-1", Cause: "unreported-1", Deleted: stamp(4), Time: stamp(6), Approved: "ann",
			List: "unreported-1", Effect: effects[item],
		}
		if !proto.Equal(got[i], want) {
			t.Errorf("got  %v\nwant %v", got[i], want)
		}
		if err := schemas.Validate(got[i]); err != nil {
			t.Error(err)
		}
	}
	if _, r, err := w.run(got[1]); err != nil || r.GetResult() != "deleted" || r.GetList() != list.Name() ||
		r.GetEffect() != effects["b"] {
		t.Errorf("got %v, %v", r, err)
	}
	w.topic.Published = nil
	if r := w.handles(approval(list, action)); r.GetDetail() != "2 deletes" { // again, after a kill before the commit
		t.Errorf("got %v", r)
	}
	if again := w.ordered(); len(again) != 2 || again[0].GetId() != got[0].GetId() || again[1].GetId() != got[2].GetId() {
		t.Errorf("ordered %v", again)
	}
	for _, c := range []*pb.DeletionCommand{got[0], got[2]} {
		_, _, err := w.run(c)
		w.must(err)
	}
	w.topic.Published = nil
	if r := w.handles(approval(list, action)); r.GetDetail() != "0 deletes" || len(w.topic.Published) > 0 {
		t.Errorf("all have ended: got %v, published %v", r, w.topic.Published)
	}
	if !slices.Equal(w.lists.reported, []string{"3 deletes", "2 deletes", "0 deletes"}) {
		t.Errorf("reported %q", w.lists.reported)
	}
	if next := w.hold("d"); next != listOfKind(held.Unreported, 2) {
		t.Errorf("the next delete is on %v", next)
	}
}

// Of two decisions about a list the first is carried out. The other one says so, and orders nothing.
func TestSecondDecision(t *testing.T) {
	actions := []string{held.ActionApprove, held.ActionRefuse, held.ActionClose}
	for _, first := range actions {
		for _, second := range actions[:2] {
			t.Run(second+" after "+first, func(t *testing.T) {
				w := newWorld(t)
				list := w.hold("a")
				w.decide(list, first)
				c, result := approval(list, w.decide(list, second)), "not-ordered"
				if second == held.ActionRefuse {
					c, result = refusalOf(list, c.GetCause()), "not-refused"
				}
				if r := w.handles(c); r.GetResult() != result || r.GetOutcome() != nothing ||
					r.GetDetail() != "ann decided before ("+first+")" {
					t.Errorf("got %v", r)
				}
				if len(w.topic.Published) > 0 || len(w.lists.reported) > 0 {
					t.Errorf("published %v, reported %v", w.topic.Published, w.lists.reported)
				}
			})
		}
	}
}

// What was held after the operator looked is on the next list, and is not ordered. What is on an approved list is done
// by whoever comes first.
func TestNextList(t *testing.T) {
	w := newWorld(t)
	first := w.hold("a", "b")
	unseen := w.lists.Results[1:] // b was not on record yet when the operator looked
	w.lists.Results = w.lists.Results[:1:1]
	action := w.decide(first, held.ActionApprove)
	w.lists.Results = append(w.lists.Results, unseen...)
	next := listOfKind(held.Unreported, 2)
	c := orderOf("a")
	c.NeedsApproval = true
	if _, r, err := w.run(c); err != nil || r.GetResult() != "deleted" || r.GetList() != first.Name() {
		t.Errorf("the approved one: got %v, %v", r, err)
	}
	for range 2 { // of sweeps that find the delete again
		c := orderOf("b")
		c.NeedsApproval = true
		if l := w.held(c); l != next {
			t.Errorf("b is held on %v", l)
		}
		if on := w.lists.items(next); !slices.Equal(on, []string{"b"}) {
			t.Errorf("the next list has %v", on)
		}
	}
	if r := w.handles(approval(first, action)); r.GetDetail() != "1 deletes" || len(w.ordered()) != 1 ||
		w.ordered()[0].GetItem() != "a" {
		t.Errorf("got %v, ordered %v", r, w.ordered())
	}
	ordered := w.approve(next)
	if len(ordered) != 1 || ordered[0].GetItem() != "b" || ordered[0].GetList() != next.Name() {
		t.Errorf("of the next list: ordered %v", ordered)
	}
}

// The rewrites of an approved list are ordered as commands of class low, each with the content that was on the list.
func TestOrderListOfRewrites(t *testing.T) {
	w := newWorld(t)
	list := listOfKind(held.Rewrites, 1)
	reason := pb.DuplicationReason_DUPLICATION_REASON_CHANGE
	md5 := map[string]string{"md5": "d41d8cd98f00b204e9800998ecf8427e"}
	rewrite := func(item, version string) *pb.DuplicationResult {
		return &pb.DuplicationResult{Account: "acme", Space: "photos", Item: item, SourceStore: "1", DestinationStore: "2",
			Result: "awaiting-approval", List: list.Name(), Effect: "effect of " + version, Reason: reason,
			ChangeTime: stamp(4), SourceVersion: version, Digests: md5}
	}
	w.lists.Results = []*pb.DuplicationResult{rewrite("a", "v1"), rewrite("a", "v2"), rewrite("b", "v3")}
	action := w.decide(list, held.ActionApprove)
	w.lists.Results = append(w.lists.Results, rewrite("c", "v4"))
	for range 2 { // the second time after a kill before the commit
		w.topic.Published = nil
		if r := w.handles(approval(list, action)); r.GetResult() != "rewrites-ordered" || r.GetDecision() != "C4" ||
			r.GetDetail() != "2 rewrites" || r.GetList() != list.Name() {
			t.Errorf("got %v", r)
		}
		got := published[*pb.DuplicationCommand](w)
		if len(got) != 2 || len(w.topic.Published) != 2 {
			t.Fatalf("ordered %v", w.topic.Published)
		}
		wanted := []*pb.DuplicationCommand{{Item: "a", ChangeVersion: "v2"}, {Item: "b", ChangeVersion: "v3"}}
		for i, want := range wanted {
			want.Effect = "effect of " + want.ChangeVersion
			want.Id = schemas.ID("listed", "rewrites-1", "acme", "2", "photos", want.Item, want.Effect)
			want.Account, want.Space, want.SourceStore, want.DestinationStore = "acme", "photos", "1", "2"
			want.Cause, want.List, want.Approved, want.Reason = "rewrites-1", "rewrites-1", "ann", reason
			want.ChangeTime, want.Time, want.Digests, want.SizeUnknown = stamp(4), stamp(6), md5, true
			want.Priority = pb.Priority_PRIORITY_LOW
			if !proto.Equal(got[i], want) {
				t.Errorf("got  %v\nwant %v", got[i], want)
			}
			if err := schemas.Validate(got[i]); err != nil {
				t.Error(err)
			}
		}
	}
}

// While the results are unknown, an approval waits.
func TestOrderListWaits(t *testing.T) {
	w := newWorld(t)
	list := w.hold("a")
	action := w.decide(list, held.ActionApprove)
	w.lists.Unknown = errors.New("no answer")
	if _, _, err := w.run(approval(list, action)); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if len(w.topic.Published) > 0 || len(w.lists.reported) > 0 {
		t.Errorf("published %v, reported %v", w.topic.Published, w.lists.reported)
	}
}
