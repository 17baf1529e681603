package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
)

// A fetcher is one client of a Pool: a member of the group of one class. It has its own limit of bytes in
// flight, so that no class keeps another from being read.
type fetcher struct {
	p       *Pool
	class   schemas.Class
	topics  []string
	opts    []kgo.Opt
	cl      *kgo.Client
	leave   func()      // leaves the group and closes cl
	memory  *byteBudget // bytes in flight, without those of the backlog topic
	metrics *roleMetrics

	rebalanceMu    sync.Mutex // held during a rebalance, and while Beside runs
	commits        *commits
	checker        *pollChecker
	commitRequests chan chan error // each gets the result of a commit
	commitNow      chan struct{}   // requests a commit
	pausedTasks    int             // tasks held back by a pause, as last reported

	backlogTopic string // empty: none
	diversion    diversion
	queueLock    chan struct{} // holds one element while tasks move between the fetcher and the scheduler
	backlogBytes atomic.Int64  // bytes in flight of the backlog topic

	pauseMu       sync.Mutex // guards paused and backlogPaused
	paused        bool       // the role is paused
	backlogPaused bool       // the backlog topic is not fetched

	mu           sync.Mutex // guards the fields below
	assignments  map[partition]*assignment
	lostMetadata map[partition]string // last committed metadata of lost partitions, to recognize our own commits: no process died
}

// maxCommitRequests is the number of requests that one commit can answer.
const maxCommitRequests = 1024

func newFetcher(p *Pool, m member) (*fetcher, error) {
	in := &fetcher{
		p: p, class: m.class, topics: m.topics, memory: newByteBudget(), metrics: p.kafka.Metrics.role(m.role, m.class),
		commits: newCommits(p.kafka.Deleted), commitRequests: make(chan chan error, maxCommitRequests),
		commitNow: make(chan struct{}, 1), queueLock: make(chan struct{}, 1),
		assignments: map[partition]*assignment{}, lostMetadata: map[partition]string{}, diversion: diversion{flows: map[Work]*route{}},
	}
	if t := schemas.Backlog(m.role, m.class); slices.Contains(m.topics, p.kafka.topic(t)) {
		in.backlogTopic = p.kafka.topic(t)
	}
	in.commits.after = in.onCommitted
	in.checker = newPollChecker(p.router, in.commits)
	opts := append(p.kafka.consume(m),
		kgo.OnPartitionsAssigned(in.onAssigned), kgo.OnOffsetsFetched(in.onOffsetsFetched),
		kgo.OnPartitionsRevoked(in.onRevoked), kgo.OnPartitionsLost(in.onLost))
	if len(p.fetchers) == 0 { // the first one publishes for all: a single client keeps the outputs in order
		opts = append(opts, p.kafka.produce(runtimeLimit, runtimeLinger)...)
	}
	var err error
	in.opts, err = p.kafka.options(string(m.role)+"."+string(m.class), opts...)
	return in, err
}

// poll reads records and schedules them until ctx is done. It waits for memory, but never for a task.
func (in *fetcher) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		in.memory.wait(ctx, in.memoryLimit)
		fetches := in.cl.PollRecords(ctx, in.p.window/4)
		if err := in.checker.check(ctx, in.cl, fetches); err != nil {
			return in.p.router.below(ctx, in.cl, err)
		}
		if err := in.dispatch(fetches); err != nil {
			return err
		}
		in.cl.AllowRebalance()
	}
	return nil
}

// memoryLimit returns the maximum number of bytes in flight without those of the backlog topic.
func (in *fetcher) memoryLimit() int64 {
	return in.p.cfg.Bytes - min(in.backlogBytes.Load(), in.p.cfg.Bytes/backlogMemoryPart)
}

// dispatch hands polled records to the scheduler.
func (in *fetcher) dispatch(fetches kgo.Fetches) error {
	tasks, fresh, err := in.newTasks(fetches)
	if err != nil || len(tasks) == 0 {
		return err
	}
	var weight, behind int64
	for _, t := range tasks {
		if t.part.backlog {
			behind += t.bytes()
		} else {
			weight += t.bytes()
		}
	}
	in.memory.add(weight)
	in.backlogBytes.Add(behind)
	in.limitBacklogFetch()
	in.metrics.inFlight(len(tasks), weight+behind)
	if fresh {
		in.commitOpen()
	}
	in.queueLock <- struct{}{}
	defer func() { <-in.queueLock }()
	in.p.enqueue(in, tasks)
	return nil
}

