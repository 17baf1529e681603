package duplicate

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Of the commands about one copy that wait in a process the last one is executed, and stands for the others.
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
		"a repair":                 {func(_, l *pb.DuplicationCommand) { l.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR }, false},
		"two repairs": {func(c, l *pb.DuplicationCommand) {
			c.Reason, l.Reason = pb.DuplicationReason_DUPLICATION_REASON_REPAIR, pb.DuplicationReason_DUPLICATION_REASON_REPAIR
		}, false},
		"a sweep's":                   {func(_, l *pb.DuplicationCommand) { l.Reason = pb.DuplicationReason_DUPLICATION_REASON_SWEEP }, false},
		"less urgent":                 {func(_, l *pb.DuplicationCommand) { l.Priority = pb.Priority_PRIORITY_LOW }, false},
		"a delete, after a content":   {func(_, l *pb.DuplicationCommand) { l.CauseOp = pb.Op_OP_DELETE }, false},
		"a content, after a delete":   {func(c, _ *pb.DuplicationCommand) { c.CauseOp = pb.Op_OP_DELETE }, true},
		"properties, after a content": {func(_, l *pb.DuplicationCommand) { l.CauseOp = pb.Op_OP_SET_PROPERTIES }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			first := command(w.added("1", "one"))
			behind := last(w)
			tt.edit(first, behind)
			out, err := w.executor.Handle(t.Context(), &schemas.Delivery{Topic: schemas.DuplicationHigh, Body: first, Attempt: 1, Behind: behind, Timestamp: hour(9)})
			if tt.superseded {
				w.must(err)
				got := sort(t, out)
				got.ends("superseded", "superseded", nothing, 0, 0)
				if !strings.Contains(got.result.GetDetail(), behind.GetId()) {
					t.Errorf("detail: %q", got.result.GetDetail())
				}
				if n := len(w.faulty["1"].Calls()) + w.faulty["2"].Count("Stat"); n > 0 {
					t.Errorf("%d calls of stores", n)
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
