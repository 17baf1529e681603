package duplicate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A restoreWorld is a world with a third store, in which orders are executed.
type restoreWorld struct {
	*world
	refused string
	proven  []digest.Set // contents that the audit log has besides the newest ones
	err     error        // of Proven
}

func (w *restoreWorld) Refuses(string, string) string { return w.refused }

func (w *restoreWorld) Proven(_ context.Context, _ schemas.Copy, like digest.Set) (digest.Set, error) {
	for _, p := range w.proven {
		if p.Compare(like) == digest.Agree {
			return p, w.err
		}
	}
	return nil, w.err
}

// newRestoreWorld has the item in store 1, and copies of it in stores 2 and 3.
func newRestoreWorld(t *testing.T) (*restoreWorld, *pb.Change) {
	t.Helper()
	w := &restoreWorld{world: newWorld(t)}
	s, err := mem.New(mem.Config{ID: "3", Now: func() time.Time { return hour(11) }})
	w.must(err)
	s.Mark("3")
	w.mem["3"], w.faulty["3"] = s, storagetest.NewFaulty(s)
	w.must(s.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	w.rules.Pairs = append(w.rules.Pairs, policy.Pair{Source: "1", Destination: "3"})
	w.executor, err = New(Config{Now: w.time, WaitIntervals: intervals, MissingIntervals: missing, Restores: w}, w, w,
		w.journal)
	w.must(err)
	change := w.added("1", "hello")
	for _, to := range []string{"2", "3"} {
		c := command(change)
		c.Id, c.DestinationStore = schemas.ID("command", change.GetId(), to), to
		w.mustRun(c).ends("C5", "copied", done, 1, 1)
	}
	return w, change
}

// order returns an order to restore the content of a change in store 1, from stores 2 and 3.
func order(c *pb.Change) *pb.DuplicationCommand {
	o := &pb.DuplicationCommand{
		Account: "acme", Space: "photos", Item: "a.jpg", SourceStore: "2", DestinationStore: "1", Cause: "brake-1",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_RESTORE, Approved: "alice", Size: c.GetSize(),
		Time: timestamppb.New(hour(12)),
		Restore: &pb.RestoreOrder{Digests: c.GetDigests(), List: "brake-1", Why: "a script",
			Sources: []*pb.RestoreSource{{Store: "2"}, {Store: "3"}}},
	}
	o.Id = schemas.RestoreID(o)
	return o
}

// deleted has a client delete the item in store 1, and returns the order that brings it back.
func (w *restoreWorld) deleted(of *pb.Change) *pb.DuplicationCommand {
	gone := w.reported(record.Delete(at("1"), w.remove("1")))
	o := order(of)
	o.Restore.Deleted = gone.GetTime()
	return o
}

// encrypted has a client replace the item in store 1, and returns the order that brings it back.
func (w *restoreWorld) encrypted(of *pb.Change) *pb.DuplicationCommand {
	w.added("1", "XXXXX")
	now, err := w.mem["1"].Stat(w.t.Context(), "photos", "a.jpg")
	w.must(err)
	o := order(of)
	o.Restore.Replaces = record.Identity(now)
	return o
}

// restored executes an order, and separates the commands that follow from the rest.
func (w *restoreWorld) restored(c *pb.DuplicationCommand) (got did, follow []*pb.DuplicationCommand) {
	w.t.Helper()
	got, follow, err := w.try(c)
	w.must(err)
	for _, change := range got.changes {
		w.journal.add(change)
	}
	return got, follow
}

func (w *restoreWorld) try(c *pb.DuplicationCommand) (got did, follow []*pb.DuplicationCommand, err error) {
	w.t.Helper()
	out, err := w.executor.Handle(w.t.Context(), &schemas.Delivery{Topic: schemas.DuplicationLow, Body: c, Attempt: 1})
	if err != nil {
		return did{}, nil, err
	}
	var rest []schemas.Message
	for _, m := range out {
		if c, ok := m.Body.(*pb.DuplicationCommand); ok {
			follow = append(follow, c)
		} else {
			rest = append(rest, m)
		}
	}
	return sort(w.t, rest), follow, nil
}

func TestRestoreOfADeletedItem(t *testing.T) {
	w, change := newRestoreWorld(t)
	o := w.deleted(change)
	w.mem["3"].Lose("photos", "a.jpg") // its delete was done before
	got, follow := w.restored(o)
	got.ends("C0r", "restored", done, 1, 1)
	w.holds("1", "hello")
	c := got.changes[0]
	if c.GetOrigin() != pb.Origin_ORIGIN_REPAIR || c.GetApproved() != "alice" || c.GetCause() != o.GetId() ||
		c.GetEvidence()["why"] != "a script" || c.GetMediaType() != "image/jpeg" || c.GetProperties()["by"] != "me" ||
		c.GetSourceTime() != nil {
		t.Errorf("change %v", c)
	}
	if r := got.result; r.GetList() != "brake-1" || r.GetCause() != "brake-1" || r.GetSourceStore() != "2" ||
		r.GetDetail() != "from store 2" || r.GetBytes() != 5 || r.GetReason() != o.GetReason() {
		t.Errorf("result %v", r)
	}
	// Store 2 has the content. Store 3 gets it again.
	if len(follow) != 1 || follow[0].GetDestinationStore() != "3" {
		t.Fatalf("commands that follow: %v", follow)
	}
	w.mustRun(follow[0]).ends("C5", "copied", done, 1, 1)
	w.holds("3", "hello")
	// A delete that still waits finds the source present, and the order has nothing left to do but to report it again.
	w.mustRun(command(change)).ends("C2", "in-sync", nothing, 0, 0)
	again, _ := w.restored(o)
	again.ends("C0r", "already-restored", nothing, 1, 1)
}

func TestRestoreOfReplacedContent(t *testing.T) {
	w, change := newRestoreWorld(t)
	o := w.encrypted(change)
	w.mem["3"].Rewrite("photos", "a.jpg", []byte("XXXXX"))
	got, follow := w.restored(o)
	got.ends("C0r", "restored", done, 1, 1)
	w.holds("1", "hello")
	if kept := w.mem["1"].AllKept(); len(kept) != 1 || string(kept[0].Bytes) != "XXXXX" {
		t.Errorf("kept: %v", kept)
	}
	if got.changes[0].GetOp() != pb.Op_OP_UPDATE || len(follow) != 1 {
		t.Fatalf("change %v, commands %v", got.changes[0], follow)
	}
	w.mustRun(follow[0]).ends("C4", "copied", done, 1, 1)
	w.holds("3", "hello")
}

// What the store kept comes back too, if the audit log has its digests.
func TestRestoreOfKeptBytes(t *testing.T) {
	prepare := func(t *testing.T) (*restoreWorld, *pb.DuplicationCommand) {
		w, change := newRestoreWorld(t)
		_, err := w.mem["1"].Put(t.Context(), "photos", "a.jpg", strings.NewReader("XXXXX"),
			storage.PutOptions{Size: 5, KeepReplaced: true})
		w.must(err)
		o := order(change)
		now, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
		w.must(err)
		w.reported(record.Content(at("1"), now))
		for _, id := range []string{"2", "3"} {
			w.mem[id].Rewrite("photos", "a.jpg", []byte("XXXXX"))
			w.journal.rows[at(id)] = &pb.Record{State: none}
		}
		o.Restore.Replaces = record.Identity(now)
		o.Restore.Sources = []*pb.RestoreSource{{Store: "1", Kept: w.mem["1"].AllKept()[0].ID}}
		return w, o
	}
	t.Run("proven", func(t *testing.T) {
		w, o := prepare(t)
		w.proven = []digest.Set{o.GetRestore().GetDigests()}
		got, follow := w.restored(o)
		got.ends("C0r", "restored", done, 1, 1)
		w.holds("1", "hello")
		if got.changes[0].GetMediaType() != "image/jpeg" || len(follow) != 2 {
			t.Errorf("change %v, commands %v", got.changes[0], follow)
		}
	})
	t.Run("not proven", func(t *testing.T) {
		w, o := prepare(t)
		got, _ := w.restored(o)
		got.ends("C0r", "restore-unproven", nothing, 0, 0)
		w.holds("1", "XXXXX")
	})
	t.Run("the audit log does not answer", func(t *testing.T) {
		w, o := prepare(t)
		w.err = errors.New("no answer")
		if _, _, err := w.try(o); retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("got %v", err)
		}
		w.holds("1", "XXXXX")
	})
	t.Run("rotten", func(t *testing.T) {
		w, o := prepare(t)
		w.proven = []digest.Set{o.GetRestore().GetDigests()}
		w.mem["1"].CorruptKept(o.GetRestore().GetSources()[0].GetKept(), []byte("hellO"))
		got, _ := w.restored(o)
		got.ends("C0r", "restore-failed", nothing, 0, 0)
		w.holds("1", "XXXXX")
	})
	t.Run("expired", func(t *testing.T) {
		w, o := prepare(t)
		w.proven = []digest.Set{o.GetRestore().GetDigests()}
		w.mem["1"].ForgetKept(o.GetRestore().GetSources()[0].GetKept())
		got, _ := w.restored(o)
		got.ends("C0r", "restore-failed", nothing, 0, 0)
	})
}

