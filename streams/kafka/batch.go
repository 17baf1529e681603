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
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

// A BatchSink stores batches of records.
type BatchSink interface {
	// Store stores a batch: records of one partition in the order of their offsets. Records are passed again,
	// possibly in other batches, if Store failed or they were not committed. A permanent error means that some
	// of the records can never be stored.
	Store(ctx context.Context, batch []*schemas.Delivery) error
	// Table returns the table for the rows of a topic. The batches of a table are paced together.
	Table(topic schemas.Topic) string
	// Mark records how far partitions are stored, before that is committed. If it returns an error, nothing is
	// committed and the records after the committed offset are passed again, because the store may come back in
	// an earlier state.
	Mark(ctx context.Context, done []schemas.Progress) error
	// Forget drops what the sink knows of a partition, which is no longer assigned.
	Forget(topic schemas.Topic, partition int32)
}

// BatchConfig configures a BatchGroup. A batch is stored when it is full or as old as MaxAge. It is stored
// earlier if no other batch of its table is being stored and the last one started 1/PartsPerSecond ago, plus
// a millisecond for each of its records. Zero values take the defaults in brackets.
type BatchConfig struct {
	Role     schemas.Role
	Topics   []schemas.Topic
	MaxRows  int           // maximum records of a batch [50,000]
	MaxBytes int           // maximum bytes of keys and values of a batch; one record may exceed it [32 MiB]
	MaxAge   time.Duration // maximum time from the read of the first record to Store [1 s]
	// PartsPerSecond is the maximum rate of batches per table that are neither full nor as old as MaxAge.
	// Batches as old as MaxAge may come four times as often; with more partitions than that, batches become
	// older [4].
	PartsPerSecond int
	// Memory is the maximum size of records that are read and not stored. One poll may exceed it [20 MiB].
	Memory int64
	// DrainTimeout is how long a call of Store may continue when its partition is revoked or Run ends [10 s].
	DrainTimeout time.Duration
	// RecordLoss returns messages that record the loss of the records from one offset up to another, which were
	// removed from the log before the group read them. They are published before the incident, and repeatedly
	// only with the same range. May be nil.
	RecordLoss func(ctx context.Context, topic schemas.Topic, partition int32, from, to int64) ([]schemas.Message, error)
}

// A BatchGroup passes records to a BatchSink in batches. Kafka is its only buffer. It repeats calls of Store
// without limit after errors that are not permanent, because they mean that the store is unavailable. After a
// permanent error it searches for the records that cause it, and these become dead letters.
type BatchGroup struct {
	cfg    BatchConfig
	opts   []kgo.Opt
	sink   BatchSink
	router *core.Router
	pauser pauser

	metrics      *metrics.Role
	memory       *byteBudget // bytes read and not stored
	retry        retry.Policy
	storeSlots   chan struct{} // limits concurrent calls of Store
	commitSignal chan struct{} // signals that something can be committed
	commits      *commits
	// uncommitted counts the records of awaited partitions that were stored since their last commit.
	uncommitted atomic.Int64
	checker     *pollChecker
	perPoll     int             // records of the next poll; only poll uses it
	ctx         context.Context // outlives the context of Run
	fail        context.CancelCauseFunc

	mu            sync.Mutex // guards the fields below
	batchers      map[core.Partition]*batcher
	pacers        map[string]*tablePacer
	rewindPending bool                    // a batcher must read again the records that it dropped
	unmarked      map[core.Partition]bool // partitions with stored records for which Mark failed
	cancelPoll    context.CancelFunc      // ends the running poll
}

var errUnmarked = errors.New("call of Mark failed before: the stored records are read again first")

// BatchMemory is the default of BatchConfig.Memory.
const BatchMemory = 20 << 20

const (
	// batchFetchBytes bounds the response of one broker, compressed. These bytes are not part of Memory.
	batchFetchBytes = 512 << 10
	maxPollRecords  = 4000 // maximum records of a poll
	// A poll may return 1/pollMemoryPart of Memory, estimated from the last poll. Memory may be exceeded by
	// that.
	pollMemoryPart   = 4
	firstPollRecords = 100 // records of the first poll, before their size is known
	// batchCommitInterval is the time between two commits, except for the topic that fresh reads wait for.
	batchCommitInterval = time.Second
)

