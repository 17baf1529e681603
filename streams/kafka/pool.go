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

// PoolConfig says what a Pool reads and how it works. Zero values take the defaults in
// brackets.
type PoolConfig struct {
	Role schemas.Role
	// Topics are what the role reads; its again topic is added.
	Topics  []schemas.Topic
	Workers int // tasks at work at a time [16]
	// Key says which messages are handled one after the other; nil: those with the same
	// record key.
	Key func(schemas.Body) string
	// Window bounds the records in flight of one partition; it is rounded up to a power
	// of two [8192].
	Window int
	// Bytes bounds the records in flight of all partitions, give or take one poll [64 MiB].
	Bytes int64
	// Drain is how long tasks at work may go on when their partition moves or the Pool
	// stops; then they are cancelled [60 s].
	Drain time.Duration
	// Retry is how a transient error is tried again in place, with its key parked
	// [5 calls within 60 s, from 500 ms].
	Retry retry.Policy
	// MaxAttempts is how often a message is delivered before it is a dead letter [5].
	MaxAttempts int
	// CoPartitioned has one member own the same partitions of all topics, which must
	// have equally many.
	CoPartitioned bool
}

const (
	poolCommit = time.Second     // between two commits
	poolGrace  = 5 * time.Second // for cancelled tasks to end
)

var errRevoked = errors.New("the partition is no longer ours")

// A Pool runs long tasks: those of one key in order, those of different keys side by
// side, whatever the partition. A partition is committed up to its first task that is
// not done; a task is done when its outputs are acknowledged.
type Pool struct {
	cfg    PoolConfig
	opts   []kgo.Opt
	handle Handler
	router *router
	sched  *scheduler
	weight *scale
	window int

	commits *commits
	cl      *kgo.Client
	ctx     context.Context         // outlives Run's: of commits, and of tasks but for their share's
	sending context.Context         // of outputs
	fail    context.CancelCauseFunc // ends Run with an error

	mu     sync.Mutex // guards shares
	shares map[partition]*share
}

// NewPool returns a Pool that feeds h.
func NewPool(cfg Config, pc PoolConfig, h Handler) (*Pool, error) {
	if pc.Retry == (retry.Policy{}) {
		pc.Retry = retry.Policy{Attempts: 5, Wait: 500 * time.Millisecond, MaxWait: 20 * time.Second, Elapsed: time.Minute}
	}
	if pc.Workers <= 0 {
		pc.Workers = 16
	}
	if pc.Window <= 0 {
		pc.Window = 1 << 13
	}
	if pc.Bytes <= 0 {
		pc.Bytes = 64 << 20
	}
	if pc.Drain <= 0 {
		pc.Drain = time.Minute
	}
	topics, err := cfg.topics(pc.Role, pc.Topics)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg: pc, handle: h, router: newRouter(cfg, pc.Role, pc.MaxAttempts), weight: newScale(), commits: newCommits(),
		window: len(newTracker(pc.Window).ring), shares: map[partition]*share{},
	}
	p.sched = newScheduler(func(t *task) { p.weight.add(-t.bytes()) })
	p.opts, err = cfg.options(string(pc.Role), append(
		append(cfg.consume(member{role: pc.Role, topics: topics, together: pc.CoPartitioned}), cfg.produce(runtimeLimit, runtimeLinger)...),
		kgo.OnPartitionsAssigned(p.assigned), kgo.OnPartitionsRevoked(p.revoked), kgo.OnPartitionsLost(p.lost))...)
	return p, err
}

// Run handles messages until ctx is done, then lets tasks at work end within Drain, and
// returns nil. Any other return is an error that Run could not get past; what was not
// committed is delivered again. It is called once.
func (p *Pool) Run(ctx context.Context) error {
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	p.ctx, p.fail = context.WithoutCancel(ctx), fail
	sending, giveUp := context.WithCancel(p.ctx)
	defer giveUp()
	p.sending = sending
	cl, err := kgo.NewClient(p.opts...)
	if err != nil {
		return fmt.Errorf("pool %s: new client: %w", p.cfg.Role, err)
	}
	p.cl = cl
	var workers, ticker sync.WaitGroup
	for range p.cfg.Workers {
		workers.Go(p.work)
	}
	ticker.Go(func() { p.tick(run) })
	if err := p.poll(run); err != nil {
		fail(err)
	}
	cl.AllowRebalance()
	stuck := p.stop(ctx, giveUp)
	ticker.Wait()
	cl.CloseAllowingRebalance()
	p.sched.close()
	if stuck > 0 {
		return fmt.Errorf("pool %s: %d tasks are still at work %v after they were cancelled", p.cfg.Role, stuck, poolGrace)
	}
	workers.Wait()
	if err := context.Cause(run); ctx.Err() == nil && err != nil {
		return fmt.Errorf("pool %s: %w", p.cfg.Role, err)
	}
	return nil
}

// poll hands out records until ctx is done. It never waits for a task, but for memory.
func (p *Pool) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		p.weight.wait(ctx, p.cfg.Bytes)
		fetches := p.cl.PollRecords(ctx, p.window/4)
		if err := pollError(fetches, p.router.log); err != nil {
			return err
		}
		if err := p.dispatch(fetches); err != nil {
			return err
		}
		p.cl.AllowRebalance()
	}
	return nil
}

