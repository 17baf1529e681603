package kafka

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/retry"
)

// Work describes a task to the scheduler.
type Work struct {
	// Key orders tasks: those of one key run one after the other. Empty means the record key.
	Key string
	// Account is the account of the message. Accounts of a class share its workers fairly.
	Account string
	// Stores are the stores of the account that the task uses. Empty entries are ignored.
	Stores [2]string
	// Bytes estimates how many bytes the task will move.
	Bytes int64
}

// flow returns the flow to which a task with this Work belongs.
func (w *Work) flow() schedule.FlowID { return schedule.FlowID{Account: w.Account, Stores: w.Stores} }

// PoolConfig configures a Pool. Zero values take the defaults in brackets.
type PoolConfig struct {
	Role schemas.Role
	// Topics are the topics that the role reads. Its again topic is added.
	Topics []schemas.Topic
	// Workers is the number of tasks of classes high and low that run at a time [16]. Reserved of the workers
	// never run tasks of class low. Large is the number of tasks of class large that run at a time [1, if the
	// role reads a topic of that class].
	Workers, Reserved, Large int
	// HighWeight is the number of tasks of class high that are started for each task of class low while both
	// classes have work [8].
	HighWeight int
	// Describe returns the Work of a message. If it is nil, the scheduler uses the record key only.
	Describe func(schemas.Body) Work
	// DescribeValue is Describe for deliveries without a body, which are those of foreign topics.
	DescribeValue func(*schemas.Delivery) Work
	// Slots limits the work on stores and accounts [no limits].
	Slots *schedule.Slots
	// Admit, if set, is called before a task starts, once for each store that the task uses. If it returns an
	// error, the message fails with that error and the handler is not called.
	Admit func(account, store string) error
	// Window is the maximum number of records in flight of one partition, rounded up to a power of two [8192].
	Window int
	// Bytes is the maximum size of the records in flight of one class. One poll may exceed it [64 MiB].
	Bytes int64
	// DrainTimeout is how long running tasks may continue when their partition is revoked or the Pool stops. Then they
	// are cancelled [60 s].
	DrainTimeout time.Duration
	// StallTimeout is how long a task may run without a call of retry.Alive before it is cancelled [10 min].
	StallTimeout time.Duration
	// Retry is the policy for retries in place after a transient error. The key waits meanwhile [5 calls within
	// 60 s, from 500 ms].
	Retry retry.Policy
	// MaxAttempts is the number of deliveries after which a message becomes a dead letter [5].
	MaxAttempts int
	// CoPartitioned assigns the same partitions of all topics to one member. The topics must have the same
	// number of partitions and the same class.
	CoPartitioned bool
	// Prepare, if set, is called when partitions are assigned, before any of their records is read. By then everything
	// that the previous owners published is on its topics. If it returns an error, it is called again, unless the error
	// is permanent: that ends Run. No partition moves meanwhile.
	Prepare func(context.Context) error
}

func (pc *PoolConfig) defaults() {
	pc.Retry = cmp.Or(pc.Retry,
		retry.Policy{Attempts: 5, Wait: 500 * time.Millisecond, MaxWait: 20 * time.Second, Elapsed: time.Minute})
	pc.Workers = cmp.Or(pc.Workers, 16)
	pc.Reserved = max(0, min(pc.Reserved, pc.Workers-1))
	pc.Window = cmp.Or(pc.Window, 1<<13)
	pc.Bytes = cmp.Or(pc.Bytes, 64<<20)
	pc.DrainTimeout = cmp.Or(pc.DrainTimeout, time.Minute)
	pc.StallTimeout = cmp.Or(pc.StallTimeout, 10*time.Minute)
}

const (
	poolCommitInterval = time.Second
	cancelGrace        = 5 * time.Second // time that cancelled tasks have to return
	clockStep          = time.Second     // resolution of Pool.clock

	// A task may run for taskDeadline, plus one second for each taskRate bytes of its work.
	taskDeadline = time.Hour
	taskRate     = 1 << 20
)

var errRevoked = errors.New("partition revoked")

