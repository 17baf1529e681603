package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// Work says what a task is to the scheduler.
type Work struct {
	// Key: messages of one key are handled one after the other. Empty: those with the same record key.
	Key string
	// Account: whose it is. Accounts take turns.
	Account string
	// Stores are those of the account that it touches; empty ones do not count.
	Stores [2]string
	// Bytes are about how many it will move.
	Bytes int64
}

// PoolConfig says what a Pool reads and how it works. Zero values take the defaults in
// brackets.
type PoolConfig struct {
	Role schemas.Role
	// Topics are what the role reads; its again topic is added.
	Topics []schemas.Topic
	// Workers run tasks of class high and low, one each at a time [16]. Reserved of them are kept free
	// of class low. Large run those of class large [1, if it reads a topic of that class].
	Workers, Reserved, Large int
	// HighWeight is how many tasks of class high are begun for one of class low while both
	// have work [8].
	HighWeight int
	// Describe says what the task of a message is; nil: nothing but its record key is known.
	Describe func(schemas.Body) Work
	// DescribeValue is Describe for deliveries that have bytes and no body: those of foreign topics.
	DescribeValue func(*schemas.Delivery) Work
	// Slots are the limits of stores and accounts [none].
	Slots *Slots
	// Admit, where set, is asked before a task begins, for each store that it touches. An error
	// becomes that of the message, and the handler is not called.
	Admit func(account, store string) error
	// Window bounds the records in flight of one partition; it is rounded up to a power
	// of two [8192].
	Window int
	// Bytes bounds the records in flight of one class, give or take one poll [64 MiB].
	Bytes int64
	// Drain is how long tasks at work may go on when their partition moves or the Pool
	// stops; then they are cancelled [60 s].
	Drain time.Duration
	// Stall is how long a task may go on without retry.Alive before it is cancelled [10 min].
	Stall time.Duration
	// Retry is how a transient error is tried again in place, with its key parked
	// [5 calls within 60 s, from 500 ms].
	Retry retry.Policy
	// MaxAttempts is how often a message is delivered before it is a dead letter [5].
	MaxAttempts int
	// CoPartitioned has one member own the same partitions of all topics, which must
	// have equally many, and be of one class.
	CoPartitioned bool
	// Prepare, if set, is called after each assignment, before a task of any partition is begun: what the
	// members that had them before have published is on its topics by then. With an error it is called again.
	Prepare func(context.Context) error
	// Beside, if set, is called every so often while the role is not paused, and not while a task is at work: what
	// it publishes comes after all outputs so far. owns reports whether this member owns the partition of Topics that
	// a key has; that stays so until Beside returns. Prepare has been called before. An error is logged.
	Beside func(ctx context.Context, owns func(key string) bool) error
	// Needed, if set, reports whether Beside has anything to do: only then are tasks kept from being begun for it.
	Needed func() bool
	Every  time.Duration // for Beside [10 s]
}

func (pc *PoolConfig) defaults() {
	whole := func(n *int, to int) {
		if *n <= 0 {
			*n = to
		}
	}
	long := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	if pc.Retry == (retry.Policy{}) {
		pc.Retry = retry.Policy{Attempts: 5, Wait: 500 * time.Millisecond, MaxWait: 20 * time.Second, Elapsed: time.Minute}
	}
	whole(&pc.Workers, 16)
	whole(&pc.HighWeight, defaultWeight)
	whole(&pc.Window, 1<<13)
	pc.Reserved = max(0, min(pc.Reserved, pc.Workers-1))
	if pc.Slots == nil {
		pc.Slots = NewSlots(func(string, string) Limit { return Limit{} })
	}
	if pc.Bytes <= 0 {
		pc.Bytes = 64 << 20
	}
	long(&pc.Drain, time.Minute)
	long(&pc.Stall, 10*time.Minute)
	long(&pc.Every, poolBeside)
}