// Another source is tried if the first has no good bytes. A copy with wrong bytes is checked.
func TestRestoreTriesEachSource(t *testing.T) {
	rot := func(s *mem.Store) { s.Corrupt("photos", "a.jpg", []byte("hellO")) }
	for name, tt := range map[string]struct {
		first, second func(*restoreWorld)
		result, from  string
		changes       int
		tasks         int
	}{
		"rot in the first": {func(w *restoreWorld) { rot(w.mem["2"]) }, nil, "restored", "from store 3", 1, 2},
		"rot in both": {func(w *restoreWorld) { rot(w.mem["2"]) }, func(w *restoreWorld) { rot(w.mem["3"]) },
			"restore-failed", "", 0, 2},
		"the first is lost": {func(w *restoreWorld) { w.mem["2"].Lose("photos", "a.jpg") }, nil,
			"restored", "from store 3", 1, 1},
		"the first does not answer": {func(w *restoreWorld) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Stat"})
		}, nil, "restored", "from store 3", 1, 1},
		"the first cannot be read": {func(w *restoreWorld) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Open"})
		}, nil, "restored", "from store 3", 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, change := newRestoreWorld(t)
			o := w.deleted(change)
			tt.first(w)
			if tt.second != nil {
				tt.second(w)
			}
			got, _ := w.restored(o)
			outcome, want := done, "hello"
			if tt.changes == 0 {
				outcome, want = handedOn, ""
			}
			got.ends("C0r", tt.result, outcome, tt.changes, tt.tasks)
			w.holds("1", want)
			if tt.from != "" && got.result.GetDetail() != tt.from {
				t.Errorf("detail %q", got.result.GetDetail())
			}
		})
	}
}

