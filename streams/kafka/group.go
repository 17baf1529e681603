package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// GroupConfig says what a Group reads and how hard it tries. Zero values take the
// defaults in brackets.
type GroupConfig struct {
	Role schemas.Role
	// Topics are what the role reads; its again topic is added.
	Topics []schemas.Topic
	// Retry is how a transient error is tried again in place [from 200 ms, for 10 s].
	Retry retry.Policy
	// MaxAttempts is how often a message is delivered before it is a dead letter [5].
	MaxAttempts int
	// MaxPoll bounds the records of one poll [500].
	MaxPoll int
	// Hold bounds how long a poll is held; what is not cured by then goes to a lane [10 s].
	Hold time.Duration
	// CoPartitioned has one member own the same partitions of all topics, which must
	// have equally many.
	CoPartitioned bool
}

// A Group runs a fast handler. It polls, handles partitions side by side and each in
// order, publishes all outputs, waits for their acknowledgement, and commits, all
// while a rebalance is held off.
type Group struct {
	cfg    GroupConfig
	opts   []kgo.Opt
	handle Handler
	router *router

	commits *commits
	mu      sync.Mutex // guards queued
	queued  map[partition][]letter
}

var errHeld = errors.New("the poll was held for as long as it may")

// NewGroup returns a Group that feeds h.
func NewGroup(cfg Config, gc GroupConfig, h Handler) (*Group, error) {
	if gc.Retry == (retry.Policy{}) {
		gc.Retry = retry.Policy{Wait: 200 * time.Millisecond, MaxWait: 2 * time.Second, Elapsed: 10 * time.Second}
	}
	if gc.MaxPoll <= 0 {
		gc.MaxPoll = 500
	}
	if gc.Hold <= 0 {
		gc.Hold = 10 * time.Second
	}
	topics, err := cfg.topics(gc.Role, gc.Topics)
	if err != nil {
		return nil, err
	}
	g := &Group{cfg: gc, handle: h, router: newRouter(cfg, gc.Role, gc.MaxAttempts), queued: map[partition][]letter{}, commits: newCommits()}
	drop := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) { g.drop(parts) }
	g.opts, err = cfg.options(string(gc.Role), append(
		append(cfg.consume(member{role: gc.Role, topics: topics, together: gc.CoPartitioned}), cfg.produce(runtimeLimit, runtimeLinger)...),
		kgo.OnPartitionsRevoked(drop), kgo.OnPartitionsLost(drop))...)
	return g, err
}

// Run handles messages until ctx is done, and then returns nil. Any other return is an
// error that Run could not get past; what was not committed is delivered again.
func (g *Group) Run(ctx context.Context) error {
	cl, err := kgo.NewClient(g.opts...)
	if err != nil {
		return fmt.Errorf("group %s: new client: %w", g.cfg.Role, err)
	}
	defer cl.CloseAllowingRebalance()
	for {
		err := g.turn(ctx, cl)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("group %s: %w", g.cfg.Role, err)
		}
		cl.AllowRebalance()
	}
}

// turn is one poll and what follows from it.
func (g *Group) turn(ctx context.Context, cl *kgo.Client) error {
	if err := pollError(g.poll(ctx, cl), g.router.log); err != nil {
		return err
	}
	if err := g.batch(ctx, cl); err != nil {
		return err
	}
	cctx, cancel := outlive(ctx, stopGrace)
	defer cancel()
	err := g.commits.send(cctx, cl)
	if err == nil || commitFatal(err) {
		return err
	}
	g.router.log.Warn("will commit again", "err", err)
	return nil
}

// poll queues what it gets. With work left over from the last turn, or a commit to be
// made again, it does not wait for more.
func (g *Group) poll(ctx context.Context, cl *kgo.Client) kgo.Fetches {
	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.mu.Lock()
	left := len(g.queued) > 0
	g.mu.Unlock()
	if left {
		cancel() // still holds off rebalances, as any poll
	} else if g.commits.pending() {
		time.AfterFunc(time.Second, cancel)
	}
	fetches := cl.PollRecords(pctx, g.cfg.MaxPoll)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range fetches {
		for _, t := range f.Topics {
			inc := incarnation(t.TopicID)
			t.EachPartition(func(p kgo.FetchPartition) {
				at := partition{t.Topic, p.Partition}
				for _, rec := range p.Records {
					g.queued[at] = append(g.queued[at], letter{rec: rec, incarnation: inc})
				}
			})
		}
	}
	return fetches
}

// batch handles what is queued for as long as a poll may be held, publishes the outputs
// and notes what is done.
func (g *Group) batch(ctx context.Context, cl *kgo.Client) error {
	hctx, cancel := context.WithTimeoutCause(ctx, g.cfg.Hold, errHeld)
	defer cancel()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards out and done
		out  []*kgo.Record
		done = map[partition]int{}
	)
	latest := time.Now().Add(g.cfg.Hold / 2) // so that every record has half of it at least
	for p, letters := range g.queued {
		wg.Go(func() {
			recs, n := g.partition(hctx, letters, latest)
			mu.Lock()
			defer mu.Unlock()
			out, done[p] = append(out, recs...), n
		})
	}
	wg.Wait()
	pctx, pcancel := outlive(ctx, stopGrace)
	defer pcancel()
	if err := publish(pctx, cl, out); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, n := range done {
		g.settle(p, n)
	}
	return nil
}

// settle takes the first n letters of p, which are done, off the queue.
func (g *Group) settle(p partition, n int) {
	letters := g.queued[p]
	if n > 0 {
		last := letters[n-1].rec
		g.commits.done(p, kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1})
	}
	if n == len(letters) {
		delete(g.queued, p)
	} else {
		g.queued[p] = letters[n:]
	}
}

// partition handles letters in order, begins none after latest, and returns what they
// became and how many they were: at least one, unless Run ends. What fails while Run
// ends is not counted, and delivered again.
func (g *Group) partition(ctx context.Context, letters []letter, latest time.Time) (out []*kgo.Record, n int) {
	stopped := func() bool { return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errHeld) }
	for n < len(letters) && !stopped() && (n == 0 || !time.Now().After(latest)) {
		l := &letters[n]
		if g.router.gone(l.rec) {
			n++
			continue
		}
		msgs, err := g.message(ctx, l)
		if err != nil && stopped() {
			break
		}
		out = append(out, g.router.outcome(l, msgs, err)...)
		n++
	}
	return out, n
}

// message calls the handler until it succeeds, fails for good, or the poll has been
// held long enough.
func (g *Group) message(ctx context.Context, l *letter) (out []schemas.Message, err error) {
	d, err := g.router.delivery(l)
	if err != nil {
		return nil, err
	}
	_, _ = g.cfg.Retry.Do(ctx, // err is the last call's, or nil
		func() error { out, err = call(ctx, g.handle, d); return err },
		func(attempt int, wait time.Duration, err error) {
			g.router.log.Warn("will retry", "topic", string(d.Topic), "partition", d.Partition, "offset", d.Offset,
				"attempt", attempt, "wait", wait, "err", err)
		})
	return out, err
}

// drop forgets partitions that are no longer ours. No poll is held while it runs.
func (g *Group) drop(parts map[string][]int32) {
	each(parts, func(p partition) {
		g.commits.forget(p)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.queued, p)
	})
}
