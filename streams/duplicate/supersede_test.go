package duplicate

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/record"
)

// Of the commands for one copy that wait in a process only the last is executed.
func TestSuperseded(t *testing.T) {
	last := func(w *world) *pb.DuplicationCommand { return command(w.added("1", "three")) }
	tests := map[string]struct {
		edit       func(first, last *pb.DuplicationCommand)
		superseded bool
	}{
		"alike":                    {func(_, _ *pb.DuplicationCommand) {}, true},
		"both fill what is absent": {func(c, l *pb.DuplicationCommand) { c.IfAbsent, l.IfAbsent = true, true }, true},
		"the last does only that":  {func(_, l *pb.DuplicationCommand) { l.IfAbsent = true }, false},
		"of another item":          {func(_, l *pb.DuplicationCommand) { l.Item = "b.jpg" }, false},
		"of the space":             {func(_, l *pb.DuplicationCommand) { l.Item = "" }, false},
		"from another source":      {func(_, l *pb.DuplicationCommand) { l.SourceStore = "3" }, false},
		"a repair": {func(_, l *pb.DuplicationCommand) {
			l.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR
		}, false},
		"two repairs": {func(c, l *pb.DuplicationCommand) {
			c.Reason, l.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR, pb.DuplicationReason_DUPLICATION_REASON_REPAIR
		}, false},
		"a sweep's": {func(_, l *pb.DuplicationCommand) {
			l.Reason = pb.DuplicationReason_DUPLICATION_REASON_SWEEP
		}, false},
		"less urgent":               {func(_, l *pb.DuplicationCommand) { l.Priority = pb.Priority_PRIORITY_LOW }, false},
		"a delete, after a content": {func(_, l *pb.DuplicationCommand) { l.CauseOp = pb.Op_OP_DELETE }, false},
		"a content, after a delete": {func(c, _ *pb.DuplicationCommand) { c.CauseOp = pb.Op_OP_DELETE }, true},
		"to observe again, after a delete": {func(c, l *pb.DuplicationCommand) {
			c.CauseOp, l.CauseOp = pb.Op_OP_DELETE, pb.Op_OP_UNSPECIFIED
		}, false},
		"to observe again, twice": {func(c, l *pb.DuplicationCommand) {
			c.CauseOp, l.CauseOp = pb.Op_OP_UNSPECIFIED, pb.Op_OP_UNSPECIFIED
		}, true},
		"a dry run":                   {func(_, l *pb.DuplicationCommand) { l.DryRun = true }, false},
		"after a dry run":             {func(c, _ *pb.DuplicationCommand) { c.DryRun = true }, false},
		"properties, after a content": {func(_, l *pb.DuplicationCommand) { l.CauseOp = pb.Op_OP_SET_PROPERTIES }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := command(w.added("1", "one"))
			behind := last(w)
			tt.edit(first, behind)
			out, err := w.executor.Handle(t.Context(),
				&schemas.Delivery{Topic: schemas.DuplicationHigh, Body: first, Attempt: 1, Successor: behind, Timestamp: hour(9)})
			if tt.superseded {
				w.must(err)
				got := sort(t, out)
				got.ends("superseded", "superseded", nothing, 0, 0)
				if !strings.Contains(got.result.GetDetail(), behind.GetId()) {
					t.Errorf("detail: %q", got.result.GetDetail())
				}
				if n := len(w.faulty["1"].Calls()) - w.faulty["1"].Count("Stat") + len(w.faulty["2"].Calls()); n > 0 {
					t.Errorf("%d calls of stores besides Stat of the source", n)
				}
				w.mustRun(behind).ends("C5", "copied", done, 1, 1)
				w.holds("2", "three")
				return
			}
			if err == nil && sort(t, out).result.GetResult() == "superseded" {
				t.Error("superseded")
			}
		})
	}
}

// A client's command that is the only evidence of the source's content is executed, whichever command waits behind it:
// a fast clock has dated another content later, and the command behind repeats the one for that. The same holds if the
// source does not answer.
func TestNotSupersededByLessEvidence(t *testing.T) {
	for name, fails := range map[string]bool{"the source answers": false, "the source does not answer": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			early := record.Content(at("1"), w.put("1", "one"))
			early.Time = stamp(20)
			w.reported(early)
			late := w.added("1", "two")
			if w.journal.rows[at("1")].GetVersion() == late.GetVersion() {
				t.Fatal("the later content is on record")
			}
			if fails {
				w.faulty["1"].Script(fault("Stat", nil))
			}
			d := &schemas.Delivery{Topic: schemas.DuplicationHigh, Body: command(late), Attempt: 1, Successor: command(early),
				Timestamp: hour(9)}
			out, err := w.executor.Handle(t.Context(), d)
			if fails {
				if retry.ClassOf(err) != retry.Transient && (err != nil || sort(t, out).result.GetResult() == "superseded") {
					t.Fatalf("got %v, %v", out, err)
				}
				out, err = w.executor.Handle(t.Context(), d)
			}
			w.must(err)
			if got := sort(t, out); got.result.GetResult() == "superseded" {
				t.Errorf("got %v", got.result)
			}
			w.holds("2", "two")
		})
	}
}