// While a source or the store does not answer, the order waits: it is not known whether there are good bytes.
func TestRestoreWaitsForAStore(t *testing.T) {
	for name, fail := range map[string]func(*restoreWorld){
		"the only good source": func(w *restoreWorld) {
			w.mem["3"].Lose("photos", "a.jpg")
			w.faulty["2"].Script(storagetest.Fault{Method: "Stat"})
		},
		"the store":         func(w *restoreWorld) { w.faulty["1"].Script(storagetest.Fault{Method: "Stat"}) },
		"the store's write": func(w *restoreWorld) { w.faulty["1"].Script(storagetest.Fault{Method: "Put"}) },
		"the records":       func(w *restoreWorld) { w.journal.err = errors.New("no answer") },
		"the store is not its own": func(w *restoreWorld) {
			w.mem["1"].Mark("9")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, change := newRestoreWorld(t)
			o := w.deleted(change)
			fail(w)
			if _, _, err := w.try(o); err == nil || retry.IsPermanent(err) {
				t.Errorf("got %v", err)
			}
			w.holds("1", "")
			w.journal.err = nil
			w.mem["1"].Mark("1")
			got, _ := w.restored(o)
			got.ends("C0r", "restored", done, 1, 1)
			w.holds("1", "hello")
		})
	}
}

