package space

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The newest declaration about a space counts. In one partition that is the last record, even if the clocks of brokers
// differ. Among partitions, which have no common order, it is the one with the latest time.
func TestGone(t *testing.T) {
	base := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(hours int) time.Time { return base.Add(time.Duration(hours) * time.Hour) }
	type record struct {
		action, store, space string
		partition            int32
		hours                int
	}
	gone := func(partition int32, hours int) record { return record{ActionGone, "2", "photos", partition, hours} }
	back := func(partition int32, hours int) record { return record{ActionBack, "2", "photos", partition, hours} }
	tests := map[string]struct {
		records []record
		want    time.Time
	}{
		"no action":                          {nil, time.Time{}},
		"gone":                               {[]record{gone(3, 1)}, at(1)},
		"gone twice":                         {[]record{gone(3, 1), gone(3, 2)}, at(2)},
		"withdrawn":                          {[]record{gone(3, 1), back(3, 2)}, time.Time{}},
		"gone again":                         {[]record{back(3, 1), gone(3, 2)}, at(2)},
		"withdrawn, a clock behind":          {[]record{gone(3, 2), back(3, 1)}, time.Time{}},
		"gone again, a clock behind":         {[]record{back(3, 2), gone(3, 1)}, at(2)},
		"partitions added: back comes first": {[]record{back(15, 2), gone(3, 1)}, time.Time{}},
		"partitions added: back comes last":  {[]record{gone(3, 1), back(15, 2)}, time.Time{}},
		"partitions added: gone comes first": {[]record{gone(15, 2), back(3, 1)}, at(2)},
		"partitions added: at one time":      {[]record{back(15, 2), gone(3, 2)}, time.Time{}},
		"partitions added: read again":       {[]record{gone(3, 1), back(15, 2), gone(3, 1)}, time.Time{}},
		"another space":                      {[]record{{ActionGone, "2", "papers", 3, 1}}, time.Time{}},
		"another store":                      {[]record{{ActionGone, "3", "photos", 3, 1}}, time.Time{}},
		"another action":                     {[]record{{"approve-repair", "2", "photos", 3, 1}}, time.Time{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var g Gone
			for _, r := range tt.records {
				g.Apply(r.partition, at(r.hours), &pb.AdminAction{Action: r.action, Account: "acme", Store: r.store, Space: r.space,
					Time: timestamppb.New(at(9))}) // the clock of the operator does not count
			}
			if got := g.Since("acme", "2", "photos"); !got.Equal(tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