// A Pool runs long tasks: tasks of one key in order, tasks of different keys concurrently, also within one
// partition. A task is done when the brokers have acknowledged its outputs. A partition is committed up to its
// first task that is not done; the metadata of the commit names later tasks that are done, see crashHistory.
// Each class of topics is read by a client of its own, and one scheduler serves all classes.
type Pool struct {
	cfg          PoolConfig
	id           string // of its commits
	kafka        client.Config
	handle       Handler
	router       *core.Router
	sched        *schedule.Scheduler
	fetchers     []*fetcher // the first one also publishes
	window       int
	seed         maphash.Seed
	deadlineBase time.Duration // a task may run this long, plus a second for each deadlineRate bytes of it
	deadlineRate int64

	outputs   *outputs
	ctx       context.Context         // for commits and tasks; outlives the context of Run
	running   context.Context         // ends when Run must stop
	fail      context.CancelCauseFunc // stops Run with an error
	clock     atomic.Int64            // nanoseconds since Run began, in steps of clockStep
	suspectMu sync.Mutex              // serializes tasks that may have killed a process

	workers sync.WaitGroup
	liveMu  sync.Mutex // guards live
	live    map[*worker]bool
}

// NewPool returns a Pool that calls h.
func NewPool(cfg client.Config, pc PoolConfig, h Handler) (*Pool, error) {
	pc.defaults()
	topics, err := roleTopics(cfg, pc.Role, pc.Topics)
	if err != nil {
		return nil, err
	}
	p := &Pool{
		cfg: pc, id: rand.Text()[:8], kafka: cfg, handle: h, router: core.NewRouter(cfg, pc.Role, pc.MaxAttempts),
		window: len(newTracker(pc.Window).ring), seed: maphash.MakeSeed(),
		deadlineBase: taskDeadline, deadlineRate: taskRate, live: map[*worker]bool{},
	}
	for _, class := range []schemas.Class{schemas.High, schemas.Low, schemas.Large} {
		m := groupMember{role: pc.Role, class: class, coPartitioned: pc.CoPartitioned, drainsOutputs: pc.Prepare != nil}
		for _, name := range topics {
			if e, _ := schemas.Lookup(cfg.SchemaTopic(name)); client.ClassOf(e, pc.Role) == class {
				m.topics = append(m.topics, name)
			}
		}
		if len(m.topics) == 0 {
			continue
		}
		if e, ok := schemas.Lookup(schemas.Backlog(pc.Role, class)); ok {
			m.topics = append(m.topics, cfg.Topic(e.Topic))
		}
		if class == schemas.Large && pc.Large <= 0 {
			p.cfg.Large = 1
		}
		f, err := newFetcher(p, m)
		if err != nil {
			return nil, err
		}
		p.fetchers = append(p.fetchers, f)
	}
	if pc.CoPartitioned && len(p.fetchers) > 1 {
		return nil, fmt.Errorf("kafka: role %s: CoPartitioned needs topics of one class", pc.Role)
	}
	p.sched = schedule.New(schedule.Config{
		Workers: pc.Workers, Reserved: pc.Reserved, Large: p.cfg.Large, HighWeight: pc.HighWeight, Slots: pc.Slots,
		Paused: p.paused, OnStart: setSuccessor,
		OnDrop: func(t *schedule.Task) { p.freeTask(taskOf(t)) }, // the next owner of its partition gets it again
	})
	return p, nil
}

