package kafka

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

const (
	delayerPoll = 1000
	// A record that is due within delayerSlack waits for that in its lane, rather than
	// to take another: clocks differ.
	delayerSlack = time.Second
	// laneLook is how long a lane that was just made may stay unseen: a pattern matches what the broker
	// that was asked knew of then, and nothing asks again for what it did not.
	laneDiscoveryInterval = 10 * time.Second
)

// A Delayer moves records out of the delay lanes: each when it has waited its lane's
// delay, to the again topic of its role if it is due, else to the next lane. A lane's
// records wait for the same time, so it only ever waits for the first of a partition,
// which is paused meanwhile.
type Delayer struct {
	opts   []kgo.Opt
	router *router
	delays map[string]time.Duration // by topic
	tap    tap

	metrics *roleMetrics
	commits *commits
	reader  *reader
	refusal refusal    // of what was last to be moved; only Run uses it
	mu      sync.Mutex // guards the rest
	held    map[partition][]waitingRecord
	refused *outputBatch // of what is held; nil: there is none
}

// A stay is a record that waits in its lane.
type waitingRecord struct {
	*kgo.Record
	readAt time.Time // when it was read
}

// NewDelayer returns a Delayer for cfg's lanes.
func NewDelayer(cfg Config) (*Delayer, error) {
	d := &Delayer{router: newRouter(cfg, schemas.RoleDelayer, 0), delays: map[string]time.Duration{}, held: map[partition][]waitingRecord{},
		commits: newCommits(cfg.Deleted), tap: tap{controls: cfg.Controls, role: schemas.RoleDelayer}}
	for _, l := range cfg.lanes() {
		d.delays[cfg.topic(schemas.Delay(l.Name))] = l.Delay
	}
	// Lanes that the settings no longer name are read too: what waits there goes on at once,
	// into a lane that is left if it is not due.
	topics := []string{"^" + regexp.QuoteMeta(cfg.topic(schemas.Delay(""))) + ".+$"}
	d.metrics = cfg.Metrics.role(schemas.RoleDelayer, schemas.High)
	d.commits.metrics = d.metrics
	d.reader = newReader(d.router, d.commits)
	d.reader.pattern = true
	d.metrics.addOldest(d.oldest)
	moved := func(k rebalanceKind) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
			defer d.metrics.countRebalance(k, parts, time.Now())
			if k != partitionsAssigned {
				d.drop(cl, parts)
			}
		}
	}
	var err error
	d.opts, err = cfg.options(string(schemas.RoleDelayer), append(
		append(cfg.consumeOptions(groupMember{role: schemas.RoleDelayer, topics: topics}), cfg.produceOptions(outputTimeout, outputLinger)...),
		kgo.ConsumeRegex(), kgo.MetadataMaxAge(laneDiscoveryInterval),
		kgo.FetchMaxPartitionBytes(256<<10), // a poll's worth of a partition is held while it waits
		kgo.OnPartitionsAssigned(moved(partitionsAssigned)), kgo.OnPartitionsRevoked(moved(partitionsRevoked)), kgo.OnPartitionsLost(moved(partitionsLost)))...)
	return d, err
}

// Run moves records until ctx is done, and then returns nil. Any other return is an
// error that Run could not get past; what was not committed is moved again.
func (d *Delayer) Run(ctx context.Context) error {
	cl, leave, err := join(ctx, d.opts)
	if err != nil {
		return fmt.Errorf("delayer: %w", err)
	}
	defer leave()
	for {
		err := d.step(ctx, cl)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("delayer: %w", err)
		}
		cl.AllowRebalance()
	}
}

// turn waits for records or until one that is held may go on, and moves those that may.
func (d *Delayer) step(ctx context.Context, cl *kgo.Client) error {
	d.tap.turn(cl)
	pctx, cancel := ctx, context.CancelFunc(func() {})
	if wait, ok := d.wait(); ok {
		pctx, cancel = context.WithTimeout(ctx, wait)
	}
	fetches := d.tap.poll(pctx, cl, delayerPoll)
	cancel()
	if err := d.reader.check(ctx, cl, fetches); err != nil {
		return d.router.explainOutOfRange(ctx, cl, err)
	}
	d.mu.Lock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if at := (partition{p.Topic, p.Partition}); len(p.Records) > 0 {
			now := time.Now()
			recs := make([]waitingRecord, len(p.Records))
			for i, rec := range p.Records {
				recs[i] = waitingRecord{rec, now}
			}
			d.held[at] = append(d.held[at], recs...)
			d.addInFlight(1, recs)
			cl.PauseFetchPartitions(at.one())
		}
	})
	d.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel = outlive(ctx) // what is moved but not committed is moved again
	defer cancel()
	if err := d.move(ctx, cl); err != nil {
		return err
	}
	err := d.commits.send(ctx, cl)
	if err == nil || commitFatal(err) {
		return err
	}
	d.router.log.Warn("will commit again", "err", err)
	return nil
}

