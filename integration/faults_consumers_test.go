package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
)

// TestConsumerFaults injects faults of consumers and their messages, with three brokers. After each fault the ledger
// checks that nothing is lost, that nothing was committed before it was done, and that the outputs of an item are in
// order.
func TestConsumerFaults(t *testing.T) {
	c := harness.Kafka(t, harness.Options{})
	for name, test := range map[string]func(*testing.T, *harness.Cluster){
		"killed repeatedly during tasks":     killedRepeatedly,
		"frozen past its session":            frozen,
		"members join and leave":             rebalanceStorm,
		"a handler that hangs":               hangingTask,
		"a handler that ignores its context": stuckTask,
		"deployments during a copy":          killedByDeploys,
		"poison among good records":          poison,
		"64 partitions and one hot key":      hotKey,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

func killedRepeatedly(t *testing.T, c *harness.Cluster) {
	cfg := faultConfig(c, "killed")
	l := newAuditedLedger(t, c, cfg, 6)
	stop := load(t, cfg, 60, 300)
	var members [3]*process
	name := func(i, life int) string { return fmt.Sprintf("member-%d/%d", i, life) }
	start := func(i, life int) {
		members[i] = startMember(t, cfg,
			memberSpec{Name: name(i, life), Session: 3 * time.Second, Workers: 8, Task: 20 * time.Millisecond})
	}
	for i := range members {
		start(i, 0)
	}
	for n := range need.Amount(3, 10, 30) {
		i, life := n%3, n/3
		// It is killed while it runs tasks: some are done, and the load continues.
		harness.Eventually(t, time.Minute, "see outputs of the member", func(ctx context.Context) error {
			all, own := l.handled(name(i, life))
			if own >= 30 {
				return nil
			}
			g, err := c.Describe(ctx, l.group)
			return fmt.Errorf("%s has made %d outputs, all %d; the group is %+v (%w)", name(i, life), own, all, g,
				cmpOr(err, errNotYet))
		})
		members[i].kill()
		start(i, life+1)
	}
	stop()
	l.close(t, time.Minute)
}

func frozen(t *testing.T, c *harness.Cluster) {
	for _, serverSide := range []bool{false, true}[:need.Amount(1, 2, 2)] {
		cfg := faultConfig(c, fmt.Sprintf("frozen-%t", serverSide))
		l := newAuditedLedger(t, c, cfg, 6)
		stop := load(t, cfg, 60, 200)
		spec := memberSpec{Session: 3 * time.Second, Workers: 8, Task: 20 * time.Millisecond, ServerSide: serverSide}
		if serverSide {
			spec.Session = 0 // the brokers set it
		}
		var members []*process
		for i := range 3 {
			spec.Name = fmt.Sprint("member-", i)
			members = append(members, startMember(t, cfg, spec))
		}
		group := cfg.Prefix + string(schemas.RolePlanner)
		sized := func(n int) {
			t.Helper()
			harness.Eventually(t, time.Minute, fmt.Sprint("form a group of ", n), func(ctx context.Context) error {
				g, err := c.Describe(ctx, group)
				if err != nil || g.State != "Stable" || len(g.Members) != n || g.Assigned() != 7 { // again.planner has 1
					return fmt.Errorf("the group is %+v (%w)", g, cmpOr(err, errNotYet))
				}
				return nil
			})
		}
		sized(3)
		for i, m := range members[:2] {
			harness.Eventually(t, time.Minute, "see outputs of the member", func(context.Context) error {
				if _, own := l.handled(fmt.Sprint("member-", i)); own < 20 {
					return fmt.Errorf("%d outputs", own)
				}
				return nil
			})
			m.signal(t, syscall.SIGSTOP)
			sized(2)
			l.progress(t, time.Minute, 200) // other members have its partitions now, and have made progress
			m.signal(t, syscall.SIGCONT)
			sized(3)
			l.progress(t, time.Minute, 200)
		}
		stop()
		l.close(t, time.Minute)
		for _, m := range members {
			m.signal(t, syscall.SIGTERM)
			<-m.exited
			if code := m.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("a member ended with exit code %d", code)
			}
		}
	}
}

func rebalanceStorm(t *testing.T, c *harness.Cluster) {
	cfg := faultConfig(c, "storm")
	l := newAuditedLedger(t, c, cfg, 8)
	stop := load(t, cfg, 80, 300)
	task := memberSpec{Task: 20 * time.Millisecond}.plan
	planner(t, cfg, kafka.PoolConfig{}, task)
	planner(t, cfg, kafka.PoolConfig{}, task)
	moves := 0
	for begun := time.Now(); time.Since(begun) < soakTime(15*time.Second); moves++ {
		leave := planner(t, cfg, kafka.PoolConfig{}, task)
		wait(t, time.Second)
		must(t, leave())
	}
	l.progress(t, time.Minute, 300)
	stop()
	l.close(t, time.Minute)
	t.Logf("%d members joined and left", moves)
}

// hangingTask has one task that hangs until it is cancelled. The others continue, no commit passes it, and a retry
// completes it.
func hangingTask(t *testing.T, c *harness.Cluster) {
	cfg := faultConfig(c, "hangs")
	cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	l := newAuditedLedger(t, c, cfg, 1)
	const n, items = 400, 40
	var hung atomic.Int64
	cancelled := make(chan error, 1)
	planner(t, cfg, kafka.PoolConfig{StallTimeout: 10 * time.Second},
		func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			if d.Body.(*pb.Change).GetItem() == "item-7" && hung.Add(1) == 1 {
				<-ctx.Done()
				cancelled <- context.Cause(ctx)
				return nil, ctx.Err()
			}
			return plan(ctx, d)
		})
	d, err := kafka.NewDelayer(cfg)
	running(t, d, err)
	publish(t, cfg, changes(n, items)...)
	harness.Eventually(t, 8*time.Second, "handle the messages that do not hang", func(ctx context.Context) error {
		committed, err := l.audit(ctx)
		if err != nil {
			return err
		}
		if all, _ := l.handled(""); all != n-n/items {
			return fmt.Errorf("%d changes are handled, want all but those of one item", all)
		}
		if committed[0] > 7 {
			return fmt.Errorf("committed %d, want no more than 7", committed[0])
		}
		return nil
	})
	select {
	case err := <-cancelled:
		t.Log(err)
	case <-time.After(30 * time.Second):
		t.Fatal("the task was not cancelled")
	}
	harness.Eventually(t, 30*time.Second, "handle the message at the next delivery", func(context.Context) error {
		if all, _ := l.handled(""); all != n {
			return fmt.Errorf("%d changes are handled", all)
		}
		return nil
	})
	l.close(t, 30*time.Second)
	if len(l.dead) > 0 || len(l.retried) != 1 {
		t.Errorf("%d dead letters, %d retried; want none and 1", len(l.dead), len(l.retried))
	}
}

