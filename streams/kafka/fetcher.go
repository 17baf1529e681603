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
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/kafka/schedule"
)

// A fetcher is one client of a Pool: a member of the group of one class. It has its own limit of bytes in
// flight, so that no class keeps another from being read.
type fetcher struct {
	p       *Pool
	class   schemas.Class
	topics  []string
	opts    []kgo.Opt
	cl      *kgo.Client // set by OnNewClient
	leave   func()      // leaves the group and closes cl
	memory  *byteBudget // bytes in flight, without those of the backlog topic
	metrics *metrics.Role

	rebalanceMu    sync.Mutex // held during a rebalance
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

	mu          sync.Mutex // guards the fields below
	assignments map[core.Partition]*assignment
}

// maxCommitRequests is the number of requests that one commit can answer.
const maxCommitRequests = 1024

func newFetcher(p *Pool, m groupMember) (*fetcher, error) {
	f := &fetcher{
		p: p, class: m.class, topics: m.topics, memory: newByteBudget(), metrics: p.kafka.Metrics.Role(m.role, m.class),
		commits: newCommits(p.kafka.Deleted), commitRequests: make(chan chan error, maxCommitRequests),
		commitNow: make(chan struct{}, 1), queueLock: make(chan struct{}, 1),
		assignments: map[core.Partition]*assignment{},
		diversion:   diversion{flows: map[schedule.FlowID]*route{}},
	}
	if t := schemas.Backlog(m.role, m.class); slices.Contains(m.topics, p.kafka.Topic(t)) {
		f.backlogTopic = p.kafka.Topic(t)
	}
	f.commits.metrics = f.metrics
	f.checker = newPollChecker(p.router, f.commits)
	opts := append(consumeOptions(p.kafka, m), kgo.WithHooks(f),
		kgo.OnPartitionsAssigned(f.onAssigned), kgo.OnOffsetsFetched(f.onOffsetsFetched),
		kgo.OnPartitionsRevoked(f.onRevoked), kgo.OnPartitionsLost(f.onLost))
	if len(p.fetchers) == 0 { // the first one publishes for all: a single client keeps the outputs in order
		opts = append(opts, p.kafka.ProduceOptions(outputTimeout, outputLinger)...)
	}
	var err error
	f.opts, err = p.kafka.Options(string(m.role)+"."+string(m.class), opts...)
	return f, err
}

// OnNewClient implements kgo.HookNewClient. It sets the client before a rebalance can use it.
func (f *fetcher) OnNewClient(cl *kgo.Client) { f.cl = cl }

// poll reads records and schedules them until ctx is done. It waits for memory, but never for a task.
func (f *fetcher) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		f.memory.wait(ctx, f.memoryLimit)
		fetches := f.cl.PollRecords(ctx, f.p.window/4)
		if err := f.checker.check(ctx, f.cl, fetches); err != nil {
			return outOfRangeDiagnosis{Router: f.p.router}.explain(ctx, f.cl, err)
		}
		if err := f.dispatch(fetches); err != nil {
			return err
		}
		f.cl.AllowRebalance()
	}
	return nil
}

// memoryLimit returns the maximum number of bytes in flight without those of the backlog topic.
func (f *fetcher) memoryLimit() int64 {
	return f.p.cfg.Bytes - min(f.backlogBytes.Load(), f.p.cfg.Bytes/backlogMemoryPart)
}

// dispatch hands polled records to the scheduler.
func (f *fetcher) dispatch(fetches kgo.Fetches) error {
	tasks, fresh, err := f.newTasks(fetches)
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
	f.memory.add(weight)
	f.backlogBytes.Add(behind)
	f.limitBacklogFetch()
	f.metrics.AddInFlight(len(tasks), weight+behind)
	if fresh {
		f.commitOpen()
	}
	f.queueLock <- struct{}{}
	defer func() { <-f.queueLock }()
	f.p.enqueue(f, tasks)
	return nil
}

