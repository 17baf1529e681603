package deletion

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

func md5of(c string) digest.Set { return digest.Set{digest.MD5: strings.Repeat(c, 32)} }

// The content that comes back is the deleted one, if a copy has it, or else that of the copy that was protected.
func TestRestoreOrder(t *testing.T) {
	row := func(state pb.RecordState, c string) *pb.Record {
		r := &pb.Record{State: state, Size: 7, Version: "v", Time: stamp(3)}
		if c != "" {
			r.Digests = md5of(c)
		}
		return r
	}
	deleted := Listed{Item: "a", SourceStore: "1", Deleted: hour(4)}
	order := func(c string, stores ...string) *pb.RestoreOrder {
		o := &pb.RestoreOrder{Digests: md5of(c), Size: 7, Deleted: stamp(4)}
		for _, store := range stores {
			o.Sources = append(o.Sources, &pb.RestoreSource{Store: store})
		}
		return o
	}
	replaces := func(o *pb.RestoreOrder, id *pb.Identity) *pb.RestoreOrder {
		o.Deleted, o.Replaces = nil, id
		return o
	}
	for name, tt := range map[string]struct {
		listed Listed
		rows   []*pb.Record // of stores 1, 2, 3
		want   *pb.RestoreOrder
	}{
		"the copy has it":   {deleted, []*pb.Record{row(tomb, "a"), row(live, "a")}, order("a", "2")},
		"both copies do":    {deleted, []*pb.Record{row(tomb, "a"), row(live, "a"), row(live, "a")}, order("a", "2", "3")},
		"only another does": {deleted, []*pb.Record{row(tomb, "a"), row(live, "b"), row(live, "a")}, order("a", "2", "3")},
		"none has it":       {deleted, []*pb.Record{row(tomb, "a"), row(live, "b"), row(live, "c")}, order("b", "2")},
		"its digests are on no record": {deleted, []*pb.Record{row(tomb, ""), row(live, "b"), row(live, "b")},
			order("b", "2", "3")},
		"the copy is gone": {deleted, []*pb.Record{row(tomb, "a"), row(tomb, "a"), row(live, "a")}, order("a", "2", "3")},
		"all are gone":     {deleted, []*pb.Record{row(tomb, "a"), row(tomb, "a"), row(none, "")}, nil},
		"no digests":       {deleted, []*pb.Record{row(tomb, ""), row(live, "")}, nil},
		"rewritten": {Listed{Item: "a", SourceStore: "1", Version: "v2", Digests: md5of("e")},
			[]*pb.Record{row(live, "e"), row(live, "a"), row(live, "e")},
			replaces(order("a", "2"), &pb.Identity{Version: "v2"})},
		"rewritten in a store without versions": {Listed{Item: "a", SourceStore: "1", Digests: md5of("e")},
			[]*pb.Record{row(live, "e"), row(live, "a")},
			replaces(order("a", "2"), &pb.Identity{Version: "v", Modified: stamp(3), Size: 7})},
	} {
		t.Run(name, func(t *testing.T) {
			var known []schemas.KnownCopy
			for i, r := range tt.rows {
				known = append(known, schemas.KnownCopy{Copy: schemas.Copy{Store: string(rune('1' + i))},
					Record: &pb.CopyRecord{Manifest: r}})
			}
			if got := restoreOrder(tt.listed, known); !proto.Equal(got, tt.want) {
				t.Errorf("got %v\nwant %v", got, tt.want)
			}
		})
	}
}

func refusalOf(l held.List, action string) *pb.DeletionCommand {
	return &pb.DeletionCommand{Id: "o", Account: "acme", Space: "photos", DestinationStore: "2", RefuseList: l.Name(),
		Approved: "ann", Cause: action, Why: "a script", Time: stamp(6)}
}

