package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A BatchSink stores batches.
type BatchSink interface {
	// Store stores a batch: records of one partition in the order of their offsets. One
	// whose Store failed, or that was not committed, is given again in other pieces. A
	// permanent error says that some of its records cannot be stored at all.
	Store(ctx context.Context, batch []*schemas.Delivery) error
	// Table returns the table that the rows of a topic land in. Stores of one table are kept apart.
	Table(topic schemas.Topic) string
	// Mark records how far partitions are handled, before that is committed. After an error nothing is committed, and
	// their records are given again from the committed offset on: the store may be an earlier one when it is back.
	Mark(ctx context.Context, done []schemas.Progress) error
	// Forget says that a partition is no longer ours: what is known of it is stale.
	Forget(topic schemas.Topic, partition int32)
}

// BatchConfig says what a BatchGroup reads and when a batch is stored: when it is complete or old, or before that if no
// other batch of its table is being stored and the last one began 1/PartsPerSecond ago or earlier, and a millisecond more
// for each of its records. Zero values take the defaults in brackets.
type BatchConfig struct {
	Role     schemas.Role
	Topics   []schemas.Topic
	MaxRows  int           // records of a batch [50,000]
	MaxBytes int           // bytes of its keys and values, give or take a record [32 MiB]
	MaxAge   time.Duration // since its first record was read [1 s]
	// PartsPerSecond is the number of batches of one table that are stored in a second although they could take more
	// records and are not of MaxAge. Of those that are of MaxAge it is four times as many; with more partitions than
	// that, batches become older [4].
	PartsPerSecond int
	// Memory bounds what is read and not stored, give or take one poll [20 MiB].
	Memory int64
	// Drain is how long a Store may go on when its partition moves or Run ends [10 s].
	Drain time.Duration
	// Removed returns what is to be put on record of records from one offset up to another that were removed before the
	// group had read them. It is published before their incident, and more than once only with the same range. May be nil.
	Removed func(ctx context.Context, topic schemas.Topic, partition int32, from, to int64) ([]schemas.Message, error)
}

// A BatchGroup feeds a BatchSink. Kafka is its only buffer. Errors that may pass are
// tried again for ever, since they mean that the store is away and not that the
// records are bad; a permanent one is narrowed down to the records that cause it, and
// those become dead letters.
type BatchGroup struct {
	cfg    BatchConfig
	opts   []kgo.Opt
	sink   BatchSink
	router *router
	pauser pauser

	metrics      *roleMetrics
	memory       *byteBudget // bytes read and not stored
	retry        retry.Policy
	storeSlots   chan struct{} // one for each Store
	commitSignal chan struct{} // something wants to be committed
	commits      *commits
	// uncommitted counts the records of awaited that were stored since they were last committed.
	uncommitted atomic.Int64
	checker     *pollChecker
	perPoll     int             // records; only poll uses it
	ctx         context.Context // outlives Run's
	fail        context.CancelCauseFunc

	mu            sync.Mutex // guards the rest
	batchers      map[partition]*batcher
	pacers        map[string]*tablePacer
	rewindPending bool               // some of them want to be read again from where they were
	unmarked      map[partition]bool // of which Mark failed for what is stored
	cancelPoll    context.CancelFunc // ends the poll at hand
}

var (
	errStopped  = errors.New("stopped")
	errUnmarked = errors.New("what was stored could not be recorded before, and is read again first")
)

// BatchMemory is the default of BatchConfig.Memory.
const BatchMemory = 20 << 20

const (
	// batchFetch is what a fetch of one broker asks for, compressed: what is read ahead of Memory is beyond it.
	batchFetchBytes = 512 << 10
	maxPollRecords  = 4000 // records of one poll at most
	// A poll is to weigh 1/pollShare of Memory, by what the records of the last one weighed: Memory may be exceeded by that.
	pollMemoryPart   = 4
	firstPollRecords = 100 // records, before anything is known of their weight
	// batchCommit is the time between two commits, but for the topic that fresh reads wait for.
	batchCommitInterval = time.Second
)

// markTimeout bounds a call of Mark, during which no partition can leave us.
const markTimeout = CommitTimeout / 2

// batchRetry is the wait between two calls of Store while errors pass: there is no end to it.
func storeRetry() retry.Policy {
	return retry.Policy{Wait: 250 * time.Millisecond, MaxWait: 15 * time.Second}
}

