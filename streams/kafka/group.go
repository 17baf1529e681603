package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
	// CoPartitioned has one member own the same partitions of all topics, which must have equally many, and handle
	// those of one number one after the other.
	CoPartitioned bool
	// Prepare, if set, is called after each assignment, before records of any partition are handled: what the
	// members that had them before have published is on its topics by then. With an error it is called again.
	Prepare func(context.Context) error
	// Beside, if set, is called every so often while the role is not paused, and not while a handler is at work: what
	// it publishes comes after all outputs so far. owns reports whether this member owns the partition of Topics that
	// a key has; that stays so until Beside returns. Prepare has been called before. An error is logged.
	Beside func(ctx context.Context, owns func(key string) bool) error
	Every  time.Duration // for Beside [10 s]
}

const (
	groupPoll   = 500 // records of one poll
	groupBeside = 10 * time.Second
	groupHold   = 10 * time.Second // how long a poll is held; what is not cured by then goes to a lane
)

// A Group runs a fast handler. It polls, handles partitions side by side and each in
// order, publishes all outputs, waits for their acknowledgement, and commits, all
// while a rebalance is held off.
type Group struct {
	cfg    GroupConfig
	opts   []kgo.Opt
	handle Handler
	router *router
	tap    tap

	maxPoll int
	metrics *roleMetrics
	began   atomic.Int64 // when the batch at hand was begun, in Unix nanoseconds; 0: none is
	commits *commits
	reader  *reader
	refusal refusal     // of the last batch; only Run uses it
	turns   int         // only Run uses it
	fresh   atomic.Bool // partitions were assigned, and Prepare has not been called since
	beside  time.Time   // of the last call of Beside; only Run uses it
	mu      sync.Mutex  // guards the rest
	queued  map[partition][]letter
	owned   map[partition]bool
	refused *outgoing // of what is queued; nil: there is none
}

var errHeld = errors.New("the poll was held for as long as it may")

// NewGroup returns a Group that feeds h.
func NewGroup(cfg Config, gc GroupConfig, h Handler) (*Group, error) {
	if gc.Retry == (retry.Policy{}) {
		gc.Retry = retry.Policy{Wait: 200 * time.Millisecond, MaxWait: 2 * time.Second, Elapsed: 10 * time.Second}
	}
	if gc.Every <= 0 {
		gc.Every = groupBeside
	}
	topics, err := cfg.topics(gc.Role, gc.Topics)
	if err != nil {
		return nil, err
	}
	g := &Group{
		cfg: gc, handle: h, maxPoll: groupPoll, router: newRouter(cfg, gc.Role, gc.MaxAttempts),
		queued: map[partition][]letter{}, owned: map[partition]bool{}, commits: newCommits(cfg.Deleted),
		tap: tap{controls: cfg.Controls, role: gc.Role, topics: topics},
	}
	g.metrics = cfg.Metrics.role(gc.Role, schemas.High)
	g.commits.metrics = g.metrics
	g.reader = newReader(g.router, g.commits)
	g.metrics.look(g.oldest)
	moved := func(k move) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			defer g.metrics.rebalanced(k, parts, time.Now())
			g.own(k == moveAssigned, parts)
			g.refuse(nil) // it may be of partitions that are no longer ours, or be older than what Prepare has to see
			if k != moveAssigned {
				g.drop(parts)
			} else if gc.Prepare != nil {
				g.fresh.Store(true)
			}
		}
	}
	g.opts, err = cfg.options(string(gc.Role), append(
		append(cfg.consume(member{role: gc.Role, topics: topics, together: gc.CoPartitioned}), cfg.produce(runtimeLimit, runtimeLinger)...),
		kgo.OnPartitionsAssigned(moved(moveAssigned)), kgo.OnPartitionsRevoked(moved(moveRevoked)), kgo.OnPartitionsLost(moved(moveLost)))...)
	return g, err
}