// newTasks returns tasks for the polled records. fresh reports whether some are of a partition that was at
// rest.
func (f *fetcher) newTasks(fetches kgo.Fetches) (tasks []*task, fresh bool, err error) {
	n := fetches.NumRecords()
	if n == 0 {
		return nil, false, nil
	}
	slab := make([]task, n)
	tasks = make([]*task, 0, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fetch := range fetches {
		for _, t := range fetch.Topics {
			inc := core.Incarnation(t.TopicID)
			for _, fp := range t.Partitions {
				part := f.assignments[core.Partition{Topic: t.Topic, ID: fp.Partition}]
				if part == nil || len(fp.Records) == 0 {
					continue // not assigned: partitions do not move while a poll is held
				}
				first, done, ok := part.track(fp.Records)
				if !ok {
					return nil, false, fmt.Errorf("%s: more than %d records in flight", part.Partition, part.window())
				}
				fresh = part.markOpen() || fresh
				for i, rec := range fp.Records {
					if done[i] {
						continue
					}
					t := &slab[len(tasks)]
					t.Gate, t.Owner = part.gate, t
					t.Raw, t.Topic, t.Incarnation, t.part, t.slot = rec, part.topic, inc, part, first+uint64(i)
					tasks = append(tasks, t)
				}
			}
		}
	}
	return tasks, fresh, nil
}

// commitOpen commits that tasks of partitions may be running, so that the next owner knows it if this process
// dies. If the commit fails, work continues.
func (f *fetcher) commitOpen() {
	f.mu.Lock()
	f.stageCommits()
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(f.p.ctx, openTimeout)
	defer cancel()
	if err := f.commits.send(ctx, f.cl); err != nil {
		f.p.router.Log.Warn("record running tasks", "class", string(f.class), "err", err)
	}
}

// openTimeout bounds the commit before the first task of a partition starts.
const openTimeout = 3 * time.Second

// stageCommits stages the current position of each partition. The caller holds f.mu.
func (f *fetcher) stageCommits() {
	running := f.p.runningOffsets(f)
	for at, part := range f.assignments {
		if pos, ok := part.position(running[part]); ok {
			f.commits.set(at, pos)
		}
	}
}

// commit commits what is done, and records the running tasks. A failed commit is repeated later.
func (f *fetcher) commit(ctx context.Context) error {
	f.mu.Lock()
	f.stageCommits()
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, CommitTimeout)
	defer cancel()
	if !f.commits.pending(nil) {
		return nil
	}
	err := f.commits.send(ctx, f.cl)
	if errors.Is(err, context.Canceled) {
		return err
	}
	switch {
	case err == nil:
	case commitFatal(err):
		f.p.fail(err)
	default:
		f.p.router.Log.Warn("retry commit", "class", string(f.class), "err", err)
	}
	return err
}

// commitLoop commits every second and on request, until ctx is done.
func (f *fetcher) commitLoop(ctx context.Context) {
	t := time.NewTicker(poolCommitInterval)
	defer t.Stop()
	for {
		var waiting []chan error
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f.mu.Lock()
			for _, part := range f.assignments {
				part.markQuiet()
			}
			f.mu.Unlock()
		case <-f.commitNow:
		case ask := <-f.commitRequests:
			waiting = append(waiting, ask)
			for len(f.commitRequests) > 0 {
				waiting = append(waiting, <-f.commitRequests)
			}
		}
		err := f.commit(f.p.ctx) // not ctx: a commit that is cut off may reach the broker after the last one
		for _, ask := range waiting {
			ask <- err
		}
	}
}

// requestCommit requests a commit before the next tick.
func (f *fetcher) requestCommit() {
	select {
	case f.commitNow <- struct{}{}:
	default:
	}
}

// awaitRecorded waits until the running tasks are recorded by a commit.
func (f *fetcher) awaitRecorded(ctx context.Context) error {
	ask := make(chan error, 1)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case f.commitRequests <- ask:
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-ask:
		return err
	}
}