// NewBatchGroup returns a BatchGroup that feeds sink.
func NewBatchGroup(cfg Config, bc BatchConfig, sink BatchSink) (*BatchGroup, error) {
	bc.defaults()
	topics, err := cfg.topics(bc.Role, bc.Topics)
	if err != nil {
		return nil, err
	}
	parallel := min(max(runtime.GOMAXPROCS(0), 2), 4) // one for each processor, but few
	g := &BatchGroup{
		cfg: bc, sink: sink, router: newRouter(cfg, bc.Role, 0), memory: newByteBudget(), commits: newCommits(cfg.Deleted),
		retry: storeRetry(), storeSlots: make(chan struct{}, parallel), commitSignal: make(chan struct{}, 1), batchers: map[partition]*batcher{},
		pacers: map[string]*tablePacer{}, unmarked: map[partition]bool{}, perPoll: firstPollRecords,
		pauser: pauser{controls: cfg.Controls, role: bc.Role, topics: topics},
	}
	g.metrics = cfg.Metrics.role(bc.Role, schemas.High)
	g.commits.metrics, g.commits.before = g.metrics, g.mark
	g.router.removed = bc.Removed
	g.checker = newPollChecker(g.router, g.commits)
	g.metrics.look(g.oldest)
	g.opts, err = cfg.options(string(bc.Role), append(append(cfg.consume(member{role: bc.Role, topics: topics}), cfg.produce(runtimeLimit, runtimeLinger)...),
		kgo.FetchMaxBytes(batchFetchBytes), kgo.FetchMaxPartitionBytes(batchFetchBytes),
		kgo.OnPartitionsAssigned(g.onAssigned), kgo.OnPartitionsRevoked(g.onRevoked), kgo.OnPartitionsLost(g.onLost))...)
	return g, err
}

func (c *BatchConfig) defaults() {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&c.MaxAge, time.Second)
	set(&c.Drain, 10*time.Second)
	if c.MaxRows <= 0 {
		c.MaxRows = 50_000
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = 32 << 20
	}
	if c.Memory <= 0 {
		c.Memory = BatchMemory
	}
	if c.PartsPerSecond <= 0 {
		c.PartsPerSecond = 4
	}
}

// Run stores batches until ctx is done, lets those being stored end within Drain, and
// returns nil. Any other return is an error that Run could not get past; what was not
// committed is delivered again. It is called once.
func (g *BatchGroup) Run(ctx context.Context) error {
	run, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	g.ctx, g.fail = context.WithoutCancel(ctx), fail
	cl, leave, err := join(ctx, g.opts)
	if err != nil {
		return fmt.Errorf("batch group %s: %w", g.cfg.Role, err)
	}
	var committer sync.WaitGroup
	committer.Go(func() { g.commitLoop(run, cl) })
	if err := g.poll(run, cl); err != nil {
		fail(err)
	}
	cl.AllowRebalance()
	committer.Wait()
	stuck := g.stopBatchers(cl, g.owned(nil), true)
	leave()
	if err := context.Cause(run); ctx.Err() == nil && err != nil {
		return fmt.Errorf("batch group %s: %w", g.cfg.Role, err)
	}
	if stuck > 0 {
		return fmt.Errorf("batch group %s: %d batches are still being stored after they were cancelled", g.cfg.Role, stuck)
	}
	return nil
}

// poll fills the streams until ctx is done. Before memory is full something is stored; while it is, poll does not
// poll, and partitions may move. While the role is paused nothing comes, and the streams rest.
func (g *BatchGroup) poll(ctx context.Context, cl *kgo.Client) error {
	for ctx.Err() == nil {
		g.makeRoom(ctx)
		g.pauser.update(cl)
		pctx, cancel := g.pollContext(ctx)
		fetches := g.pauser.poll(pctx, cl, g.perPoll)
		cancel()
		again, err := g.checkPoll(ctx, cl, fetches)
		if err != nil {
			return err
		}
		g.fill(cl, fetches, again)
		g.perPoll = pollSize(fetches, g.perPoll, g.cfg.Memory)
		g.applyRewinds(cl)
		if err := g.rereadUnmarked(ctx, cl); err != nil {
			return err
		}
		cl.AllowRebalance()
	}
	return nil
}

// pollSize returns how many records the next poll asks for, after one of last records that got fetches.
func pollSize(fetches kgo.Fetches, last int, memory int64) int {
	n, bytes := 0, int64(0)
	fetches.EachRecord(func(rec *kgo.Record) {
		n++
		bytes += recordBytes(rec)
	})
	if n == 0 {
		return last
	}
	return int(min(max(memory/pollMemoryPart/(bytes/int64(n)), 1), maxPollRecords))
}

