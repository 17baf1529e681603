package duplicate

import (
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/held/heldtest"
	"github.com/millrace/millrace/streams/storage/record"
)

// What only a person may have overwritten is on a list, and is overwritten when the list was approved: by the content
// that was on it, over the copy that was there.
func TestDiffers(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*world) *pb.DuplicationCommand
		row     string
		held    string // what the copy holds
		source  string // what it holds when it was approved
	}{
		"another program has written the copy": {func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "hello")))
			c := record.Content(at("2"), w.put("2", "of another program"))
			c.Op, c.Origin, c.Time = pb.Op_OP_UPDATE, pb.Origin_ORIGIN_SWEEP, stamp(11)
			w.journal.add(record.Seal(c))
			return swept()
		}, "C4", "of another program", "hello"},
		"another program has written the source": {func(w *world) *pb.DuplicationCommand {
			w.mustRun(command(w.added("1", "hello")))
			c := record.Content(at("1"), w.put("1", "of another program"))
			c.Op, c.Origin, c.Time = pb.Op_OP_UPDATE, pb.Origin_ORIGIN_SWEEP, stamp(11)
			w.journal.add(record.Seal(c))
			ifAbsent := command(c)
			ifAbsent.IfAbsent = true
			return ifAbsent
		}, "C4", "hello", "of another program"},
		"a snapshot was restored": {func(w *world) *pb.DuplicationCommand {
			first := command(w.added("1", "old"))
			w.mustRun(first)
			w.mustRun(command(w.added("1", "new")))
			w.snapshot("old")
			w.now = hour(30)
			return first
		}, "C4o", "new", "old"},
	} {
		for _, action := range []string{held.ActionApprove, "approve, and the command again", held.ActionClose,
			held.ActionRefuse} {
			t.Run(name+", "+action, func(t *testing.T) {
				again := action == "approve, and the command again"
				if again {
					action = held.ActionApprove
				}
				w := newWorld(t)
				c := tt.prepare(w)
				topic := w.braked(99)
				differs := func() *pb.DuplicationResult {
					t.Helper()
					got, err := w.run(c, len(intervals))
					w.must(err)
					if r := got.result; r.GetDecision() != tt.row || r.GetResult() != "awaiting-approval" ||
						r.GetList() != "differs-1" || r.GetOutcome() != handedOn {
						t.Fatalf("got %v", r)
					}
					return got.result
				}
				r := differs()
				if once := differs(); once.GetEffect() != r.GetEffect() {
					t.Errorf("held again: %v", once)
				}
				w.holds("2", tt.held)
				topic.lists.Results = append(topic.lists.Results, r)
				list := held.List{Space: at("2").WithoutItem(), Kind: held.Differs, Number: 1}
				topic.lists.Decide(list, action)
				topic.lists.Closed[list] = true
				order := c
				if action == held.ActionApprove && !again {
					order = listed(r)
				}
				got, err := w.run(order, len(intervals))
				w.must(err)
				if action != held.ActionApprove {
					got.ends(tt.row, "kept", nothing, 0, 0)
					w.holds("2", tt.held)
					return
				}
				got.ends("C4", "copied", done, 1, 1)
				if got.result.GetList() != "differs-1" || got.result.GetEffect() != r.GetEffect() {
					t.Errorf("got %v", got.result)
				}
				w.holds("2", tt.source)
			})
		}
	}
}

// Of the repairs of missing copies, those beyond the limit wait. Other repairs do not, and neither does what a person
// has approved alone.
func TestRepairBeyondTheLimit(t *testing.T) {
	prepare := func(t *testing.T) (*world, *heldtest.Lists, *pb.DuplicationCommand) {
		w := newWorld(t)
		change := w.added("1", "hello")
		w.mustRun(command(change))
		topic, lists := braketest.New(brake.Repairs), heldtest.New()
		topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 0}
		config := w.executor.cfg
		config.Repairs, config.Held = topic.Process(), lists
		var err error
		w.executor, err = New(config, w, w, w.journal)
		w.must(err)
		w.mem["2"].Lose("photos", "a.jpg")
		return w, lists, w.repair(change.GetDigests())
	}
	hold := func(t *testing.T, w *world, lists *heldtest.Lists, c *pb.DuplicationCommand) *pb.DuplicationResult {
		t.Helper()
		r := w.mustRun(c).result
		if r.GetDecision() != "C0" || r.GetResult() != "awaiting-approval" || r.GetList() != "repairs-1" ||
			r.GetIncident() != "incident" {
			t.Fatalf("got %v", r)
		}
		lists.Results = append(lists.Results, r)
		return r
	}
	list := held.List{Space: at("2").WithoutItem(), Kind: held.Repairs, Number: 1}
	t.Run("approved", func(t *testing.T) {
		w, lists, c := prepare(t)
		r := hold(t, w, lists, c)
		lists.Decide(list, held.ActionApprove)
		approved := listed(r)
		approved.Repair = &pb.RepairOrder{Incident: r.GetIncident(), Digests: r.GetDigests()}
		w.mustRun(approved).ends("C0", "repaired", done, 1, 1)
		w.holds("2", "hello")
		// Lost again, it is another loss.
		w.mem["2"].Lose("photos", "a.jpg")
		if again := w.mustRun(c).result; again.GetResult() != "awaiting-approval" || again.GetEffect() == r.GetEffect() {
			t.Errorf("lost again: %v", again)
		}
	})
	t.Run("closed", func(t *testing.T) {
		w, lists, c := prepare(t)
		hold(t, w, lists, c)
		lists.Decide(list, held.ActionClose)
		if r := w.mustRun(c).result; r.GetResult() != "kept" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("closed, and a sweep finds the copy lost", func(t *testing.T) {
		w, lists, c := prepare(t)
		r := hold(t, w, lists, c)
		lists.Decide(list, held.ActionClose)
		got := w.mustRun(swept()).result
		if got.GetDecision() != "C4d" || got.GetResult() != "kept" || got.GetEffect() != r.GetEffect() {
			t.Errorf("got %v", got)
		}
	})
	t.Run("closed, back, and lost again after a check", func(t *testing.T) {
		w, lists, c := prepare(t)
		w.journal.unchecked = true
		r := hold(t, w, lists, c)
		lists.Decide(list, held.ActionClose)
		w.journal.unchecked = false
		if again := w.mustRun(c).result; again.GetResult() != "awaiting-approval" || again.GetEffect() == r.GetEffect() {
			t.Errorf("got %v", again)
		}
	})
	t.Run("it cannot be refused", func(t *testing.T) {
		w, lists, c := prepare(t)
		hold(t, w, lists, c)
		lists.Decide(list, held.ActionRefuse)
		hold(t, w, lists, c)
	})
	t.Run("approved alone", func(t *testing.T) {
		w, lists, c := prepare(t)
		hold(t, w, lists, c)
		c.Approved = "ann"
		w.mustRun(c).ends("C0", "repaired", done, 1, 1)
	})
	t.Run("of a corrupt copy", func(t *testing.T) {
		w, _, c := prepare(t)
		w.put("2", "hellO")
		w.mustRun(w.repair(c.GetRepair().GetDigests())).ends("C0", "repaired", done, 1, 1)
	})
}