// An order does not undo what came after the decision, whenever that happens.
func TestRestoreBesideAClient(t *testing.T) {
	put := func(w *restoreWorld) { w.put("1", "newer") }
	for name, tt := range map[string]struct {
		order  func(*restoreWorld, *pb.Change) *pb.DuplicationCommand
		before func(*restoreWorld)
		during func(*restoreWorld)
		holds  string
	}{
		"added again before":          {(*restoreWorld).deleted, put, nil, "newer"},
		"added again during the copy": {(*restoreWorld).deleted, nil, put, "newer"},
		"replaced before":             {(*restoreWorld).encrypted, put, nil, "newer"},
		"replaced during the copy":    {(*restoreWorld).encrypted, nil, put, "newer"},
		"removed instead": {(*restoreWorld).encrypted, func(w *restoreWorld) {
			w.reported(record.Delete(at("1"), w.remove("1")))
		}, nil, ""},
		"added and deleted again": {(*restoreWorld).deleted, func(w *restoreWorld) {
			w.added("1", "newer")
			gone := record.Delete(at("1"), w.remove("1"))
			gone.Time = timestamppb.New(gone.GetTime().AsTime().Add(time.Second))
			w.reported(gone)
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, change := newRestoreWorld(t)
			o := tt.order(w, change)
			if tt.before != nil {
				tt.before(w)
			}
			if tt.during != nil {
				w.once("1", "Put", func() { tt.during(w) })
			}
			got, _ := w.restored(o)
			got.ends("C0r", "restore-moot", nothing, 0, 0)
			w.holds("1", tt.holds)
			if got.result.GetDetail() == "" {
				t.Error("the result does not say why")
			}
		})
	}
}

// A kill between the write and its report, and a write that is reported as failed: the next execution reports it.
func TestRestoreThatWasNotReported(t *testing.T) {
	t.Run("killed", func(t *testing.T) {
		w, change := newRestoreWorld(t)
		o := w.deleted(change)
		first, _, err := w.try(o)
		w.must(err)
		got, follow := w.restored(o)
		got.ends("C0r", "already-restored", nothing, 1, 1)
		if got.changes[0].GetId() != first.changes[0].GetId() || got.changes[0].GetApproved() != "alice" || len(follow) != 2 {
			t.Errorf("got %v, first %v, commands %v", got.changes[0], first.changes[0], follow)
		}
	})
	t.Run("killed after its Change was published, before the rest", func(t *testing.T) {
		w, change := newRestoreWorld(t)
		o := w.deleted(change)
		first, carried, err := w.try(o)
		w.must(err)
		w.journal.add(first.changes[0])
		got, follow := w.restored(o)
		got.ends("C0r", "already-restored", nothing, 1, 1)
		ids := func(all []*pb.DuplicationCommand) (ids []string) {
			for _, c := range all {
				ids = append(ids, c.GetId())
			}
			return ids
		}
		if len(carried) == 0 || !slices.Contains(ids(follow), carried[0].GetId()) ||
			got.changes[0].GetId() != first.changes[0].GetId() {
			t.Errorf("got %v, commands %v; first %v, commands %v", got.changes, follow, first.changes, carried)
		}
	})
	t.Run("reported as failed", func(t *testing.T) {
		w, change := newRestoreWorld(t)
		o := w.deleted(change)
		w.faulty["1"].Script(storagetest.Fault{Method: "Put", Applied: true})
		if _, _, err := w.try(o); err == nil {
			t.Fatal("no error")
		}
		got, _ := w.restored(o)
		got.ends("C0r", "already-restored", nothing, 1, 1)
		w.holds("1", "hello")
	})
}

func TestRestoreIsRefused(t *testing.T) {
	w, change := newRestoreWorld(t)
	o := w.deleted(change)
	w.refused = "repair is off"
	got, _ := w.restored(o)
	got.ends("C0r", "restore-refused", nothing, 0, 0)
	w.holds("1", "")
}

// The space is created again, as the source has it.
func TestRestoreIntoADeletedSpace(t *testing.T) {
	w, change := newRestoreWorld(t)
	o := w.deleted(change)
	w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
	got, _ := w.restored(o)
	got.ends("C0r", "restored", done, 2, 1)
	if got.changes[0].GetOp() != pb.Op_OP_CREATE_SPACE {
		t.Errorf("changes %v", got.changes)
	}
	w.holds("1", "hello")
}

