package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/child"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// memberEnv is the environment variable that makes TestMain run a member instead of tests.
const memberEnv = "MILLRACE_TEST_MEMBER"

// memberSpec configures a member in a child process.
type memberSpec struct {
	Brokers    []string
	Prefix     string
	Name       string // ce_source of its outputs
	Lanes      []client.Lane
	Session    time.Duration
	ServerSide bool
	Workers    int
	Task       time.Duration // how long a task takes, at most
	Stall      time.Duration
	Stubborn   string // an item whose task never ends, cancelled or not
	Long       string // an item whose task makes progress for LongTask, in each process that does not cancel it
	LongTask   time.Duration
	Begun      string // the file that is made when the task of Long begins
}

// member runs the planner's Pool in this process until a signal.
func member(text string) int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	var s memberSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	cfg := client.Config{
		Brokers: s.Brokers, Prefix: s.Prefix, ClientID: s.Name, Lanes: s.Lanes, Heartbeat: 300 * time.Millisecond,
		SessionTimeout: s.Session,
		ServerSide:     s.ServerSide, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	p, err := kafka.NewPool(cfg, kafka.PoolConfig{
		Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}, Workers: s.Workers, StallTimeout: s.Stall,
		DrainTimeout: 10 * time.Second,
	}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		if s.Stubborn != "" && d.Body.(*pb.Change).GetItem() == s.Stubborn {
			select {}
		}
		if s.Long != "" && d.Body.(*pb.Change).GetItem() == s.Long {
			if err := os.WriteFile(s.Begun, nil, 0o600); err != nil {
				return nil, err
			}
			for begun := time.Now(); time.Since(begun) < s.LongTask; retry.Alive(ctx) {
				if err := retry.Sleep(ctx, 50*time.Millisecond); err != nil {
					return nil, err
				}
			}
		}
		return s.plan(ctx, d)
	})
	if err == nil {
		err = p.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// plan is the handler; it takes the configured time.
func (s memberSpec) plan(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	if s.Task > 0 {
		if err := retry.Sleep(ctx, s.Task/4+rand.N(s.Task*3/4)); err != nil {
			return nil, err
		}
	}
	msgs, err := plan(ctx, d)
	for i := range msgs {
		msgs[i].Source = s.Name
	}
	return msgs, err
}

// process is a child process.
type process struct {
	cmd    *exec.Cmd
	exited <-chan struct{}
	log    string // the file of its output
}

// startMember starts a member that ends with the test. Its output is logged if the test fails.
func startMember(t *testing.T, cfg client.Config, s memberSpec) *process {
	t.Helper()
	s.Brokers, s.Prefix, s.Lanes = cfg.Brokers, cfg.Prefix, cfg.Lanes
	text, err := json.Marshal(s)
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	return startProgram(t, s.Name, exec.Command(self), memberEnv+"="+string(text))
}

// startProgram starts a program that ends with the test. Its output is logged if the test fails.
func startProgram(t *testing.T, name string, cmd *exec.Cmd, env ...string) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	defer log.Close()
	p := &process{cmd: cmd, log: log.Name()}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	if p.exited, err = child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if said, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s (%v), end of its output:\n%s", name, cmd.ProcessState, said[max(0, len(said)-3000):])
		}
	})
	return p
}

// kill kills p, which may be frozen or have exited already.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// stop stops p gracefully.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	<-p.exited
	if !p.cmd.ProcessState.Success() {
		t.Errorf("it did not stop cleanly: %v", p.cmd.ProcessState)
	}
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	must(t, p.cmd.Process.Signal(s))
}

// load publishes versions of items at a steady rate until stop is called, which waits for the end. Unacknowledged
// messages are published again, as the ingester does.
func load(t *testing.T, cfg client.Config, items, perSecond int) (stop func()) {
	t.Helper()
	p, err := kafka.NewProducer(cfg, "load")
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	limit, giveUp := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		const every = 50 * time.Millisecond
		n := 0
		for retry.Sleep(ctx, every) == nil {
			var msgs []schemas.Message
			for range max(1, perSecond*int(every)/int(time.Second)) {
				msgs = append(msgs, change(fmt.Sprint("item-", n%items), n/items))
				n++
			}
			for p.Publish(limit, msgs...) != nil {
				if err := retry.Sleep(limit, every); err != nil {
					done <- errors.New("the load could not be published")
					return
				}
			}
		}
		done <- nil
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		timer := time.AfterFunc(time.Minute, giveUp)
		defer timer.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		giveUp()
		p.Close()
	}
	t.Cleanup(stop)
	return stop
}

// soakTime returns d, or four times d in make soak.
func soakTime(d time.Duration) time.Duration { return d * time.Duration(need.Amount(1, 1, 4)) }

func wait(t *testing.T, d time.Duration) {
	t.Helper()
	must(t, retry.Sleep(t.Context(), d))
}

// newAuditedLedger creates the topics of a test, and returns a ledger that audits continuously.
func newAuditedLedger(t *testing.T, c *harness.Cluster, cfg client.Config, partitions int32) *ledger {
	t.Helper()
	c.CreateTopics(t, cfg, partitions, schemas.Changes, schemas.DuplicationHigh)
	// One partition: partitions are assigned to members by number, whatever their topics, and a member with
	// partitions of this topic only would have no work.
	c.CreateTopics(t, cfg, 1, schemas.Again(schemas.RolePlanner))
	c.CreateTopics(t, cfg, 2, slices.DeleteFunc(ledgerTopics(cfg)[2:], func(t schemas.Topic) bool {
		return t == schemas.Again(schemas.RolePlanner)
	})...)
	l := newLedger(t, c, cfg)
	l.watch(t)
	return l
}

// faultConfig returns the configuration of a fault's test.
func faultConfig(c *harness.Cluster, name string) client.Config {
	cfg := c.Config(name + ".")
	cfg.Lanes = []client.Lane{{Name: "1s", Delay: time.Second}}
	return cfg
}

// planner starts a member in this process that takes up to task per message.
func planner(t *testing.T, cfg client.Config, pc kafka.PoolConfig, h kafka.Handler) (stop func() error) {
	t.Helper()
	pc.Role, pc.Topics, pc.DrainTimeout = schemas.RolePlanner, []schemas.Topic{schemas.Changes}, 10*time.Second
	p, err := kafka.NewPool(cfg, pc, h)
	return running(t, p, err)
}