// markTimeout bounds a call of Mark. No partition can be revoked meanwhile.
const markTimeout = CommitTimeout / 2

// storeRetry is the wait between two calls of Store after an error. The number of calls has no limit.
func storeRetry() retry.Policy {
	return retry.Policy{Wait: 250 * time.Millisecond, MaxWait: 15 * time.Second}
}

// NewBatchGroup returns a BatchGroup that passes records to sink.
func NewBatchGroup(cfg client.Config, bc BatchConfig, sink BatchSink) (*BatchGroup, error) {
	bc.defaults()
	topics, err := roleTopics(cfg, bc.Role, bc.Topics)
	if err != nil {
		return nil, err
	}
	parallel := min(max(runtime.GOMAXPROCS(0), 2), 4) // one per processor, at most 4
	g := &BatchGroup{
		cfg: bc, sink: sink, router: core.NewRouter(cfg, bc.Role, 0), memory: newByteBudget(),
		commits: newCommits(cfg.Deleted),
		retry:   storeRetry(), storeSlots: make(chan struct{}, parallel), commitSignal: make(chan struct{}, 1),
		batchers: map[core.Partition]*batcher{},
		pacers:   map[string]*tablePacer{}, unmarked: map[core.Partition]bool{}, perPoll: firstPollRecords,
		pauser: pauser{controls: cfg.Controls, role: bc.Role, topics: topics},
	}
	g.metrics = cfg.Metrics.Role(bc.Role, schemas.High)
	g.commits.metrics, g.commits.before = g.metrics, g.mark
	g.checker = newPollChecker(g.router, g.commits)
	g.metrics.AddOldest(g.oldest)
	opts := append(consumeOptions(cfg, groupMember{role: bc.Role, topics: topics}),
		cfg.ProduceOptions(outputTimeout, outputLinger)...)
	g.opts, err = cfg.Options(string(bc.Role), append(opts,
		kgo.FetchMaxBytes(batchFetchBytes), kgo.FetchMaxPartitionBytes(batchFetchBytes),
		kgo.OnPartitionsAssigned(g.onAssigned), kgo.OnPartitionsRevoked(g.onRevoked), kgo.OnPartitionsLost(g.onLost))...)
	return g, err
}

func (c *BatchConfig) defaults() {
	c.MaxAge = cmp.Or(c.MaxAge, time.Second)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.MaxRows = cmp.Or(c.MaxRows, 50_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 32<<20)
	c.Memory = cmp.Or(c.Memory, BatchMemory)
	c.PartsPerSecond = cmp.Or(c.PartsPerSecond, 4)
}

// Run stores batches until ctx is done. Then it gives running calls of Store DrainTimeout to return, and returns
// nil. It returns an error if it cannot continue; records that were not committed are then delivered again.
// Run must be called only once.
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
		return fmt.Errorf("batch group %s: %d batches are still being stored after their cancellation", g.cfg.Role, stuck)
	}
	return nil
}

// poll fills the batchers until ctx is done. It stores batches before memory is full. While memory is full it
// does not poll, and partitions may move. While the role is paused no records arrive.
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

// pollSize returns how many records the next poll requests. The last one requested last and returned fetches.
func pollSize(fetches kgo.Fetches, last int, memory int64) int {
	n, bytes := 0, int64(0)
	fetches.EachRecord(func(rec *kgo.Record) {
		n++
		bytes += core.RecordBytes(rec)
	})
	if n == 0 {
		return last
	}
	return int(min(max(memory/pollMemoryPart/(bytes/int64(n)), 1), maxPollRecords))
}