// The sources of a refused list are ordered back, under the same ids again after a kill.
func TestRefuseList(t *testing.T) {
	w := newWorld(t)
	list := w.hold("a", "b", "c")
	w.rows["1"].Digests = w.seen.Digests
	action := w.decide(list, held.ActionRefuse)
	w.topic.Fail = func(m schemas.Message) error { // killed between the pages
		if c, ok := m.Body.(*pb.DuplicationCommand); ok && c.GetItem() == "c" {
			return errors.New("refused")
		}
		return nil
	}
	if _, _, err := w.run(refusalOf(list, action)); err == nil || len(w.lists.reported) > 0 {
		t.Fatalf("got %v, reported %v", err, w.lists.reported)
	}
	before := published[*pb.DuplicationCommand](w)
	w.topic.Published, w.topic.Fail = nil, nil
	if r := w.handles(refusalOf(list, action)); r.GetResult() != "restores-ordered" || r.GetDetail() != "3 restores" ||
		r.GetList() != list.Name() || !slices.Equal(w.lists.reported, []string{"3 restores"}) {
		t.Errorf("got %v, reported %q", r, w.lists.reported)
	}
	got := published[*pb.DuplicationCommand](w)
	if len(got) != 3 || len(w.topic.Published) != 3 || len(before) != 2 || got[0].GetId() != before[0].GetId() ||
		got[1].GetId() != before[1].GetId() {
		t.Fatalf("ordered %v, before %v", got, before)
	}
	for _, c := range got {
		if c.GetApproved() != "ann" || c.GetCause() != list.Name() || c.GetRestore().GetList() != list.Name() ||
			c.GetRestore().GetWhy() != "a script" || c.GetSourceStore() != "2" || c.GetDestinationStore() != "1" ||
			c.GetPriority() != pb.Priority_PRIORITY_LOW || !c.GetRestore().GetDeleted().AsTime().Equal(hour(4)) {
			t.Errorf("got %v", c)
		}
		c.Id = schemas.RestoreID(c)
		if err := schemas.Validate(c); err != nil {
			t.Error(err)
		}
	}
	w.lists.Results = append(w.lists.Results, &pb.DuplicationResult{Account: "acme", Space: "photos", Item: "a",
		SourceStore: "1", DestinationStore: "2", Cause: list.Name(), Result: "restored"})
	w.topic.Published = nil
	if r := w.handles(refusalOf(list, action)); r.GetDetail() != "2 restores" || len(w.topic.Published) != 2 {
		t.Errorf("again, when one is back: got %v, published %v", r, w.topic.Published)
	}
}

// While the sources of a refused list are being brought back, no copy of the space is deleted, also not by the approval
// of another list. The other spaces do not wait.
func TestDeleteDuringARefusal(t *testing.T) {
	refused := listOfKind(held.Limit, 1)
	for name, command := range map[string]func(*world) *pb.DeletionCommand{
		"a delete": func(*world) *pb.DeletionCommand { return order() },
		"one that needs approval": func(*world) *pb.DeletionCommand {
			c := order()
			c.NeedsApproval = true
			return c
		},
		"an approved one": func(w *world) *pb.DeletionCommand { return w.approve(w.hold("a.jpg"))[0] },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := command(w)
			w.decide(refused, held.ActionRefuse)
			w.lists.Held = nil
			if _, _, err := w.run(c); retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("got %v", err)
			}
			w.present(true)
			if len(w.lists.Held) > 0 {
				t.Errorf("held %v", w.lists.Held)
			}
			w.lists.Closed[refused] = true
			want := "deleted"
			if c.GetNeedsApproval() {
				want = "awaiting-approval"
			}
			if _, r, err := w.run(c); err != nil || r.GetResult() != want {
				t.Errorf("when all are back: got %v, %v, want %s", r, err, want)
			}
		})
	}
}

// A refusal that comes between the decision and the delete stops it.
func TestRefusalBeforeTheDelete(t *testing.T) {
	w := newWorld(t)
	refused := listOfKind(held.Rewrites, 1)
	w.on("1", "Stat", func() {
		if len(w.topic.Checkpoints) > 0 && w.lists.Refused(destination) == nil { // the brake has permitted it
			w.decide(refused, held.ActionRefuse)
		}
	})
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable || w.lists.Refused(destination) == nil {
		t.Errorf("got %v", err)
	}
	w.present(true)
}