const (
	poolCommitInterval = time.Second     // between two commits
	cancelGrace        = 5 * time.Second // for cancelled tasks to end
	clockStep          = time.Second     // a step of the Pool's time

	// A task may be at work for taskDeadline, and for a second for each slowBytes of its work.
	taskDeadline = time.Hour
	taskRate     = 1 << 20
)

var errRevoked = errors.New("the partition is no longer ours")

// A Pool runs long tasks: those of one key in order, those of different keys side by
// side, whatever the partition. A partition is committed up to its first task that is
// not done; a task is done when its outputs are acknowledged. Each class of its topics is read by a
// client of its own; one scheduler takes from all of them.
type Pool struct {
	cfg          PoolConfig
	kafka        Config
	handle       Handler
	router       *router
	sched        *scheduler
	fetchers     []*fetcher // the first one publishes
	window       int
	seed         maphash.Seed
	deadlineBase time.Duration // a task may be at work, beside a second for each slowest bytes of it
	deadlineRate int64
	prepareDue   chan struct{} // partitions were assigned, and Prepare is to be called

	outputs   *outputs
	ctx       context.Context         // outlives Run's: of commits, and of tasks
	stopping  <-chan struct{}         // closed when Run is to end
	fail      context.CancelCauseFunc // ends Run with an error
	clock     atomic.Int64            // nanoseconds since Run began, in steps
	workers   sync.WaitGroup
	suspectMu sync.Mutex // held by a task that may have killed a process
}

// NewPool returns a Pool that feeds h.
func NewPool(cfg Config, pc PoolConfig, h Handler) (*Pool, error) {
	pc.defaults()
	topics, err := cfg.topics(pc.Role, pc.Topics)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg: pc, kafka: cfg, handle: h, router: newRouter(cfg, pc.Role, pc.MaxAttempts),
		window: len(newTracker(pc.Window).ring), seed: maphash.MakeSeed(), deadlineBase: taskDeadline, deadlineRate: taskRate, prepareDue: make(chan struct{}, 1),
	}
	p.sched = newScheduler(pc.Slots, p.freeTask)
	p.sched.weight, p.sched.allowed, p.sched.reserved = pc.HighWeight, pc.Workers, pc.Reserved
	for _, class := range []schemas.Class{schemas.High, schemas.Low, schemas.Large} {
		m := member{role: pc.Role, class: class, together: pc.CoPartitioned, settles: pc.Prepare != nil}
		for _, name := range topics {
			if e, _ := schemas.Lookup(cfg.bare(name)); classOf(e, pc.Role) == class {
				m.topics = append(m.topics, name)
			}
		}
		if len(m.topics) == 0 {
			continue
		}
		if e, ok := schemas.Lookup(schemas.Backlog(pc.Role, class)); ok {
			m.topics = append(m.topics, cfg.topic(e.Topic))
		}
		if class == schemas.Large && pc.Large <= 0 {
			p.cfg.Large = 1
		}
		in, err := newFetcher(p, m)
		if err != nil {
			return nil, err
		}
		p.fetchers = append(p.fetchers, in)
	}
	if pc.CoPartitioned && len(p.fetchers) > 1 {
		return nil, fmt.Errorf("kafka: role %s: its topics are of several classes, so no one member can own the same partitions of all", pc.Role)
	}
	return p, nil
}

