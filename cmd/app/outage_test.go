package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/storage"
)

// Work that waits for an unavailable store is done within a minute after its return, independently
// of the length of the outage and of restarts. Until then it is counted by store. The log has one
// line when the store becomes unavailable and one when it returns.
func TestWorkResumesAfterOutage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		outage  time.Duration
		restart bool
	}{
		"unavailable for a minute":               {50 * time.Second, false},
		"unavailable for a quarter of an hour":   {15 * time.Minute, false},
		"unavailable, and the process restarted": {10 * time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "unavailable for a quarter of an hour" {
				need.Full(t)
			}
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				x := newOutage(t, dir)
				stop := x.start(t)
				n := need.Amount(300, 2000, 10000)
				x.broker.Send(x.commands(n)...)
				time.Sleep(5 * time.Second)
				if done := x.done.Load(); done != int64(n) {
					t.Fatalf("%d of %d are done before", done, n)
				}
				x.unplug(t)
				x.broker.Send(x.commands(n)...)
				time.Sleep(tt.outage / 2)
				if tt.restart {
					stop()
					stop = x.start(t)
					time.Sleep(time.Minute) // those that wait come by, and are counted
				}
				time.Sleep(tt.outage / 2)
				if waiting, done := x.stores.Breakers()[1].Waiting, x.done.Load(); waiting < n*9/10 || done != int64(n) {
					t.Errorf("while it is unavailable: %d are counted as waiting, %d are done, want about %d of each",
						waiting, done, n)
				}
				x.plugIn(t)
				back := time.Now()
				for x.done.Load() < int64(2*n) && time.Since(back) < time.Hour {
					time.Sleep(time.Second)
				}
				if took := time.Since(back); took > time.Minute {
					t.Errorf("the last of what waited is done %v after the store's return, want a minute at most", took)
				}
				time.Sleep(time.Minute)
				if waiting := x.stores.Breakers()[1].Waiting; waiting != 0 {
					t.Errorf("%d are counted as waiting for a store that is back", waiting)
				}
				stop()
				for line, want := range map[string]int{
					"open breaker": x.starts, "close breaker": 1, "route failed message": 0, "retry message": 0,
				} {
					if n := x.said.Count(line); n != want {
						t.Errorf("%d lines say %q, want %d:\n%s", n, line, want, x.said.String())
					}
				}
				if dead := len(x.broker.Read(schemas.Dead)); dead > 0 {
					t.Errorf("%d dead letters", dead)
				}
			})
		})
	}
}

// An outage is a Pool with tasks that need a store which can become unavailable.
type outage struct {
	broker      *kafkatest.Broker
	root, aside string
	stores      *Stores // of the newest process
	said        logtest.Lines
	done        atomic.Int64
	starts      int
}

func newOutage(t *testing.T, dir string) *outage {
	t.Helper()
	x := &outage{
		broker: kafkatest.New(t, kafkatest.Options{}), root: filepath.Join(dir, "2"), aside: filepath.Join(dir, "aside"),
	}
	for _, id := range []string{"1", "2"} {
		marked(t, schemas.Key("acme", id), filepath.Join(dir, id))
	}
	return x
}

// start starts a process: its stores, a Pool and a delayer. stop ends it.
func (x *outage) start(t *testing.T) (stop func()) {
	t.Helper()
	acc := config.Account{ID: "acme"}
	for _, id := range []string{"1", "2"} {
		acc.Stores = append(acc.Stores, config.Store{ID: id, Driver: "file", Root: filepath.Join(filepath.Dir(x.root), id)})
	}
	stores, err := newStores(&config.Config{Accounts: []config.Account{acc}}, x.said.Log())
	must(t, err)
	cfg := x.broker.Config()
	cfg.Log, cfg.Unavailable = x.said.Log(), new(client.UnavailableCounts)
	stores.waiting = cfg.Unavailable
	x.stores = stores
	x.starts++
	p, err := kafka.NewPool(cfg, kafka.PoolConfig{
		Role: schemas.RoleCopier, Topics: []schemas.Topic{schemas.DuplicationHigh}, Admit: stores.Admit,
		Describe: func(b schemas.Body) kafka.Work {
			return kafka.Work{Key: b.(*pb.DuplicationCommand).GetItem(), Account: "acme", Stores: [2]string{"1", "2"}}
		}}, func(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
		st, _ := stores.Store("acme", "2")
		_, err := st.Stat(ctx, "maps", d.Body.(*pb.DuplicationCommand).GetItem())
		if !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrNoSpace) {
			return nil, err
		}
		x.done.Add(1)
		return nil, nil
	})
	must(t, err)
	d, err := kafka.NewDelayer(cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	for _, run := range []func(context.Context) error{stores.run, p.Run, d.Run} {
		go func() { ended <- run(ctx) }()
	}
	return func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, <-ended, stores.close()); err != nil {
			t.Error(err)
		}
	}
}

func (x *outage) commands(n int) (msgs []schemas.Message) {
	for i := range n {
		msgs = append(msgs, schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
			Id: schemas.ID("command", fmt.Sprint(i)), Account: "acme", Space: "maps", Item: fmt.Sprint(i),
			SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
		}})
	}
	return msgs
}

func (x *outage) unplug(t *testing.T) { x.rename(t, x.root, x.aside) }

func (x *outage) plugIn(t *testing.T) { x.rename(t, x.aside, x.root) }

func (x *outage) rename(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.Rename(from, to))
}