// Run handles messages until ctx is done. Then it gives running tasks DrainTimeout to return, and returns nil. It
// returns an error if it cannot continue; records that were not committed are then delivered again. Run must
// be called only once.
func (p *Pool) Run(ctx context.Context) error {
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	p.ctx, p.running, p.fail = context.WithoutCancel(ctx), run, fail
	sending, giveUp := context.WithCancel(p.ctx)
	defer giveUp()
	for i, f := range p.fetchers {
		var err error
		if _, f.leave, err = join(ctx, f.opts); err != nil {
			p.close(p.fetchers[:i])
			return fmt.Errorf("pool %s: %w", p.cfg.Role, err)
		}
	}
	p.outputs = newOutputs(sending, p.router, p.fetchers[0].cl)
	p.startWorkers(p.cfg.Workers, schedule.MainWorker)
	p.startWorkers(p.cfg.Large, schedule.LargeWorker)
	committing, endCommits := context.WithCancel(p.ctx)
	defer endCommits()
	var loops, committers sync.WaitGroup
	for _, f := range p.fetchers {
		f.metrics.AddOldest(func() metrics.Oldest { return p.oldest(f) })
	}
	loops.Go(func() { p.watchdog(run) })
	loops.Go(func() { p.applyControls(run) })
	for _, f := range p.fetchers {
		committers.Go(func() { f.commitLoop(committing) })
		if f.backlogTopic != "" {
			loops.Go(func() { f.moveBacklogs(run) })
		}
		loops.Go(func() {
			if err := f.poll(run); err != nil {
				fail(err)
			}
			f.cl.AllowRebalance()
		})
	}
	<-run.Done()
	p.stop(ctx, giveUp, func() { endCommits(); committers.Wait() })
	loops.Wait()
	p.close(p.fetchers)
	p.sched.Close()
	if stuck := p.waitWorkers(cancelGrace); stuck > 0 {
		late := fmt.Errorf("%d tasks still run %v after their cancellation", stuck, cancelGrace)
		return fmt.Errorf("pool %s: %w", p.cfg.Role, errors.Join(p.failure(ctx, run), late))
	}
	if err := p.failure(ctx, run); err != nil {
		return fmt.Errorf("pool %s: %w", p.cfg.Role, err)
	}
	return nil
}

// failure returns the error that stopped Run, or nil if ctx stopped it.
func (p *Pool) failure(ctx, run context.Context) error {
	if ctx.Err() == nil {
		return context.Cause(run)
	}
	return nil
}

// close closes the clients concurrently, because each may wait for brokers that do not answer.
func (p *Pool) close(fetchers []*fetcher) {
	var all sync.WaitGroup
	for _, f := range fetchers {
		all.Go(f.leave)
	}
	all.Wait()
}

// startWorkers starts n workers of a kind.
func (p *Pool) startWorkers(n int, kind schedule.Kind) {
	for range n {
		p.startWorker(kind)
	}
}

func (p *Pool) startWorker(kind schedule.Kind) {
	w := newWorker(p, kind)
	p.liveMu.Lock()
	p.live[w] = true
	p.liveMu.Unlock()
	p.workers.Go(w.loop)
}

// removeWorker removes a worker that ends.
func (p *Pool) removeWorker(w *worker) {
	p.liveMu.Lock()
	defer p.liveMu.Unlock()
	delete(p.live, w)
}

// decodeQuantum is how long messages are decoded before the goroutine yields, so that a class with much to
// read does not delay one with little.
const decodeQuantum = 200 * time.Microsecond

// enqueue describes the tasks of a fetcher and adds them to the scheduler, except those that it moves to the
// backlog topic.
func (p *Pool) enqueue(f *fetcher, tasks []*task) {
	entries := make([]schedule.Entry, len(tasks))
	began := time.Now()
	for i, t := range tasks {
		if i%64 == 63 && time.Since(began) > decodeQuantum {
			runtime.Gosched()
			began = time.Now()
		}
		entries[i] = p.describe(t)
	}
	p.sched.Add(f.moveDiverted(entries))
}

// describe describes t to the scheduler. Two keys with the same hash are only serialized, which is harmless. A
// message that cannot be described fails without a call of the handler.
func (p *Pool) describe(t *task) schedule.Entry {
	var w Work
	if p.cfg.Describe != nil || p.cfg.DescribeValue != nil {
		if d, ok := p.decode(t); ok {
			var err error
			switch {
			case d.Body != nil && p.cfg.Describe != nil:
				w, err = describeWork(p.cfg.Describe, d.Body)
			case d.Body == nil && p.cfg.DescribeValue != nil:
				w, err = describeWork(p.cfg.DescribeValue, d)
			}
			if err != nil {
				t.delivery, t.err = nil, err
			}
		}
	}
	e := schedule.Entry{Task: &t.Task, Class: t.part.fetcher.class, Flow: w.flow(), Bytes: w.Bytes}
	if w.Key != "" {
		e.Key = maphash.String(p.seed, w.Key)
	} else {
		e.Key = maphash.Bytes(p.seed, t.Raw.Key)
		if client.IsAgain(t.part.topic.Name) {
			p.router.RetryHeaders(&t.Record)
		}
	}
	if t.RetryHeaders != nil { // the record was delivered before, and keeps the class of its original topic
		if known, ok := schemas.Lookup(t.RetryHeaders.Topic); ok {
			e.Class = known.Class
		}
	}
	return e
}

