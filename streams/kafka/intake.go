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

// An intake is one client of a Pool, a member of the group of one class. It has a budget of bytes
// of its own, so no class keeps another from being read.
type intake struct {
	p      *Pool
	class  schemas.Class
	topics []string
	opts   []kgo.Opt
	cl     *kgo.Client
	leave  func() // closes cl
	weight *scale // of what is in flight, but for the backlog topic
	meter  *roleMetrics

	still   sync.Mutex // held while partitions move, and while Beside is called
	commits *commits
	reader  *reader
	asks    chan chan error // of those who wait for a commit
	soon    chan struct{}   // asks for one that nothing waits for
	held    int             // tasks that a pause keeps back, as last counted

	backlog  string // topic; empty: none
	diverted diversion
	moving   chan struct{} // holds one while tasks are given to the scheduler, or taken from it
	behind   atomic.Int64  // bytes in flight of the backlog topic

	turning sync.Mutex // guards tap and full
	tap     bool       // closed: the role is paused
	full    bool       // the backlog topic is not fetched

	mu     sync.Mutex // guards the rest
	shares map[partition]*share
	left   map[partition]string // what was told of partitions that were lost: nobody died
}

// asks that are answered by one commit.
const maxAsks = 1024

func newIntake(p *Pool, m groupMember) (*intake, error) {
	in := &intake{
		p: p, class: m.class, topics: m.topics, weight: newScale(), meter: p.kafka.Metrics.role(m.role, m.class),
		commits: newCommits(p.kafka.Deleted), asks: make(chan chan error, maxAsks),
		soon: make(chan struct{}, 1), moving: make(chan struct{}, 1),
		shares: map[partition]*share{}, left: map[partition]string{}, diverted: diversion{flows: map[Work]*route{}},
	}
	if t := schemas.Backlog(m.role, m.class); slices.Contains(m.topics, p.kafka.topic(t)) {
		in.backlog = p.kafka.topic(t)
	}
	in.commits.after = in.committed
	in.reader = newReader(p.router, in.commits)
	opts := append(p.kafka.consumeOptions(m),
		kgo.OnPartitionsAssigned(in.assigned), kgo.OnOffsetsFetched(in.fetched),
		kgo.OnPartitionsRevoked(in.revoked), kgo.OnPartitionsLost(in.lost))
	if len(p.intakes) == 0 { // the first one publishes for all: one client keeps the order of outputs
		opts = append(opts, p.kafka.produceOptions(outputTimeout, outputLinger)...)
	}
	var err error
	in.opts, err = p.kafka.options(string(m.role)+"."+string(m.class), opts...)
	return in, err
}

// poll hands out records until ctx is done. It never waits for a task, but for memory.
func (in *intake) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		in.weight.wait(ctx, in.room)
		fetches := in.cl.PollRecords(ctx, in.p.window/4)
		if err := in.reader.check(ctx, in.cl, fetches); err != nil {
			return in.p.router.explainOutOfRange(ctx, in.cl, err)
		}
		if err := in.dispatch(fetches); err != nil {
			return err
		}
		in.cl.AllowRebalance()
	}
	return nil
}

// room returns what may be in flight, beside the backlog topic.
func (in *intake) room() int64 {
	return in.p.cfg.Bytes - min(in.behind.Load(), in.p.cfg.Bytes/backlogPart)
}

// dispatch gives what was polled to the scheduler.
func (in *intake) dispatch(fetches kgo.Fetches) error {
	tasks, fresh, err := in.admit(fetches)
	if err != nil || len(tasks) == 0 {
		return err
	}
	var weight, behind int64
	for _, t := range tasks {
		if t.share.backlog {
			behind += t.bytes()
		} else {
			weight += t.bytes()
		}
	}
	in.weight.add(weight)
	in.behind.Add(behind)
	in.restrain()
	in.meter.addInFlight(len(tasks), weight+behind)
	if fresh {
		in.announceOpen()
	}
	in.moving <- struct{}{}
	defer func() { <-in.moving }()
	in.p.enqueue(in, tasks)
	return nil
}

