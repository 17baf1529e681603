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
	laneLook = 10 * time.Second
)

// A Delayer moves records out of the delay lanes: each when it has waited its lane's
// delay, to the again topic of its role if it is due, else to the next lane. A lane's
// records wait for the same time, so it only ever waits for the first of a partition,
// which is paused meanwhile.
type Delayer struct {
	opts   []kgo.Opt
	router *router
	delays map[string]time.Duration // by topic
	tap    pauser

	metrics *roleMetrics
	commits *commits
	reader  *pollChecker
	refusal refusal    // of what was last to be moved; only Run uses it
	mu      sync.Mutex // guards the rest
	held    map[partition][]stay
	refused *outgoing // of what is held; nil: there is none
}

// A stay is a record that waits in its lane.
type stay struct {
	*kgo.Record
	seen time.Time // when it was read
}

// NewDelayer returns a Delayer for cfg's lanes.
func NewDelayer(cfg Config) (*Delayer, error) {
	d := &Delayer{router: newRouter(cfg, schemas.RoleDelayer, 0), delays: map[string]time.Duration{}, held: map[partition][]stay{},
		commits: newCommits(cfg.Deleted), tap: pauser{controls: cfg.Controls, role: schemas.RoleDelayer}}
	for _, l := range cfg.lanes() {
		d.delays[cfg.topic(schemas.Delay(l.Name))] = l.Delay
	}
	// Lanes that the settings no longer name are read too: what waits there goes on at once,
	// into a lane that is left if it is not due.
	topics := []string{"^" + regexp.QuoteMeta(cfg.topic(schemas.Delay(""))) + ".+$"}
	d.metrics = cfg.Metrics.role(schemas.RoleDelayer, schemas.High)
	d.commits.metrics = d.metrics
	d.reader = newPollChecker(d.router, d.commits)
	d.reader.byPattern = true
	d.metrics.look(d.oldest)
	moved := func(k move) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
			defer d.metrics.rebalanced(k, parts, time.Now())
			if k != moveAssigned {
				d.drop(cl, parts)
			}
		}
	}
	var err error
	d.opts, err = cfg.options(string(schemas.RoleDelayer), append(
		append(cfg.consume(member{role: schemas.RoleDelayer, topics: topics}), cfg.produce(runtimeLimit, runtimeLinger)...),
		kgo.ConsumeRegex(), kgo.MetadataMaxAge(laneLook),
		kgo.FetchMaxPartitionBytes(256<<10), // a poll's worth of a partition is held while it waits
		kgo.OnPartitionsAssigned(moved(moveAssigned)), kgo.OnPartitionsRevoked(moved(moveRevoked)), kgo.OnPartitionsLost(moved(moveLost)))...)
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
		err := d.turn(ctx, cl)
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
func (d *Delayer) turn(ctx context.Context, cl *kgo.Client) error {
	d.tap.update(cl)
	pctx, cancel := ctx, context.CancelFunc(func() {})
	if wait, ok := d.wait(); ok {
		pctx, cancel = context.WithTimeout(ctx, wait)
	}
	fetches := d.tap.poll(pctx, cl, delayerPoll)
	cancel()
	if err := d.reader.check(ctx, cl, fetches); err != nil {
		return d.router.below(ctx, cl, err)
	}
	d.mu.Lock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if at := (partition{p.Topic, p.Partition}); len(p.Records) > 0 {
			now := time.Now()
			recs := make([]stay, len(p.Records))
			for i, rec := range p.Records {
				recs[i] = stay{rec, now}
			}
			d.held[at] = append(d.held[at], recs...)
			d.flying(1, recs)
			cl.PauseFetchPartitions(at.asMap())
		}
	})
	d.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel = withStopGrace(ctx) // what is moved but not committed is moved again
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
	if d.tap.paused {
		return wait, ok
	}
	for _, recs := range d.held {
		if w := time.Until(d.ready(recs[0])); !ok || w < wait {
			wait, ok = w, true
		}
	}
	return max(wait, 0), ok
}

// ahead reports whether the clock that has stamped a record that is to wait is known to be wrong. When the record was
// first read is forgotten with this process, so it goes to the end of its lane, with a stamp of now.
func (d *Delayer) ahead(rec stay) bool {
	return d.delays[rec.Topic] > 0 && rec.Timestamp.After(rec.seen.Add(futureSlack)) && fits(rec.Record) == nil
}