// fill adds what was fetched to the streams, but for the partitions that are read again.
func (g *BatchGroup) fill(cl *kgo.Client, fetches kgo.Fetches, again map[partition]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var began map[string]map[int32]kgo.EpochOffset // what the group had committed of partitions of which nothing was read
	for _, f := range fetches {
		for _, t := range f.Topics {
			inc := incarnation(t.TopicID)
			for _, p := range t.Partitions {
				at := partition{t.Topic, p.Partition}
				s := g.batchers[at]
				if s == nil || len(p.Records) == 0 || again[at] {
					continue
				}
				if began == nil && s.isNewLog(inc) {
					began = cl.CommittedOffsets()
				}
				n, weight := s.add(p.Records, inc, max(p.LogStartOffset, 0), began[t.Topic][p.Partition].Offset)
				g.memory.add(weight)
				g.metrics.inFlight(n, weight)
			}
		}
	}
}

// makeRoom has what is in memory stored before memory is full, and returns when it is not.
func (g *BatchGroup) makeRoom(ctx context.Context) {
	for g.memory.n.Load() >= g.cfg.Memory*3/4 && ctx.Err() == nil {
		g.flushLargest()
		if g.memory.n.Load() < g.cfg.Memory {
			return
		}
		g.memory.waitFreed(ctx)
	}
}

// hurry has those streams that have most waiting stored, until every slot is taken: few large batches take the same
// memory as many small ones, and the store less work.
func (g *BatchGroup) flushLargest() {
	free, size := cap(g.storeSlots), map[*batcher]int64{}
	for _, s := range g.owned(nil) {
		if waiting, busy := s.queuedBytes(); busy {
			free--
		} else if waiting > 0 {
			size[s] = waiting
		}
	}
	idle := slices.SortedFunc(maps.Keys(size), func(a, b *batcher) int { return cmp.Compare(size[b], size[a]) })
	for _, s := range idle[:max(0, min(free, len(idle)))] {
		s.flush()
	}
}

// apart is the time between two batches of a table, and between two commits, while there are few records.
func (g *BatchGroup) minInterval() time.Duration {
	return time.Second / time.Duration(g.cfg.PartsPerSecond)
}

// awaited reports whether fresh reads wait until what was read of a partition is committed: a Watermark is one of changes.
func (g *BatchGroup) isAwaited(p partition) bool {
	return g.router.cfg.bare(p.topic) == schemas.Changes
}

// commitLoop commits what was stored: once in batchCommit all of it, and what is awaited the sooner the less it is. Each
// commit costs the sink a small insert into each table.
func (g *BatchGroup) commitLoop(ctx context.Context, cl *kgo.Client) {
	var (
		last, whole time.Time     // the last commit, and the last one of all that was stored
		took        time.Duration // by the last commit
	)
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.commitSignal:
		}
		for ctx.Err() == nil && time.Since(last) < g.commitInterval(took) {
			_ = retry.Sleep(ctx, min(20*time.Millisecond, batchCommitInterval/10))
		}
		began, of := time.Now(), g.isAwaited
		if began.Sub(whole) >= batchCommitInterval {
			of, whole = nil, began
		}
		again := time.Until(whole.Add(batchCommitInterval))
		if g.commits.pending(of) {
			if !g.commit(ctx, cl, of) {
				_ = retry.Sleep(ctx, batchCommitInterval)
				again = 0
			}
			last, took = began, min(time.Since(began), batchCommitInterval)
		}
		if g.commits.pending(nil) {
			time.AfterFunc(again, g.signalCommit)
		}
	}
}

// commitApart is the least time between two commits.
func (g *BatchGroup) commitInterval(took time.Duration) time.Duration {
	apart := g.minInterval() + time.Duration(g.uncommitted.Load())*perRecordDelay
	return max(min(apart, batchCommitInterval), idleFactor*took)
}

// mark has the sink record what is about to be committed.
func (g *BatchGroup) mark(ctx context.Context, todo map[partition]position) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	done := make([]schemas.Progress, 0, len(todo))
	for at, p := range todo {
		done = append(done, schemas.Progress{Topic: g.router.cfg.bare(at.topic), Incarnation: p.incarnation, Partition: at.id,
			Start: p.start, From: p.from, Next: p.Offset})
	}
	if g.anyUnmarked(todo) {
		return errUnmarked
	}
	if err := g.sink.Mark(ctx, done); err != nil {
		g.addUnmarked(todo)
		return fmt.Errorf("record what is to be committed: %w", err)
	}
	return nil
}

