package duplicate

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

const (
	done     = pb.Outcome_OUTCOME_DONE
	nothing  = pb.Outcome_OUTCOME_NOTHING
	handedOn = pb.Outcome_OUTCOME_HANDED_ON
)

func TestCopy(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "hello"))
	c.Time = timestamppb.New(c.GetTime().AsTime().Add(time.Hour)) // Kafka's time of the Change
	from, err := w.mem["1"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	got := w.mustRun(c)
	got.ends("C5", "copied", done, 1, 1)
	w.holds("2", "hello")
	to, err := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
	w.must(err)
	if !reflect.DeepEqual(to.Properties, from.Properties) {
		t.Errorf("properties: got %+v, want %+v", to.Properties, from.Properties)
	}
	want := &pb.Change{
		Id: got.changes[0].GetId(), Op: pb.Op_OP_ADD, Account: "acme", Store: "2", Space: "photos", Item: "a.jpg",
		Version: to.Version, Etag: to.ETag, Size: 5, Digests: to.Digests, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		MediaType: "image/jpeg", Properties: map[string]string{"by": "me"}, Time: ms(to.Modified), Agent: "copier",
		Origin: pb.Origin_ORIGIN_DUPLICATION, Cause: c.GetId(), SourceTime: ms(from.Modified), SourceVersion: from.Version,
	}
	if !proto.Equal(got.changes[0], want) {
		t.Errorf("change:\ngot  %v\nwant %v", got.changes[0], want)
	}
	task := got.tasks[schemas.FixityHigh][0]
	wantTask := &pb.FixityTask{
		Id: task.GetId(), Account: "acme", Store: "2", Space: "photos", Item: "a.jpg",
		Reason:   pb.FixityReason_FIXITY_REASON_AFTER_COPY,
		Priority: pb.Priority_PRIORITY_HIGH, Cause: c.GetId(), Known: schemas.WithoutProperties(recordOf(want)),
		Time: task.GetTime(),
	}
	if !proto.Equal(task, wantTask) {
		t.Errorf("task:\ngot  %v\nwant %v", task, wantTask)
	}
	r := got.result
	wantResult := &pb.DuplicationResult{
		Id: r.GetId(), Command: c.GetId(), Cause: c.GetCause(), Account: "acme", Space: "photos", Item: "a.jpg",
		SourceStore: "1", DestinationStore: "2", Reason: c.GetReason(), Decision: "C5", Result: "copied", Outcome: done,
		Bytes: 5, Digests: to.Digests, Started: r.GetStarted(), Finished: r.GetFinished(), Attempt: 1,
		ChangeTime: c.GetChangeTime(), Planned: c.GetTime(), Worker: "w", Host: "h", Software: "s",
	}
	if !proto.Equal(r, wantResult) || r.GetStarted() == nil || r.GetFinished() == nil || len(r.GetId()) != 32 {
		t.Errorf("result:\ngot  %v\nwant %v", r, wantResult)
	}
	if w.journal.asked != 0 {
		t.Errorf("a plain copy read records %d times", w.journal.asked)
	}
	if n := w.faulty["1"].Count("Open"); n != 1 {
		t.Errorf("the source was opened %d times", n)
	}
	again := w.mustRun(c)
	again.ends("C2", "in-sync", nothing, 0, 0)
	w.untouched("1")
	if again.result.GetId() == r.GetId() {
		t.Error("two executions have one result")
	}
}

// A task carries a bounded part of a record: a message that cannot be encoded would lose all messages of its command.
func TestLongProperties(t *testing.T) {
	w := newWorld(t)
	long := storage.Properties{User: map[string]string{}}
	for i := range 65 {
		long.User["k"+strconv.Itoa(i)] = strings.Repeat("v", 2<<10)
	}
	put := func(store string) storage.Object {
		o, err := w.mem[store].Put(t.Context(), "photos", "a.jpg", strings.NewReader("hello"),
			storage.PutOptions{Size: 5, Properties: long})
		w.must(err)
		return o
	}
	c := command(w.reported(record.Content(at("1"), put("1"))))
	run := func(row string) {
		t.Helper()
		out, err := w.executor.Handle(t.Context(),
			&schemas.Delivery{Topic: schemas.DuplicationHigh, Body: c, Attempt: 1, Timestamp: hour(9)})
		w.must(err)
		if got := sort(t, out).result.GetDecision(); got != row || len(out) != 3 {
			t.Errorf("got row %s and %d messages, want %s and 3", got, len(out), row)
		}
		for _, m := range out {
			if _, err := schemas.Encode(m); err != nil {
				t.Errorf("row %s: %v", row, err)
			}
		}
	}
	run("C5")
	run("C2") // its messages were lost: published again
}

