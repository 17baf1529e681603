package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

// about returns messages of all topics of the steward about one copy.
func about(item string) []schemas.Message {
	now := timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return []schemas.Message{
		{Topic: schemas.FixityResults, Body: &pb.FixityResult{Id: schemas.ID("f", item), Account: "acme",
			Store: "2", Space: "photos", Item: item,
			Verdict: pb.Verdict_VERDICT_PASS, Started: now, Finished: now}},
		{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{Id: schemas.ID("d", item),
			Command: schemas.ID("c"), Account: "acme", Space: "photos", Item: item,
			SourceStore: "1", DestinationStore: "2", Outcome: pb.Outcome_OUTCOME_DONE, Finished: now}},
		{Topic: schemas.Admin, Body: &pb.AdminAction{Id: schemas.ID("a", item), Time: now, Who: "eve" + item,
			Action:  "approve-repair",
			Account: "acme", Store: "2", Space: "photos", Item: item}},
	}
}

// stewards returns the configuration of a Pool over these topics.
func stewards() kafka.PoolConfig {
	return kafka.PoolConfig{Role: schemas.RoleSteward, CoPartitioned: true,
		Topics: []schemas.Topic{schemas.FixityResults, schemas.DuplicationResults, schemas.Admin}}
}

// Each of several members gets all messages about a copy, from every topic. This test runs in real time, as
// TestRebalance does.
func TestCoPartitioned(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 5, RealTime: true})
	var mu sync.Mutex
	handlers := map[string]map[int]bool{} // by item
	var counts []*metrics.Metrics
	for n := range 2 {
		cfg := b.Config()
		cfg.Metrics = metrics.New(prometheus.NewRegistry())
		counts = append(counts, cfg.Metrics)
		g, err := kafka.NewPool(cfg, stewards(), func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			item := d.Body.(interface{ GetItem() string }).GetItem()
			if handlers[item] == nil {
				handlers[item] = map[int]bool{}
			}
			handlers[item][n] = true
			return nil, nil
		})
		must(t, err)
		parttest.Background(t, g)
	}
	parttest.Await(t, "both own partitions", func() bool {
		total := 0
		for _, m := range counts {
			owned := 0
			for _, ids := range m.State()[0].Owned {
				owned += len(ids)
			}
			if owned == 0 {
				return false
			}
			total += owned
		}
		return total == 4*5
	})
	for n, m := range counts {
		owned := m.State()[0].Owned
		for topic, ids := range owned {
			if first := owned[b.Config().Prefix+string(schemas.FixityResults)]; !maps.Equal(ids, first) {
				t.Errorf("member %d owns %v of %s and %v of fixity.results", n, ids, topic, first)
			}
		}
	}
	const items = 30
	for n := range items {
		b.Send(about(fmt.Sprint(n))...)
	}
	parttest.Await(t, "all is handled", func() bool {
		n := 0
		for _, topic := range stewards().Topics {
			n += int(parttest.Sum(b.Committed(schemas.RoleSteward, topic)))
		}
		return n == 3*items
	})
	used := map[int]bool{}
	for item, by := range handlers {
		if len(by) != 1 {
			t.Errorf("item %s was handled by members %v", item, slices.Sorted(maps.Keys(by)))
		}
		maps.Copy(used, by)
	}
	if len(used) != 2 {
		t.Errorf("only %v handled anything", used)
	}
}

// Each key is owned by the member that handles its records. This test runs in real time, as TestRebalance does.
func TestOwns(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 5, RealTime: true})
	const items = 20
	key := func(n int) string { return schemas.ItemKey("acme", "photos", fmt.Sprint(n)) }
	var mu sync.Mutex
	var pools [2]*kafka.Pool
	handlers := map[string]int{} // by key
	for n := range pools {
		handle := func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			handlers[string(d.Key)] = n
			return nil, nil
		}
		g, err := kafka.NewPool(b.Config(), stewards(), handle)
		must(t, err)
		pools[n] = g
		parttest.Background(t, g)
	}
	owners := func() (by [2]map[string]bool) {
		for n, p := range pools {
			by[n] = map[string]bool{}
			if owns, err := p.Owns(t.Context()); err == nil {
				for i := range items {
					by[n][key(i)] = owns(key(i))
				}
			}
		}
		return by
	}
	parttest.Await(t, "each key has one owner, and both own some", func() bool {
		some, by := [2]int{}, owners()
		for i := range items {
			if by[0][key(i)] == by[1][key(i)] {
				return false
			}
			for n := range pools {
				if by[n][key(i)] {
					some[n]++
				}
			}
		}
		return some[0] > 0 && some[1] > 0
	})
	for i := range items {
		b.Send(about(fmt.Sprint(i))...)
	}
	parttest.Await(t, "all is handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handlers) == items
	})
	by := owners()
	mu.Lock()
	defer mu.Unlock()
	for k, n := range handlers {
		if !by[n][k] {
			t.Errorf("%s is handled by member %d, which does not own it", k, n)
		}
	}
}

