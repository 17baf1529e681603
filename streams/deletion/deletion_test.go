package deletion

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/held/heldtest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

const (
	done     = pb.Outcome_OUTCOME_DONE
	nothing  = pb.Outcome_OUTCOME_NOTHING
	handedOn = pb.Outcome_OUTCOME_HANDED_ON
	live     = pb.RecordState_RECORD_STATE_LIVE
	none     = pb.RecordState_RECORD_STATE_NONE
	tomb     = pb.RecordState_RECORD_STATE_TOMBSTONE
)

var destination = schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: "a.jpg"}

var pair = policy.Pair{Source: "1", Destination: "2"}

func hour(h int) time.Time { return time.Date(2026, 9, 1, h, 0, 0, 0, time.UTC) }

func stamp(h int) *timestamppb.Timestamp { return timestamppb.New(hour(h)) }

// A world is a source that lost an item at hour 4, and a destination that got the content of hour 2 at hour 3.
type world struct {
	t       *testing.T
	mem     map[string]*mem.Store
	faulty  map[string]*storagetest.Faulty
	rules   policy.Rules
	rows    map[string]*pb.Record // by store
	spaces  map[string]*pb.Record // audit records of the space, by store; nil: as rows
	err     error
	deleter *Deleter
	topic   *braketest.Topic
	lists   *lists
	seen    storage.Object
	hooks   []func(store, method string) // called before each call of a store
	orders  int                          // commands to copy in the last run
}

func (w *world) Store(_, id string) (storage.Store, bool)  { s, ok := w.faulty[id]; return s, ok }
func (w *world) Rules(string, string) (policy.Rules, bool) { return w.rules, true }
func (w *world) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	var records []*pb.CopyRecord
	for _, c := range copies {
		if c.Item == "" && w.spaces != nil {
			records = append(records, &pb.CopyRecord{Manifest: w.rows[c.Store], Audit: w.spaces[c.Store]})
			continue
		}
		records = append(records, &pb.CopyRecord{Manifest: w.rows[c.Store], Audit: w.rows[c.Store]})
	}
	return records, w.err
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, topic: braketest.New(brake.Deletes), lists: &lists{Lists: heldtest.New()},
		mem: map[string]*mem.Store{}, faulty: map[string]*storagetest.Faulty{},
		rules: policy.Rules{Revision: 3, Pairs: []policy.Pair{pair}, Deletes: policy.Propagate, Since: hour(1)}}
	for _, id := range []string{"1", "2"} {
		s, err := mem.New(mem.Config{ID: id, Now: func() time.Time { return hour(3) }})
		w.must(err)
		w.mem[id], w.faulty[id] = s, storagetest.NewFaulty(s)
		w.faulty[id].Before(func(_ context.Context, c storagetest.Call) error {
			for _, hook := range w.hooks {
				hook(id, c.Method)
			}
			return nil
		})
		s.Mark(id)
		w.must(s.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	}
	w.seen = w.put("2", "hello")
	w.rows = map[string]*pb.Record{
		"1": {State: tomb, Time: stamp(4), Origin: pb.Origin_ORIGIN_CLIENT},
		"2": {State: live, Time: stamp(3), Version: w.seen.Version, Digests: w.seen.Digests, SourceTime: stamp(2),
			SourceVersion: "v1"},
	}
	var err error
	w.deleter, err = New(w.config(Config{Settle: time.Hour, Worker: "w", Host: "h", Software: "s"}), w, w, w)
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) put(store, text string) storage.Object {
	w.t.Helper()
	o, err := w.mem[store].Put(w.t.Context(), "photos", "a.jpg", strings.NewReader(text),
		storage.PutOptions{Size: storage.UnknownSize})
	w.must(err)
	return o
}

// putItem puts another item with the content of the world's to the destination.
func (w *world) putItem(item string) {
	w.t.Helper()
	_, err := w.mem["2"].Put(w.t.Context(), "photos", item, strings.NewReader("hello"),
		storage.PutOptions{Size: storage.UnknownSize})
	w.must(err)
}

// on calls f before each call of a method of a store.
func (w *world) on(store, method string, f func()) {
	w.hooks = append(w.hooks, func(at, called string) {
		if at == store && called == method {
			f()
		}
	})
}

func order() *pb.DeletionCommand {
	return &pb.DeletionCommand{
		Id: "deletion", Account: "acme", Space: "photos", Item: "a.jpg", SourceStore: "1", DestinationStore: "2",
		Command: "command", Cause: "change", Deleted: stamp(4), PolicyRevision: 3, Time: stamp(4),
	}
}