// newTasks returns tasks for the polled records. fresh reports whether some are of a partition that was at
// rest.
func (in *fetcher) newTasks(fetches kgo.Fetches) (tasks []*task, fresh bool, err error) {
	n := fetches.NumRecords()
	if n == 0 {
		return nil, false, nil
	}
	slab := make([]task, n)
	tasks = make([]*task, 0, n)
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, f := range fetches {
		for _, t := range f.Topics {
			inc := incarnation(t.TopicID)
			for _, fp := range t.Partitions {
				part := in.assignments[partition{t.Topic, fp.Partition}]
				if part == nil || len(fp.Records) == 0 {
					continue // not assigned: partitions do not move while a poll is held
				}
				first, done, ok := part.track(fp.Records)
				if !ok {
					return nil, false, fmt.Errorf("%s: more than %d records in flight", part.partition, part.window())
				}
				fresh = part.markOpen() || fresh
				for i, rec := range fp.Records {
					if done[i] {
						continue
					}
					t := &slab[len(tasks)]
					t.rec, t.incarnation, t.part, t.slot = rec, inc, part, first+uint64(i)
					tasks = append(tasks, t)
				}
			}
		}
	}
	return tasks, fresh, nil
}

// commitOpen commits that tasks of partitions may be running, so that the next owner knows it if this process
// dies. If the commit fails, work continues.
func (in *fetcher) commitOpen() {
	in.mu.Lock()
	in.stageCommits()
	in.mu.Unlock()
	ctx, cancel := context.WithTimeout(in.p.ctx, openTimeout)
	defer cancel()
	if err := in.commits.send(ctx, in.cl); err != nil {
		in.p.router.log.Warn("what is at work is not on record yet", "class", string(in.class), "err", err)
	}
}

// openTimeout bounds the commit before the first task of a partition starts.
const openTimeout = 3 * time.Second

// stageCommits stages the current position of each partition. The caller holds in.mu.
func (in *fetcher) stageCommits() {
	atWork := in.p.runningOffsets(in)
	for at, part := range in.assignments {
		if pos, ok := part.position(atWork[part]); ok {
			in.commits.set(at, pos)
		}
	}
}

// commit commits what is done, and records the running tasks. A failed commit is repeated later.
func (in *fetcher) commit(ctx context.Context) error {
	in.mu.Lock()
	in.stageCommits()
	in.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, CommitTimeout)
	defer cancel()
	if !in.commits.pending(nil) {
		return nil
	}
	err := in.commits.send(ctx, in.cl)
	if errors.Is(err, context.Canceled) {
		return err
	}
	in.metrics.committed(err)
	switch {
	case err == nil:
	case commitFatal(err):
		in.p.fail(err)
	default:
		in.p.router.log.Warn("will commit again", "class", string(in.class), "err", err)
	}
	return err
}

// commitLoop commits every second and on request.
func (in *fetcher) commitLoop(ctx context.Context) {
	t := time.NewTicker(poolCommitInterval)
	defer t.Stop()
	for {
		var waiting []chan error
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			in.mu.Lock()
			for _, part := range in.assignments {
				part.markQuiet()
			}
			in.mu.Unlock()
		case <-in.commitNow:
		case ask := <-in.commitRequests:
			waiting = append(waiting, ask)
			for len(in.commitRequests) > 0 {
				waiting = append(waiting, <-in.commitRequests)
			}
		}
		err := in.commit(in.p.ctx) // not ctx: a commit that is cut off may reach the broker after the last one
		for _, ask := range waiting {
			ask <- err
		}
	}
}

// commitWhileDraining commits at once, and then every second until ctx is done, while running tasks end. The
// process may be killed before they have.
func (in *fetcher) commitWhileDraining(ctx context.Context) {
	t := time.NewTicker(poolCommitInterval)
	defer t.Stop()
	for {
		_ = in.commit(in.p.ctx) // commit has logged its error
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// requestCommit requests a commit before the next tick.
func (in *fetcher) requestCommit() {
	select {
	case in.commitNow <- struct{}{}:
	default:
	}
}

// onCommitted records the committed position of a partition.
func (in *fetcher) onCommitted(at partition, pos position) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if part := in.assignments[at]; part != nil {
		part.recordedDone.Store(pos.done)
	}
}

// optionalRecordWait is how long a task waits to be recorded if it may also start without.
const optionalRecordWait = time.Second

// awaitRecorded waits until the running tasks are recorded by a commit. If must is false, it waits for at
// most optionalRecordWait.
func (in *fetcher) awaitRecorded(ctx context.Context, must bool) error {
	if !must {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, optionalRecordWait)
		defer cancel()
	}
	ask := make(chan error, 1)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.p.stopping:
		return errStopped
	case in.commitRequests <- ask:
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.p.stopping:
		return errStopped
	case err := <-ask:
		return err
	}
}

