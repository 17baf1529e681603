package app

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
)

const threeYears = 3 * 365 * 24 * time.Hour

// wrongClocks are by how much the clock of a process is ahead of Kafka's.
var wrongClocks = map[string]time.Duration{
	"right": 0, "three years ahead": threeYears, "three years behind": -threeYears}

// A process knows Kafka's clock once the checkpoints are read, and again after a minute.
func TestKafkaClock(t *testing.T) {
	t.Parallel()
	for name, ahead := range wrongClocks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Behind: ahead})
				p, err := kafka.NewProducer(b.Config(), "test")
				must(t, err)
				defer p.Close()
				a := &App{kafka: b.Config(), producer: p}
				a.kafka.Clock = new(client.Clock)
				known, err := a.newCheckpoints()
				must(t, err)
				check := func(records int) {
					t.Helper()
					if off := a.kafka.Clock.Now().Sub(time.Now().Add(-ahead)); off.Abs() > time.Second {
						t.Errorf("the clock is off by %v", off)
					}
					if n := len(b.Read(schemas.Checkpoints)); n != records {
						t.Errorf("%d records, want %d", n, records)
					}
				}
				err = runDuring(t.Context(), known.Run, func(ctx context.Context) error {
					for n := range 3 {
						for range 2 {
							if err := known.CatchUp(ctx); err != nil {
								return err
							}
						}
						check(n + 1)
						time.Sleep(time.Minute)
					}
					return nil
				})
				must(t, err)
				check(3)
				for n, dry := range []bool{true, false} {
					a.kafka.Clock = new(client.Clock)
					begun, err := a.Begin(t.Context(), dry)
					must(t, err)
					if off := begun.Sub(time.Now().Add(-ahead)); !dry && off.Abs() > time.Second {
						t.Errorf("rounds begin %v off", off)
					}
					if len(b.Read(schemas.Checkpoints)) != 3+n {
						t.Errorf("dry is %v, and there are %d records", dry, len(b.Read(schemas.Checkpoints)))
					}
				}
			})
		})
	}
}

// A sweeper whose clock is wrong by years checks the copies that are due by Kafka's clock, counts their results, and
// begins the next round after a period.
func TestRoundsOfAWrongClock(t *testing.T) {
	t.Parallel()
	for name, ahead := range wrongClocks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSweptBehind(t, 0, ahead)
			s.a.kafka.Clock = new(client.Clock)
			now := time.Now().Add(-ahead)
			var checked []*pb.FixityTask
			for i := range 4 {
				c := someChange(i)
				c.Time, c.Provenance = timestamppb.New(now.AddDate(-1, 0, 0)), pb.Provenance_PROVENANCE_VERIFIED
				c.Digests = map[string]string{"md5": oneMD5}
				c.Id = schemas.ChangeID(c)
				s.send(c)
				checked = append(checked, &pb.FixityTask{Id: c.GetId(), Account: "acme", Store: "1", Space: "photos",
					Item: c.GetItem()})
			}
			s.sink(schemas.RoleSink, schemas.RoleState)
			s.pass(checked[:2], now.AddDate(0, 0, -100))
			s.pass(checked[2:], now.AddDate(0, 0, -1))
			known, err := s.a.newCheckpoints()
			must(t, err)
			w, err := s.a.newSweeper(known, new(skippedRounds), nil, 1)
			must(t, err)
			s.a.cfg.Sweep.Fixity = schedule.MustParse("every 1d")
			m, err := s.a.fixityRounds().Split(s.a.fixityRequest(StoreName{"acme", "1"}, "photos"))
			must(t, err)
			m.Blocked = func(context.Context) error { return nil }
			kind := s.a.timetable(sweep.FixitySweep).of(func(context.Context) ([]sweep.Split, error) {
				return []sweep.Split{m}, nil
			})
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer stop()
			changed := make(chan struct{})
			running.Go(func() {
				if err := runDuring(ctx, known.Run, func(ctx context.Context) error {
					return w.Run(ctx, []sweep.Kind{kind}, changed)
				}); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
			until := func(what string, is func(*pb.Checkpoint) bool) {
				t.Helper()
				for end := time.Now().Add(time.Minute); !is(known.of(m.Sweep, m.Name)); <-time.After(50 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%s: the checkpoint is %v", what, known.of(m.Sweep, m.Name))
					}
				}
			}
			until("requested", sweep.OnlyWaits)
			var tasks []*pb.FixityTask
			for _, b := range s.b.Bodies(schemas.FixityLow) {
				tasks = append(tasks, b.(*pb.FixityTask))
			}
			if len(tasks) != 2 || tasks[0].GetItem() != "item-000" || tasks[1].GetItem() != "item-001" {
				t.Errorf("requested are %v", tasks)
			}
			s.pass(tasks, time.Now().Add(-ahead))
			until("ended", func(c *pb.Checkpoint) bool { return c.GetFinished() != nil })
			changed <- struct{}{}
			changed <- struct{}{} // the look before has ended
			c := known.of(m.Sweep, m.Name)
			if c.GetFinished() == nil || time.Since(c.GetStarted().AsTime().Add(ahead)).Abs() > time.Minute {
				t.Errorf("the checkpoint is %v", c)
			}
			for _, b := range s.b.Bodies(schemas.Reports) {
				if r := b.(*pb.Report); !r.GetComplete() || r.GetCounts()["pass"] != 2 || r.GetCounts()["verified"] != 4 {
					t.Errorf("reported is %v", r)
				}
			}
		})
	}
}