// admit makes tasks of what was polled. fresh says that there are some of a partition that was at
// rest.
func (in *intake) admit(fetches kgo.Fetches) (tasks []*task, fresh bool, err error) {
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
				sh := in.shares[partition{t.Topic, fp.Partition}]
				if sh == nil || len(fp.Records) == 0 {
					continue // not ours: no poll is held while partitions move
				}
				first, done, ok := sh.admit(fp.Records)
				if !ok {
					return nil, false, fmt.Errorf("%s: more than %d records in flight", sh.partition, sh.window())
				}
				fresh = sh.open() || fresh
				for i, rec := range fp.Records {
					if done[i] {
						continue
					}
					t := &slab[len(tasks)]
					t.rec, t.incarnation, t.share, t.slot = rec, inc, sh, first+uint64(i)
					tasks = append(tasks, t)
				}
			}
		}
	}
	return tasks, fresh, nil
}

// announceOpen tells the brokers that tasks of partitions may be at work, so that whoever gets them
// after an unclean death knows. Work goes on without, should it not be possible.
func (in *intake) announceOpen() {
	in.mu.Lock()
	in.note()
	in.mu.Unlock()
	ctx, cancel := context.WithTimeout(in.p.ctx, openTimeout)
	defer cancel()
	if err := in.commits.send(ctx, in.cl); err != nil {
		in.p.router.log.Warn("what is at work is not on record yet", "class", string(in.class), "err", err)
	}
}

// openTimeout bounds the commit before the first task of a partition.
const openTimeout = 3 * time.Second

// note notes what is to be committed now. in.mu is held.
func (in *intake) note() {
	atWork := in.p.atWork(in)
	for at, sh := range in.shares {
		if pos, ok := sh.position(atWork[sh]); ok {
			in.commits.set(at, pos)
		}
	}
}

// commit commits what is done, and what is at work. What fails is committed the next time.
func (in *intake) commit(ctx context.Context) error {
	in.mu.Lock()
	in.note()
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
	in.meter.countCommit(err)
	switch {
	case err == nil:
	case commitFatal(err):
		in.p.fail(err)
	default:
		in.p.router.log.Warn("will commit again", "class", string(in.class), "err", err)
	}
	return err
}

// tick commits every second, and when it is asked for.
func (in *intake) tick(ctx context.Context) {
	t := time.NewTicker(poolCommit)
	defer t.Stop()
	for {
		var waiting []chan error
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			in.mu.Lock()
			for _, sh := range in.shares {
				sh.rest()
			}
			in.mu.Unlock()
		case <-in.soon:
		case ask := <-in.asks:
			waiting = append(waiting, ask)
			for len(in.asks) > 0 {
				waiting = append(waiting, <-in.asks)
			}
		}
		err := in.commit(in.p.ctx) // not of ctx: a commit that is cut off may reach the broker after the last one
		for _, ask := range waiting {
			ask <- err
		}
	}
}

// finish commits at once and then every second until ctx is done, while tasks at work end: who stops a process may not
// wait for that.
func (in *intake) finish(ctx context.Context) {
	t := time.NewTicker(poolCommit)
	defer t.Stop()
	for {
		_ = in.commit(in.p.ctx) // has said what is wrong
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// hurry has what is done committed before the second is over.
func (in *intake) hurry() {
	select {
	case in.soon <- struct{}{}:
	default:
	}
}

// committed takes note that a position is on record.
func (in *intake) committed(at partition, pos position) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if sh := in.shares[at]; sh != nil {
		sh.known.Store(pos.done)
	}
}

// farWait bounds how long a task waits for being on record that need not be.
const farWait = time.Second

// record returns when what is at work is on record with the brokers. It does not wait for long if that must not be.
func (in *intake) record(ctx context.Context, must bool) error {
	if !must {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, farWait)
		defer cancel()
	}
	ask := make(chan error, 1)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.p.ending:
		return errStopped
	case in.asks <- ask:
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-in.p.ending:
		return errStopped
	case err := <-ask:
		return err
	}
}

