package kafka_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/kafka/metrics/metricstest"
	"github.com/millrace/millrace/streams/retry"
)

// withMetrics returns a broker's configuration with metrics, and their registry.
func withMetrics(b *kafkatest.Broker) (client.Config, *prometheus.Registry) {
	cfg, reg := b.Config(), prometheus.NewRegistry()
	cfg.Metrics = metrics.New(reg)
	return cfg, reg
}

// nonZero returns the values that are not 0.
func nonZero(t *testing.T, reg *prometheus.Registry, like ...string) map[string]float64 {
	t.Helper()
	got := metricstest.Gather(t, reg, like...)
	maps.DeleteFunc(got, func(_ string, v float64) bool { return v == 0 })
	return got
}

// dispositions returns the number of messages of a role by disposition, without zeros.
func dispositions(t *testing.T, reg *prometheus.Registry, role schemas.Role) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for name, v := range nonZero(t, reg, "messages_total{", "role="+string(role)+"}") {
		_, name, _ = strings.Cut(name, "disposition=")
		name, _, _ = strings.Cut(name, ",")
		out[name] = v
	}
	return out
}

func TestPoolOutcomesAreMeasured(t *testing.T) {
	t.Parallel()
	errNet := errors.New("connection reset")
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg, reg := withMetrics(b)
		for _, item := range []string{"good", "flaky", "bad", "later", "unavailable", "broken"} {
			b.Send(parttest.Change(item))
		}
		sent := time.Now()
		var mu sync.Mutex // guards calls
		calls := map[string]int{}
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes},
			MaxAttempts: 2,
			Retry:       retry.Policy{Attempts: 2, Wait: time.Millisecond}},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				item := d.Body.(*pb.Change).GetItem()
				mu.Lock()
				calls[item]++
				call := calls[item]
				mu.Unlock()
				switch {
				case item == "slow":
					time.Sleep(4 * time.Second)
				case item == "broken", item == "flaky" && call == 1:
					return nil, errNet
				case item == "bad":
					return nil, retry.Permanent(errNet)
				case item == "later":
					return nil, retry.Wait(errNet, time.Time{})
				case item == "unavailable":
					return nil, retry.Unavailable(errNet)
				}
				return parttest.Plan(ctx, d)
			})
		must(t, err)
		parttest.Background(t, g)
		time.Sleep(10 * time.Second)
		const l = "class=high,role=planner}"
		got := nonZero(t, reg, "role=planner")
		seconds := float64(sent.Add(10*time.Second).UnixMilli()) / 1e3
		if at := got["last_success_timestamp_seconds{"+l]; at < seconds-11 || at > seconds {
			t.Errorf("last success at %v, want in the ten seconds before %v", at, seconds)
		}
		delete(got, "last_success_timestamp_seconds{"+l)
		delete(got, "rebalance_seconds_total{class=high,kind=assigned,role=planner}")
		if got["commits_total{class=high,result=ok,role=planner}"] < 1 {
			t.Error("no commit is counted")
		}
		delete(got, "commits_total{class=high,result=ok,role=planner}")
		metricstest.Compare(t, got, map[string]float64{
			"messages_total{class=high,disposition=done,role=planner}":        2,
			"messages_total{class=high,disposition=retried,role=planner}":     2,
			"messages_total{class=high,disposition=dead,role=planner}":        1,
			"messages_total{class=high,disposition=wait,role=planner}":        1,
			"messages_total{class=high,disposition=unavailable,role=planner}": 1,
			"messages_total{class=high,disposition=transient,role=planner}":   1,
			"handler_seconds{" + l: 8, "assigned_partitions{" + l: 2,
			"rebalances_total{class=high,kind=assigned,role=planner}": 1,
		})
		b.Send(parttest.Change("slow"))
		time.Sleep(3 * time.Second)
		got = nonZero(t, reg, "role=planner")
		for name, want := range map[string][2]float64{
			"working_tasks": {1, 1}, "in_flight_messages": {1, 1}, "in_flight_bytes": {300, 2000},
			"oldest_task_seconds": {2, 3}, "oldest_message_seconds": {3, 3.1},
		} {
			if v := got[name+"{"+l]; v < want[0] || v > want[1] {
				t.Errorf("%s is %v while a task runs, want %v to %v", name, v, want[0], want[1])
			}
		}
		time.Sleep(10 * time.Second)
		for _, name := range []string{"working_tasks", "in_flight_messages", "in_flight_bytes", "oldest_task_seconds",
			"oldest_message_seconds"} {
			if v := nonZero(t, reg, name+"{"+l); len(v) > 0 {
				t.Errorf("%v without a running task", v)
			}
		}
	})
}