func orderOf(item string) *pb.DeletionCommand {
	c := order()
	c.Id, c.Item, c.Command = schemas.ID("deletion", item), item, schemas.ID("command", item)
	return c
}

// run executes a command, and publishes its result.
func (w *world) run(c *pb.DeletionCommand) ([]*pb.Change, *pb.DuplicationResult, error) {
	w.t.Helper()
	out, err := w.deleter.Handle(w.t.Context(), &schemas.Delivery{Topic: schemas.Deletions, Body: c, Attempt: 2})
	if err != nil {
		if out != nil {
			w.t.Errorf("messages beside an error: %v", out)
		}
		return nil, nil, err
	}
	w.orders = 0
	var changes []*pb.Change
	for _, m := range out[:len(out)-1] {
		if _, ok := m.Body.(*pb.DuplicationCommand); ok {
			w.orders++
			continue
		}
		if m.Topic != schemas.Changes {
			w.t.Errorf("a message in %s", m.Topic)
		}
		changes = append(changes, m.Body.(*pb.Change))
	}
	last := out[len(out)-1]
	if last.Topic != schemas.DuplicationResults {
		w.t.Errorf("the result is in %s", last.Topic)
	}
	r := last.Body.(*pb.DuplicationResult)
	if r.GetResult() != "dry-run" {
		w.lists.Results = append(w.lists.Results, r)
	}
	return changes, r, nil
}

func (w *world) present(want bool) {
	w.t.Helper()
	_, err := w.mem["2"].Stat(w.t.Context(), "photos", "a.jpg")
	if want && err != nil || !want && !errors.Is(err, storage.ErrNotFound) {
		w.t.Errorf("the copy: got %v, want it present: %v", err, want)
	}
}

func TestDelete(t *testing.T) {
	w := newWorld(t)
	changes, result, err := w.run(order())
	w.must(err)
	w.present(false)
	if kept := w.mem["2"].AllKept(); len(kept) != 1 || string(kept[0].Bytes) != "hello" {
		t.Errorf("kept: %v", kept)
	}
	want := &pb.DuplicationResult{
		Id: result.GetId(), Command: "deletion", Cause: "command", Account: "acme", Space: "photos", Item: "a.jpg",
		SourceStore: "1", DestinationStore: "2", Decision: "C7", Result: "deleted", Outcome: done, Digests: w.seen.Digests,
		Started: result.GetStarted(), Finished: result.GetFinished(), Attempt: 2, ChangeTime: stamp(4), Worker: "w",
		Host: "h", Software: "s",
		Effect: duplicate.DeleteEffect(destination, hour(4), w.seen),
	}
	if !proto.Equal(result, want) {
		t.Errorf("result:\ngot  %v\nwant %v", result, want)
	}
	wantChange := &pb.Change{
		Op: pb.Op_OP_DELETE, Account: "acme", Store: "2", Space: "photos", Item: "a.jpg", Version: w.seen.Version,
		Etag: w.seen.ETag,
		Size: 5, Digests: w.seen.Digests, Provenance: pb.Provenance_PROVENANCE_VERIFIED, Origin: pb.Origin_ORIGIN_DUPLICATION,
		Cause: "deletion", Agent: "deleter",
	}
	if len(changes) != 1 {
		t.Fatalf("changes: %v", changes)
	}
	wantChange.Time = changes[0].GetTime()
	if record.Seal(wantChange); !proto.Equal(changes[0], wantChange) || !changes[0].GetTime().AsTime().After(hour(3)) {
		t.Errorf("change:\ngot  %v\nwant %v", changes[0], wantChange)
	}
}

