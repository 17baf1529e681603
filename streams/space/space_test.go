package space

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestGone(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	action := func(what, store, space string, hours int) *pb.AdminAction {
		return &pb.AdminAction{Action: what, Account: "acme", Store: store, Space: space,
			Time: timestamppb.New(at.Add(time.Duration(hours) * time.Hour))}
	}
	gone := func(space string, hours int) *pb.AdminAction { return action(ActionGone, "2", space, hours) }
	back := func(space string, hours int) *pb.AdminAction { return action(ActionBack, "2", space, hours) }
	tests := map[string]struct {
		actions []*pb.AdminAction
		want    time.Time
	}{
		"no action":      {nil, time.Time{}},
		"gone":           {[]*pb.AdminAction{gone("photos", 1)}, at.Add(time.Hour)},
		"gone twice":     {[]*pb.AdminAction{gone("photos", 1), gone("photos", 2)}, at.Add(2 * time.Hour)},
		"withdrawn":      {[]*pb.AdminAction{gone("photos", 1), back("photos", 2)}, time.Time{}},
		"a clock behind": {[]*pb.AdminAction{gone("photos", 2), back("photos", 1)}, time.Time{}}, // their order counts
		"gone again":     {[]*pb.AdminAction{back("photos", 1), gone("photos", 2)}, at.Add(2 * time.Hour)},
		"another space":  {[]*pb.AdminAction{gone("papers", 1)}, time.Time{}},
		"another store":  {[]*pb.AdminAction{action(ActionGone, "3", "photos", 1)}, time.Time{}},
		"another action": {[]*pb.AdminAction{action("approve-repair", "2", "photos", 1)}, time.Time{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var g Gone
			for _, a := range tt.actions {
				g.Apply(a)
			}
			if got := g.Since("acme", "2", "photos"); !got.Equal(tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