// Messages that are dropped with their partition leave the count in flight, failures are counted, and a fence
// counts as a loss.
func TestMetricsOfFailingPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		cfg, reg := withMetrics(b)
		b.FailProduce(schemas.DuplicationHigh, kafkatest.Refused, 1)
		g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
			parttest.Plan)
		must(t, err)
		b.Send(parttest.Change("a"))
		if err := parttest.Run(t, time.Minute, g); err == nil {
			t.Fatal("a refused publish ended nothing")
		}
		got := nonZero(t, reg, "role=planner")
		for name, want := range map[string]float64{
			"publish_failures_total{class=high,role=planner}": 1, "in_flight_messages{class=high,role=planner}": 0,
			"in_flight_bytes{class=high,role=planner}": 0, "assigned_partitions{class=high,role=planner}": 0,
			"messages_total{class=high,disposition=done,role=planner}": 0,
		} {
			if got[name] != want {
				t.Errorf("%s: got %v, want %v", name, got[name], want)
			}
		}
		group := func() *kafka.Pool {
			g, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
				parttest.Plan)
			must(t, err)
			return g
		}
		mend := b.FailCommit(schemas.RolePlanner, kafkatest.Refused, -1)
		if err := parttest.Run(t, time.Minute, group()); err == nil {
			t.Fatal("a refused commit ended nothing")
		}
		mend()
		parttest.Background(t, group())
		time.Sleep(10 * time.Second)
		b.Fence(schemas.RolePlanner)
		time.Sleep(time.Minute)
		got = nonZero(t, reg, "role=planner")
		for name, want := range map[string]float64{
			"rebalances_total{class=high,kind=lost,role=planner}": 1, "assigned_partitions{class=high,role=planner}": 4,
			"messages_total{class=high,disposition=done,role=planner}": 2,
		} {
			if got[name] != want {
				t.Errorf("%s: got %v, want %v", name, got[name], want)
			}
		}
		if n := got["commits_total{class=high,result=failed,role=planner}"]; n < 2 { // before a task, and the fatal one
			t.Errorf("%v failed commits, want two or more", n)
		}
	})
}

func TestBatchGroupIsMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg, reg := withMetrics(b)
		tb := &memoryTable{poison: "bad", fail: []fault{{errors.New("unavailable"), false}}}
		g, err := kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleState,
			Topics: []schemas.Topic{schemas.Changes}}, tb)
		must(t, err)
		b.Send(parttest.Change("a"), parttest.Change("bad"), parttest.Change("b"))
		parttest.Background(t, g)
		time.Sleep(30 * time.Second)
		want := map[string]float64{"done": 2, "dead": 1, "retried": 3}
		if got := dispositions(t, reg, schemas.RoleState); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		const l = "{class=high,role=state}"
		if got := nonZero(t, reg, "in_flight", "role=state"); len(got) > 0 {
			t.Errorf("in flight with nothing to do: %v", got)
		}
		tb.mu.Lock()
		tb.hang = true
		tb.mu.Unlock()
		b.Send(parttest.Change("c"))
		time.Sleep(5 * time.Second)
		got := nonZero(t, reg, l)
		for name, want := range map[string][2]float64{
			"working_tasks": {1, 1}, "in_flight_messages": {1, 1}, "in_flight_bytes": {300, 2000},
			"oldest_task_seconds": {3, 5}, "oldest_message_seconds": {5, 5.1},
		} {
			if v := got[name+l]; v < want[0] || v > want[1] {
				t.Errorf("%s is %v while a batch is stored, want %v to %v", name, v, want[0], want[1])
			}
		}
	})
}

func TestDelayerIsMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
		cfg, reg := withMetrics(b)
		p, err := kafka.NewProducer(cfg, "test")
		must(t, err)
		defer p.Close()
		waits := parttest.Command(parttest.Change("a").Body.(*pb.Change))
		waits.Due = time.Now().Add(31 * time.Second)
		must(t, p.Publish(t.Context(), waits))
		lost := kafkatest.Record{Record: schemas.Record{Topic: schemas.Delay("2m"), Value: []byte("x")}, Partition: -1}
		b.Write(lost)
		d, err := kafka.NewDelayer(cfg)
		must(t, err)
		parttest.Background(t, d)
		time.Sleep(10 * time.Second)
		held := map[string]float64{"in_flight_messages{class=high,role=delayer}": 2}
		metricstest.Compare(t, nonZero(t, reg, "role=delayer", "messages"), held)
		time.Sleep(3 * time.Minute)
		want := map[string]float64{"done": 1, "dead": 1}
		if got := dispositions(t, reg, schemas.RoleDelayer); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		metricstest.Compare(t, nonZero(t, reg, "role=delayer", "in_flight"), map[string]float64{})
	})
}

func TestProducerCountsWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		cfg, reg := withMetrics(b)
		p, err := kafka.NewProducer(cfg, "test")
		must(t, err)
		defer p.Close()
		b.FailProduce(schemas.Changes, kafkatest.Refused, 1)
		if err := p.Publish(t.Context(), parttest.Change("a")); err == nil {
			t.Fatal("published refused records")
		}
		must(t, p.Publish(t.Context(), parttest.Change("a")))
		metricstest.Compare(t, nonZero(t, reg, "publish_failures"),
			map[string]float64{"publish_failures_total{class=,role=producer}": 1})
	})
}