// fill adds fetched records to the batchers, except those of partitions in again.
func (g *BatchGroup) fill(cl *kgo.Client, fetches kgo.Fetches, again map[core.Partition]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var began map[string]map[int32]kgo.EpochOffset // committed offsets, for partitions of which nothing was read yet
	for _, fetch := range fetches {
		for _, t := range fetch.Topics {
			inc := core.Incarnation(t.TopicID)
			for _, p := range t.Partitions {
				at := core.Partition{Topic: t.Topic, ID: p.Partition}
				b := g.batchers[at]
				if b == nil || len(p.Records) == 0 || again[at] {
					continue
				}
				if began == nil && b.isNewLog(inc) {
					began = cl.CommittedOffsets()
				}
				n, weight := b.add(p.Records, inc, max(p.LogStartOffset, 0), began[t.Topic][p.Partition].Offset)
				g.memory.add(weight)
				g.metrics.AddInFlight(n, weight)
			}
		}
	}
}

// makeRoom makes batchers flush before memory is full, and returns when it is not full.
func (g *BatchGroup) makeRoom(ctx context.Context) {
	for g.memory.n.Load() >= g.cfg.Memory*3/4 && ctx.Err() == nil {
		g.flushLargest()
		if g.memory.n.Load() < g.cfg.Memory {
			return
		}
		g.memory.waitFreed(ctx)
	}
}

// flushLargest makes the batchers with the most queued bytes flush, as many as there are free slots. A few
// large batches need the same memory as many small ones, and cause less work for the store.
func (g *BatchGroup) flushLargest() {
	free, size := cap(g.storeSlots), map[*batcher]int64{}
	for _, b := range g.owned(nil) {
		if waiting, busy := b.queuedBytes(); busy {
			free--
		} else if waiting > 0 {
			size[b] = waiting
		}
	}
	idle := slices.SortedFunc(maps.Keys(size), func(a, b *batcher) int { return cmp.Compare(size[b], size[a]) })
	for _, b := range idle[:max(0, min(free, len(idle)))] {
		b.flush()
	}
}

// minInterval is the time between two batches of a table, and between two commits, when there are few
// records.
func (g *BatchGroup) minInterval() time.Duration {
	return time.Second / time.Duration(g.cfg.PartsPerSecond)
}

// isAwaited reports whether fresh reads wait for the commits of p. These are the partitions of changes, see
// Watermark.
func (g *BatchGroup) isAwaited(p core.Partition) bool {
	return g.router.Config.SchemaTopic(p.Topic) == schemas.Changes
}

// commitLoop commits stored records: everything every batchCommitInterval, and awaited partitions more often,
// the sooner the fewer records there are. Each commit makes the sink insert a few rows into each table.
func (g *BatchGroup) commitLoop(ctx context.Context, cl *kgo.Client) {
	var (
		last, whole time.Time     // the last commit, and the last one of everything
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

// commitInterval is the least time between two commits.
func (g *BatchGroup) commitInterval(took time.Duration) time.Duration {
	apart := g.minInterval() + time.Duration(g.uncommitted.Load())*perRecordDelay
	return max(min(apart, batchCommitInterval), idleFactor*took)
}

// mark makes the sink record the positions that are about to be committed.
func (g *BatchGroup) mark(ctx context.Context, todo map[core.Partition]position) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	done := make([]schemas.Progress, 0, len(todo))
	for at, p := range todo {
		done = append(done, schemas.Progress{
			Topic: g.router.Config.SchemaTopic(at.Topic), Incarnation: p.incarnation, Partition: at.ID,
			Start: p.start, From: p.from, Next: p.Offset,
		})
	}
	if g.anyUnmarked(todo) {
		return errUnmarked
	}
	if err := g.sink.Mark(ctx, done); err != nil {
		g.addUnmarked(todo)
		return fmt.Errorf("mark partitions: %w", err)
	}
	return nil
}

// signalCommit makes the commit loop commit.
func (g *BatchGroup) signalCommit() {
	select {
	case g.commitSignal <- struct{}{}:
	default:
	}
}

// commit commits the stored records of the partitions for which match returns true. A nil match selects all.
func (g *BatchGroup) commit(ctx context.Context, cl *kgo.Client, match func(core.Partition) bool) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, CommitTimeout)
	defer cancel()
	n := g.uncommitted.Load()
	err := g.commits.sendOf(ctx, cl, match)
	switch {
	case err == nil:
		g.uncommitted.Add(-n)
		return true
	case commitFatal(err):
		g.fail(err)
	case !errors.Is(err, context.Canceled):
		g.router.Log.Warn("retry commit", "err", err)
	}
	return false
}