// assigned makes partitions ours. No poll is held while it runs, as for its siblings.
func (in *intake) assigned(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer in.meter.countRebalance(partitionsAssigned, parts, time.Now())
	in.still.Lock()
	defer in.still.Unlock()
	in.p.requirePrepare()
	in.mu.Lock()
	defer in.mu.Unlock()
	each(parts, func(at partition) { in.shares[at] = newShare(in, at, in.p.cfg.Window) })
}

// fetched learns from the commits of our partitions what was at work when a process died.
func (in *intake) fetched(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	var seen []partition // some twice: in the old and in the new form of the answer
	learn := func(topic string, id int32, offset int64, metadata *string) {
		at := partition{topic, id}
		if sh := in.shares[at]; sh != nil && offset >= 0 && metadata != nil {
			told, ours := in.left[at]
			sh.learn(*metadata, offset, ours && told == *metadata, in.p.router.log)
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
		delete(in.left, at)
	}
	return nil
}

// revoked lets tasks at work end within Drain, cancels the rest, and commits.
func (in *intake) revoked(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer in.meter.countRebalance(partitionsRevoked, parts, time.Now())
	in.still.Lock()
	defer in.still.Unlock()
	shares := in.owned(parts)
	if len(shares) == 0 {
		return
	}
	in.p.drain(shares, in.p.cfg.Drain)
	if in.p.cfg.Prepare != nil { // the next owner reads what was published: nothing is to come later
		awaitIdle(shares, outputTimeout)
	}
	_ = in.commit(in.p.ctx) // has said what is wrong; what is not committed is done again
	in.drop(shares)
}

// lost cancels tasks at work and commits nothing.
func (in *intake) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	defer in.meter.countRebalance(partitionsLost, parts, time.Now())
	in.still.Lock()
	defer in.still.Unlock()
	shares := in.owned(parts)
	in.mu.Lock()
	for _, sh := range shares {
		in.left[sh.partition] = sh.last()
	}
	in.mu.Unlock()
	in.drop(shares)
}

// owned returns the shares of parts, or all with nil.
func (in *intake) owned(parts map[string][]int32) []*share {
	in.mu.Lock()
	defer in.mu.Unlock()
	return among(in.shares, parts)
}

// drop kills shares: whatever of them ends later counts for nothing.
func (in *intake) drop(shares []*share) {
	for _, sh := range shares {
		sh.stop()
		sh.kill()
	}
	in.p.interrupt(shares, false, errRevoked)
	in.p.sched.purge(stopping, in.p.forget)
	for _, sh := range shares {
		in.mu.Lock()
		if in.shares[sh.partition] == sh {
			delete(in.shares, sh.partition)
		}
		in.mu.Unlock()
		in.commits.forget(sh.partition)
		in.reader.forget(sh.partition)
		in.cl.ResumeFetchPartitions(sh.one()) // a pause would outlive the assignment
	}
}

// turn stops reading while the role is paused, and goes on after.
func (in *intake) turn(paused bool) {
	in.turning.Lock()
	defer in.turning.Unlock()
	switch {
	case paused && !in.tap:
		in.cl.PauseFetchTopics(in.topics...)
	case !paused && in.tap:
		in.cl.ResumeFetchTopics(in.topics...)
		if in.full {
			in.cl.PauseFetchTopics(in.backlog)
		}
	}
	in.tap = paused
}

// pressed says whether what is read keeps more from being read.
func (in *intake) pressed() bool {
	if in.weight.full(in.room()) {
		return true
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, sh := range in.shares {
		if sh.full() {
			return true
		}
	}
	return false
}
