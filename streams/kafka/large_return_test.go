package kafka_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/deadletter"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// Large messages return from lanes and dead letters through their own topic, so that a long task delays
// neither small messages nor their commit.
func TestLargeMessagesReturnThroughTheirOwnTopic(t *testing.T) {
	t.Parallel()
	large := func(item string) schemas.Message {
		m := parttest.Command(parttest.Change(item).Body.(*pb.Change))
		m.Topic = schemas.DuplicationLarge
		return m
	}
	small := func(item string) schemas.Message { return parttest.Command(parttest.Change(item).Body.(*pb.Change)) }
	topics := []schemas.Topic{schemas.DuplicationHigh, schemas.DuplicationLow, schemas.DuplicationLarge}
	make1 := func(t *testing.T, b *kafkatest.Broker, h kafka.Handler) *kafka.Pool {
		t.Helper()
		pc := kafka.PoolConfig{Role: schemas.RoleCopier, Topics: topics, DrainTimeout: time.Second}
		p, err := kafka.NewPool(b.Config(), pc, h)
		must(t, err)
		return p
	}
	const again, againLarge = schemas.Topic("again.copier"), schemas.Topic("again.copier.large")
	for name, tt := range map[string]struct {
		err  error // of the first delivery
		back func(t *testing.T, b *kafkatest.Broker)
	}{
		"from a lane": {retry.Unavailable(context.DeadlineExceeded), func(t *testing.T, b *kafkatest.Broker) {
			must(t, parttest.Run(t, 2*time.Minute, parttest.Delayer(t, b)))
		}},
		"from the dead": {retry.Permanent(context.DeadlineExceeded), func(t *testing.T, b *kafkatest.Broker) {
			d, err := deadletter.New(b.Config())
			must(t, err)
			defer d.Close()
			if got, err := d.Redrive(t.Context(), deadletter.Query{}, deadletter.Order{Who: "ann"}); err != nil ||
				got.Done != 5 {
				t.Fatalf("got %+v, %v", got, err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
				b.Send(large("film"), small("a"), small("b"), small("c"), small("d"))
				fails := make1(t, b, func(context.Context, *schemas.Delivery) ([]schemas.Message, error) { return nil, tt.err })
				must(t, parttest.Run(t, 10*time.Second, fails))
				tt.back(t, b)
				if got := itemsOf(t, b, schemas.DuplicationLarge, againLarge); !slices.Equal(got, []string{"film"}) {
					t.Errorf("%s holds %v, want the large messages", againLarge, got)
				}
				if got := itemsOf(t, b, schemas.DuplicationHigh, again); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
					t.Errorf("%s holds %v, want the small messages", again, got)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				p := make1(t, b, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if d.Body.(*pb.DuplicationCommand).GetItem() == "film" {
						<-ctx.Done() // a long task
						return nil, context.Cause(ctx)
					}
					return nil, nil
				})
				go func() { done <- p.Run(ctx) }()
				time.Sleep(20 * time.Second)
				if got := parttest.Sum(b.Committed(schemas.RoleCopier, again)); got != 4 {
					t.Errorf("committed %d of the small messages, want 4", got)
				}
				if got := parttest.Sum(b.Committed(schemas.RoleCopier, againLarge)); got != 0 {
					t.Errorf("committed %d of the large messages, want 0", got)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// itemsOf returns the sorted items of the commands of topic in another topic.
func itemsOf(t *testing.T, b *kafkatest.Broker, topic, in schemas.Topic) (items []string) {
	t.Helper()
	for _, r := range b.Read(in) {
		body, err := schemas.Decode(topic, r.Headers, r.Value)
		must(t, err)
		items = append(items, body.(*pb.DuplicationCommand).GetItem())
	}
	slices.Sort(items)
	return items
}

// Handled records of transit topics are removed, however young they are. Records that were not handled, the
// newest record and records with a retention time stay.
func TestTransitTopicsAreTrimmed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, cfg := parttest.Bare(t, 1, 1)
		if _, err := parttest.Kadm(t, cfg).CreateTopic(t.Context(), 1, 1, nil, "millrace.delay.90d"); err != nil {
			t.Fatal(err)
		}
		large := schemas.AgainOf(schemas.RoleCopier, schemas.DuplicationLarge)
		for _, c := range []struct {
			group string
			topic schemas.Topic
			at    int64
		}{
			{"delayer", schemas.Delay("5m"), 10}, {"delayer", schemas.Delay("90d"), 6},
			{"planner", schemas.Again(schemas.RolePlanner), 7},
			{"copier.large", large, 9}, {"copier", schemas.DuplicationHigh, 10}, {"sink", schemas.Dead, 10},
		} {
			parttest.Fill(t, cfg, c.topic, 10, 1)
			parttest.Commit(t, cfg, "millrace."+c.group, c.topic, c.at)
		}
		removed, err := parttest.Trimmer(t, cfg, 14*24*time.Hour).Trim(t.Context())
		want := map[schemas.Topic]int64{schemas.Delay("5m"): 9, schemas.Delay("90d"): 6,
			schemas.Again(schemas.RolePlanner): 7, large: 9}
		if err != nil || !maps.Equal(removed, want) {
			t.Errorf("removed %v, %v, want %v", removed, err, want)
		}
	})
}