// wait returns for how long no record that is held may go on; without any, or paused, and
// with nothing to commit, it is for ever.
func (d *Delayer) wait() (wait time.Duration, ok bool) {
	if d.commits.pending(nil) {
		wait, ok = time.Second, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tap.closed {
		return wait, ok
	}
	for _, recs := range d.held {
		if w := time.Until(d.readyAt(recs[0])); !ok || w < wait {
			wait, ok = w, true
		}
	}
	return max(wait, 0), ok
}

// ahead reports whether the clock that has stamped a record that is to wait is known to be wrong. When the record was
// first read is forgotten with this process, so it goes to the end of its lane, with a stamp of now.
func (d *Delayer) fromFuture(rec waitingRecord) bool {
	return d.delays[rec.Topic] > 0 && rec.Timestamp.After(rec.readAt.Add(maxClockSkew)) && checkSize(rec.Record) == nil
}

// ready is when a record may leave its place in its lane. The clock that has stamped the record may be wrong: it stays
// no longer than for the lane's delay from when it was read.
func (d *Delayer) readyAt(rec waitingRecord) time.Time {
	if d.fromFuture(rec) {
		return rec.readAt
	}
	stamp := rec.Timestamp
	if stamp.After(rec.readAt) {
		stamp = rec.readAt
	}
	at := stamp.Add(d.delays[rec.Topic])
	if due := readTrail(rec.Headers).due; due.After(at) && due.Sub(at) <= delayerSlack {
		return due
	}
	return at
}

// move moves all records that may go on: none while the role is paused. Brokers that refuse them may take
// a minute, in which others want to see what is held: it is published without the lock. Nobody else
// changes what is held meanwhile, since the poll is: no rebalance happens.
func (d *Delayer) move(ctx context.Context, cl *kgo.Client) error {
	if d.tap.controls.Role(schemas.RoleDelayer) {
		return nil
	}
	out := d.dueBatch(time.Now())
	if err := out.publish(ctx, cl); err != nil {
		if isRetriable(err) {
			d.setRefused(out)
			d.refusal.note(d.router, d.metrics, err)
			return nil
		}
		d.metrics.countPublishFailures(1)
		return err
	}
	d.setRefused(nil)
	d.refusal.end(d.metrics)
	d.countMoved(out.recs)
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, n := range out.done {
		d.addInFlight(-1, d.held[at][:n])
		last := d.held[at][n-1]
		d.commits.done(at, kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1})
		if d.held[at] = d.held[at][n:]; len(d.held[at]) == 0 {
			delete(d.held, at)
			cl.ResumeFetchPartitions(at.one())
		}
	}
	return nil
}

// refuse notes what is to be published again, for as long as none of it is of a partition that is no longer ours.
func (d *Delayer) setRefused(out *outputBatch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = out
}

// movable returns where the records go that may go on now: first those that the brokers have not taken.
func (d *Delayer) dueBatch(now time.Time) *outputBatch {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused != nil {
		return d.refused
	}
	var out []*kgo.Record
	moved := map[partition]int{}
	for at, recs := range d.held {
		for _, rec := range recs {
			if d.readyAt(rec).After(now) {
				break
			}
			moved[at]++
			if rec.Attrs.IsControl() { // it stays in the lane
				continue
			}
			to := d.destination(rec.Record, now)
			if d.fromFuture(rec) {
				to = resetRecord(rec.Record)
			}
			out = append(out, to)
		}
	}
	return newOutputBatch(out, moved)
}

// next returns where rec goes from its lane.
func (d *Delayer) destination(rec *kgo.Record, now time.Time) *kgo.Record {
	t := readTrail(rec.Headers)
	role := t.role
	if role == "" {
		role, _ = returnsTo(t.topic)
	}
	again, err := schemas.AgainOf(role, t.topic), checkSize(rec)
	if _, ok := schemas.Lookup(again); !ok {
		err = retry.Permanent(errors.New("its headers name no role that it could come back to"))
	}
	if err != nil { // nobody of ours wrote it
		if t.topic == "" {
			t.topic, t.partition, t.offset = d.router.cfg.schemaTopic(rec.Topic), rec.Partition, rec.Offset
		}
		return d.router.after(&letter{rec: rec, past: &t}, err, now)
	}
	to := d.router.cfg.topic(again)
	if left := t.due.Sub(now); left > 0 {
		to = d.router.cfg.topic(schemas.Delay(pick(d.router.lanes, left).Name))
	}
	return &kgo.Record{Topic: to, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
}

// drop forgets partitions that are no longer ours. No poll is held while it runs.
func (d *Delayer) drop(cl *kgo.Client, parts map[string][]int32) {
	each(parts, func(at partition) {
		d.commits.forget(at)
		d.reader.forget(at)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.addInFlight(-1, d.held[at])
		delete(d.held, at)
		d.refused = nil
		cl.ResumeFetchPartitions(at.one()) // a pause would outlive the assignment
	})
}

// flying adds records to what is in flight, or with -1 takes them out.
func (d *Delayer) addInFlight(sign int, recs []waitingRecord) {
	var bytes int64
	for _, rec := range recs {
		bytes += weigh(rec.Record)
	}
	d.metrics.addInFlight(sign*len(recs), int64(sign)*bytes)
}

// counted says what became of records that were moved.
func (d *Delayer) countMoved(out []*kgo.Record) {
	var n [dispositions]int
	for _, rec := range out {
		if d.router.cfg.schemaTopic(rec.Topic) == schemas.Dead {
			n[dispositionDead]++
		} else {
			n[dispositionDone]++
		}
	}
	d.metrics.countHandled(dispositionDone, n[dispositionDone], -1)
	d.metrics.countHandled(dispositionDead, n[dispositionDead], -1)
}

// oldest counts from when a record might have gone on.
func (d *Delayer) oldest() (o oldest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, recs := range d.held {
		if t := d.readyAt(recs[0]); t.Before(now) && (o.message.IsZero() || t.Before(o.message)) {
			o.message = t
		}
	}
	return o
}
