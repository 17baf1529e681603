package kafka_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// A process can be killed: after that nothing of it reaches the broker.
type process struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	dead  chan struct{}
	conns []net.Conn
}

func newProcess(cfg client.Config) (*process, client.Config) {
	p := &process{dial: cfg.Dialer, dead: make(chan struct{})}
	cfg.Dialer = p.connect
	return p, cfg
}

func (p *process) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	select {
	case <-p.dead:
		select { // the client of a dead process must not spin
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		return nil, errors.New("the process is dead")
	default:
	}
	c, err := p.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
	return c, nil
}

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.dead:
		return
	default:
	}
	close(p.dead)
	for _, c := range p.conns {
		c.Close()
	}
}

// A message that kills its process becomes a dead letter after the third death, however fast it kills.
// Messages that ran beside it are done.
func TestPoolPoisonMessage(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]time.Duration{"at once": 0, "after seconds": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				const n = 30
				b.Send(parttest.Numbered(n, n)...)
				deaths := 0
				for ; deaths < 10; deaths++ {
					if killed := lifetime(t, b, "7", slow); !killed {
						break
					}
				}
				if deaths != 3 {
					t.Errorf("%d processes died, want 3", deaths)
				}
				var dead []string
				for _, r := range b.Read(schemas.Dead) {
					dead = append(dead, string(r.Key))
				}
				if want := []string{schemas.ItemKey("acme", "maps", "7")}; !slices.Equal(dead, want) {
					t.Errorf("dead letters: got %v, want %v", dead, want)
				}
				done := map[string]bool{}
				for _, item := range parttest.Items(b, schemas.DuplicationHigh) {
					done[item] = true
				}
				if len(done) != n-1 || done["7"] {
					t.Errorf("got outputs of %d messages, want %d", len(done), n-1)
				}
				if got := parttest.Sum(b.Committed(schemas.RolePlanner, schemas.Changes)); got != n {
					t.Errorf("committed %d, want %d", got, n)
				}
			})
		})
	}
}

// lifetime runs a Pool in its own process until item kills it, or for some minutes.
func lifetime(t *testing.T, b *kafkatest.Broker, item string, slow time.Duration) (killed bool) {
	proc, cfg := newProcess(b.Config())
	p, err := kafka.NewPool(cfg, kafka.PoolConfig{
		Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}, Workers: 4, DrainTimeout: time.Second,
	}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		if d.Body.(*pb.Change).Item == item {
			time.Sleep(slow)
			proc.kill()
		}
		select {
		case <-proc.dead:
			<-ctx.Done()
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
		return parttest.Plan(ctx, d)
	})
	must(t, err)
	return killedIn(t, proc, p)
}

// killedIn runs p in proc until proc is killed or for some minutes, and reports whether it was killed.
func killedIn(t *testing.T, proc *process, p *kafka.Pool) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	go func() {
		select {
		case <-proc.dead:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := p.Run(ctx)
	select {
	case <-proc.dead:
		return true
	default:
	}
	must(t, err)
	return false
}

// A stop is no death: running messages are repeated, however often that happens.
func TestPoolStopsAreNoDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"))
		for range 5 {
			p := pool(t, b, kafka.PoolConfig{DrainTimeout: time.Second},
				func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				})
			must(t, parttest.Run(t, 10*time.Second, p))
		}
		must(t, parttest.Run(t, 10*time.Second, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
		if got := fmt.Sprint(parttest.Items(b, schemas.DuplicationHigh), len(b.Read(schemas.Dead))); got != "[a] 0" {
			t.Errorf("outputs and dead letters: %s", got)
		}
	})
}