// stuckTask has one task that ignores cancellation. Its process reports this and exits, and another process does the
// work.
func stuckTask(t *testing.T, c *harness.Cluster) {
	need.Full(t)
	cfg := faultConfig(c, "stubborn")
	l := newAuditedLedger(t, c, cfg, 2)
	p := startMember(t, cfg,
		memberSpec{Name: "stubborn", Session: 3 * time.Second, Workers: 8, Stall: time.Second, Stubborn: "item-7"})
	publish(t, cfg, changes(400, 40)...)
	select {
	case <-p.exited:
	case <-time.After(2 * time.Minute):
		t.Fatal("the process does not end")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if all, _ := l.handled(""); all != 390 {
		t.Errorf("%d changes are handled, want all but those of one item", all)
	}
	planner(t, cfg, kafka.PoolConfig{}, plan)
	l.close(t, time.Minute)
	if len(l.done) != 400 {
		t.Errorf("%d changes are handled, want all", len(l.done))
	}
}

// killedByDeploys has a copy that takes ten times the stop timeout of a deployment. Ten processes are stopped and
// killed while they work on it, as Kubernetes does after 30 s and Docker after 10 s (the test uses a tenth of the
// times). None of this counts as a death, and the copy completes.
func killedByDeploys(t *testing.T, c *harness.Cluster) {
	need.Full(t)
	for name, grace := range map[string]time.Duration{"kubernetes": 3 * time.Second, "docker": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := faultConfig(c, name)
			l := newAuditedLedger(t, c, cfg, 1)
			publish(t, cfg, change("long", 0))
			spec := memberSpec{Session: 3 * time.Second, Workers: 4, Long: "long", LongTask: 10 * grace}
			for i := range 10 {
				spec.Name, spec.Begun = fmt.Sprint(name, i), filepath.Join(t.TempDir(), fmt.Sprint(i))
				p := startMember(t, cfg, spec)
				harness.Eventually(t, time.Minute, "begin the copy", func(context.Context) error {
					_, err := os.Stat(spec.Begun)
					return err
				})
				wait(t, grace)
				p.signal(t, syscall.SIGTERM)
				wait(t, grace)
				p.kill()
			}
			spec.Name, spec.Begun = name+" at last", filepath.Join(t.TempDir(), "at last")
			startMember(t, cfg, spec)
			l.close(t, time.Minute)
			if len(l.done) != 1 || len(l.dead) > 0 {
				t.Errorf("%d changes are handled, %d are dead letters; want 1 and none", len(l.done), len(l.dead))
			}
		})
	}
}

