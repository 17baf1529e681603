package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/sweep"
)

// A store that is away for a day in the middle of a round ("make test": two hours) stops the round, not the process:
// what was published before is all that waits, nothing is added, and the round goes on within minutes of the return,
// with each command once.
func TestRoundDuringAnOutage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		const pages, page, bound = 200, 10, 20
		x := newOutage(t, dir)
		stop := x.start(t)
		r := newOutageRound(t, x, pages, page, bound)
		time.Sleep(time.Minute)
		x.unplug(t)
		time.Sleep(time.Minute)
		out := r.published(t)
		if out < page || out > pages*page/2 {
			t.Fatalf("%d of %d commands are published before", out, pages*page)
		}
		for hour := range need.Amount(2, 24, 24) {
			time.Sleep(time.Hour)
			done := int(x.done.Load())
			// The answer of a store counts for some seconds, in which a round may go on.
			if n := r.published(t); n != out || n-done > bound*11/10+page {
				t.Fatalf("after %d hours %d commands are published and %d done, there were %d", hour+1, n, done, out)
			}
			if n := x.stores.Breakers()[1].Waiting; n > bound*11/10+page {
				t.Fatalf("after %d hours %d wait", hour+1, n)
			}
		}
		x.plugIn(t)
		back := time.Now()
		for x.done.Load() < pages*page && time.Since(back) < time.Hour {
			time.Sleep(time.Second)
		}
		if took := time.Since(back); took > 10*time.Minute {
			t.Errorf("%d of %d commands are done %v after the return", x.done.Load(), pages*page, took)
		}
		time.Sleep(time.Minute)
		if n := r.published(t); n != pages*page {
			t.Errorf("%d commands are published, want %d", n, pages*page)
		}
		if c := r.known.of(DuplicationSweep, "acme/maps/1/2"); c.GetFinished() == nil || c.GetEmitted() != pages*page {
			t.Errorf("the checkpoint is %v", c)
		}
		if n := x.said.Count("run sweep"); n > 0 {
			t.Errorf("%d failures of the round:\n%s", n, x.said.String())
		}
		r.stop()
		stop()
	})
}

// An outageRound is a sweeper with a round of commands for the store that can become unavailable.
type outageRound struct {
	*outage
	known *checkpoints
	stop  func()
}

// newOutageRound begins a round of so many pages, one in a second.
func newOutageRound(t *testing.T, x *outage, pages, page int, bound int64) *outageRound {
	t.Helper()
	cfg := config.Default()
	a := &App{cfg: &cfg, log: x.said.Log(), kafka: x.broker.Config(), stores: x.stores}
	var err error
	must := func(e error) {
		t.Helper()
		if e != nil {
			t.Fatal(e)
		}
	}
	a.producer, err = kafka.NewProducer(a.kafka, "test")
	must(err)
	a.admin, err = admin.New(a.kafka)
	must(err)
	r := &outageRound{outage: x}
	r.known, err = a.newCheckpoints()
	must(err)
	s, err := sweep.NewSweeper(sweep.SweeperConfig{Config: sweep.Config{MaxBacklog: bound}},
		sweep.SweeperDeps{Publisher: a.producer, Checkpoint: r.known.of, CatchUp: r.known.CatchUp, Log: a.log})
	must(err)
	m := sweep.Split{Sweep: DuplicationSweep, Name: "acme/maps/1/2", Account: "acme",
		Lag: a.lagOf(schemas.RoleCopier), Due: func(last *pb.Checkpoint, _ time.Time) bool { return last == nil },
		Blocked: a.whileAnswering(StoreName{"acme", "1"}, a.whileAnswering(StoreName{"acme", "2"},
			func(context.Context) error { return nil })),
		Pages: func(_ context.Context, round sweep.Round, cursor []byte) (p sweep.Page, err error) {
			time.Sleep(time.Second)
			n := len(cursor)
			for i := range page {
				item := fmt.Sprintf("%04d", n*page+i)
				p.Messages = append(p.Messages, schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
					Id: schemas.ID("sweep", round.ID, item), Account: "acme", Space: "maps", Item: item,
					SourceStore: "1", DestinationStore: "2", Reason: pb.DuplicationReason_DUPLICATION_REASON_SWEEP}})
			}
			p.Emitted, p.Next, p.Last = int64(page), make([]byte, n+1), n+1 == pages
			return p, nil
		}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		err := runDuring(ctx, r.known.Run, func(ctx context.Context) error {
			return s.Run(ctx, []sweep.Kind{func(context.Context) ([]sweep.Split, error) { return []sweep.Split{m}, nil }}, nil)
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	r.stop = func() {
		cancel()
		running.Wait()
		a.producer.Close()
		a.admin.Close()
	}
	return r
}

// published returns the number of commands that the round has published.
func (r *outageRound) published(t *testing.T) int {
	t.Helper()
	return len(r.broker.Read(schemas.DuplicationHigh))
}