// onAssigned adds partitions. No poll is held while it or the other callbacks run.
func (in *fetcher) onAssigned(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer in.metrics.rebalanced(moveAssigned, parts, time.Now())
	in.rebalanceMu.Lock()
	defer in.rebalanceMu.Unlock()
	in.p.assigned()
	in.mu.Lock()
	defer in.mu.Unlock()
	eachPartition(parts, func(at partition) { in.assignments[at] = newAssignment(in, at, in.p.cfg.Window) })
}

// onOffsetsFetched learns from the commits of the assigned partitions which tasks were running when a process
// died.
func (in *fetcher) onOffsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	var seen []partition // some twice, because the response has an old and a new form
	learn := func(topic string, id int32, offset int64, metadata *string) {
		at := partition{topic, id}
		if part := in.assignments[at]; part != nil && offset >= 0 && metadata != nil {
			told, ours := in.lostMetadata[at]
			part.loadCrashes(*metadata, offset, ours && told == *metadata, in.p.router.log)
		}
		seen = append(seen, at)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			learn(t.Topic, p.Partition, p.Offset, p.Metadata)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				learn(t.Topic, p.Partition, p.Offset, p.Metadata)
			}
		}
	}
	for _, at := range seen {
		delete(in.lostMetadata, at)
	}
	return nil
}

// onRevoked gives running tasks Drain to end, cancels the rest, and commits.
func (in *fetcher) onRevoked(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer in.metrics.rebalanced(moveRevoked, parts, time.Now())
	in.rebalanceMu.Lock()
	defer in.rebalanceMu.Unlock()
	assignments := in.owned(parts)
	if len(assignments) == 0 {
		return
	}
	in.p.drain(assignments, in.p.cfg.Drain)
	if in.p.cfg.Prepare != nil { // the next owner reads what was published: nothing may follow later
		awaitIdle(assignments, runtimeLimit)
	}
	_ = in.commit(in.p.ctx) // commit has logged its error; uncommitted work is repeated
	in.discard(assignments)
}

// onLost cancels running tasks and commits nothing.
func (in *fetcher) onLost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer in.metrics.rebalanced(moveLost, parts, time.Now())
	in.rebalanceMu.Lock()
	defer in.rebalanceMu.Unlock()
	assignments := in.owned(parts)
	in.mu.Lock()
	for _, part := range assignments {
		in.lostMetadata[part.partition] = part.lastMetadata()
	}
	in.mu.Unlock()
	in.discard(assignments)
}

// owned returns the assignments of parts, or all if parts is nil.
func (in *fetcher) owned(parts map[string][]int32) []*assignment {
	in.mu.Lock()
	defer in.mu.Unlock()
	return selectPartitions(in.assignments, parts)
}

// discard removes assignments. The results of tasks that end later are ignored.
func (in *fetcher) discard(assignments []*assignment) {
	for _, part := range assignments {
		part.stop()
		part.discard()
	}
	in.p.interrupt(assignments, false, errRevoked)
	in.p.sched.removeQueued(isStopping, in.p.freeTask)
	for _, part := range assignments {
		in.mu.Lock()
		if in.assignments[part.partition] == part {
			delete(in.assignments, part.partition)
		}
		in.mu.Unlock()
		in.commits.forget(part.partition)
		in.checker.forget(part.partition)
		in.cl.ResumeFetchPartitions(part.asMap()) // the client keeps a pause beyond the assignment
	}
}

// setPaused stops fetching while the role is paused.
func (in *fetcher) setPaused(paused bool) {
	in.pauseMu.Lock()
	defer in.pauseMu.Unlock()
	switch {
	case paused && !in.paused:
		in.cl.PauseFetchTopics(in.topics...)
	case !paused && in.paused:
		in.cl.ResumeFetchTopics(in.topics...)
		if in.backlogPaused {
			in.cl.PauseFetchTopics(in.backlogTopic)
		}
	}
	in.paused = paused
}

// underPressure reports whether records in flight keep more from being read.
func (in *fetcher) underPressure() bool {
	if in.memory.full(in.memoryLimit()) {
		return true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, part := range in.assignments {
		if part.isPaused() {
			return true
		}
	}
	return false
}