func poison(t *testing.T, c *harness.Cluster) {
	cfg := faultConfig(c, "poison")
	l := newAuditedLedger(t, c, cfg, 3)
	bad := [][]byte{nil, {}, {0}, []byte("no message"), []byte(`{"json": true}`), slices.Repeat([]byte{0xff}, 300),
		make([]byte, schemas.MaxBytes)}
	var recs []harness.Record
	const n, items = 300, 30
	for i, m := range changes(n, items) {
		good := harness.Encode(t, m)
		recs = append(recs, good)
		if i%10 == 0 {
			r := good // with the same key, so that later messages of the item wait for it
			r.Value = bad[i/10%len(bad)]
			if i%20 == 0 {
				r.Headers = nil
			}
			recs = append(recs, r)
		}
	}
	planner(t, cfg, kafka.PoolConfig{}, memberSpec{Task: 5 * time.Millisecond}.plan)
	c.Write(t, cfg, recs...)
	l.close(t, time.Minute)
	if len(l.done) != n || len(l.dead) != n/10 {
		t.Errorf("%d changes are handled, %d are dead letters; want %d and %d", len(l.done), len(l.dead), n, n/10)
	}
	for _, r := range c.Read(t, cfg, schemas.Changes) {
		if d, ok := l.dead[sourcePosition{r.Partition,
			r.Offset}]; ok && (string(d.Value) != string(r.Value) || string(d.Key) != string(r.Key)) {
			t.Errorf("the dead letter of %d@%d has %d bytes and key %q, want the original %d bytes and key %q",
				r.Partition, r.Offset, len(d.Value), d.Key, len(r.Value), r.Key)
		}
	}
}

// hotKey checks that a key with most of the work does not slow down the other keys of its partition.
func hotKey(t *testing.T, c *harness.Cluster) {
	cfg := faultConfig(c, "hot")
	c.CreateTopics(t, cfg, 64, schemas.Changes)
	c.CreateTopics(t, cfg, 4, ledgerTopics(cfg)[1:]...)
	l := newLedger(t, c, cfg)
	l.watch(t)
	const hot, cold = 600, 900
	var msgs []schemas.Message
	for i := range max(hot, cold) {
		if i < hot {
			msgs = append(msgs, change("hot", i))
		}
		msgs = append(msgs, change(fmt.Sprint("item-", i%300), i/300))
	}
	var mu sync.Mutex
	busy, left, hotLeft := false, cold, hot
	atLast := -1 // messages of the hot key that were left when the last of the others was done
	planner(t, cfg, kafka.PoolConfig{Workers: 8},
		func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
			isHot := d.Body.(*pb.Change).GetItem() == "hot"
			mu.Lock()
			if isHot && busy {
				t.Error("two tasks of a key at once")
			}
			busy = busy || isHot
			mu.Unlock()
			out, err := memberSpec{Task: 20 * time.Millisecond}.plan(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			if isHot {
				busy = false
				hotLeft--
			} else if left--; left == 0 {
				atLast = hotLeft
			}
			return out, err
		})
	publish(t, cfg, msgs...)
	l.close(t, time.Minute)
	if atLast < hot/2 {
		t.Errorf("when the others were done, %d of %d messages of the hot key were left: the others waited for them",
			atLast, hot)
	}
	t.Logf("when %d others were done, %d of %d messages of the hot key were left", cold, atLast, hot)
}
