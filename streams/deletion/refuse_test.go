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
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/digest"
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

func refusalOf(list, action string) *schemas.Delivery {
	return &schemas.Delivery{Topic: schemas.Deletions, Attempt: 1, Body: &pb.DeletionCommand{Id: "o", Account: "acme",
		Space: "photos", DestinationStore: "2", RefuseList: list, Approved: "ann", Cause: action, Why: "a script",
		Time: stamp(6)}}
}

// A refused list is closed, and its sources are ordered back, under the same ids again after a kill. Deletes that the
// operator did not see are ordered as others are.
func TestRefuseList(t *testing.T) {
	w := newWorld(t)
	held := order()
	held.NeedsApproval = true
	_, r, err := w.run(held)
	w.must(err)
	list := r.GetList()
	w.rows["1"].Digests = w.seen.Digests
	w.lists.pages = [][]Listed{
		{{Item: "a", SourceStore: "1", Deleted: hour(4), Approved: true}, {Item: "b", SourceStore: "1", Deleted: hour(4)}},
		{{Item: "c", SourceStore: "1", Deleted: hour(4), Approved: true}},
	}
	w.topic.Fail = func(m schemas.Message) error { // killed between the pages
		if c, ok := m.Body.(*pb.DuplicationCommand); ok && c.GetItem() == "c" {
			return errors.New("refused")
		}
		return nil
	}
	if _, err := w.deleter.Handle(t.Context(), refusalOf(list, "refusal")); err == nil {
		t.Fatal("no error")
	}
	before := published[*pb.DuplicationCommand](w)
	w.topic.Published, w.topic.Fail = nil, nil
	out, err := w.deleter.Handle(t.Context(), refusalOf(list, "refusal"))
	w.must(err)
	if r := out[0].Body.(*pb.DuplicationResult); r.GetResult() != "restores-ordered" || r.GetItem() != "" ||
		r.GetDetail() != "2 restores; 1 that were put on the list after the decision are ordered without approval" {
		t.Errorf("got %v", r)
	}
	got := published[*pb.DuplicationCommand](w)
	if len(got) != 2 || len(before) != 1 || got[0].GetId() != before[0].GetId() {
		t.Fatalf("ordered %v, before %v", got, before)
	}
	for _, c := range got {
		if c.GetApproved() != "ann" || c.GetCause() != list || c.GetRestore().GetList() != list ||
			c.GetRestore().GetWhy() != "a script" || c.GetSourceStore() != "2" || c.GetDestinationStore() != "1" ||
			c.GetPriority() != pb.Priority_PRIORITY_LOW || !c.GetRestore().GetDeleted().AsTime().Equal(hour(4)) {
			t.Errorf("got %v", c)
		}
		c.Id = schemas.RestoreID(c)
		if err := schemas.Validate(c); err != nil {
			t.Error(err)
		}
	}
	if later := w.ordered(); len(later) != 1 || later[0].GetItem() != "b" || later[0].GetApproved() != "" {
		t.Errorf("later deletes: %v", later)
	}
	// Whoever decides later is told that another decision counts.
	for _, d := range []*schemas.Delivery{approval(list), refusalOf(list, "another")} {
		out, err = w.deleter.Handle(t.Context(), d)
		w.must(err)
		r := out[0].Body.(*pb.DuplicationResult)
		if !strings.HasPrefix(r.GetResult(), "not-") || r.GetDetail() != "another operator decided before" {
			t.Errorf("got %v", r)
		}
	}
	w.topic.Closed[list] = true
	for action, want := range map[string]string{"refusal": "restores-ordered", "another": "not-refused"} {
		out, err = w.deleter.Handle(t.Context(), refusalOf(list, action))
		w.must(err)
		if r := out[0].Body.(*pb.DuplicationResult); r.GetResult() != want {
			t.Errorf("a closed list, decided by %q: got %v", action, r)
		}
	}
}

// While the sources of a refused list are being brought back from the copies, these are not deleted, except what is on
// the list and was not refused.
func TestDeleteDuringARefusal(t *testing.T) {
	w := newWorld(t)
	w.topic.Refused = []string{"brake-1"}
	c := order()
	if _, _, err := w.run(c); retry.ClassOf(err) != retry.ClassUnavailable || !strings.Contains(err.Error(), "brake-1") {
		t.Errorf("got %v", err)
	}
	w.present(true)
	c.Cause = "brake-1"
	if _, r, err := w.run(c); err != nil || r.GetResult() != "deleted" {
		t.Errorf("of the list: got %v, %v", r, err)
	}
	w.present(false)
}

// An item of which no content is on record gets its result at once.
func TestRefuseWithoutContent(t *testing.T) {
	w := newWorld(t)
	w.rows["2"].Digests = nil
	w.lists.pages = [][]Listed{{{Item: "a", SourceStore: "1", Deleted: hour(4), Approved: true}}}
	_, err := w.deleter.Handle(t.Context(), refusalOf("brake-1", "action"))
	w.must(err)
	got := w.results()
	if len(got) != 1 || got[0].GetResult() != "restore-failed" || got[0].GetCause() != "brake-1" ||
		got[0].GetReason() != pb.DuplicationReason_DUPLICATION_REASON_RESTORE || schemas.Validate(got[0]) == nil &&
		got[0].GetDestinationStore() != "1" {
		t.Errorf("got %v", got)
	}
}

func TestRefuseWaitsForTheRecords(t *testing.T) {
	w := newWorld(t)
	w.lists.pages = [][]Listed{{{Item: "a", SourceStore: "1", Deleted: hour(4), Approved: true}}}
	w.err = errors.New("no answer")
	_, err := w.deleter.Handle(t.Context(), refusalOf("brake-1", "action"))
	if retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if len(w.topic.Published) > 0 || len(w.lists.reported) > 0 {
		t.Errorf("published %v, reported %v", w.topic.Published, w.lists.reported)
	}
}

// A refused list of rewrites is closed, and the listed version of each source is replaced by the content of the copy.
func TestRefuseRewrites(t *testing.T) {
	w := newWorld(t)
	w.rules.Pairs = append(w.rules.Pairs, policy.Pair{Source: "1", Destination: "3"})
	w.rows["1"] = &pb.Record{State: live, Version: "v2", Digests: md5of("e"), Time: stamp(5)}
	w.rows["3"] = &pb.Record{State: live, Digests: w.seen.Digests, Time: stamp(3)}
	var err error
	c := w.config(Config{})
	topic := braketest.New(brake.Rewrites)
	c.Rewrites = topic.Process()
	w.deleter, err = New(c, w, w, w)
	w.must(err)
	w.lists.pages = [][]Listed{{
		{Item: "a", SourceStore: "1", Version: "v2", Digests: md5of("e"), Approved: true},
		{Item: "b", SourceStore: "1", Version: "v2", Digests: md5of("e")},
	}}
	_, err = w.deleter.Handle(t.Context(), refusalOf("rewrites-1", "action"))
	w.must(err)
	w.topic = topic
	got := published[*pb.DuplicationCommand](w)
	at := slices.IndexFunc(got, func(c *pb.DuplicationCommand) bool { return c.GetRestore() != nil })
	if len(got) != 2 || at < 0 {
		t.Fatalf("got %v", got)
	}
	if o := got[at].GetRestore(); o.GetReplaces().GetVersion() != "v2" || len(o.GetSources()) != 2 ||
		got[at].GetItem() != "a" {
		t.Errorf("got %v", o)
	}
	if later := got[1-at]; later.GetItem() != "b" || later.GetList() != "" || later.GetApproved() != "" {
		t.Errorf("got %v", later)
	}
}
