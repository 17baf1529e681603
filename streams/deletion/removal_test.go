package deletion

import (
	"errors"
	"slices"
	"sync"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

func TestDecideRemoval(t *testing.T) {
	record := func(state pb.RecordState, origin pb.Origin, at int) *pb.CopyRecord {
		m := &pb.Record{State: state, Origin: origin, Time: stamp(at)}
		if state == live {
			m.Digests = map[string]string{"md5": "one"}
		}
		return &pb.CopyRecord{Manifest: m}
	}
	other := func(at int) *pb.CopyRecord {
		r := record(live, pb.Origin_ORIGIN_CLIENT, at)
		r.Manifest.Digests = map[string]string{"md5": "two"}
		return r
	}
	const client, sweep = pb.Origin_ORIGIN_CLIENT, pb.Origin_ORIGIN_SWEEP
	pairs := func(all ...policy.Pair) func(*removal) { return func(s *removal) { s.Rules.Pairs = all } }
	of := func(store string, r *pb.CopyRecord) func(*removal) {
		return func(s *removal) { s.Records[slices.Index(s.Account.Stores, store)] = r }
	}
	sourceGone := func(s *removal) { // of a copy in store 3 whose source is store 1
		pairs(policy.Pair{Source: "1", Destination: "3"})(s)
		of("1", record(tomb, client, 4))(s)
		s.row = duplicate.RowDeleteHeld
	}
	guessed := func(s *removal) { sourceGone(s); of("1", record(tomb, sweep, 4))(s) }
	type edits []func(*removal)
	for name, tt := range map[string]struct {
		edits  edits
		result string
	}{
		"no pair names the store, and the source is there": {nil, "deleted"},
		"a pair of other stores":                           {edits{pairs(pair)}, "deleted"},
		"gone": {edits{
			func(s *removal) { s.copy.Presence = duplicate.Absent }}, "delete-moot"},
		"the policy is unknown": {edits{
			func(s *removal) { s.Account.Unsure = errors.New("a gap") }}, "kept"},
		"no such store": {edits{func(s *removal) { s.Copy.Store = "9" }}, "kept"},
		"the primary store": {edits{
			func(s *removal) { s.Account.Primary = "3" }}, "kept"},
		"the source": {edits{
			pairs(policy.Pair{Source: "3", Destination: "2"})}, "kept"},
		"not on record": {edits{of("3", record(none, 0, 0))}, "kept"},
		"resurrected":   {edits{of("3", record(tomb, client, 4))}, "kept"},
		"the source is live": {edits{sourceGone, of("1", record(live, client, 2))},
			"kept"},
		"the source was never there":              {edits{sourceGone, of("1", record(none, 0, 0))}, "kept"},
		"the source was deleted":                  {edits{sourceGone}, "deleted"},
		"the source was deleted, before the copy": {edits{sourceGone, of("3", record(live, client, 5))}, "kept"},
		"the source is present under a tombstone": {edits{
			sourceGone, func(s *removal) { s.from.Presence = duplicate.Present }}, "kept"},
		"the source was deleted, and another row": {edits{
			sourceGone, func(s *removal) { s.row = duplicate.RowDestinationNewer }}, "kept"},
		"the delete of the source is a guess": {edits{guessed}, "kept"},
		"the delete of the source is disputed": {edits{
			sourceGone, func(s *removal) { s.Records[0].Manifest.Disputed = true }}, "kept"},
		"a guess, and a copy in a store before": {edits{guessed, of("2", record(live, client, 3))}, "deleted"},
		"a guess, and a copy in a store behind": {edits{guessed, of("4", record(live, client, 3))}, "kept"},
		"other content in a store before": {edits{
			of("1", record(none, 0, 0)), of("2", other(4))}, "kept"},
		"earlier content at the source": {edits{of("1", other(2))}, "kept"},
		"later content at the source":   {edits{of("1", other(4))}, "deleted"},
		"the last one":                  {edits{of("1", record(none, 0, 0))}, "kept"},
		"the last one, and a source is behind": {edits{
			of("1", record(none, 0, 0)), of("4", record(live, client, 3)),
			pairs(policy.Pair{Source: "4", Destination: "2"})}, "deleted"},
		"the last one, and a client has deleted it": {edits{of("1", record(tomb, client, 4))}, "deleted"},
		"under a hold": {edits{
			func(s *removal) { s.hold = &policy.Hold{Reason: "a lawsuit"} }}, "held"},
		"read-only": {edits{func(s *removal) { s.readOnly = true }}, "kept"},
	} {
		t.Run(name, func(t *testing.T) {
			s := removal{copy: duplicate.Side{Presence: duplicate.Present}, from: duplicate.Side{Presence: duplicate.Absent}}
			s.Copy = destination.In("3")
			s.Account = Account{Stores: []string{"1", "2", "3", "4"}, Primary: "1"}
			s.Records = []*pb.CopyRecord{record(live, client, 2), record(none, 0, 0), record(live, client, 3),
				record(none, 0, 0)}
			for _, edit := range tt.edits {
				edit(&s)
			}
			e, ok := s.decide()
			if e.row != "C0a" || e.result != tt.result || ok != (tt.result == "deleted") || ok != (e.detail == "") {
				t.Errorf("got %+v, %t, want %s", e, ok, tt.result)
			}
		})
	}
}

// asked returns the order of a person to remove the copy in store 2.
func asked() *pb.DeletionCommand {
	return &pb.DeletionCommand{Id: "removal", Account: "acme", Space: "photos", Item: "a.jpg", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_MANUAL, Cause: "action", Command: "action", Why: "not needed",
		Deleted: stamp(6), Time: stamp(6)}
}

// What a person asks for waits on a list, and is done once it is approved, if it still may be.
func TestRemoval(t *testing.T) {
	for name, tt := range map[string]struct {
		pairs  []policy.Pair // at the order
		before func(*world)  // before the approved delete
		within func(*world)  // between its observation and the act
		result string
		change bool
	}{
		"no pair leads to the store": {nil, nil, nil, "deleted", true},
		"the source was deleted":     {[]policy.Pair{pair}, nil, nil, "deleted", true},
		"the policy wants it now": {nil, func(w *world) {
			w.rules.Pairs = []policy.Pair{pair}
			w.put("1", "hello")
		}, nil, "kept", false},
		"the policy wants it at the act": {nil, nil, func(w *world) {
			w.rules.Pairs = []policy.Pair{{Source: "2", Destination: "1"}}
		}, "kept", false},
		"the source is put back": {[]policy.Pair{pair}, func(w *world) { w.put("1", "hello") }, nil, "kept", false},
		"another object": {nil, func(w *world) {
			o := w.put("2", "other")
			w.rows["2"] = &pb.Record{State: live, Time: stamp(3), Version: o.Version}
		}, nil, "kept", false},
		"the copy that stays is there": {nil, func(w *world) {
			o := w.put("1", "hello")
			w.rows["1"] = &pb.Record{State: live, Time: stamp(2), Version: o.Version, Size: o.Size, Digests: o.Digests}
		}, nil, "deleted", true},
		"the copy that stays is lost": {nil, func(w *world) {
			w.rows["1"] = &pb.Record{State: live, Time: stamp(2), Size: 5, Digests: w.seen.Digests}
		}, nil, "kept", false},
		"it was deleted by an execution that died": {nil, func(w *world) {
			_, err := w.mem["2"].Delete(w.t.Context(), "photos", "a.jpg", storage.DeleteOptions{})
			w.must(err)
		}, nil, "delete-moot", true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.rules.Pairs, w.rules.Deletes = tt.pairs, policy.KeepCopy
			l := w.held(asked())
			w.present(true)
			const cause = "asked-1: a person asked for it: not needed"
			if l.Kind != held.Asked || !slices.Equal(w.lists.Held, []string{cause}) {
				t.Fatalf("held on %v: %v", l, w.lists.Held)
			}
			orders := w.approve(l)
			if len(orders) != 1 {
				t.Fatalf("ordered %v", orders)
			}
			if tt.before != nil {
				tt.before(w)
			}
			if tt.within != nil {
				var once sync.Once
				w.on("2", "Stat", func() { once.Do(func() { tt.within(w) }) })
			}
			changes, r, err := w.run(orders[0])
			w.must(err)
			w.present(tt.result == "kept")
			if r.GetResult() != tt.result || (len(changes) == 1) != tt.change {
				t.Errorf("got %v, %v, want %s", r, changes, tt.result)
			}
			if kept := w.mem["2"].AllKept(); tt.result == "deleted" && (len(kept) != 1 || string(kept[0].Bytes) != "hello" ||
				changes[0].GetApproved() == "" || changes[0].GetEvidence()["list"] != "asked-1") {
				t.Errorf("kept %v, change %v", kept, changes)
			}
		})
	}
}

// A list of what a person asked for that is closed keeps the copies. A later order is another one.
func TestRemovalIsNotApproved(t *testing.T) {
	w := newWorld(t)
	w.rules.Pairs = nil
	c := asked()
	l := w.held(c)
	w.decide(l, held.ActionClose)
	if _, r, err := w.run(c); err != nil || r.GetResult() != "kept" {
		t.Errorf("again: %v, %v", r, err)
	}
	c.Id, c.Deleted = "later", stamp(7)
	if next := w.held(c); next.Name() != "asked-2" {
		t.Errorf("held on %s", next.Name())
	}
	w.present(true)
}
