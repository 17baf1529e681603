package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

// A Table reads a whole topic from the start, all partitions, and follows it. It passes every record to a
// function that keeps the state it needs in memory. A Table is in no consumer group and commits nothing.
type Table struct {
	topic schemas.Topic
	name  string
	from  *core.Topic
	opts  []kgo.Opt
	apply func(key []byte, d *schemas.Delivery) error
	// unreadable is called for records that cannot be decoded; nil if unset.
	unreadable func(key []byte, at time.Time, cause error)

	router     *core.Router
	reader     *pollChecker
	ready      chan struct{}
	malformed  atomic.Int64
	loadedOnce sync.Once // done at the end of the first read, or when Run returns

	mu        sync.Mutex      // guards the rest
	cl        *kgo.Client     // set by Run
	positions map[int32]int64 // next offset to apply, by partition
	wanted    map[int32]int64 // offset to reach, by partition
	moved     chan struct{}   // closed when positions changes; nil: nothing waits for that
}

// tableStall is how long a poll may return nothing before the table checks whether records remain below the offsets
// to reach. Compaction can leave the end of a partition without records.
const tableStall = 2 * time.Second

// ErrIgnored is returned by the function of a Table for a record that it ignored. An unreadable record with the
// same key then still counts as the latest one.
var ErrIgnored = errors.New("record ignored")

