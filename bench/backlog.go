package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

const (
	// backlogSplits is the number of splits that emit side by side.
	backlogSplits = 8
	// slowTask is how long a slow consumer takes for a command.
	slowTask = 20 * time.Millisecond
	// slowWorkers is the number of commands that it works on at once: 1,600 a second.
	slowWorkers = 32
	// stopped is how long the consumers that have stopped do nothing.
	stopped = 15 * time.Second
)

// out counts the commands that are emitted and not handled. It is the publisher of the sweeps.
type out struct {
	*kafka.Producer

	mu        sync.Mutex // guards the rest
	now, most int
}

// Publish implements schemas.Publisher. Messages count from the begin of their publication.
func (o *out) Publish(ctx context.Context, messages ...schemas.Message) error {
	n := 0
	for _, m := range messages {
		if m.Topic == schemas.DuplicationLow {
			n++
		}
	}
	o.add(n)
	return o.Producer.Publish(ctx, messages...)
}

func (o *out) add(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now += n
	o.most = max(o.most, o.now)
}

// backlog returns a figure of the most commands that are out while sweeps over pairs emit them to slow consumers, with
// the default configuration of the sweeper. If stop is set, the consumers do nothing at first.
func (r *runner) backlog(stop bool) func(context.Context) (measurement, error) {
	return func(ctx context.Context) (m measurement, err error) {
		g, err := r.newBroker(ctx)
		if err != nil {
			return m, err
		}
		defer g.close()
		adm, err := admin.New(config(g.Addr()))
		if err != nil {
			return m, err
		}
		defer adm.Close()
		p, err := kafka.NewProducer(config(g.Addr()), "bench")
		if err != nil {
			return m, err
		}
		defer p.Close()
		o, released := &out{Producer: p}, time.Now()
		if stop && !r.cfg.Quick {
			released = released.Add(stopped)
		}
		pc := copierConfig(schemas.RoleCopier, schemas.DuplicationLow)
		pc.Workers = slowWorkers
		pool, err := newPool(g.Addr(), pc, func(ctx context.Context, _ *schemas.Delivery) ([]schemas.Message, error) {
			if err := retry.Sleep(ctx, max(slowTask, time.Until(released))); err != nil {
				return nil, err
			}
			o.add(-1)
			return nil, nil
		})
		if err != nil {
			return m, err
		}
		splits, err := r.backlogSplits(func(ctx context.Context) (int64, error) {
			lag, err := adm.Lag(ctx, schemas.RoleCopier)
			return lag[schemas.RoleCopier], err
		})
		if err != nil {
			return m, err
		}
		sweeper, err := newSweeperTo(o)
		if err != nil {
			return m, err
		}
		err = runWhile(ctx, pool, func(ctx context.Context) error {
			_, err := sweeper.Rounds(ctx, splits)
			return err
		})
		m.ours = []float64{float64(o.most)}
		return m, err
	}
}

// backlogSplits returns the splits of pairs whose destinations have none of the items.
func (r *runner) backlogSplits(lag func(context.Context) (int64, error)) (splits []sweep.Split, err error) {
	for i := range backlogSplits {
		name := fmt.Sprint("space-", i)
		pages, err := newPairs(name, generated{items: r.amounts.outstanding / backlogSplits}, generated{})
		if err != nil {
			return nil, err
		}
		splits = append(splits, sweep.Split{Sweep: "pairs", Name: name, Account: mainAccount, Pages: pages,
			Lag: lag, Start: time.Now()})
	}
	return splits, nil
}