// Outputs about one key are published in the order of the decisions, whichever topics the messages come from.
func TestCoPartitionedOutputsStayInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		for range 10 {
			b.Send(about("a")...)
		}
		var decided atomic.Int32
		g, err := kafka.NewPool(b.Config(), stewards(), func(
			_ context.Context, d *schemas.Delivery,
		) ([]schemas.Message, error) {
			n := decided.Add(1)
			if d.Topic == schemas.Admin {
				time.Sleep(10 * time.Millisecond) // the outputs of other topics would overtake it, if they could
			}
			return []schemas.Message{{Topic: schemas.Incidents,
				Body: &pb.Incident{Id: schemas.ID("i"), Account: "acme", Store: "2", Space: "photos", Item: "a",
					Kind: "k", State: pb.IncidentState_INCIDENT_STATE_OPEN, StepCount: n}}}, nil
		})
		must(t, err)
		must(t, parttest.Run(t, 30*time.Second, g))
		var steps []int32
		for _, body := range b.Bodies(schemas.Incidents) {
			steps = append(steps, body.(*pb.Incident).GetStepCount())
		}
		if len(steps) != 30 || !slices.IsSorted(steps) {
			t.Errorf("published %v", steps)
		}
	})
}

// A topic whose records take all the time of a poll does not starve the others.
func TestCoPartitionedTopicsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		for n := range 40 {
			b.Send(about(fmt.Sprint(n))[0])
		}
		began := time.Now()
		b.Send(about("a")[1:]...)
		after := map[schemas.Topic]time.Duration{}
		g, err := kafka.NewPool(b.Config(), stewards(), func(
			_ context.Context, d *schemas.Delivery,
		) ([]schemas.Message, error) {
			if d.Topic == schemas.FixityResults {
				time.Sleep(6 * time.Second) // longer than one turn begins tasks
				return nil, nil
			}
			after[d.Topic] = time.Since(began)
			return nil, nil
		})
		must(t, err)
		must(t, parttest.Run(t, 10*time.Minute, g))
		for _, topic := range []schemas.Topic{schemas.DuplicationResults, schemas.Admin} {
			if d := after[topic]; d == 0 || d > 30*time.Second {
				t.Errorf("%s: handled after %v", topic, d)
			}
		}
	})
}

// Nothing is handled before Prepare has succeeded, however often it fails. A permanent error of Prepare ends Run.
func TestPrepare(t *testing.T) {
	t.Parallel()
	unavailable := errors.New("unavailable")
	for name, tt := range map[string]struct {
		fails int
		err   error
		ends  bool
	}{
		"at once":        {},
		"after a while":  {fails: 60, err: unavailable},
		"fails for good": {fails: 1 << 30, err: retry.Permanent(unavailable), ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Send(parttest.Change("a"), parttest.Change("b"))
				calls, handled := 0, atomic.Int32{} // of two partitions
				g, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RolePlanner,
					Topics: []schemas.Topic{schemas.Changes},
					Retry:  retry.Policy{Wait: 200 * time.Millisecond, MaxWait: 2 * time.Second},
					Prepare: func(context.Context) error {
						if calls++; calls <= tt.fails {
							return tt.err
						}
						return nil
					}}, func(context.Context, *schemas.Delivery) ([]schemas.Message, error) {
					handled.Add(1)
					if calls != tt.fails+1 {
						t.Errorf("handled after %d calls of Prepare, of which %d fail", calls, tt.fails)
					}
					return nil, nil
				})
				must(t, err)
				err = parttest.Run(t, 5*time.Minute, g)
				if tt.ends {
					if !errors.Is(err, unavailable) || handled.Load() != 0 {
						t.Errorf("Run = %v, %d handled", err, handled.Load())
					}
					return
				}
				if err != nil || handled.Load() != 2 || calls != tt.fails+1 {
					t.Errorf("Run = %v, %d handled after %d calls of Prepare", err, handled.Load(), calls)
				}
			})
		})
	}
}

