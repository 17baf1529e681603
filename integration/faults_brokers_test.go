package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
)

// TestBrokerFaults injects faults of brokers under load, with one cluster and one group.
func TestBrokerFaults(t *testing.T) {
	c := harness.Kafka(t, harness.Options{})
	c.Breakable(t)
	cfg := faultConfig(c, "brokers")
	l := newAuditedLedger(t, c, cfg, 6)
	task := memberSpec{Task: 10 * time.Millisecond}.plan
	for range 2 {
		planner(t, cfg, kafka.PoolConfig{}, task)
	}
	stop := load(t, cfg, 60, 200)
	l.progress(t, time.Minute, 200)

	// restart stops a broker and returns it to the cluster under load.
	restart := func(t *testing.T, out, in func(testing.TB, int)) {
		i := c.Leader(t, cfg)
		begun := time.Now()
		out(t, i)
		c.WaitBrokers(t, c.Brokers()-1)
		t.Logf("broker %d is down after %v", i, time.Since(begun).Round(100*time.Millisecond))
		l.progress(t, time.Minute, 500)
		begun = time.Now()
		in(t, i)
		c.WaitBrokers(t, c.Brokers())
		c.WaitInSync(t)
		t.Logf("in sync again after %v", time.Since(begun).Round(100*time.Millisecond))
		l.progress(t, time.Minute, 200)
		c.MoveLeaders(t, cfg) // or, in the next test, a broker may lead no partition
	}
	for _, f := range []struct {
		name  string
		fault func(*testing.T)
	}{
		{"leaders move", func(t *testing.T) {
			for range 6 {
				before := c.Leader(t, cfg)
				c.MoveLeaders(t, cfg)
				if after := c.Leader(t, cfg); after == before {
					t.Log("most partitions are still led by broker", after)
				}
				l.progress(t, time.Minute, 100)
			}
		}},
		{"a broker is killed", func(t *testing.T) { restart(t, c.Kill, c.Start) }},
		{"a broker is frozen", func(t *testing.T) {
			need.Full(t)
			restart(t, c.Freeze, c.Thaw)
		}},
		{"all brokers are restarted, one after the other", func(t *testing.T) {
			need.Full(t)
			for i := range c.Brokers() {
				c.Stop(t, i)
				l.progress(t, time.Minute, 100)
				c.Start(t, i)
				c.WaitBrokers(t, c.Brokers())
				c.WaitInSync(t)
			}
			l.progress(t, time.Minute, 200)
		}},
	} {
		if !t.Run(f.name, f.fault) {
			t.FailNow() // the brokers may not be in the state that the next test needs
		}
		must(t, l.order())
	}
	stop()
	l.close(t, time.Minute)
	if dead := c.Read(t, cfg, schemas.Dead); len(dead) > 0 {
		t.Errorf("%d dead letters, want none: a fault of brokers is no fault of a message", len(dead))
	}
}

// TestProduceRefused checks that nothing is committed while the brokers refuse outputs because too few replicas are in
// sync, and that nothing is lost afterwards. In make soak this lasts longer than the timeout of a publish.
func TestProduceRefused(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{})
	c.Breakable(t)
	cfg := faultConfig(c, "refused")
	l := newAuditedLedger(t, c, cfg, 3)
	c.SetTopicConfig(t, cfg.Prefix+string(schemas.DuplicationHigh), "min.insync.replicas", "3")
	broker := c.Leader(t, cfg)
	c.Kill(t, broker)
	c.WaitBrokers(t, c.Brokers()-1)
	const n = 300
	publish(t, cfg, changes(n, 30)...)
	var calls atomic.Int64
	planner(t, cfg, kafka.PoolConfig{}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		calls.Add(1)
		return plan(ctx, d)
	})
	harness.Eventually(t, time.Minute, "call the handler for all messages", func(context.Context) error {
		if calls.Load() < n {
			return fmt.Errorf("%d calls", calls.Load())
		}
		return nil
	})
	refuse := need.Amount(5, 5, 80)
	wait(t, time.Duration(refuse)*time.Second)
	harness.Eventually(t, time.Minute, "audit", func(ctx context.Context) error {
		committed, err := l.audit(ctx)
		for id, at := range committed {
			if at > 0 {
				t.Errorf("partition %d: %d is committed", id, at)
			}
		}
		return err
	})
	if all, _ := l.handled(""); all > 0 {
		t.Errorf("the brokers accepted %d outputs: nothing was tested", all)
	}
	c.Start(t, broker)
	l.close(t, time.Minute)
	if len(l.done) != n || len(l.dead) > 0 {
		t.Errorf("%d changes are handled, %d are dead letters; want %d and none", len(l.done), len(l.dead), n)
	}
}