func TestNotDeleted(t *testing.T) {
	tests := map[string]struct {
		prepare     func(*world, *pb.DeletionCommand)
		row, result string
		outcome     pb.Outcome
	}{
		"the source is back": {func(w *world, _ *pb.DeletionCommand) {
			w.put("1", "new")
		}, "C7", "not-deleted", handedOn},
		"nothing proves it": {func(w *world, _ *pb.DeletionCommand) {
			w.rows["1"] = &pb.Record{State: none}
		}, "C7c", "orphan", nothing},
		"written since": {func(w *world, _ *pb.DeletionCommand) {
			w.rows["1"] = &pb.Record{State: live, Time: stamp(5)}
		}, "C6", "not-deleted", handedOn},
		"only the command says so": {func(w *world, _ *pb.DeletionCommand) {
			w.rows["1"] = &pb.Record{State: live, Time: stamp(2)}
		}, "C6", "not-deleted", handedOn},
		"the copy is newer": {func(w *world, _ *pb.DeletionCommand) {
			w.rows["2"].SourceTime = stamp(5)
		}, "C7d", "kept-newer", nothing},
		"older than the rule": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Since = hour(5)
		}, "C7b", "kept", nothing},
		"older than the pair": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Added = map[policy.Pair]time.Time{pair: hour(5)}
		}, "C7b", "kept", nothing},
		"the rule keeps now": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Deletes = policy.KeepCopy
		}, "C7b", "kept", nothing},
		"a hold began": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Holds = []policy.Hold{{Until: time.Now().Add(time.Hour), Reason: "a lawsuit"}}
		}, "C7b", "held", nothing},
		"not in the policy any more": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Pairs = nil
		}, "C12", "not-in-policy", nothing},
		"by approval, says the rule": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Deletes = policy.Approve
		}, "C7b", "awaiting-approval", handedOn},
		"by approval, said the rule": {func(w *world, _ *pb.DeletionCommand) {
			w.rules.Propagated = hour(5)
		}, "C7b", "awaiting-approval", handedOn},
		"by approval, it was said": {func(_ *world, c *pb.DeletionCommand) {
			c.NeedsApproval = true
		}, "C7", "awaiting-approval", handedOn},
		"only a sweep missed it": {func(w *world, _ *pb.DeletionCommand) { w.rows["1"].Origin = pb.Origin_ORIGIN_SWEEP },
			"C7b", "awaiting-approval", handedOn},
		"it is older than the content by the reported times": {func(w *world, _ *pb.DeletionCommand) {
			w.rows["1"].Disputed = true
		}, "C7b", "awaiting-approval", handedOn},
		"a client has written other content to the destination": {func(w *world, _ *pb.DeletionCommand) {
			w.rows["2"].SourceTime, w.rows["2"].Origin = nil, pb.Origin_ORIGIN_CLIENT
		}, "C7b", "awaiting-approval", handedOn},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := order()
			tt.prepare(w, c)
			w.dryRun(c, tt.row, tt.result)
			changes, r, err := w.run(c)
			w.must(err)
			if r.GetDecision() != tt.row || r.GetResult() != tt.result || r.GetOutcome() != tt.outcome || len(changes) > 0 {
				t.Errorf("got %v, %v", r, changes)
			}
			if looksAgain := tt.result == "not-deleted"; looksAgain != (w.orders == 1) {
				t.Errorf("%d commands to observe again", w.orders)
			}
			w.present(true)
			if n := w.faulty["2"].Count("Delete"); n > 0 {
				t.Errorf("%d deletes", n)
			}
		})
	}
}

func TestUnknownDeletesNothing(t *testing.T) {
	tests := map[string]struct {
		prepare func(*world)
		class   retry.Class
	}{
		"source does not answer": {func(w *world) {
			w.faulty["1"].Script(storagetest.Fault{Method: "Stat"})
		}, retry.Transient},
		"source is not mounted":   {func(w *world) { w.mem["1"].Mark("") }, retry.ClassUnavailable},
		"source is another store": {func(w *world) { w.mem["1"].Mark("9") }, retry.ClassUnavailable},
		"destination does not answer": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Stat"})
		}, retry.Transient},
		"records do not answer": {func(w *world) { w.err = errors.New("no answer") }, retry.ClassUnavailable},
		"a row is unknown":      {func(w *world) { w.rows["1"] = nil }, retry.ClassUnavailable},
		"the delete fails": {func(w *world) {
			w.faulty["2"].Script(storagetest.Fault{Method: "Delete"})
		}, retry.Transient},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.prepare(w)
			if _, _, err := w.run(order()); err == nil || retry.ClassOf(err) != tt.class {
				t.Errorf("got class %v of %v, want %v", retry.ClassOf(err), err, tt.class)
			}
			w.present(true)
		})
	}
}

func TestDeletedButReportedAsFailed(t *testing.T) {
	w := newWorld(t)
	w.faulty["2"].Script(storagetest.Fault{Method: "Delete", Applied: true})
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.Transient || err == nil {
		t.Fatalf("got %v", err)
	}
	w.present(false)
	changes, r, err := w.run(order())
	w.must(err)
	if r.GetDecision() != "C8" || r.GetResult() != "gone" || len(changes) != 1 || changes[0].GetOp() != pb.Op_OP_DELETE ||
		changes[0].GetStore() != "2" || changes[0].GetVersion() != w.seen.Version ||
		!changes[0].GetTime().AsTime().Equal(hour(3).Add(time.Millisecond)) { // by the clock of its store
		t.Errorf("got %v, %v", r, changes)
	}
	again, _, err := w.run(order())
	w.must(err)
	if len(again) != 1 || again[0].GetId() != changes[0].GetId() {
		t.Errorf("the second execution has another Change: %v", again)
	}
	w.rows["2"] = &pb.Record{State: tomb, Time: stamp(4)}
	if changes, r, err := w.run(order()); err != nil || len(changes) != 0 || r.GetDecision() != "C8" {
		t.Errorf("once it is on record: got %v, %v, %v", changes, r, err)
	}
}