// Each class of a Pool has its own counts.
func TestMetricsOfPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg, reg := withMetrics(b)
		hang := make(chan struct{})
		p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RoleCopier, Workers: 4, MaxAttempts: 1,
			Retry:  retry.Policy{Attempts: 2, Wait: time.Millisecond},
			Topics: []schemas.Topic{schemas.DuplicationHigh, schemas.DuplicationLow, schemas.DuplicationLarge}},
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				switch d.Body.(*pb.DuplicationCommand).GetItem() {
				case "hangs":
					<-hang
				case "broken":
					return nil, errors.New("connection reset")
				case "unavailable":
					return nil, retry.Unavailable(errors.New("no disk"))
				}
				return nil, nil
			})
		must(t, err)
		for item, topic := range map[string]schemas.Topic{"a": schemas.DuplicationHigh, "broken": schemas.DuplicationHigh,
			"b": schemas.DuplicationLow, "unavailable": schemas.DuplicationLow, "hangs": schemas.DuplicationLarge} {
			c := parttest.Command(parttest.Change(item).Body.(*pb.Change))
			c.Topic = topic
			b.Send(c)
		}
		parttest.Background(t, p)
		time.Sleep(time.Minute)
		want := map[string]float64{
			"messages_total{class=high,disposition=done,role=copier}":       1,
			"messages_total{class=high,disposition=retried,role=copier}":    1,
			"messages_total{class=high,disposition=dead,role=copier}":       1,
			"messages_total{class=low,disposition=done,role=copier}":        1,
			"messages_total{class=low,disposition=unavailable,role=copier}": 1,
			"in_flight_messages{class=large,role=copier}":                   1,
			"working_tasks{class=large,role=copier}":                        1,
		}
		got := nonZero(t, reg, "role=copier", "s")
		for name := range got {
			if !strings.HasPrefix(name, "messages_total") && !strings.HasPrefix(name, "in_flight_messages") &&
				!strings.HasPrefix(name, "working_tasks") {
				delete(got, name)
			}
		}
		metricstest.Compare(t, got, want)
		const l = "{class=large,role=copier}"
		got = nonZero(t, reg, "class=large", "role=copier")
		for name, want := range map[string][2]float64{
			"oldest_task_seconds": {50, 60}, "oldest_message_seconds": {60, 61}, "in_flight_bytes": {200, 2000},
			"assigned_partitions": {2, 2},
		} {
			if v := got[name+l]; v < want[0] || v > want[1] {
				t.Errorf("%s is %v while a large one runs, want %v to %v", name, v, want[0], want[1])
			}
		}
		for _, s := range cfg.Metrics.State() {
			if !s.Member || s.Held != 0 || s.Stuck != 0 {
				t.Errorf("got %+v, want a member with running tasks", s)
			}
		}
		close(hang)
		time.Sleep(10 * time.Second)
		metricstest.Compare(t, nonZero(t, reg, "role=copier", "in_flight"), map[string]float64{})
		metricstest.Compare(t, nonZero(t, reg, "role=copier", "working"), map[string]float64{})
	})
}

// A deafSink ignores its cancellation.
type deafSink struct{ hang chan struct{} }

func (d deafSink) Store(context.Context, []*schemas.Delivery) error { <-d.hang; return nil }

func (deafSink) Table(topic schemas.Topic) string               { return string(topic) }
func (deafSink) Mark(context.Context, []schemas.Progress) error { return nil }
func (deafSink) Forget(schemas.Topic, int32)                    {}

// A batch that ignores the end of its partition is reported until it ends.
func TestMetricsOfHangingBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		cfg, reg := withMetrics(b)
		sink := deafSink{make(chan struct{})}
		g, err := kafka.NewBatchGroup(cfg, kafka.BatchConfig{Role: schemas.RoleState,
			Topics: []schemas.Topic{schemas.Changes}, DrainTimeout: time.Second}, sink)
		must(t, err)
		b.Send(parttest.Change("a"))
		parttest.Background(t, g)
		time.Sleep(10 * time.Second)
		const stuck = "stuck_tasks{class=high,role=state}"
		metricstest.Compare(t, nonZero(t, reg, "stuck_tasks"), map[string]float64{})
		b.Fence(schemas.RoleState)
		time.Sleep(time.Minute)
		metricstest.Compare(t, nonZero(t, reg, "stuck_tasks"), map[string]float64{stuck: 1})
		if s := cfg.Metrics.State(); len(s) != 1 || s[0].Stuck != 1 {
			t.Errorf("got %+v, want one stuck task", s)
		}
		close(sink.hang)
		time.Sleep(time.Minute)
		metricstest.Compare(t, nonZero(t, reg, "stuck_tasks"), map[string]float64{})
		metricstest.Compare(t, nonZero(t, reg, "in_flight"), map[string]float64{})
	})
}