// ready is when a record may leave its place in its lane. The clock that has stamped the record may be wrong: it stays
// no longer than for the lane's delay from when it was read.
func (d *Delayer) ready(rec stay) time.Time {
	if d.ahead(rec) {
		return rec.seen
	}
	stamp := rec.Timestamp
	if stamp.After(rec.seen) {
		stamp = rec.seen
	}
	at := stamp.Add(d.delays[rec.Topic])
	if due := parseRetryHeaders(rec.Headers).due; due.After(at) && due.Sub(at) <= delayerSlack {
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
	out := d.movable(time.Now())
	if err := out.publish(ctx, cl); err != nil {
		if passes(err) {
			d.refuse(out)
			d.refusal.record(d.router, d.metrics, err)
			return nil
		}
		d.metrics.unpublished(1)
		return err
	}
	d.refuse(nil)
	d.refusal.clear(d.metrics)
	d.counted(out.recs)
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, n := range out.done {
		d.flying(-1, d.held[at][:n])
		last := d.held[at][n-1]
		d.commits.done(at, kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1})
		if d.held[at] = d.held[at][n:]; len(d.held[at]) == 0 {
			delete(d.held, at)
			cl.ResumeFetchPartitions(at.asMap())
		}
	}
	return nil
}

// refuse notes what is to be published again, for as long as none of it is of a partition that is no longer ours.
func (d *Delayer) refuse(out *outgoing) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = out
}

// movable returns where the records go that may go on now: first those that the brokers have not taken.
func (d *Delayer) movable(now time.Time) *outgoing {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused != nil {
		return d.refused
	}
	var out []*kgo.Record
	moved := map[partition]int{}
	for at, recs := range d.held {
		for _, rec := range recs {
			if d.ready(rec).After(now) {
				break
			}
			moved[at]++
			if rec.Attrs.IsControl() { // it stays in the lane
				continue
			}
			to := d.next(rec.Record, now)
			if d.ahead(rec) {
				to = anew(rec.Record)
			}
			out = append(out, to)
		}
	}
	return newOutgoing(out, moved)
}

// next returns where rec goes from its lane.
func (d *Delayer) next(rec *kgo.Record, now time.Time) *kgo.Record {
	h := parseRetryHeaders(rec.Headers)
	role := h.role
	if role == "" {
		role, _ = retryRole(h.topic)
	}
	again, err := schemas.AgainOf(role, h.topic), fits(rec)
	if _, ok := schemas.Lookup(again); !ok {
		err = retry.Permanent(errors.New("its headers name no role that it could come back to"))
	}
	if err != nil { // nobody of ours wrote it
		if h.topic == "" {
			h.topic, h.partition, h.offset = d.router.cfg.bare(rec.Topic), rec.Partition, rec.Offset
		}
		return d.router.failureRecord(&inflightRecord{rec: rec, retryHeaders: &h}, err, now)
	}
	to := d.router.cfg.topic(again)
	if left := h.due.Sub(now); left > 0 {
		to = d.router.cfg.topic(schemas.Delay(laneFor(d.router.lanes, left).Name))
	}
	return &kgo.Record{Topic: to, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
}

// drop forgets partitions that are no longer ours. No poll is held while it runs.
func (d *Delayer) drop(cl *kgo.Client, parts map[string][]int32) {
	eachPartition(parts, func(at partition) {
		d.commits.forget(at)
		d.reader.forget(at)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.flying(-1, d.held[at])
		delete(d.held, at)
		d.refused = nil
		cl.ResumeFetchPartitions(at.asMap()) // a pause would outlive the assignment
	})
}

// flying adds records to what is in flight, or with -1 takes them out.
func (d *Delayer) flying(sign int, recs []stay) {
	var bytes int64
	for _, rec := range recs {
		bytes += recordBytes(rec.Record)
	}
	d.metrics.inFlight(sign*len(recs), int64(sign)*bytes)
}

// counted says what became of records that were moved.
func (d *Delayer) counted(out []*kgo.Record) {
	var n [fates]int
	for _, rec := range out {
		if d.router.cfg.bare(rec.Topic) == schemas.Dead {
			n[fateDead]++
		} else {
			n[fateDone]++
		}
	}
	d.metrics.handled(fateDone, n[fateDone], -1)
	d.metrics.handled(fateDead, n[fateDead], -1)
}

// oldest counts from when a record might have gone on.
func (d *Delayer) oldest() (o oldest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for _, recs := range d.held {
		if t := d.ready(recs[0]); t.Before(now) && (o.message.IsZero() || t.Before(o.message)) {
			o.message = t
		}
	}
	return o
}
