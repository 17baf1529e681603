package kafka_test

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A process that starts after another one of its roles was killed handles the work within 15 s, or at once if
// it has the killed one's name. Until then Admin.JoinWait returns the group and the session to wait for.
func TestKilledMemberIsReplaced(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		instance string
		within   time.Duration
		waits    time.Duration // the session to wait for; 0: none
	}{
		"by another":       {"", 15 * time.Second, 10 * time.Second},
		"by the same name": {"pod-0", 3 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				member := func(cfg client.Config) *kafka.Pool {
					pc := kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}}
					p, err := kafka.NewPool(cfg, pc, parttest.Plan)
					must(t, err)
					return p
				}
				cfg := b.Config()
				cfg.Instance = tt.instance
				proc, dying := newProcess(cfg)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- member(dying).Run(ctx) }()
				time.Sleep(time.Minute)
				proc.kill()
				killed := time.Now()
				cfg, _ = withMetrics(b)
				cfg.Instance = tt.instance
				parttest.Background(t, member(cfg))
				b.Send(parttest.Change("a"))
				time.Sleep(time.Second)
				adm := parttest.NewAdmin(t, cfg)
				w, err := adm.JoinWait(t.Context(), cfg.Metrics.State())
				if err != nil || (len(w.Groups) > 0) != (tt.waits > 0) || tt.waits > 0 &&
					(!slices.Equal(w.Groups, []string{cfg.Prefix + "planner"}) || w.Session != tt.waits || len(w.Hosts) == 0) {
					t.Errorf("a second later: waits for %+v, %v", w, err)
				}
				for len(parttest.Items(b, schemas.DuplicationHigh)) == 0 && time.Since(killed) < 5*time.Minute {
					time.Sleep(100 * time.Millisecond)
				}
				if took := time.Since(killed); took > tt.within {
					t.Errorf("the work continues %v after the kill, want %v at most", took, tt.within)
				}
				if w, err := adm.JoinWait(t.Context(), cfg.Metrics.State()); err != nil || len(w.Groups) > 0 {
					t.Errorf("when it has joined: waits for %+v, %v", w, err)
				}
				cancel()
				<-ended // its error is the end of a process
			})
		})
	}
}

// A process without contact to its brokers for longer than its session has not died: running tasks are
// repeated, however often that happens.
func TestSilencesAreNoDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"), parttest.Change("b"))
		cfg, silence := b.Config(), new(atomic.Bool)
		dial := cfg.Dialer
		cfg.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return silentBroker{c, silence}, nil
		}
		var begun, lost atomic.Int32
		pc := kafka.PoolConfig{Role: schemas.RolePlanner, Topics: []schemas.Topic{schemas.Changes}, Workers: 2}
		p, err := kafka.NewPool(cfg, pc,
			func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
				if d.Body.(*pb.Change).GetItem() == "a" {
					begun.Add(1)
					if lost.Load() < 5 {
						<-ctx.Done()
						lost.Add(1)
						return nil, ctx.Err()
					}
				}
				return parttest.Plan(ctx, d)
			})
		must(t, err)
		parttest.Background(t, p)
		for range 5 {
			time.Sleep(30 * time.Second)
			b.Send(parttest.Change("b")) // there is always something to commit
			silence.Store(true)
			time.Sleep(15 * time.Second)
			silence.Store(false)
		}
		time.Sleep(time.Minute)
		if begun.Load() != 6 || len(b.Read(schemas.Dead)) > 0 || !slices.Contains(parttest.Items(b, schemas.DuplicationHigh),
			"a") {
			t.Errorf("started %d times, %d dead letters, outputs %v: want 6 times, none, and its output",
				begun.Load(), len(b.Read(schemas.Dead)), parttest.Items(b, schemas.DuplicationHigh))
		}
	})
}