// decode returns the delivery that the handler gets for t. If ok is false, t.err is the reason.
func (p *Pool) decode(t *task) (d *schemas.Delivery, ok bool) {
	if !t.decoded {
		t.decoded = true
		t.delivery, t.err = p.router.Delivery(&t.Record)
	}
	return t.delivery, t.delivery != nil
}

// retryInPlace reports whether t failed with an error that is retried in place, and after what wait.
func (p *Pool) retryInPlace(t *task) (wait time.Duration, ok bool) {
	if retry.ClassOf(t.err) != retry.Transient {
		return 0, false
	}
	r := p.cfg.Retry
	wait = r.Backoff(t.tries)
	if r.Attempts > 0 && t.tries >= r.Attempts || r.Elapsed > 0 && time.Since(t.began)+wait > r.Elapsed {
		return 0, false
	}
	p.router.Log.Debug("retry message", "topic", string(p.router.Origin(&t.Record)),
		"partition", t.Raw.Partition, "offset", t.Raw.Offset, "attempt", t.tries, "retry_after", wait, "err", t.err)
	return wait, true
}

// failTask handles t as if the handler had returned err, without a call of the handler.
func (p *Pool) failTask(t *task, err error) {
	p.publish(t, p.router.OutputsFor(&t.Record, nil, err), -1)
}

// publish sends the records that result from t. The task is done when all are acknowledged, however long that
// takes, and its bytes count until then. If a result is too late, the task waits in a lane and is handled again. If the
// brokers reject a record permanently, Run stops.
func (p *Pool) publish(t *task, recs []*kgo.Record, took time.Duration) {
	if len(recs) == 0 {
		p.metricsOf(t).CountHandled(t.Disposition, 1, took)
		p.finish(t)
		return
	}
	var left, failed, late atomic.Int32
	left.Store(int32(len(recs)))
	settled := func(err error) {
		if errors.Is(err, errNotInTime) {
			late.Add(1)
		} else if err != nil {
			failed.Add(1)
			if !t.part.isCancelled() {
				p.fail(err)
			}
		}
		if left.Add(-1) > 0 {
			return
		}
		if n := failed.Load(); n > 0 {
			p.metricsOf(t).CountPublishFailures(int(n))
			p.abandon(t)
		} else if n := late.Load(); n > 0 {
			p.metricsOf(t).CountPublishFailures(int(n))
			time.AfterFunc(0, func() { p.failTask(t, retry.Unavailable(errNotInTime)) }) // it may block until answers make room
		} else {
			p.metricsOf(t).CountHandled(t.Disposition, 1, took)
			p.finish(t)
		}
	}
	for _, rec := range recs {
		p.outputs.send(t.part, rec, settled)
	}
}

// finish marks t as done.
func (p *Pool) finish(t *task) {
	t.part.finish(t.slot)
	p.abandon(t)
}

// abandon ends t, which has started. If it was not marked as done, it is delivered again.
func (p *Pool) abandon(t *task) {
	p.freeTask(t)
	t.part.gate.End()
}

// freeTask releases the memory of t at once: its slab, shared with the other tasks of the poll, may live much
// longer.
func (p *Pool) freeTask(t *task) {
	n := t.bytes()
	t.Record, t.delivery, t.err, t.successor, t.successorPart = core.Record{}, nil, nil, nil, nil
	if t.part.backlog {
		t.part.fetcher.backlogBytes.Add(-n)
		t.part.fetcher.memory.notify()
	} else {
		t.part.fetcher.memory.add(-n)
	}
	t.part.fetcher.metrics.AddInFlight(-1, -n)
}

// removeStopping removes the queued tasks of partitions that are stopping.
func (p *Pool) removeStopping() {
	for _, r := range p.sched.RemoveQueued(func(_, t *schedule.Task) (bool, bool) { return t.Gate.Closed(), false }) {
		p.freeTask(taskOf(r.Task))
	}
}

func (p *Pool) metricsOf(t *task) *metrics.Role { return t.part.fetcher.metrics }