func (g *BatchGroup) onAssigned(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	defer g.metrics.CountRebalance(metrics.PartitionsAssigned, parts, time.Now())
	g.mu.Lock()
	defer g.mu.Unlock()
	core.EachPartition(parts, func(at core.Partition) { g.startBatcher(cl, at) })
}

// startBatcher starts the batcher of a partition. The caller holds g.mu.
func (g *BatchGroup) startBatcher(cl *kgo.Client, at core.Partition) {
	table := g.sink.Table(g.router.Config.SchemaTopic(at.Topic))
	if g.pacers[table] == nil {
		g.pacers[table] = newTablePacer(g.minInterval())
	}
	b := newBatcher(g, cl, at, g.pacers[table])
	g.batchers[at] = b
	go b.run()
}

func (g *BatchGroup) onRevoked(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	defer g.metrics.CountRebalance(metrics.PartitionsRevoked, parts, time.Now())
	g.stopBatchers(cl, g.owned(parts), true)
}

func (g *BatchGroup) onLost(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
	defer g.metrics.CountRebalance(metrics.PartitionsLost, parts, time.Now())
	g.stopBatchers(cl, g.owned(parts), false)
}

// owned returns the batchers of parts, or all if parts is nil.
func (g *BatchGroup) owned(parts map[string][]int32) []*batcher {
	g.mu.Lock()
	defer g.mu.Unlock()
	return selectPartitions(g.batchers, parts)
}

// stopBatchers stops batchers. If their partitions are still ours, calls of Store may continue for DrainTimeout, and
// stored records are committed. It returns the number of batchers that ignore their cancellation.
func (g *BatchGroup) stopBatchers(cl *kgo.Client, batchers []*batcher, ours bool) (stuck int) {
	if len(batchers) == 0 {
		return 0
	}
	for _, b := range batchers {
		b.stop()
		if !ours {
			b.cancel(errRevoked)
		}
	}
	stuck = g.awaitBatchers(batchers)
	if ours {
		g.commit(g.ctx, cl, nil)
	}
	for _, b := range batchers {
		g.mu.Lock()
		delete(g.batchers, b.Partition)
		g.mu.Unlock()
		// First: a call of Store that continues after its cancellation would otherwise add its records to our next
		// commit, for a partition that another member may own.
		b.discard()
		g.commits.forget(b.Partition) // waits for a running Mark, which may add the partition to unmarked
		g.mu.Lock()
		delete(g.unmarked, b.Partition)
		g.mu.Unlock()
		g.checker.forget(b.Partition)
		cl.ResumeFetchPartitions(b.AsMap()) // the client keeps a pause beyond the assignment
		g.sink.Forget(b.topic.Name, b.ID)
	}
	return stuck
}

// awaitBatchers waits until batchers have ended. It cancels them after DrainTimeout, and returns how many have not
// ended cancelGrace later.
func (g *BatchGroup) awaitBatchers(batchers []*batcher) (stuck int) {
	timer := time.AfterFunc(g.cfg.DrainTimeout, func() {
		for _, b := range batchers {
			b.cancel(errRevoked)
		}
	})
	defer timer.Stop()
	late, cancel := context.WithTimeout(g.ctx, g.cfg.DrainTimeout+cancelGrace)
	defer cancel()
	for _, b := range batchers {
		select {
		case <-b.done:
			continue
		case <-late.Done():
		}
		if b.markStuck() {
			stuck++
			g.router.Log.Error("abandon batch that ignores cancellation", "topic", b.Topic, "partition", b.ID)
		}
	}
	return stuck
}

func (g *BatchGroup) oldest() (o metrics.Oldest) {
	for _, b := range g.owned(nil) {
		b.mu.Lock()
		if !b.storeBegan.IsZero() && (o.Task.IsZero() || b.storeBegan.Before(o.Task)) {
			o.Task = b.storeBegan
		}
		if len(b.records) > 0 {
			if t := b.records[0].Raw.Timestamp; o.Message.IsZero() || t.Before(o.Message) {
				o.Message = t
			}
		}
		b.mu.Unlock()
	}
	return o
}