func TestDeleteIsOfTheVersionSeen(t *testing.T) {
	w := newWorld(t)
	ran := false
	w.on("2", "Delete", func() {
		if !ran {
			ran = true
			w.mem["2"].Rewrite("photos", "a.jpg", []byte("mine"))
			w.mem["2"].Date("photos", "a.jpg", hour(6))
		}
	})
	_, r, err := w.run(order())
	w.must(err)
	if r.GetDecision() != "C7d" || r.GetResult() != "kept-newer" {
		t.Errorf("got %v", r)
	}
	w.present(true)
}

// The delay counts by Kafka's clock, however far from it the clock of the deleter is.
func TestDelay(t *testing.T) {
	const years = 3 * 365 * 24 * time.Hour
	for name, ahead := range map[string]time.Duration{"right": 0, "ahead": years, "behind": -years} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			now := func() time.Time { return time.Now().Add(-ahead) }
			var err error
			w.deleter, err = New(w.config(Config{Delay: time.Hour, Now: now}), w, w, w)
			w.must(err)
			c := order()
			c.Deleted = timestamppb.New(now().Add(-time.Minute))
			_, _, err = w.run(c)
			if left := time.Until(retry.Due(err)); retry.ClassOf(err) != retry.ClassWait || left > time.Hour-time.Minute ||
				left < time.Hour-2*time.Minute {
				t.Errorf("got %v, due in %s", err, left)
			}
			w.present(true)
			c.Deleted = timestamppb.New(now().Add(-2 * time.Hour))
			_, r, err := w.run(c)
			w.must(err)
			if r.GetResult() != "deleted" {
				t.Errorf("got %v", r)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	noSpace, unknown := order(), order()
	noSpace.Space, unknown.DestinationStore = "", "9"
	w.rules.Pairs = append(w.rules.Pairs, policy.Pair{Source: "1", Destination: "9"})
	noList, noRefused := approval(listOfKind("nothing", 1), "action"), refusalOf(listOfKind(held.Limit, 0), "action")
	for name, body := range map[string]schemas.Body{"space": noSpace, "store": unknown, "message": &pb.Change{},
		"approved list": noList, "refused list": noRefused} {
		if out, err := w.deleter.Handle(t.Context(), &schemas.Delivery{Body: body}); out != nil || !retry.IsPermanent(err) {
			t.Errorf("%s: got %v, %v", name, out, err)
		}
	}
	for name, c := range map[string]Config{
		"a negative delay": w.config(Config{Delay: -1}), "a negative settle": w.config(Config{Settle: -1}),
		"no brake": {Lists: w.lists, Publisher: w.topic}, "no lists": {Brake: w.topic.Process(), Publisher: w.topic},
		"no publisher": {Brake: w.topic.Process(), Lists: w.lists},
	} {
		if _, err := New(c, w, w, w); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, err := New(w.config(Config{}), w, w, nil); err == nil {
		t.Error("no records are accepted")
	}
}

// An approval takes effect under either rule that does not keep copies.
func TestApprovedAfterTheRuleChanged(t *testing.T) {
	for name, tt := range map[string]struct{ first, then policy.Deletes }{
		"approve to propagate": {policy.Approve, policy.Propagate},
		"propagate to approve": {policy.Propagate, policy.Approve},
		"approve to keep":      {policy.Approve, policy.KeepCopy},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.rules.Deletes = tt.first
			first := order()
			first.NeedsApproval = true // as the planner marks what a sweep found
			_, r, err := w.run(first)
			w.must(err)
			c := order()
			c.List, c.Effect, c.Approved, c.Command = r.GetList(), r.GetEffect(), "ann", r.GetList()
			switch w.rules.Deletes = tt.then; tt.then {
			case policy.KeepCopy:
				w.rules.Since = hour(5)
			case policy.Propagate:
				w.rules.Propagated = hour(5)
			}
			_, _, err = w.run(c)
			w.must(err)
			w.present(tt.then == policy.KeepCopy)
		})
	}
}