// NewTable returns a Table that calls apply for the records of topic, one call at a time, and in order within a
// partition. The delivery of a tombstone has no Body. A record that cannot be decoded, or for which apply returns
// a permanent error, is logged, counted, and added to cfg.Unreadables. Any other error of apply except ErrIgnored
// ends Run.
func NewTable(
	cfg client.Config, topic schemas.Topic, apply func(key []byte, d *schemas.Delivery) error,
) (*Table, error) {
	if _, ok := schemas.Lookup(topic); !ok {
		return nil, fmt.Errorf("kafka: table: topic %s is not in the catalogue", topic)
	}
	t := &Table{
		topic: topic, name: cfg.Topic(topic), from: core.NewTopic(cfg, cfg.Topic(topic)), apply: apply,
		router: core.NewRouter(cfg, schemas.Role("table."+topic), 0),
		ready:  make(chan struct{}), positions: map[int32]int64{}, wanted: map[int32]int64{},
	}
	t.reader = newPollChecker(t.router, nil)
	t.reader.nextOffset = t.nextOffset
	var err error
	t.opts, err = cfg.Options("table."+string(topic),
		kgo.ConsumeTopics(t.name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxPartitionBytes(1<<20),
		kgo.KeepRetryableFetchErrors(), // as in consumeOptions
	)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// OnUnreadable sets a function that is called with the key, the timestamp and the error of each record that
// cannot be decoded. Calls are in order with those of apply. OnUnreadable must be called before Run.
func (t *Table) OnUnreadable(f func(key []byte, at time.Time, cause error)) { t.unreadable = f }

// Ready returns a channel that is closed when all records that the topic held at the start of Run are applied.
func (t *Table) Ready() <-chan struct{} { return t.ready }

// CatchUp waits until all records that the topic holds at the time of the call are applied. It waits for Run to start.
func (t *Table) CatchUp(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("table %s: catch up: %w", t.topic, context.Cause(ctx))
	case <-t.ready:
	}
	t.mu.Lock()
	cl := t.cl
	t.mu.Unlock()
	ends, err := t.ends(ctx, cl)
	if err != nil {
		return fmt.Errorf("table %s: catch up: %w", t.topic, err)
	}
	for {
		reached, moved := t.reached(ends)
		if reached {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("table %s: catch up: %w", t.topic, context.Cause(ctx))
		case <-moved:
		}
	}
}

// Malformed returns the number of records that were not applied, because they could not be decoded or apply
// returned a permanent error.
func (t *Table) Malformed() int64 { return t.malformed.Load() }

// Run follows the topic until ctx is done, and then returns nil. It must be called once only.
func (t *Table) Run(ctx context.Context) error {
	cl, err := kgo.NewClient(t.opts...)
	if err != nil {
		return fmt.Errorf("table %s: new client: %w", t.topic, err)
	}
	defer cl.Close()
	t.router.Config.Unreadables.TableStarted(t.topic)
	defer t.loadedOnce.Do(t.loaded)
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
	policy := retry.Policy{Wait: 250 * time.Millisecond, MaxWait: 5 * time.Second} // no limit but permanent errors
	var first map[int32]int64
	if _, err := policy.Do(ctx, func() (err error) {
		first, err = t.ends(ctx, cl)
		return err
	}, func(_ int, wait time.Duration, err error) {
		t.router.Log.Warn("wait for a table to become readable", "retry_after", wait, "err", err)
	}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if first != nil {
			if reached, _ := t.reached(first); reached {
				first = nil
				close(t.ready)
				t.loadedOnce.Do(t.loaded)
			}
		}
		pctx, cancel := context.WithTimeout(ctx, tableStall)
		fetches := cl.PollFetches(pctx)
		stalled := pctx.Err() != nil && ctx.Err() == nil
		cancel()
		if err := t.reader.check(ctx, cl, fetches); err != nil {
			return err
		}
		if err := t.applyFetches(fetches); err != nil {
			return err
		}
		if open := t.open(); stalled && len(open) > 0 {
			if err := t.skipEmpty(ctx, cl, open); err != nil {
				t.router.Log.Warn("wait for the rest of a table", "partitions", len(open), "err", err)
			}
		}
	}
	return nil
}

func (t *Table) loaded() { t.router.Config.Unreadables.TableLoaded(t.topic) }

// ends returns the current ends of the partitions that hold records, and makes Run reach them.
func (t *Table) ends(ctx context.Context, cl *kgo.Client) (map[int32]int64, error) {
	starts, ends, err := core.Bounds(ctx, kadm.NewClient(cl), t.name)
	if code := (*kerr.Error)(nil); errors.As(err, &code) && !code.Retriable {
		err = retry.Permanent(err)
	}
	if err != nil {
		return nil, fmt.Errorf("read end offsets: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	to := map[int32]int64{}
	for id, end := range ends[t.name] {
		if end > starts[t.name][id] {
			to[id], t.wanted[id] = end, max(t.wanted[id], end)
		}
	}
	return to, nil
}

// reached reports whether all records below ends are applied. If not, moved is closed when more are.
func (t *Table) reached(ends map[int32]int64) (reached bool, moved <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, end := range ends {
		if t.positions[id] < end {
			if t.moved == nil {
				t.moved = make(chan struct{})
			}
			return false, t.moved
		}
	}
	return true, nil
}

// open returns the offsets that are not reached yet, by partition.
func (t *Table) open() map[int32]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	open := maps.Clone(t.wanted)
	maps.DeleteFunc(open, func(id int32, end int64) bool { return t.positions[id] >= end })
	return open
}

func (t *Table) applyFetches(fetches kgo.Fetches) error {
	for _, fetch := range fetches {
		for _, ft := range fetch.Topics {
			inc := core.Incarnation(ft.TopicID)
			for _, p := range ft.Partitions {
				for _, rec := range p.Records {
					if err := t.applyRecord(rec, inc); err != nil {
						return err
					}
				}
				if n := len(p.Records); n > 0 {
					t.advance(p.Partition, p.Records[n-1].Offset+1)
				}
			}
		}
	}
	return nil
}

func (t *Table) applyRecord(rec *kgo.Record, inc uint32) error {
	if rec.Attrs.IsControl() {
		return nil
	}
	ir := core.Record{Raw: rec, Topic: t.from, Incarnation: inc}
	d := &schemas.Delivery{
		Topic: t.topic, From: t.topic, Incarnation: inc, Partition: rec.Partition, Offset: rec.Offset,
		Timestamp: rec.Timestamp, Key: rec.Key, Attempt: 1,
	}
	var err error
	if rec.Value != nil {
		if d, err = t.router.Delivery(&ir); err != nil && t.unreadable != nil {
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
	t.router.Config.Unreadables.Record(t.topic, rec, err)
	if err == nil {
		return nil
	}
	t.malformed.Add(1)
	t.router.Log.Error("skip record of a table",
		"topic", string(t.topic), "partition", rec.Partition, "offset", rec.Offset, "err", err)
	return nil
}

// nextOffset returns the next offset of a partition to apply.
func (t *Table) nextOffset(at core.Partition) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.positions[at.ID]
}

// advance records that all records of a partition below next are applied.
func (t *Table) advance(id int32, next int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.positions[id] = next
	if t.moved != nil {
		close(t.moved)
		t.moved = nil
	}
}

// skipEmpty advances the table past offsets without records, up to those in open. Compaction may have left no
// record at the end of a partition, and a poll does not report that.
func (t *Table) skipEmpty(ctx context.Context, cl *kgo.Client, open map[int32]int64) error {
	adm := kadm.NewClient(cl)
	topics, err := adm.ListTopics(ctx, t.name)
	if err != nil {
		return fmt.Errorf("list topic: %w", err)
	}
	starts, _, err := core.Bounds(ctx, adm, t.name)
	if err != nil {
		return err
	}
	var errs []error
	for id, end := range open {
		t.mu.Lock()
		from := max(t.positions[id], starts[t.name][id])
		t.mu.Unlock()
		next, err := from, error(nil)
		if from < end {
			next, err = core.FirstRecordOffset(ctx, cl, topics[t.name], id, from)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("partition %d: %w", id, err))
		} else {
			t.advance(id, next)
		}
	}
	return errors.Join(errs...)
}