func (p *Pool) dispatch(fetches kgo.Fetches) error {
	n := fetches.NumRecords()
	if n == 0 {
		return nil
	}
	slab := make([]task, n)
	tasks, keys := make([]*task, 0, n), make([]string, 0, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range fetches {
		for _, t := range f.Topics {
			inc := incarnation(t.TopicID)
			for _, fp := range t.Partitions {
				sh := p.shares[partition{t.Topic, fp.Partition}]
				if sh == nil || len(fp.Records) == 0 {
					continue // not ours: no poll is held while partitions move
				}
				slots, err := p.admit(sh, fp.Records)
				if err != nil {
					return err
				}
				for i, rec := range fp.Records {
					task := &slab[len(tasks)]
					task.letter, task.share, task.slot = letter{rec: rec, incarnation: inc}, sh, slots+uint64(i)
					tasks, keys = append(tasks, task), append(keys, p.key(task))
				}
			}
		}
	}
	var weight int64
	for _, t := range tasks {
		weight += t.bytes()
	}
	p.weight.add(weight)
	p.sched.add(tasks, keys)
	return nil
}

// admit notes records in the share's tracker, and returns the first one's slot. The
// partition is paused when three quarters of the window are in flight: the last quarter
// is room for one more poll.
func (p *Pool) admit(sh *share, recs []*kgo.Record) (first uint64, err error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for i, rec := range recs {
		slot, ok := sh.tracker.add(rec.Offset, rec.LeaderEpoch)
		if !ok {
			return 0, fmt.Errorf("%s: more than %d records in flight", sh.partition, p.window)
		}
		if i == 0 {
			first = slot
		}
	}
	if !sh.paused && sh.tracker.inFlight() >= p.window/4*3 {
		sh.paused = true
		p.cl.PauseFetchPartitions(sh.one())
	}
	return first, nil
}

func (p *Pool) key(t *task) string {
	if p.cfg.Key != nil && p.decode(t) && t.delivery.Body != nil {
		return p.cfg.Key(t.delivery.Body)
	}
	return string(t.rec.Key)
}

func (p *Pool) decode(t *task) bool {
	if !t.decoded {
		t.decoded = true
		t.delivery, t.err = p.router.delivery(&t.letter)
	}
	return t.err == nil
}

// work runs tasks until the scheduler is closed.
func (p *Pool) work() {
	var done *queue
	for {
		t, q := p.sched.take(done)
		if t == nil {
			return
		}
		done = nil
		if p.run(t, q) {
			done = q
		}
	}
}

// run calls the handler once, and reports whether t is at its end; if not, it is parked.
func (p *Pool) run(t *task, q *queue) bool {
	if p.router.gone(t.rec) {
		p.finish(t)
		return true
	}
	var out []schemas.Message
	if p.decode(t) {
		if t.tries == 0 {
			t.began = time.Now()
		}
		t.tries++
		out, t.err = call(t.share.ctx, p.handle, t.delivery)
		if t.err != nil && t.share.ctx.Err() != nil {
			p.abandon(t)
			return true
		}
		if wait, ok := p.again(t); ok {
			p.sched.park(q, wait)
			return false
		}
	}
	p.publish(t, p.router.outcome(&t.letter, out, t.err))
	return true
}

// again says whether t failed in a way that is tried again in place, and when.
func (p *Pool) again(t *task) (wait time.Duration, ok bool) {
	if t.err == nil || retry.ClassOf(t.err) != retry.Transient {
		return 0, false
	}
	r := p.cfg.Retry
	wait = r.Backoff(t.tries)
	if r.Attempts > 0 && t.tries >= r.Attempts || r.Elapsed > 0 && time.Since(t.began)+wait > r.Elapsed {
		return 0, false
	}
	p.router.log.Warn("will retry", "topic", string(p.router.origin(&t.letter)), "partition", t.rec.Partition, "offset", t.rec.Offset,
		"attempt", t.tries, "wait", wait, "err", t.err)
	t.err = nil
	return wait, true
}

// publish sends what t became. t is done when all of it is acknowledged. If the client
// gives one up, Run ends: it has tried for a minute.
func (p *Pool) publish(t *task, recs []*kgo.Record) {
	if len(recs) == 0 {
		p.finish(t)
		return
	}
	var left, failed atomic.Int32
	left.Store(int32(len(recs)))
	for _, rec := range recs {
		p.cl.Produce(p.sending, rec, func(rec *kgo.Record, err error) {
			if err != nil {
				failed.Store(1)
				p.fail(publishError(rec, err))
			}
			if left.Add(-1) > 0 {
				return
			}
			if failed.Load() > 0 {
				p.abandon(t)
			} else {
				p.finish(t)
			}
		})
	}
}

func (p *Pool) finish(t *task) {
	if t.share.finish(t.slot, p.window) {
		p.cl.ResumeFetchPartitions(t.share.one())
	}
	p.abandon(t)
}

// abandon lets go of t: unless it is finished it will be delivered again.
func (p *Pool) abandon(t *task) {
	p.weight.add(-t.bytes())
	p.sched.settle(t)
}