// A decision that keeps a copy holds for the object that a repair puts in its place. An approval is used up by the act:
// if the store is rolled back, the brake decides about the delete.
func TestDecisionAfterTheAct(t *testing.T) {
	kept, used := newWorld(t), newWorld(t)
	for action, w := range map[string]*world{held.ActionClose: kept, held.ActionApprove: used} {
		w.topic.Limits = brake.Limits{MaxShare: 1}
		snapshot, list := w.mem["2"].Snapshot(), w.held(order())
		w.decide(list, action)
		if action == held.ActionApprove {
			_, r, err := w.run(order())
			w.must(err)
			w.lists.Results = append(w.lists.Results, r)
			w.present(false)
			snapshot()
		} else {
			o := w.put("2", "hello")
			w.rows["2"] = &pb.Record{State: live, Time: stamp(6), Version: o.Version, Digests: o.Digests,
				SourceTime: stamp(2), SourceVersion: "v1", Origin: pb.Origin_ORIGIN_REPAIR}
			w.mem["2"].Date("photos", "a.jpg", hour(6))
		}
		want := map[string]string{held.ActionClose: "kept", held.ActionApprove: "awaiting-approval"}[action]
		if _, r, err := w.run(order()); err != nil || r.GetResult() != want {
			t.Errorf("%s: got %v, %v, want %s", action, r, err, want)
		}
		w.present(true)
	}
}

// An item of which no content is on record gets its result at once.
func TestRefuseWithoutContent(t *testing.T) {
	w := newWorld(t)
	list := w.hold("a")
	w.rows["2"].Digests = nil
	w.handles(refusalOf(list, w.decide(list, held.ActionRefuse)))
	got := w.results()
	if len(got) != 1 || got[0].GetResult() != "restore-failed" || got[0].GetCause() != list.Name() ||
		got[0].GetReason() != pb.DuplicationReason_DUPLICATION_REASON_RESTORE || got[0].GetDestinationStore() != "1" {
		t.Fatalf("got %v", got)
	}
	if err := schemas.Validate(got[0]); err != nil {
		t.Error(err)
	}
}

func TestRefuseWaitsForTheRecords(t *testing.T) {
	w := newWorld(t)
	list := w.hold("a")
	action := w.decide(list, held.ActionRefuse)
	w.err = errors.New("no answer")
	if _, _, err := w.run(refusalOf(list, action)); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if len(w.topic.Published) > 0 || len(w.lists.reported) > 0 {
		t.Errorf("published %v, reported %v", w.topic.Published, w.lists.reported)
	}
}

// Of a refused list of rewrites, the listed version of each source is replaced by the content of the copy.
func TestRefuseRewrites(t *testing.T) {
	w := newWorld(t)
	w.rules.Pairs = append(w.rules.Pairs, policy.Pair{Source: "1", Destination: "3"})
	w.rows["1"] = &pb.Record{State: live, Version: "v2", Digests: md5of("e"), Time: stamp(5)}
	w.rows["3"] = &pb.Record{State: live, Digests: w.seen.Digests, Time: stamp(3)}
	list := listOfKind(held.Rewrites, 1)
	w.lists.Results = []*pb.DuplicationResult{{Account: "acme", Space: "photos", Item: "a", SourceStore: "1",
		DestinationStore: "2", Result: "awaiting-approval", List: list.Name(), Effect: "effect", SourceVersion: "v2",
		Digests: md5of("e")}}
	r := w.handles(refusalOf(list, w.decide(list, held.ActionRefuse)))
	got := published[*pb.DuplicationCommand](w)
	if r.GetResult() != "restores-ordered" || r.GetDetail() != "1 restores" || len(got) != 1 {
		t.Fatalf("got %v, ordered %v", r, got)
	}
	if o := got[0].GetRestore(); o.GetReplaces().GetVersion() != "v2" || len(o.GetSources()) != 2 ||
		got[0].GetItem() != "a" {
		t.Errorf("got %v", o)
	}
}