func TestOverwriteKeepsReplacedBytes(t *testing.T) {
	w := newWorld(t)
	w.put("2", "old")
	got := w.mustRun(command(w.added("1", "new")))
	got.ends("C4", "copied", done, 1, 1)
	if op := got.changes[0].GetOp(); op != pb.Op_OP_UPDATE {
		t.Errorf("op: got %v", op)
	}
	w.holds("2", "new")
	kept := w.mem["2"].AllKept()
	if len(kept) != 1 || string(kept[0].Bytes) != "old" {
		t.Errorf("kept: %v", kept)
	}
}

func TestIfAbsentOverwritesNothing(t *testing.T) {
	w := newWorld(t)
	w.put("2", "old")
	c := command(w.added("1", "new"))
	c.IfAbsent = true
	w.mustRun(c).ends("C4", "if-absent", nothing, 0, 0)
	w.holds("2", "old")
	w.remove("2")
	w.mustRun(c).ends("C5", "copied", done, 1, 1)
}

func TestClasses(t *testing.T) {
	for priority, topic := range map[pb.Priority]schemas.Topic{
		pb.Priority_PRIORITY_UNSPECIFIED: schemas.FixityHigh, pb.Priority_PRIORITY_HIGH: schemas.FixityHigh,
		pb.Priority_PRIORITY_LOW: schemas.FixityLow, pb.Priority_PRIORITY_LARGE: schemas.FixityLarge,
	} {
		t.Run(priority.String(), func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			c.Priority = priority
			if got := w.mustRun(c); len(got.tasks[topic]) != 1 {
				t.Errorf("tasks: %v", got.tasks)
			}
		})
	}
}

func TestNoCheck(t *testing.T) {
	w := newWorld(t)
	w.executor.cfg.NoCheck = true
	change := w.added("1", "hello")
	w.mustRun(command(change)).ends("C5", "copied", done, 1, 0)
	w.mem["2"].Corrupt("photos", "a.jpg", []byte("hellO"))
	w.mustRun(w.repair(change.GetDigests())).ends("C0", "repaired", done, 1, 1) // a repair is always checked
}

func TestSourceIsReadOnly(t *testing.T) {
	w := newWorld(t)
	sides, err := w.executor.observer.Sides(manual())
	w.must(err)
	if err := sides.SourceStore.CreateSpace(t.Context(), storage.Space{Name: "x"}); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("got %v", err)
	}
}

func TestMissingSpaceIsCreated(t *testing.T) {
	w := newWorld(t)
	w.must(w.mem["2"].DeleteSpace(t.Context(), "photos"))
	got := w.mustRun(command(w.added("1", "hello")))
	got.ends("C5", "copied", done, 2, 1)
	made, err := w.mem["2"].StatSpace(t.Context(), "photos")
	if want := (storage.Space{Name: "photos", Properties: map[string]string{"k": "v"}}); err != nil ||
		!reflect.DeepEqual(made, want) {
		t.Errorf("got %+v, %v, want %+v", made, err, want)
	}
	if c := got.changes[0]; c.GetOp() != pb.Op_OP_CREATE_SPACE || c.GetItem() != "" || c.GetStore() != "2" {
		t.Errorf("change of the space: %v", c)
	}
}

func TestSpaceCommands(t *testing.T) {
	ofSpace := func() *pb.DuplicationCommand { c := manual(); c.Item = ""; return c }
	tests := map[string]struct {
		prepare     func(*world)
		row, result string
		outcome     pb.Outcome
		changes     int
	}{
		"S1":  {func(w *world) { w.must(w.mem["2"].DeleteSpace(w.t.Context(), "photos")) }, "S1", "created", done, 1},
		"S1b": {func(*world) {}, "S1b", "in-sync", nothing, 1},
		"S1b, other properties": {func(w *world) {
			w.must(w.mem["2"].SetSpace(w.t.Context(), storage.Space{Name: "photos"}))
		},
			"S1b", "properties-set", done, 1},
		"S2":  {func(w *world) { w.must(w.mem["1"].DeleteSpace(w.t.Context(), "photos")) }, "S2", "orphan", nothing, 0},
		"C12": {func(w *world) { w.rules.Pairs = nil }, "C12", "not-in-policy", nothing, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.prepare(w)
			w.mustRun(ofSpace()).ends(tt.row, tt.result, tt.outcome, tt.changes, 0)
			w.untouched("1")
		})
	}
	w := newWorld(t)
	w.must(w.mem["1"].DeleteSpace(t.Context(), "photos"))
	w.mem["1"].Mark("")
	if _, err := w.run(ofSpace(), 0); retry.ClassOf(err) != retry.ClassUnavailable ||
		!errors.Is(err, storage.ErrNoMarker) {
		t.Errorf("S5: got %v", err)
	}
}