// A member that takes over partitions has read what the previous owner published. This test runs in real time.
func TestTableCatchesUpAfterRebalance(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 2, RealTime: true})
	const items = 40
	cfg := b.Config()
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	// Each delivery of an item adds one to its steps in the table. A step that a member's table lacks is lost.
	member := func(ctx context.Context) error {
		var mu sync.Mutex
		steps := map[string]int32{}
		tb, err := kafka.NewTable(cfg, schemas.Incidents, func(_ []byte, d *schemas.Delivery) error {
			<-time.After(2 * time.Millisecond) // the table is behind
			mu.Lock()
			defer mu.Unlock()
			i := d.Body.(*pb.Incident)
			steps[i.GetItem()] = max(steps[i.GetItem()], i.GetStepCount())
			return nil
		})
		if err != nil {
			return err
		}
		gc := stewards()
		gc.Prepare = tb.CatchUp
		g, err := kafka.NewPool(cfg, gc, func(_ context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			item := d.Body.(interface{ GetItem() string }).GetItem()
			steps[item]++
			return []schemas.Message{{Topic: schemas.Incidents,
				Body: &pb.Incident{Id: schemas.ID("i", item), Account: "acme", Store: "2", Space: "photos", Item: item,
					Kind: "k", State: pb.IncidentState_INCIDENT_STATE_OPEN, StepCount: steps[item]}}}, nil
		})
		if err != nil {
			return err
		}
		var parts sync.WaitGroup
		defer parts.Wait()
		parts.Go(func() {
			if err := tb.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		return g.Run(ctx)
	}
	ctx, stop := context.WithCancel(t.Context())
	var members sync.WaitGroup
	start := func(ctx context.Context) {
		members.Go(func() {
			if err := member(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer members.Wait()
	defer stop()
	start(ctx)
	leaves, leave := context.WithCancel(ctx)
	defer leave()
	for round := range 6 {
		switch round {
		case 2:
			start(leaves)
		case 4:
			leave()
		}
		for n := range items {
			b.Send(about(fmt.Sprint(n))...)
		}
		<-time.After(300 * time.Millisecond)
	}
	parttest.Await(t, "all is handled", func() bool {
		n := 0
		for _, topic := range stewards().Topics {
			n += int(parttest.Sum(b.Committed(schemas.RoleSteward, topic)))
		}
		return n == 6*3*items
	})
	last := map[string]int32{}
	for _, body := range b.Bodies(schemas.Incidents) {
		last[body.(*pb.Incident).GetItem()] = body.(*pb.Incident).GetStepCount()
	}
	for item, n := range last {
		if n != 6*3 {
			t.Errorf("item %s: the newest record has %d steps, want %d", item, n, 6*3)
		}
	}
}

// CatchUp waits for the records in the topic at the time of the call, and no longer than ctx.
func TestTableCatchUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(checkpoint("a", "1"), checkpoint("b", "1"))
		var got cursors
		tb := newTable(t, b, got.apply)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tb.CatchUp(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before Run: %v", err)
		}
		parttest.Background(t, tb)
		must(t, tb.CatchUp(t.Context()))
		got.check(t, map[string]string{"a/": "1", "b/": "1"})
		for n := range 20 {
			b.Send(checkpoint("a", fmt.Sprint(n)), checkpoint("c", fmt.Sprint(n)))
			must(t, tb.CatchUp(t.Context()))
			got.check(t, map[string]string{"a/": fmt.Sprint(n), "b/": "1", "c/": fmt.Sprint(n)})
		}
		// Compaction leaves no record between the last one and the end.
		for _, r := range b.Read(schemas.Checkpoints) {
			b.Trim(schemas.Checkpoints, r.Partition, r.Offset+1)
		}
		b.Send(checkpoint("z", "1"))
		b.Compact()
		must(t, tb.CatchUp(t.Context()))
		mend := b.Disconnect()
		defer mend()
		cut, giveUp := context.WithTimeout(t.Context(), 5*time.Second)
		defer giveUp()
		if err := tb.CatchUp(cut); err == nil {
			t.Error("the brokers are unavailable, and it is caught up")
		}
	})
}
