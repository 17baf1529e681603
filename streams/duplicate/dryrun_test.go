package duplicate

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A dry run ends in the row and would have the result of the command itself, and its only message is that result: no
// store, no Change, no check, and of a delete only the dry run of the delete.
func TestDryRun(t *testing.T) {
	for name, prepare := range map[string]func(*world) *pb.DuplicationCommand{
		"C5: copied": func(w *world) *pb.DuplicationCommand { return command(w.added("1", "one")) },
		"C5: nothing on record": func(w *world) *pb.DuplicationCommand {
			w.put("1", "one")
			return manual()
		},
		"C4: copied": func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "one")))
			return command(w.added("1", "two"))
		},
		"C3: properties-set": func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "one")))
			w.alter("2")
			return manual()
		},
		"C2u: properties-unknown": func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "one")))
			w.alter("1")
			return manual()
		},
		"C2: in-sync": func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "one"))
			w.mustRun(c)
			return c
		},
		"C2: in-sync, and on no record": func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "one"))
			if _, err := w.crash(c, 0); err != nil {
				w.t.Fatal(err)
			}
			return c
		},
		"C12: not-in-policy": func(w *world) *pb.DuplicationCommand {
			w.rules.Pairs = nil
			return command(w.added("1", "one"))
		},
		"C10: excluded": func(w *world) *pb.DuplicationCommand {
			w.rules.MaxSize = 1
			return command(w.added("1", "one"))
		},
		"C6: source-missing": func(w *world) *pb.DuplicationCommand {
			c := command(w.added("1", "one"))
			w.mustRun(c)
			w.remove("1")
			return c
		},
		"C7: deletion-ordered": func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "one")))
			return command(w.reported(record.Delete(at("1"), w.remove("1"))))
		},
		"C7b: kept": func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "one")))
			w.rules.Deletes = policy.KeepCopy
			return command(w.reported(record.Delete(at("1"), w.remove("1"))))
		},
		"C7c: orphan": func(w *world) *pb.DuplicationCommand {
			w.put("2", "one")
			return manual()
		},
		"C8: gone": func(w *world) *pb.DuplicationCommand { return manual() },
		"C0: repaired": func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "one")))
			w.mem["2"].Corrupt("photos", "a.jpg", []byte("two"))
			return w.repair(digest.Set(w.journal.rows[at("1")].GetDigests()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := prepare(w)
			for id, s := range w.mem {
				w.faulty[id] = storagetest.NewFaulty(s)
			}
			dry := proto.CloneOf(c)
			dry.DryRun = true
			got, err := w.crash(dry, 0)
			w.must(err)
			w.untouched("1")
			w.untouched("2")
			really, err := w.crash(c, 99)
			w.must(err)
			r, want := got.result, really.result
			if r.GetDecision() != want.GetDecision() || r.GetWouldBe() != want.GetResult() || want.GetWouldBe() != "" ||
				r.GetResult() != ResultDryRun || r.GetOutcome() != nothing || r.GetBytes() != 0 ||
				!strings.HasPrefix(name, want.GetDecision()+":") {
				t.Errorf("the dry run ended as %v, the command as %v", r, want)
			}
			if len(got.changes) > 0 || len(got.tasks) > 0 || len(got.orders) != len(really.orders) {
				t.Errorf("messages of the dry run: %v, %v, %v", got.changes, got.tasks, got.orders)
			}
			for _, order := range got.orders {
				if !order.GetDryRun() {
					t.Errorf("the dry run ordered %v", order)
				}
			}
			for _, order := range really.orders {
				if order.GetDryRun() {
					t.Errorf("the command ordered %v", order)
				}
			}
		})
	}
}

// A rewrite that the brake would hold is not reported as one that would be done. The dry run counts nothing.
func TestDryRunOfARewriteAtTheBrake(t *testing.T) {
	w := newWorld(t)
	topic := w.braked(1)
	dry := w.replaced("one", "two")
	dry.DryRun = true
	if r := w.mustRun(dry).result; r.GetWouldBe() != "copied" {
		t.Errorf("within the limits: got %v", r)
	}
	dry.DryRun = false
	w.mustRun(dry).ends("C4", "copied", done, 1, 1)
	checkpoints := len(topic.Checkpoints)
	dry = command(w.added("1", "three"))
	dry.DryRun = true
	r := w.mustRun(dry).result
	if r.GetDecision() != "C4" || r.GetResult() != ResultDryRun || r.GetWouldBe() != "awaiting-approval" ||
		r.GetDetail() != "the brake: replaced.max_count within an hour" || r.GetList() != "" {
		t.Errorf("got %v", r)
	}
	w.holds("2", "two")
	if len(topic.Checkpoints) != checkpoints || len(topic.Published) > 0 || len(topic.lists.Held) > 0 {
		t.Errorf("%d checkpoints, published %v, incidents %v", len(topic.Checkpoints), topic.Published, topic.lists.Held)
	}
}

func TestDryRunFails(t *testing.T) {
	w := newWorld(t)
	c := command(w.added("1", "one"))
	c.DryRun = true
	w.faulty["2"].Script(storagetest.Fault{Method: "Stat"})
	if got, err := w.crash(c, 0); retry.ClassOf(err) != retry.Transient || err == nil {
		t.Errorf("a store that does not answer: got %v, %v", got, err)
	}
	c.Item, c.Time = "", timestamppb.Now()
	if got, err := w.crash(c, 0); !retry.IsPermanent(err) {
		t.Errorf("a space: got %v, %v", got, err)
	}
	w.untouched("2")
}