// Run handles messages until ctx is done, then lets tasks at work end within Drain, and
// returns nil. Any other return is an error that Run could not get past; what was not
// committed is delivered again. It is called once.
func (p *Pool) Run(ctx context.Context) error {
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	p.ctx, p.fail, p.stopping = context.WithoutCancel(ctx), fail, run.Done()
	sending, giveUp := context.WithCancel(p.ctx)
	defer giveUp()
	for i, in := range p.fetchers {
		cl, leave, err := join(ctx, in.opts)
		if err != nil {
			p.close(p.fetchers[:i])
			return fmt.Errorf("pool %s: %w", p.cfg.Role, err)
		}
		in.cl, in.leave = cl, leave
	}
	p.outputs = newOutputs(sending, p.router, p.fetchers[0].cl)
	p.sched.large = p.cfg.Large
	p.startWorkers(p.cfg.Workers, 0)
	p.startWorkers(p.cfg.Large, 1)
	var loops sync.WaitGroup
	for _, in := range p.fetchers {
		in.metrics.look(func() oldest { return p.oldest(in) })
	}
	loops.Go(func() { p.watchdog(run) })
	loops.Go(func() { p.applyControls(run) })
	loops.Go(func() {
		if err := p.beside(run); err != nil {
			fail(err)
		}
	})
	for _, in := range p.fetchers {
		loops.Go(func() { in.commitLoop(run) })
		if in.backlogTopic != "" {
			loops.Go(func() { in.moveBacklogs(run) })
		}
		loops.Go(func() {
			if err := in.poll(run); err != nil {
				fail(err)
			}
			in.cl.AllowRebalance()
		})
	}
	<-run.Done()
	p.stop(ctx, giveUp)
	loops.Wait()
	p.close(p.fetchers)
	p.sched.close()
	if stuck := p.waitWorkers(cancelGrace); stuck > 0 {
		late := fmt.Errorf("%d tasks are still at work %v after they were cancelled", stuck, cancelGrace)
		return fmt.Errorf("pool %s: %w", p.cfg.Role, errors.Join(p.failure(ctx, run), late))
	}
	if err := p.failure(ctx, run); err != nil {
		return fmt.Errorf("pool %s: %w", p.cfg.Role, err)
	}
	return nil
}

// failure is what ended Run, if it was not ctx.
func (p *Pool) failure(ctx, run context.Context) error {
	if ctx.Err() == nil {
		return context.Cause(run)
	}
	return nil
}

// close closes clients, side by side: each may have to wait for brokers that do not answer.
func (p *Pool) close(intakes []*fetcher) {
	var all sync.WaitGroup
	for _, in := range intakes {
		all.Go(in.leave)
	}
	all.Wait()
}

// spawn starts n workers of a kind.
func (p *Pool) startWorkers(n, kind int) {
	p.sched.mu.Lock()
	defer p.sched.mu.Unlock()
	for range n {
		p.startWorker(kind)
	}
	if kind == 0 {
		p.sched.mainWorkers += n
	}
}

// hire starts a worker. The scheduler's mu is held.
func (p *Pool) startWorker(kind int) {
	w := newWorker(p, kind)
	p.sched.workers[w] = true
	p.workers.Go(w.loop)
}

// maxWork bounds what a message may say of its size: sums of it are still numbers.
const maxWorkBytes = 1 << 50

// courtesy is how long messages are decoded before others of the process have their turn: a class that
// has much to read is not to be in the way of one that has little.
const decodeQuantum = 200 * time.Microsecond

// enqueue gives tasks of an intake to the scheduler.
func (p *Pool) enqueue(in *fetcher, tasks []*task) {
	keys, work := make([]uint64, len(tasks)), make([]Work, len(tasks))
	began := time.Now()
	for i, t := range tasks {
		if i%64 == 63 && time.Since(began) > decodeQuantum {
			runtime.Gosched()
			began = time.Now()
		}
		keys[i] = p.describe(t, &work[i])
	}
	tasks, keys, work = in.moveDiverted(tasks, keys, work)
	p.submit(in, tasks, keys, work)
}

// queue gives tasks of an intake, which are described, to the scheduler.
func (p *Pool) submit(in *fetcher, tasks []*task, keys []uint64, work []Work) {
	p.sched.mu.Lock()
	for i, t := range tasks {
		class := classIndex(in.class)
		if t.retryHeaders != nil { // it comes back, and keeps the class of its origin
			if e, ok := schemas.Lookup(t.retryHeaders.topic); ok {
				class = classIndex(e.Class)
			}
		}
		t.flow, t.cost = p.sched.flowOf(class, work[i], p.paused), min(max(work[i].Bytes, 0), maxWorkBytes)+quantum
	}
	p.sched.mu.Unlock()
	p.sched.add(tasks, keys)
}

