package kafka_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A handler that ignores that its time is up, or that Run ends, does not hold the poll for ever: Run says
// where it is, and commits nothing of that poll, nor does what it does later count.
func TestGroupHandlerThatHangs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stop time.Duration // when Run is to end
		want time.Duration // when it does
	}{
		"while polled": {time.Hour, 15 * time.Second}, // Hold, and the grace
		"at the stop":  {2 * time.Second, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				cfg, reg := measured(b)
				hang := make(chan struct{})
				g, err := kafka.NewGroup(cfg, kafka.GroupConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
					func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
						if d.Body.(*pb.Change).GetItem() == "hangs" {
							<-hang
						}
						return plan(ctx, d)
					})
				if err != nil {
					t.Fatal(err)
				}
				at := func(partition int32, item string) kafkatest.Record {
					r, err := schemas.Encode(change(item))
					if err != nil {
						t.Fatal(err)
					}
					return kafkatest.Record{Record: r, Partition: partition}
				}
				b.Write(at(0, "a"), at(0, "b"), at(1, "c"), at(1, "hangs"), at(1, "d"))
				began := time.Now()
				err = run(t, tt.stop, g)
				if err == nil || !strings.Contains(err.Error(), "changes/1 at offset 1]") {
					t.Errorf("Run: %v", err)
				}
				if took := time.Since(began).Round(time.Second); took > tt.want+time.Second || took < tt.want-time.Second {
					t.Errorf("Run took %v, want %v", took, tt.want)
				}
				kafka.SameValues(t, counted(t, reg, "stuck_tasks"), map[string]float64{"stuck_tasks{class=high,role=planner}": 1})
				close(hang)
				time.Sleep(time.Minute)
				kafka.SameValues(t, counted(t, reg, "stuck_tasks"), map[string]float64{})
				kafka.SameValues(t, counted(t, reg, "in_flight"), map[string]float64{})
				if got := sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 0 {
					t.Errorf("committed %d, want nothing", got)
				}
				if n := len(b.Read(schemas.DuplicationHigh)); n != 0 {
					t.Errorf("%d outputs of a poll that came to no end", n)
				}
				if err := run(t, 10*time.Second, planner(t, b, plan)); err != nil { // the next process
					t.Fatal(err)
				}
				if got := sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != 5 {
					t.Errorf("committed %d, want 5", got)
				}
			})
		})
	}
}