func TestRowsThatWriteNothing(t *testing.T) {
	tests := map[string]struct {
		command     func(*world) *pb.DuplicationCommand
		row, result string
	}{
		"C12: pair": {func(w *world) *pb.DuplicationCommand {
			w.rules.Pairs = []policy.Pair{{Source: "2", Destination: "1"}}
			return command(w.added("1", "x"))
		}, "C12", "not-in-policy"},
		"C12: not even the stores are known": {func(w *world) *pb.DuplicationCommand {
			c := manual()
			c.DestinationStore = "9"
			return c
		}, "C12", "not-in-policy"},
		"C10": {func(w *world) *pb.DuplicationCommand {
			w.rules.Exclude = []string{"*.jpg"}
			return command(w.added("1", "x"))
		}, "C10", "excluded"},
		"C7b": {func(w *world) *pb.DuplicationCommand {
			w.rules.Deletes = policy.KeepCopy
			w.mustRun(command(w.added("1", "x")))
			return command(w.gone("1"))
		}, "C7b", "kept"},
		"C7c": {func(w *world) *pb.DuplicationCommand { w.added("2", "x"); return manual() }, "C7c", "orphan"},
		"C8, unexplained": {func(w *world) *pb.DuplicationCommand {
			w.added("2", "x")
			w.remove("2")
			return manual()
		}, "C8", "gone-unexplained"},
		"C8": {func(w *world) *pb.DuplicationCommand { return manual() }, "C8", "gone"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := tt.command(w)
			before := w.faulty["2"].Count("Put")
			w.mustRun(c).ends(tt.row, tt.result, nothing, 0, 0)
			if n := w.faulty["2"].Count("Put"); n != before {
				t.Errorf("%d puts", n-before)
			}
			w.untouched("1")
		})
	}
}

func TestDigestsAreComputedIfAStoreHasNone(t *testing.T) {
	tests := map[string]struct {
		source, destination bool // has no digests
		text                string
		row, result         string
		changes             int
	}{
		"destination, equal": {false, true, "hello", "C2", "in-sync", 1},
		"destination, other": {false, true, "HELLO", "C4", "copied", 1},
		"both, equal":        {true, true, "hello", "C2", "in-sync", 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := command(w.added("1", "hello"))
			w.put("2", tt.text)
			if tt.destination {
				w.mem["2"].Rewrite("photos", "a.jpg", []byte(tt.text))
			}
			if tt.source {
				w.mem["1"].Rewrite("photos", "a.jpg", []byte("hello")) // rewritten with the same bytes
			}
			got := w.mustRun(c)
			if got.result.GetDecision() != tt.row || got.result.GetResult() != tt.result || len(got.changes) != tt.changes {
				t.Errorf("got %v and %d changes", got.result, len(got.changes))
			}
			if len(got.changes) > 0 && len(got.changes[0].GetDigests()) == 0 {
				t.Error("a Change without the digests that were read")
			}
			w.holds("2", "hello")
		})
	}
}

func TestRefusals(t *testing.T) {
	noSpace, unknown, repair := manual(), manual(), manual()
	noSpace.Space = ""
	unknown.DestinationStore, repair.SourceStore = "9", "9"
	repair.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
	for name, body := range map[string]schemas.Body{"S0": noSpace, "store": unknown, "repair": repair,
		"message": &pb.Change{}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.rules.Pairs = append(w.rules.Pairs, policy.Pair{Source: "1", Destination: "9"})
			if out, err := w.executor.Handle(context.Background(), &schemas.Delivery{Body: body}); out != nil ||
				!retry.IsPermanent(err) {
				t.Errorf("got %v, %v", out, err)
			}
		})
	}
	w := newWorld(t)
	if _, err := New(Config{}, nil, w, w.journal); err == nil {
		t.Error("no stores are accepted")
	}
	if _, err := New(Config{WaitIntervals: []time.Duration{0}}, w, w, w.journal); err == nil {
		t.Error("a wait of nothing is accepted")
	}
}