// describe says what t is to the scheduler, and returns a hash of its key: two keys with one hash
// take turns, which harms nobody. What cannot be described is not handled either.
func (p *Pool) describe(t *task, w *Work) (key uint64) {
	if p.cfg.Describe != nil || p.cfg.DescribeValue != nil {
		if d, ok := p.decode(t); ok {
			var err error
			switch {
			case d.Body != nil && p.cfg.Describe != nil:
				*w, err = describeWork(p.cfg.Describe, d.Body)
			case d.Body == nil && p.cfg.DescribeValue != nil:
				*w, err = describeWork(p.cfg.DescribeValue, d)
			}
			if err != nil {
				t.delivery, t.err = nil, err
			}
		}
		if w.Key != "" {
			return maphash.String(p.seed, w.Key)
		}
	}
	if isAgain(p.router.cfg.bare(t.rec.Topic)) {
		p.router.retryHeaders(&t.inflightRecord)
	}
	return maphash.Bytes(p.seed, t.rec.Key)
}

// decode returns what the handler gets of t; not ok: t.err says why it cannot.
func (p *Pool) decode(t *task) (d *schemas.Delivery, ok bool) {
	if !t.decoded {
		t.decoded = true
		t.delivery, t.err = p.router.delivery(&t.inflightRecord)
	}
	return t.delivery, t.delivery != nil
}

// again says whether t failed in a way that is tried again in place, and when.
func (p *Pool) retryInPlace(t *task) (wait time.Duration, ok bool) {
	if retry.ClassOf(t.err) != retry.Transient {
		return 0, false
	}
	r := p.cfg.Retry
	wait = r.Backoff(t.tries)
	if r.Attempts > 0 && t.tries >= r.Attempts || r.Elapsed > 0 && time.Since(t.began)+wait > r.Elapsed {
		return 0, false
	}
	p.router.log.Debug("will retry", "topic", string(p.router.origin(&t.inflightRecord)), "partition", t.rec.Partition, "offset", t.rec.Offset,
		"attempt", t.tries, "wait", wait, "err", t.err)
	return wait, true
}

// refuse sends t where err takes it, without the handler.
func (p *Pool) failTask(t *task, err error) {
	p.publish(t, p.router.outcome(&t.inflightRecord, nil, err), -1)
}

// publish sends what t became. t is done when all of it is acknowledged, however long that takes: its bytes count until
// then. If the brokers will never take it, Run ends.
func (p *Pool) publish(t *task, recs []*kgo.Record, took time.Duration) {
	if len(recs) == 0 {
		p.metricsOf(t).handled(t.disposition, 1, took)
		p.finish(t)
		return
	}
	var left, failed atomic.Int32
	left.Store(int32(len(recs)))
	settled := func(err error) {
		if err != nil {
			failed.Add(1)
			if !t.part.isCancelled() {
				p.fail(err)
			}
		}
		if left.Add(-1) > 0 {
			return
		}
		if n := failed.Load(); n > 0 {
			p.metricsOf(t).unpublished(int(n))
			p.abandon(t)
		} else {
			p.metricsOf(t).handled(t.disposition, 1, took)
			p.finish(t)
		}
	}
	for _, rec := range recs {
		p.outputs.send(t.part, rec, settled)
	}
}

// finish takes note that t is done.
func (p *Pool) finish(t *task) {
	t.part.finish(t.slot)
	p.abandon(t)
}

// abandon lets go of t, which was begun: unless it is finished it will be delivered again.
func (p *Pool) abandon(t *task) {
	p.freeTask(t)
	t.part.endTask()
}

// forget lets go of t's bytes: others of its poll may be here for long.
func (p *Pool) freeTask(t *task) {
	n := t.bytes()
	t.inflightRecord, t.delivery, t.err = inflightRecord{}, nil, nil
	if t.part.backlog {
		t.part.fetcher.backlogBytes.Add(-n)
		t.part.fetcher.memory.notify()
	} else {
		t.part.fetcher.memory.add(-n)
	}
	t.part.fetcher.metrics.inFlight(-1, -n)
}

func (p *Pool) metricsOf(t *task) *roleMetrics { return t.part.fetcher.metrics }
