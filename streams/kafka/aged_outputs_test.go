package kafka_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// checked is a handler that checks for a minute, by a clock that is ahead by a year.
func checked(calls *[]time.Time) kafka.Handler {
	return func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		task := d.Body.(*pb.FixityTask)
		*calls = append(*calls, time.Now())
		began := time.Now().AddDate(1, 0, 0)
		time.Sleep(time.Minute)
		return []schemas.Message{
			{Topic: schemas.FixityResults, Body: &pb.FixityResult{
				Id: schemas.NewID(), Task: task.GetId(), Account: "acme", Store: "2", Space: "maps", Item: task.GetItem(),
				Verdict: pb.Verdict_VERDICT_PASS, Started: timestamppb.New(began),
				Finished: timestamppb.New(began.Add(time.Minute)),
			}},
			parttest.Change(task.GetItem()),
		}, nil
	}
}

// A result that is not acknowledged within a minute is never sent again: the work is done again, and has another
// result. No id is on the topic twice, and readers get a result that began when the work did, by the clock of Kafka.
func TestResultsThatAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fault    kafkatest.Fault
		outage   time.Duration
		runs     int
		written  int // results
		recreate bool
	}{
		"at once":                            {runs: 1, written: 1},
		"after 30 s":                         {kafkatest.NotDone, 30 * time.Second, 1, 1, false},
		"after 30 s, written at once":        {kafkatest.DoneNotAcknowledged, 30 * time.Second, 1, 1, false},
		"after 90 s":                         {kafkatest.NotDone, 90 * time.Second, 2, 1, false},
		"after 90 s, written at once":        {kafkatest.DoneNotAcknowledged, 90 * time.Second, 2, 2, false},
		"to a topic that was created anew":   {runs: 1, written: 1, recreate: true},
		"after 5 m, in which it is repeated": {kafkatest.NotDone, 5 * time.Minute, 3, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
				b.Send(schemas.Message{Topic: schemas.FixityHigh, Body: &pb.FixityTask{
					Id: schemas.NewID(), Account: "acme", Store: "2", Space: "maps", Item: "a",
					Reason: pb.FixityReason_FIXITY_REASON_SWEEP,
				}})
				var calls []time.Time
				pool, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleChecker,
					Topics: []schemas.Topic{schemas.FixityHigh}}, checked(&calls))
				must(t, err)
				mend := func() {}
				if tt.outage > 0 {
					mend = b.FailProduce(schemas.FixityResults, tt.fault, -1)
				}
				parttest.Background(t, pool)
				parttest.Background(t, parttest.Delayer(t, b))
				if tt.recreate {
					time.Sleep(30 * time.Second)
					b.Recreate(schemas.FixityResults, 1)
				}
				time.Sleep(time.Minute + tt.outage)
				mend()
				time.Sleep(20 * time.Minute)
				var results []*pb.FixityResult
				var first *schemas.Delivery
				steward, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RoleSteward,
					Topics: []schemas.Topic{schemas.FixityResults}},
					func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						if first = d; len(results) > 0 && results[0].GetId() == d.Body.(*pb.FixityResult).GetId() {
							t.Error("an id is on the topic twice")
						}
						results = append(results, d.Body.(*pb.FixityResult))
						return nil, nil
					})
				must(t, err)
				must(t, parttest.Run(t, 30*time.Second, steward))
				if len(calls) != tt.runs || len(results) != tt.written || len(b.Read(schemas.Dead)) > 0 {
					t.Fatalf("%d runs, want %d; %d results, want %d; %d dead letters", len(calls), tt.runs, len(results),
						tt.written, len(b.Read(schemas.Dead)))
				}
				last := results[len(results)-1]
				if !last.GetFinished().AsTime().Equal(first.Timestamp) ||
					last.GetFinished().AsTime().Sub(last.GetStarted().AsTime()) != time.Minute {
					t.Errorf("started %v and finished %v, Kafka has it since %v", last.GetStarted().AsTime(),
						last.GetFinished().AsTime(), first.Timestamp)
				}
				if late := last.GetStarted().AsTime().Sub(calls[len(calls)-1]); late < -time.Second || late > time.Minute {
					t.Errorf("stands %v after it began", late)
				}
				if n := len(b.Bodies(schemas.Changes)); n != tt.runs {
					t.Errorf("%d Changes of %d runs", n, tt.runs)
				}
				if got := parttest.Sum(b.Committed(schemas.RoleChecker, schemas.FixityHigh)); got != 1 {
					t.Errorf("committed %d", got)
				}
			})
		})
	}
}