// A stopped process that is killed before its tasks end counts as a death only for tasks without progress.
// Neither does the death of a process count for a task that has made progress for long. A task without
// progress is suspect, and so is one that has just started.
func TestPoolDeathsThatCount(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		every time.Duration // between two calls of Alive; 0: none
		stop  time.Duration // when the process is stopped; 0: never
		kill  time.Duration // when it is killed
		dead  bool
	}{
		"stopped, makes progress":          {100 * time.Millisecond, 20 * time.Second, 23 * time.Second, false},
		"stopped at once, makes progress":  {100 * time.Millisecond, 8 * time.Second, 11 * time.Second, false},
		"stopped, no progress":             {0, 20 * time.Second, 23 * time.Second, true},
		"killed after much progress":       {100 * time.Millisecond, 0, time.Minute, false},
		"killed soon, despite progress":    {100 * time.Millisecond, 0, 20 * time.Second, true},
		"killed after a minute of nothing": {0, 0, time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				b.Send(parttest.Change("a"))
				for range 10 {
					proc, cfg := newProcess(b.Config())
					p, err := kafka.NewPool(cfg, kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}},
						func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
							for {
								select {
								case <-proc.dead: // nothing of it is visible any more
									<-ctx.Done()
									return nil, ctx.Err()
								case <-time.After(cmp.Or(tt.every, time.Hour)):
									retry.Alive(ctx)
								}
							}
						})
					must(t, err)
					ctx, cancel := context.WithCancel(t.Context())
					if tt.stop > 0 {
						time.AfterFunc(tt.stop, cancel)
					}
					time.AfterFunc(tt.kill, func() { proc.kill(); cancel() })
					_ = p.Run(ctx) // its error is the end of a process
					time.Sleep(time.Minute)
				}
				must(t, parttest.Run(t, time.Minute, pool(t, b, kafka.PoolConfig{}, parttest.Plan)))
				if dead := len(b.Read(schemas.Dead)) > 0; dead != tt.dead || len(parttest.Items(b,
					schemas.DuplicationHigh)) > 0 == tt.dead {
					t.Errorf("dead: %t, outputs %v", dead, parttest.Items(b, schemas.DuplicationHigh))
				}
			})
		})
	}
}

// sized describes tasks of n bytes.
func sized(n int64) func(schemas.Body) kafka.Work {
	return func(schemas.Body) kafka.Work { return kafka.Work{Bytes: n} }
}

// A task that is overdue or makes no progress is cancelled and waits in a lane. One that ignores that ends
// Run.
func TestPoolWatchdog(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cfg      kafka.PoolConfig
		deadline time.Duration
		slow     int64
		ignores  bool
		took     time.Duration
	}{
		"stalled": {kafka.PoolConfig{StallTimeout: 2 * time.Minute}, 0, 0, false, 2 * time.Minute},
		"overdue": {kafka.PoolConfig{Describe: sized(60 << 10)}, 2 * time.Minute, 1 << 10, false, 3 * time.Minute},
		"overdue, of more than there is": {
			kafka.PoolConfig{StallTimeout: 4 * time.Minute, Describe: sized(math.MaxInt64)},
			3 * time.Minute, 0, false, 4 * time.Minute,
		},
		"of unknown size": {kafka.PoolConfig{StallTimeout: 4 * time.Minute}, time.Minute, 0, false, 4 * time.Minute},
		"ignores":         {kafka.PoolConfig{StallTimeout: 2 * time.Minute}, 0, 0, true, 3 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes()})
				b.Send(parttest.Change("a"))
				hold := make(chan struct{})
				var took time.Duration
				p := pool(t, b, tt.cfg, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
					if d.Attempt > 1 {
						return parttest.Plan(ctx, d)
					}
					start := time.Now()
					<-ctx.Done()
					took = time.Since(start)
					if tt.ignores {
						<-hold
					}
					return nil, ctx.Err()
				})
				parttest.Background(t, parttest.Delayer(t, b))
				start := time.Now()
				err := parttest.Run(t, tt.took+2*time.Minute, p.SetDeadline(tt.deadline, tt.slow))
				if tt.ignores {
					if took = time.Since(start); err == nil {
						t.Error("Run returned no error")
					}
				} else if err != nil {
					t.Fatal(err)
				} else if got := len(b.Read(schemas.Delay("30s"))); got != 1 {
					t.Errorf("%d records in the lane, want 1", got)
				}
				if took < tt.took || took > tt.took+30*time.Second {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				close(hold)
				time.Sleep(time.Second)
			})
		})
	}
}
