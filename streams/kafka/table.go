package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A Table follows a whole topic, all partitions from their start, and hands every
// record to a function that keeps in memory what it needs. It belongs to no group.
type Table struct {
	topic schemas.Topic
	name  string
	opts  []kgo.Opt
	apply func(key []byte, d *schemas.Delivery) error
	// unreadable may be nil.
	unreadable func(key []byte, at time.Time, cause error)

	router *router
	reader *pollChecker
	ready  chan struct{}
	bad    atomic.Int64
	read   sync.Once // done when the table has been read to where the topic ended, or Run ends

	mu    sync.Mutex      // guards the rest
	cl    *kgo.Client     // that of Run; nil before
	goals []*goal         // that are not reached
	seen  map[int32]int64 // partition: the next offset
}

// A goal is where a table is to come.
type goal struct {
	open map[int32]int64 // partition: the offset to reach
	done chan struct{}   // closed when none is open
}

// tableStall is how long nothing may come before a Table looks whether the rest of what
// it waits for is there at all.
const tableStall = 2 * time.Second

// ErrIgnored is returned by the function of a Table that has ignored a record. An unreadable record of the same key stays
// the newest one.
var ErrIgnored = errors.New("the record is ignored")

// NewTable returns a Table that hands the records of topic to apply, those of one key
// in order, one call at a time. The delivery of a tombstone has no Body. A record that
// cannot be decoded, and one for which apply returns a permanent error, is logged, counted
// and kept by cfg.Unreadables; any other error of apply but ErrIgnored ends Run.
func NewTable(cfg Config, topic schemas.Topic, apply func(key []byte, d *schemas.Delivery) error) (*Table, error) {
	if _, ok := schemas.Lookup(topic); !ok {
		return nil, fmt.Errorf("kafka: table: topic %s is not in the catalogue", topic)
	}
	t := &Table{
		topic: topic, name: cfg.topic(topic), apply: apply, router: newRouter(cfg, schemas.Role("table."+topic), 0),
		ready: make(chan struct{}), seen: map[int32]int64{},
	}
	t.reader = newPollChecker(t.router, nil)
	t.reader.nextOffset = t.next
	var err error
	t.opts, err = cfg.options("table."+string(topic),
		kgo.ConsumeTopics(t.name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxPartitionBytes(1<<20),
		kgo.KeepRetryableFetchErrors(), // as of the members of groups
	)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// OnUnreadable has f called for each record that cannot be decoded, with its key, its time and
// the cause, in its turn among the records that are applied. It is called before Run.
func (t *Table) OnUnreadable(f func(key []byte, at time.Time, cause error)) { t.unreadable = f }

// Ready is closed when everything that was in the topic when Run began has been applied.
func (t *Table) Ready() <-chan struct{} { return t.ready }

// CatchUp returns when everything that is in the topic at the time of the call has been applied. It waits for a Run that
// begins.
func (t *Table) CatchUp(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("table %s: catch up: %w", t.topic, context.Cause(ctx))
	case <-t.ready:
	}
	t.mu.Lock()
	cl := t.cl
	t.mu.Unlock()
	g, err := t.aim(ctx, cl, make(chan struct{}))
	if err != nil {
		return fmt.Errorf("table %s: catch up: %w", t.topic, err)
	}
	select {
	case <-ctx.Done():
		t.giveUp(g)
		return fmt.Errorf("table %s: catch up: %w", t.topic, context.Cause(ctx))
	case <-g.done:
		return nil
	}
}

// Malformed is how many records were not applied, because they could not be decoded or
// apply refused them for good.
func (t *Table) Malformed() int64 { return t.bad.Load() }

// Run follows the topic until ctx is done, and then returns nil. It is called once.
func (t *Table) Run(ctx context.Context) error {
	cl, err := kgo.NewClient(t.opts...)
	if err != nil {
		return fmt.Errorf("table %s: new client: %w", t.topic, err)
	}
	defer cl.Close()
	t.router.cfg.Unreadables.begin(t.topic)
	defer t.read.Do(t.wasRead)
	t.mu.Lock()
	t.cl = cl
	t.mu.Unlock()
	err = t.follow(ctx, cl)
	if ctx.Err() != nil || err == nil {
		return nil
	}
	return fmt.Errorf("table %s: %w", t.topic, err)
}

func (t *Table) follow(ctx context.Context, cl *kgo.Client) error {
	policy := retry.Policy{Wait: 250 * time.Millisecond, MaxWait: 5 * time.Second} // for ever, but for refusals
	if _, err := policy.Do(ctx, func() error {
		_, err := t.aim(ctx, cl, t.ready)
		return err
	}, func(_ int, wait time.Duration, err error) {
		t.router.log.Warn("the table cannot be read yet", "wait", wait, "err", err)
	}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		select {
		case <-t.ready:
			t.read.Do(t.wasRead)
		default:
		}
		pctx, cancel := context.WithTimeout(ctx, tableStall)
		fetches := cl.PollFetches(pctx)
		stalled := pctx.Err() != nil && ctx.Err() == nil
		cancel()
		if err := t.reader.check(ctx, cl, fetches); err != nil {
			return err
		}
		if err := t.take(fetches); err != nil {
			return err
		}
		if open := t.open(); stalled && len(open) > 0 {
			if err := t.probe(ctx, cl, open); err != nil {
				t.router.log.Warn("the table is not yet complete", "partitions", len(open), "err", err)
			}
		}
	}
	return nil
}

func (t *Table) wasRead() { t.router.cfg.Unreadables.end(t.topic) }

// aim makes it a goal to come to where every partition ends now; done is closed when the table has.
func (t *Table) aim(ctx context.Context, cl *kgo.Client, done chan struct{}) (*goal, error) {
	starts, ends, err := bounds(ctx, kadm.NewClient(cl), t.name)
	if code := (*kerr.Error)(nil); errors.As(err, &code) && !code.Retriable {
		err = retry.Permanent(err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the ends: %w", err)
	}
	g := &goal{open: map[int32]int64{}, done: done}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, end := range ends[t.name] {
		if end > max(starts[t.name][id], t.seen[id]) {
			g.open[id] = end
		}
	}
	if len(g.open) == 0 {
		close(g.done)
	} else {
		t.goals = append(t.goals, g)
	}
	return g, nil
}

// giveUp forgets a goal.
func (t *Table) giveUp(g *goal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.goals = slices.DeleteFunc(t.goals, func(o *goal) bool { return o == g })
}

// open returns the farthest offset that some goal wants to reach, by partition.
func (t *Table) open() map[int32]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := map[int32]int64{}
	for _, g := range t.goals {
		for id, end := range g.open {
			open[id] = max(open[id], end)
		}
	}
	return open
}

func (t *Table) take(fetches kgo.Fetches) error {
	for _, fetch := range fetches {
		for _, ft := range fetch.Topics {
			inc := incarnation(ft.TopicID)
			for _, p := range ft.Partitions {
				for _, rec := range p.Records {
					if err := t.record(rec, inc); err != nil {
						return err
					}
				}
				if n := len(p.Records); n > 0 {
					t.reached(p.Partition, p.Records[n-1].Offset+1)
				}
			}
		}
	}
	return nil
}

func (t *Table) record(rec *kgo.Record, inc uint32) error {
	if rec.Attrs.IsControl() {
		return nil
	}
	ir := inflightRecord{rec: rec, incarnation: inc}
	d := &schemas.Delivery{
		Topic: t.topic, From: t.topic, Incarnation: inc, Partition: rec.Partition, Offset: rec.Offset,
		Timestamp: rec.Timestamp, Key: rec.Key, Attempt: 1,
	}
	var err error
	if rec.Value != nil {
		if d, err = t.router.delivery(&ir); err != nil && t.unreadable != nil {
			t.unreadable(rec.Key, rec.Timestamp, err)
		}
	}
	if err == nil {
		err = t.apply(rec.Key, d)
	}
	if errors.Is(err, ErrIgnored) {
		return nil
	}
	if err != nil && !retry.IsPermanent(err) {
		return fmt.Errorf("apply %d/%d: %w", rec.Partition, rec.Offset, err)
	}
	t.router.cfg.Unreadables.note(t.topic, rec, err)
	if err == nil {
		return nil
	}
	t.bad.Add(1)
	t.router.log.Error("a record of a table is left out", "topic", string(t.topic), "partition", rec.Partition, "offset", rec.Offset, "err", err)
	return nil
}

// next is the offset from which a partition is read.
func (t *Table) next(at partition) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen[at.id]
}

// reached says that everything of a partition below next has been applied.
func (t *Table) reached(id int32, next int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen[id] = next
	t.goals = slices.DeleteFunc(t.goals, func(g *goal) bool {
		if end, ok := g.open[id]; ok && next >= end {
			delete(g.open, id)
		}
		if len(g.open) > 0 {
			return false
		}
		close(g.done)
		return true
	})
}