// signal has the commit loop commit.
func (g *BatchGroup) signalCommit() {
	select {
	case g.commitSignal <- struct{}{}:
	default:
	}
}

// commit commits what was stored of the partitions for which of is true; nil is all.
func (g *BatchGroup) commit(ctx context.Context, cl *kgo.Client, of func(partition) bool) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, CommitTimeout)
	defer cancel()
	n := g.uncommitted.Load()
	err := g.commits.sendOf(ctx, cl, of)
	switch {
	case err == nil:
		g.uncommitted.Add(-n)
		return true
	case commitFatal(err):
		g.fail(err)
	case !errors.Is(err, context.Canceled):
		g.router.log.Warn("will commit again", "err", err)
	}
	return false
}

func (g *BatchGroup) onAssigned(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	defer g.metrics.rebalanced(moveAssigned, parts, time.Now())
	g.mu.Lock()
	defer g.mu.Unlock()
	eachPartition(parts, func(at partition) { g.startBatcher(cl, at) })
}

// begin starts the stream of a partition. g.mu is held.
func (g *BatchGroup) startBatcher(cl *kgo.Client, at partition) *batcher {
	table := g.sink.Table(g.router.cfg.bare(at.topic))
	if g.pacers[table] == nil {
		g.pacers[table] = newTablePacer(g.minInterval())
	}
	s := newBatcher(g, cl, at, g.pacers[table])
	g.batchers[at] = s
	go s.run()
	return s
}

func (g *BatchGroup) onRevoked(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	defer g.metrics.rebalanced(moveRevoked, parts, time.Now())
	g.stopBatchers(cl, g.owned(parts), true)
}

func (g *BatchGroup) onLost(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	defer g.metrics.rebalanced(moveLost, parts, time.Now())
	g.stopBatchers(cl, g.owned(parts), false)
}

// owned returns the streams of parts, or all with nil.
func (g *BatchGroup) owned(parts map[string][]int32) []*batcher {
	g.mu.Lock()
	defer g.mu.Unlock()
	return selectPartitions(g.batchers, parts)
}

// release ends streams. If they are still ours, a Store may go on for Drain, and what
// was stored is committed. It returns how many ignore that they were cancelled.
func (g *BatchGroup) stopBatchers(cl *kgo.Client, batchers []*batcher, ours bool) (stuck int) {
	if len(batchers) == 0 {
		return 0
	}
	for _, s := range batchers {
		s.stop()
		if !ours {
			s.cancel(errRevoked)
		}
	}
	stuck = g.awaitBatchers(batchers)
	if ours {
		g.commit(g.ctx, cl, nil)
	}
	for _, s := range batchers {
		g.mu.Lock()
		delete(g.batchers, s.partition)
		g.mu.Unlock()
		// Before the rest: a Store that goes on after it was cancelled would add what it stored to our next commit,
		// for a partition that another member may own.
		s.discard()
		g.commits.forget(s.partition) // waits for a Mark under way, which may doubt it
		g.mu.Lock()
		delete(g.unmarked, s.partition)
		g.mu.Unlock()
		g.checker.forget(s.partition)
		cl.ResumeFetchPartitions(s.asMap()) // a pause would outlive the assignment
		g.sink.Forget(g.router.cfg.bare(s.topic), s.id)
	}
	return stuck
}

// await waits until streams have ended, cancels them after Drain, and returns how many
// have not ended poolGrace later.
func (g *BatchGroup) awaitBatchers(batchers []*batcher) (stuck int) {
	timer := time.AfterFunc(g.cfg.Drain, func() {
		for _, s := range batchers {
			s.cancel(errRevoked)
		}
	})
	defer timer.Stop()
	late, cancel := context.WithTimeout(g.ctx, g.cfg.Drain+cancelGrace)
	defer cancel()
	for _, s := range batchers {
		select {
		case <-s.done:
			continue
		case <-late.Done():
		}
		if s.markStuck() {
			stuck++
			g.router.log.Error("a batch ignores that it was cancelled", "topic", s.topic, "partition", s.id)
		}
	}
	return stuck
}

func (g *BatchGroup) oldest() (o oldest) {
	for _, s := range g.owned(nil) {
		s.mu.Lock()
		if !s.storeBegan.IsZero() && (o.task.IsZero() || s.storeBegan.Before(o.task)) {
			o.task = s.storeBegan
		}
		if len(s.records) > 0 {
			if t := s.records[0].rec.Timestamp; o.message.IsZero() || t.Before(o.message) {
				o.message = t
			}
		}
		s.mu.Unlock()
	}
	return o
}
