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
	tests := map[string]struct {
		actions []*pb.AdminAction
		want    time.Time
	}{
		"no action":                            {nil, time.Time{}},
		"gone":                                 {[]*pb.AdminAction{action(ActionGone, "2", "photos", 1)}, at.Add(time.Hour)},
		"gone, said again":                     {[]*pb.AdminAction{action(ActionGone, "2", "photos", 1), action(ActionGone, "2", "photos", 2)}, at.Add(2 * time.Hour)},
		"withdrawn":                            {[]*pb.AdminAction{action(ActionGone, "2", "photos", 1), action(ActionBack, "2", "photos", 2)}, time.Time{}},
		"withdrawn, by a clock that is behind": {[]*pb.AdminAction{action(ActionGone, "2", "photos", 2), action(ActionBack, "2", "photos", 1)}, time.Time{}},
		"withdrawn and gone":                   {[]*pb.AdminAction{action(ActionBack, "2", "photos", 1), action(ActionGone, "2", "photos", 2)}, at.Add(2 * time.Hour)},
		"another store's":                      {[]*pb.AdminAction{action(ActionGone, "3", "photos", 1)}, time.Time{}},
		"another space":                        {[]*pb.AdminAction{action(ActionGone, "2", "papers", 1)}, time.Time{}},
		"another action":                       {[]*pb.AdminAction{action("approve-repair", "2", "photos", 1)}, time.Time{}},
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
