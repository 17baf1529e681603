package schemas_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A result stands at Kafka's time of its record minus its age, whatever the clock of its worker says.
func TestDateByKafka(t *testing.T) {
	kafka := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(kafka.Add(d)) }
	const hour, years = time.Hour, 3 * 365 * 24 * time.Hour
	event := in(-5 * hour)
	check := func(started, finished, next *timestamppb.Timestamp) *pb.FixityResult {
		return &pb.FixityResult{Started: started, Finished: finished, Next: next, LastEvent: event,
			Accept: &pb.AcceptOrder{Time: event}, Object: &pb.Identity{Modified: event}}
	}
	computed := func(r *pb.FixityResult) *pb.FixityResult { r.EvidenceLevel = 3; return r }
	for name, tt := range map[string]struct {
		kafka      time.Time
		body, want schemas.Body
	}{
		"a right clock":  {kafka, check(in(-hour), in(0), in(hour)), check(in(-hour), in(0), in(hour))},
		"three years on": {kafka, check(in(years-hour), in(years), nil), check(in(-hour), in(0), nil)},
		"three years ago": {kafka, check(in(-years), in(hour-years), in(2*hour-years)),
			check(in(-hour), in(0), in(hour))},
		"ends before it began": {kafka, check(in(hour), in(-hour), in(-2*hour)), check(in(0), in(0), in(0))},
		"of damaged times": {kafka, check(timestamppb.New(time.Unix(1, 0)), timestamppb.New(time.Unix(9e9, 0)), nil),
			check(in(-365*24*hour), in(0), nil)},
		"no time of Kafka": {time.Time{}, check(in(years), in(years), nil), check(in(years), in(years), nil)},
		"a digest of last week": {kafka, computed(check(in(-168*hour), in(-168*hour), nil)),
			computed(check(in(-168*hour), in(-168*hour), nil))},
		"a digest that is ahead": {kafka, computed(check(in(hour), in(hour), nil)), computed(check(in(0), in(0), nil))},
		"a copy": {kafka, &pb.DuplicationResult{Started: in(years - hour), Finished: in(years), ChangeTime: event},
			&pb.DuplicationResult{Started: in(-hour), Finished: in(0), ChangeTime: event}},
		"a copy without a start": {kafka, &pb.DuplicationResult{Finished: in(years)}, &pb.DuplicationResult{Finished: in(0)}},
		"a task":                 {kafka, &pb.FixityTask{Time: in(years)}, &pb.FixityTask{Time: in(years)}},
	} {
		schemas.DateByKafka(&schemas.Delivery{Body: tt.body, Timestamp: tt.kafka})
		if !proto.Equal(tt.body, tt.want) {
			t.Errorf("%s: got %v\nwant %v", name, tt.body, tt.want)
		}
	}
}
