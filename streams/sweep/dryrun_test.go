package sweep

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A dry run reads all pages, with what the next round would know of the one before, and publishes nothing.
func TestDryRun(t *testing.T) {
	asks := []schemas.Message{
		{Body: &pb.FixityTask{Size: 3}}, {Body: &pb.FixityTask{Size: -1}},
		{Body: &pb.DuplicationCommand{Size: 10}}, {Body: &pb.DuplicationCommand{SizeUnknown: true}},
		{Body: &pb.Change{Op: pb.Op_OP_ADD, Size: 7}}, {Body: &pb.Change{Op: pb.Op_OP_DELETE, Size: 7}},
		{Body: &pb.Report{}},
	}
	work := Work{Amount{Items: 6, Bytes: 9}, Amount{Items: 6, Bytes: 30}, Amount{Items: 3, Bytes: 21}} // of three pages
	ended := &pb.Checkpoint{Cursor: []byte("of the end"), Previous: []byte("before"), Finished: timestamppb.New(start)}
	for name, tt := range map[string]struct {
		last *pb.Checkpoint
		want string
	}{
		"first":                      {nil, ""},
		"after a round":              {ended, "of the end"},
		"while a round is under way": {&pb.Checkpoint{Cursor: []byte("x"), Previous: []byte("before")}, "before"},
	} {
		t.Run(name, func(t *testing.T) {
			asked, emitted := 0, int64(0)
			m := Split{Sweep: "s", Name: "a", Start: start, OnEmitted: func(n int64) { emitted += n },
				Pages: func(_ context.Context, r Round, cursor []byte) (Page, error) {
					if string(r.Previous) != tt.want || len(cursor) != asked {
						t.Errorf("page %d: previous %q, cursor %q", asked, r.Previous, cursor)
					}
					asked++
					return Page{Counts: map[string]int64{"equal": 2}, Emitted: 1, Next: append(cursor, 'a'), Last: asked == 3,
						Messages: asks}, nil
				}}
			r, err := DryRun(t.Context(), m, tt.last)
			if err != nil || r.Emitted != 3 || emitted != 3 || r.Counts["equal"] != 6 || r.Finished.IsZero() ||
				r.Work != work {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
	w := newHarness(t)
	w.fill()
	m, err := w.config().Split(w.config().Request)
	must(t, err)
	r, err := DryRun(t.Context(), m, nil)
	if err != nil || r.Counts[Requested] != 5 || r.Counts[RequestedBytes] != 25 || len(w.published) != 0 {
		t.Errorf("fixity: %+v, %v, published %v", r, err, w.published)
	}
	if want := (Work{Checks: Amount{Items: 5, Bytes: 25}}); r.Work != want {
		t.Errorf("fixity: work %+v, want %+v", r.Work, want)
	}
	m.Pages = func(context.Context, Round, []byte) (Page, error) { return Page{}, retry.Permanent(errors.New("x")) }
	if _, err := DryRun(t.Context(), m, nil); err == nil {
		t.Error("a page that fails is no error")
	}
}