// Run handles messages until ctx is done, and then returns nil. Any other return is an
// error that Run could not get past; what was not committed is delivered again. Outputs that the brokers do not take for
// now are published again until they do, and nothing else is handled meanwhile. A handler that
// ignores for poolGrace that its time is up is such an error: it would hold the poll, and all rebalances.
func (g *Group) Run(ctx context.Context) error {
	cl, leave, err := join(ctx, g.opts)
	if err != nil {
		return fmt.Errorf("group %s: %w", g.cfg.Role, err)
	}
	defer leave()
	for {
		err := g.turn(ctx, cl)
		if stuck := (*stuckError)(nil); ctx.Err() != nil && !errors.As(err, &stuck) {
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
	paused := g.tap.turn(cl)
	if err := g.reader.check(ctx, cl, g.poll(ctx, cl)); err != nil {
		return g.router.below(ctx, cl, err)
	}
	if !paused {
		if err := g.batch(ctx, cl); err != nil {
			return err
		}
		g.besides(ctx, cl)
	}
	cctx, cancel := outlive(ctx)
	defer cancel()
	err := g.commits.send(cctx, cl)
	if err == nil || commitFatal(err) {
		return err
	}
	g.router.log.Warn("will commit again", "err", err)
	return nil
}

// poll queues what it gets. With work left over from the last turn, or a commit to be
// made again, it does not wait for more; while the role is paused, none comes.
func (g *Group) poll(ctx context.Context, cl *kgo.Client) kgo.Fetches {
	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.mu.Lock()
	left := len(g.queued) > 0
	g.mu.Unlock()
	switch {
	case left && !g.tap.closed:
		cancel() // still holds off rebalances, as any poll
	case g.commits.pending(nil):
		time.AfterFunc(time.Second, cancel)
	case g.cfg.Beside != nil:
		time.AfterFunc(g.cfg.Every, cancel)
	}
	fetches := g.tap.poll(pctx, cl, g.maxPoll)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range fetches {
		for _, t := range f.Topics {
			inc := incarnation(t.TopicID)
			t.EachPartition(func(p kgo.FetchPartition) {
				at := partition{t.Topic, p.Partition}
				for _, rec := range p.Records {
					g.queued[at] = append(g.queued[at], letter{rec: rec, incarnation: inc})
					g.metrics.inFlight(1, weigh(rec))
				}
			})
		}
	}
	return fetches
}

// batch handles what is queued, if it is not handled already, publishes the outputs and notes what is done.
func (g *Group) batch(ctx context.Context, cl *kgo.Client) error {
	g.began.Store(time.Now().UnixNano())
	defer g.began.Store(0)
	g.mu.Lock()
	out := g.refused
	g.mu.Unlock()
	if out == nil {
		var err error
		if out, err = g.handleQueued(ctx); out == nil {
			return err // if it is nil, what is queued waits for the next turn
		}
	}
	pctx, pcancel := outlive(ctx)
	defer pcancel()
	if err := out.publish(pctx, cl); err != nil {
		if passes(err) && ctx.Err() == nil {
			g.refuse(out)
			g.refusal.note(g.router, g.metrics, err)
			return nil
		}
		g.metrics.unpublished(1)
		return err
	}
	g.refuse(nil)
	g.refusal.end(g.metrics)
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, n := range out.done {
		g.settle(p, n)
	}
	return nil
}

// refuse notes what is to be published again with the next turn, for as long as no partition moves.
func (g *Group) refuse(out *outgoing) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = out
}

// handleQueued handles what is queued for as long as a poll may be held. It returns nil if that is for the next turn.
func (g *Group) handleQueued(ctx context.Context) (*outgoing, error) {
	hctx, cancel := context.WithTimeoutCause(ctx, groupHold, errHeld)
	defer cancel()
	if ok, err := g.prepared(hctx); !ok {
		return nil, err
	}
	h := g.begin(hctx, time.Now().Add(groupHold/2)) // so that every record has half of it at least
	if err := h.wait(ctx, groupHold); err != nil {
		return nil, err
	}
	return newOutgoing(h.out, h.done), nil
}

// prepared reports whether Prepare has been called since partitions were last assigned. While a poll is held none are.
func (g *Group) prepared(ctx context.Context) (bool, error) {
	g.mu.Lock()
	idle := len(g.queued) == 0
	g.mu.Unlock()
	if idle {
		return true, nil
	}
	return g.prepare(ctx)
}

func (g *Group) prepare(ctx context.Context) (bool, error) {
	if !g.fresh.Load() {
		return true, nil
	}
	_, err := g.cfg.Retry.Do(ctx, func() error { return g.cfg.Prepare(ctx) }, func(attempt int, wait time.Duration, err error) {
		g.router.log.Warn("prepare again for the partitions that were assigned", "attempt", attempt, "wait", wait, "err", err)
	})
	switch {
	case err == nil:
		g.fresh.Store(false)
		return true, nil
	case retry.ClassOf(err) == retry.Transient:
		return false, nil
	}
	return false, fmt.Errorf("prepare for the partitions that were assigned: %w", err)
}

// settle takes the first n letters of p, which are done, off the queue.
func (g *Group) settle(p partition, n int) {
	letters := g.queued[p]
	g.metrics.settled(letters[:n])
	g.leave(letters[:n])
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
// became and how many they were: at least one, unless Run ends or the role is paused. What
// fails while Run ends is not counted, and delivered again. reach is told of each letter's offset.
func (g *Group) partition(ctx context.Context, letters []letter, latest time.Time, reach func(int64)) (out []*kgo.Record, n int) {
	stopped := func() bool { return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errHeld) }
	for n < len(letters) && !stopped() && (n == 0 || !time.Now().After(latest)) {
		l := &letters[n]
		if g.router.gone(l.rec) {
			n++
			continue
		}
		reach(l.rec.Offset)
		msgs, err := g.message(ctx, l)
		switch {
		case errors.Is(err, errRolePaused), err != nil && stopped():
			return out, n
		case errors.Is(err, errPartPaused):
			out = append(out, g.router.aside(l, time.Now()))
		default:
			out = append(out, g.router.outcome(l, msgs, err)...)
		}
		n++
	}
	return out, n
}

// message calls the handler until it succeeds, fails for good, what it is about is paused,
// or the poll has been held long enough.
func (g *Group) message(ctx context.Context, l *letter) (out []schemas.Message, err error) {
	if err := g.router.paused(nil); err != nil {
		return nil, err
	}
	if err := fits(l.rec); err != nil {
		return nil, err
	}
	d, err := g.router.delivery(l)
	if err != nil {
		return nil, err
	}
	_, _ = g.cfg.Retry.Do(ctx, // err is the last call's, or nil
		func() error {
			if err = g.router.paused(d.Body); err == nil {
				out, err = g.call(ctx, l, d)
			}
			return err
		},
		func(attempt int, wait time.Duration, err error) {
			g.metrics.handled(fateRetried, 1, -1)
			g.router.log.Warn("will retry", "topic", string(d.Topic), "partition", d.Partition, "offset", d.Offset,
				"attempt", attempt, "wait", wait, "err", err)
		})
	return out, err
}

// drop forgets partitions that are no longer ours. No poll is held while it runs.
func (g *Group) drop(parts map[string][]int32) {
	each(parts, func(p partition) {
		g.commits.forget(p)
		g.reader.forget(p)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.leave(g.queued[p])
		delete(g.queued, p)
	})
}

// call calls the handler, seen by whoever looks on.
func (g *Group) call(ctx context.Context, l *letter, d *schemas.Delivery) (out []schemas.Message, err error) {
	ctx, end := g.router.span(ctx, l)
	if g.metrics != nil {
		g.metrics.working(1)
		defer func(began time.Time) {
			g.metrics.called(time.Since(began))
			g.metrics.working(-1)
		}(time.Now())
	}
	out, err = call(ctx, g.handle, d)
	end(err)
	return out, err
}

// leave takes letters out of what is in flight.
func (g *Group) leave(letters []letter) {
	if g.metrics == nil {
		return
	}
	for i := range letters { // one that is stuck may be at work on them
		g.metrics.inFlight(-1, -weigh(letters[i].rec))
	}
}

func (g *Group) oldest() (o oldest) {
	if began := g.began.Load(); began != 0 {
		o.task = time.Unix(0, began)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, letters := range g.queued {
		if t := letters[0].rec.Timestamp; o.message.IsZero() || t.Before(o.message) {
			o.message = t
		}
	}
	return o
}