// A source that has only kept bytes lacks the space. Then its properties are unknown, not none: no other copy of the
// space loses its own.
func TestRestoreFromADeletedSpace(t *testing.T) {
	w, change := newRestoreWorld(t)
	o := w.deleted(change)
	w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
	_, err := w.mem["2"].Delete(t.Context(), "photos", "a.jpg", storage.DeleteOptions{KeepDeleted: true})
	w.must(err)
	w.must(w.mem["2"].DeleteSpace(t.Context(), "photos"))
	o.Restore.Sources = []*pb.RestoreSource{{Store: "2", Kept: w.mem["2"].AllKept()[0].ID}}
	w.proven = []digest.Set{o.GetRestore().GetDigests()}
	got, _ := w.restored(o)
	got.ends("C0r", "restored", done, 2, 1)
	space, err := w.mem["1"].StatSpace(t.Context(), "photos")
	if err != nil || !space.PropertiesUnknown || !got.changes[0].GetPropertiesUnknown() {
		t.Errorf("got %+v, %v, and Change %v, want unknown properties", space, err, got.changes[0])
	}
}

// A later order of the same item does the work of no other one.
func TestRestoreIsNotSuperseded(t *testing.T) {
	_, change := newRestoreWorld(t)
	first, second := order(change), order(change)
	second.Restore.Deleted = stamp(12)
	if supersedes(second, first) {
		t.Error("it is superseded")
	}
}

// A copy that an operator brought back, without its source, is not deleted again because of the delete before.
func TestRestoredCopyOutlivesTheDelete(t *testing.T) {
	w, change := newRestoreWorld(t)
	source := w.journal.rows[at("2")]
	w.reported(record.Delete(at("1"), w.remove("1")))
	gone := record.Delete(at("2"), w.remove("2"))
	gone.Origin = pb.Origin_ORIGIN_DUPLICATION
	w.journal.add(record.Seal(gone))
	tombstone := w.journal.rows[at("2")] // the tables keep the content's columns
	tombstone.SourceTime, tombstone.SourceVersion = source.GetSourceTime(), source.GetSourceVersion()
	o := order(change)
	o.SourceStore, o.DestinationStore = "3", "2"
	o.Restore.Sources, o.Restore.Deleted = []*pb.RestoreSource{{Store: "3"}}, gone.GetTime()
	got, _ := w.restored(o)
	got.ends("C0r", "restored", done, 1, 1)
	for name, c := range map[string]*pb.DuplicationCommand{
		"a sweep":             {Reason: pb.DuplicationReason_DUPLICATION_REASON_SWEEP, IfAbsent: true},
		"the delete, again":   {Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, CauseOp: pb.Op_OP_DELETE},
		"an operator's order": {Reason: pb.DuplicationReason_DUPLICATION_REASON_MANUAL},
		"the first change, again": {Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, CauseOp: pb.Op_OP_ADD,
			ChangeTime: change.GetTime(), ChangeVersion: change.GetVersion(), Digests: change.GetDigests()},
	} {
		t.Run(name, func(t *testing.T) {
			c.Id, c.Account, c.Space, c.Item, c.SourceStore, c.DestinationStore = name, "acme", "photos", "a.jpg", "1", "2"
			if c.GetCauseOp() == pb.Op_OP_DELETE {
				c.ChangeTime = w.journal.rows[at("1")].GetTime()
			}
			w.mustRun(c).ends("C7d", "kept-newer", nothing, 0, 0)
		})
	}
}

// In a chain of pairs, what an operator had restored in the middle is not replaced by what its source still has.
func TestRestoredInTheMiddleOfAChain(t *testing.T) {
	w, change := newRestoreWorld(t)
	w.rules.Pairs = []policy.Pair{pair, {Source: "2", Destination: "3"}}
	encrypted := w.added("1", "XXXXX")
	w.mustRun(command(encrypted)).ends("C4", "copied", done, 1, 1) // store 3 holds the rewrite, which is refused
	there, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	o := order(change)
	o.SourceStore, o.DestinationStore = "3", "2"
	o.Restore.Sources, o.Restore.Replaces = []*pb.RestoreSource{{Store: "3"}}, record.Identity(there)
	got, _ := w.restored(o)
	got.ends("C0r", "restored", done, 1, 1)
	for name, c := range map[string]*pb.DuplicationCommand{"a sweep": swept(), "the change, again": command(encrypted)} {
		t.Run(name, func(t *testing.T) {
			got, err := w.run(c, len(intervals))
			w.must(err)
			if r := got.result; r.GetResult() != "copy-differs" {
				t.Errorf("got %v", r)
			}
			w.holds("2", "hello")
		})
	}
}