// onAssigned adds partitions after Prepare. No poll is held while it or the other callbacks run, and the client fetches
// nothing of the partitions before it returns.
func (f *fetcher) onAssigned(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer f.metrics.CountRebalance(metrics.PartitionsAssigned, parts, time.Now())
	f.rebalanceMu.Lock()
	defer f.rebalanceMu.Unlock()
	if f.p.cfg.Prepare != nil && len(parts) > 0 {
		if err := f.p.prepare(); err != nil {
			f.p.fail(err)
			return // records of partitions that were not added are dropped
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	core.EachPartition(parts, func(at core.Partition) { f.assignments[at] = newAssignment(f, at, f.p.cfg.Window) })
}

// onOffsetsFetched learns from the commits of the assigned partitions which tasks were running when a process
// died.
func (f *fetcher) onOffsetsFetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				part := f.assignments[core.Partition{Topic: t.Topic, ID: p.Partition}]
				if part != nil && p.Offset >= 0 && p.Metadata != nil {
					part.loadCrashes(*p.Metadata, p.Offset, f.p.router.Log)
				}
			}
		}
	}
	return nil
}

// onRevoked gives running tasks DrainTimeout to end, cancels the rest, and commits.
func (f *fetcher) onRevoked(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer f.metrics.CountRebalance(metrics.PartitionsRevoked, parts, time.Now())
	f.rebalanceMu.Lock()
	defer f.rebalanceMu.Unlock()
	assignments := f.owned(parts)
	if len(assignments) == 0 {
		return
	}
	f.p.drain(assignments, f.p.cfg.DrainTimeout)
	if f.p.cfg.Prepare != nil { // the next owner reads what was published: nothing may follow later
		awaitIdle(assignments, outputTimeout)
	}
	_ = f.commit(f.p.ctx) // commit has logged its error; uncommitted work is repeated
	f.discard(assignments)
}

// onLost cancels running tasks and commits nothing.
func (f *fetcher) onLost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer f.metrics.CountRebalance(metrics.PartitionsLost, parts, time.Now())
	f.rebalanceMu.Lock()
	defer f.rebalanceMu.Unlock()
	f.discard(f.owned(parts))
}

// owned returns the assignments of parts, or all if parts is nil.
func (f *fetcher) owned(parts map[string][]int32) []*assignment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return selectPartitions(f.assignments, parts)
}

// discard removes assignments. The results of tasks that end later are ignored.
func (f *fetcher) discard(assignments []*assignment) {
	for _, part := range assignments {
		part.gate.Close()
		part.discard()
	}
	f.p.interrupt(assignments, false, errRevoked)
	f.p.removeStopping()
	for _, part := range assignments {
		f.mu.Lock()
		if f.assignments[part.Partition] == part {
			delete(f.assignments, part.Partition)
		}
		f.mu.Unlock()
		f.commits.forget(part.Partition)
		f.checker.forget(part.Partition)
		f.cl.ResumeFetchPartitions(part.AsMap()) // the client keeps a pause beyond the assignment
	}
}

// setPaused stops fetching while the role is paused.
func (f *fetcher) setPaused(paused bool) {
	f.pauseMu.Lock()
	defer f.pauseMu.Unlock()
	switch {
	case paused && !f.paused:
		f.cl.PauseFetchTopics(f.topics...)
	case !paused && f.paused:
		f.cl.ResumeFetchTopics(f.topics...)
		if f.backlogPaused {
			f.cl.PauseFetchTopics(f.backlogTopic)
		}
	}
	f.paused = paused
}

// underPressure reports whether records in flight keep more from being read.
func (f *fetcher) underPressure() bool {
	if f.memory.full(f.memoryLimit()) {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, part := range f.assignments {
		if part.isPaused() {
			return true
		}
	}
	return false
}
