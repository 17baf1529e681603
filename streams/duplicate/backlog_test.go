package duplicate

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// Rot at the source is not copied, whenever it happens. Rot that its store does not report is found by checks.
func TestRotAtTheSource(t *testing.T) {
	corrupt := func(w *world) { w.mem["1"].Corrupt("photos", "a.jpg", []byte("hellO")) }
	for name, tt := range map[string]struct {
		rot         func(w *world) *pb.DuplicationCommand
		row, result string
		outcome     pb.Outcome
		tasks       int
		copied      string // what the destination holds
	}{
		"before the first copy": {func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "hello"))
			corrupt(w)
			return c
		}, "C4s", "source-suspect", handedOn, 1, ""},
		"while it is copied": {func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "hello"))
			w.once("2", "Put", func() { corrupt(w) })
			w.faulty["1"].Script(storagetest.Fault{Method: "Open", Flip: true, After: 4})
			return c
		}, "C4s", "source-suspect", handedOn, 1, ""},
		"after it was copied": {func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "hello"))
			w.mustRun(c)
			corrupt(w)
			return c
		}, "C2", "in-sync", nothing, 0, "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := tt.rot(w)
			for range 2 {
				w.mustRun(c).ends(tt.row, tt.result, tt.outcome, 0, tt.tasks)
				w.holds("2", tt.copied)
			}
		})
	}
}

// Commands of last year that are read again, in any order, change nothing: what they led to is there or was replaced.
func TestOldCommandsAreReplayed(t *testing.T) {
	const put, update, remove = "put", "update", "delete"
	for _, history := range [][]string{
		{put}, {put, update}, {put, remove}, {put, update, remove}, {put, remove, put}, {put, remove, put, remove},
		{put, remove, put, update},
	} {
		t.Run(fmt.Sprint(history), func(t *testing.T) {
			w := newWorld(t)
			var all []*pb.DuplicationCommand
			for i, step := range history {
				var change *pb.Change
				if step == remove {
					change = record.Delete(at("1"), w.remove("1"))
				} else {
					change = record.Content(at("1"), w.put("1", fmt.Sprint("content ", i)))
				}
				change.Time = stamp(9 + i)
				c := command(w.reported(change))
				all = append(all, c)
				for _, order := range w.mustRun(c).orders { // the deleter executes it
					gone := record.Delete(at("2"), w.remove("2"))
					gone.Origin, gone.Cause = pb.Origin_ORIGIN_DUPLICATION, order.GetId()
					w.journal.add(record.Seal(gone))
				}
			}
			for id, s := range w.mem {
				w.faulty[id] = storagetest.NewFaulty(s)
			}
			was, _ := w.mem["2"].Stat(t.Context(), "photos", "a.jpg")
			backwards := slices.Clone(all)
			slices.Reverse(backwards)
			for i, c := range slices.Concat(all, backwards, all) {
				got := w.mustRun(c)
				if word := got.result.GetResult(); word != "in-sync" && word != "gone" || len(got.changes) > 0 ||
					len(got.tasks) > 0 || len(got.orders) > 0 {
					t.Errorf("command %d ended as %s, %d changes, checks %v, deletes %v", i, word, len(got.changes), got.tasks,
						got.orders)
				}
			}
			w.untouched("1")
			w.untouched("2")
			if is, _ := w.mem["2"].Stat(t.Context(), "photos", "a.jpg"); is.Version != was.Version {
				t.Errorf("the copy is %v, and was %v", is, was)
			}
		})
	}
}

// Two processes that execute commands of different classes about one item at the same time make one copy, and agree on
// the id of its Change.
func TestTwoProcessesCopyOneItem(t *testing.T) {
	for n := range 50 {
		w := newWorld(t)
		var ids []string
		for _, text := range []string{"one", "two"} {
			c := command(w.added("1", text))
			low := proto.CloneOf(c)
			low.Id, low.Priority = schemas.ID("low", c.GetId()), pb.Priority_PRIORITY_LOW
			outs := make([][]schemas.Message, 4)
			errs := make([]error, 4)
			var all sync.WaitGroup
			for i := range outs {
				e, err := New(Config{Now: w.time, WaitIntervals: intervals, MissingIntervals: missing}, w, w, w.journal)
				w.must(err)
				body := []*pb.DuplicationCommand{c, low}[i%2]
				all.Go(func() {
					outs[i], errs[i] = e.Handle(t.Context(), &schemas.Delivery{Body: body, Attempt: 1, Timestamp: hour(9)})
				})
			}
			all.Wait()
			made := map[string]bool{}
			for i, out := range outs {
				w.must(errs[i])
				for _, change := range sort(t, out).changes {
					made[change.GetId()] = true
					ids = append(ids, change.GetId())
					w.journal.add(change)
				}
			}
			if len(made) != 1 {
				t.Errorf("round %d: %d different Changes of %q: %v", n, len(made), text, ids)
			}
			w.holds("2", text)
		}
		w.untouched("1")
		if t.Failed() {
			return
		}
	}
}

// The policy that counts is the one that is in force when a command is executed, not the one that it was made under.
func TestPolicyChangesUnderABacklog(t *testing.T) {
	w := newWorld(t)
	rules := w.rules
	c := command(w.added("1", "hello"))
	w.rules.Pairs = nil // changed
	w.mustRun(c).ends("C12", "not-in-policy", nothing, 0, 0)
	w.holds("2", "")
	w.rules = rules // reverted
	w.mustRun(c).ends("C5", "copied", done, 1, 1)
	gone := command(w.gone("1"))
	w.rules = policy.Rules{} // withdrawn
	w.mustRun(gone).ends("C12", "not-in-policy", nothing, 0, 0)
	w.holds("2", "hello")
	w.rules = rules // set again, and its rule for deletes is younger than the delete
	w.rules.Since = gone.GetChangeTime().AsTime()
	w.mustRun(gone).ends("C7b", "kept", nothing, 0, 0)
	w.rules = rules
	if got := w.mustRun(gone); len(got.orders) != 1 {
		t.Errorf("got %v", got.result)
	}
}

// A store that reports success without effect is not believed: the copy is observed and made again. If it never has an
// effect, the check that follows the copy finds it absent.
func TestDestinationLies(t *testing.T) {
	for name, tt := range map[string]struct{ times, puts int }{"once": {1, 2}, "always": {-1, maxIterations}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.faulty["2"].Script(storagetest.Fault{Method: "Put", FalseSuccess: true, Times: tt.times})
			got := w.mustRun(command(w.added("1", "hello")))
			n := 0
			for _, tasks := range got.tasks {
				for _, task := range tasks {
					if task.GetStore() == "2" {
						n++
					}
				}
			}
			if puts := w.faulty["2"].Count("Put"); puts != tt.puts || n != 1 {
				t.Errorf("%d puts, %d checks of the copy; want %d, 1: %v", puts, n, tt.puts, got.result)
			}
			if tt.times > 0 {
				w.holds("2", "hello")
			}
		})
	}
}
