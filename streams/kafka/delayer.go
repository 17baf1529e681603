package kafka

import (
	"context"
	"errors"
	"fmt"
	"regexp"
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

const (
	delayerPoll = 1000
	// delayerSlack is the longest time that a record stays in its lane beyond the lane's delay, instead of going to
	// another lane, and the shortest time that one stays in a lane that is not due. Clocks of machines differ by about
	// that much.
	delayerSlack = time.Second
	// moveTimeout is how long the brokers may refuse a record until it goes to a lane. All other records that are
	// ready wait meanwhile.
	moveTimeout = 5 * time.Second
	// laneDiscoveryInterval is the maximum time until the client sees a new lane. It subscribes by pattern, and
	// learns of new topics only when it refreshes its metadata.
	laneDiscoveryInterval = 10 * time.Second
)

// A Delayer moves records out of the delay lanes. After the lane's delay a record goes to the again topic of its
// role if it is due, and otherwise to the next lane. All records of a lane have the same delay, so the Delayer
// waits for the first record of each partition, and pauses the partition meanwhile.
type Delayer struct {
	opts   []kgo.Opt
	router *core.Router
	delays map[string]time.Duration // by topic name
	tap    pauser

	metrics *metrics.Role
	commits *commits
	clock   *client.Clock
	moves   atomic.Bool // a record was moved
	reader  *pollChecker
	refusal refusal                // of the last move; used by Run only
	refused []*kgo.Record          // of the last move, not in a lane yet; used in a held poll, and in a rebalance
	moved   map[core.Partition]int // held records that are done when refused is empty
	mu      sync.Mutex             // guards the rest
	held    map[core.Partition][]waitingRecord
}

// A waitingRecord is a record that waits in its lane.
type waitingRecord struct {
	*kgo.Record
	readAt time.Time // when this process read it
}

// NewDelayer returns a Delayer of the lanes in cfg.
func NewDelayer(cfg client.Config) (*Delayer, error) {
	d := &Delayer{
		router: core.NewRouter(cfg, schemas.RoleDelayer, 0), delays: map[string]time.Duration{},
		held:    map[core.Partition][]waitingRecord{},
		clock:   cfg.Clock,
		commits: newCommits(cfg.Deleted), tap: pauser{controls: cfg.Controls, role: schemas.RoleDelayer},
	}
	for _, l := range cfg.DelayLanes() {
		d.delays[cfg.Topic(schemas.Delay(l.Name))] = l.Delay
	}
	// Lanes that are no longer configured are read too. Their records move on at once if they are due, and else after
	// delayerSlack, to a configured lane.
	topics := []string{"^" + regexp.QuoteMeta(cfg.Topic(schemas.Delay(""))) + ".+$"}
	d.metrics = cfg.Metrics.Role(schemas.RoleDelayer, schemas.High)
	d.commits.metrics = d.metrics
	d.reader = newPollChecker(d.router, d.commits)
	d.reader.byPattern = true
	d.metrics.AddOldest(d.oldest)
	moved := func(k metrics.RebalanceKind) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, cl *kgo.Client, parts map[string][]int32) {
			defer d.metrics.CountRebalance(k, parts, time.Now())
			if k != metrics.PartitionsAssigned {
				d.drop(cl, parts)
			}
		}
	}
	var err error
	d.opts, err = cfg.Options(string(schemas.RoleDelayer), append(
		append(consumeOptions(cfg, groupMember{role: schemas.RoleDelayer, topics: topics}),
			cfg.ProduceOptions(moveTimeout, outputLinger)...),
		kgo.ConsumeRegex(), kgo.MetadataMaxAge(laneDiscoveryInterval),
		kgo.FetchMaxPartitionBytes(256<<10), // bounds the records that are held per partition
		kgo.OnPartitionsAssigned(moved(metrics.PartitionsAssigned)),
		kgo.OnPartitionsRevoked(moved(metrics.PartitionsRevoked)),
		kgo.OnPartitionsLost(moved(metrics.PartitionsLost)))...)
	return d, err
}

// Run moves records until ctx is done, and then returns nil. It returns an error if it cannot continue. Records
// that were not committed are moved again after a restart.
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

// step polls until records arrive or a held record is ready, moves those that are ready, and commits.
func (d *Delayer) step(ctx context.Context, cl *kgo.Client) error {
	d.tap.update(cl)
	pctx, cancel := ctx, context.CancelFunc(func() {})
	if wait, ok := d.wait(); ok {
		pctx, cancel = context.WithTimeout(ctx, wait)
	}
	fetches := d.tap.poll(pctx, cl, delayerPoll)
	cancel()
	if err := d.reader.check(ctx, cl, fetches); err != nil {
		return outOfRangeDiagnosis{Router: d.router}.explain(ctx, cl, err)
	}
	d.mu.Lock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if at := (core.Partition{Topic: p.Topic, ID: p.Partition}); len(p.Records) > 0 {
			now := time.Now()
			recs := make([]waitingRecord, len(p.Records))
			for i, rec := range p.Records {
				recs[i] = waitingRecord{rec, now}
			}
			d.held[at] = append(d.held[at], recs...)
			d.addInFlight(1, recs)
			cl.PauseFetchPartitions(at.AsMap())
		}
	})
	d.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel = core.WithStopGrace(ctx) // finish the move and the commit when ctx ends
	defer cancel()
	if err := d.move(ctx, cl); err != nil {
		return err
	}
	err := d.commits.send(ctx, cl)
	if err == nil || commitFatal(err) {
		return err
	}
	d.router.Log.Warn("retry commit", "err", err)
	return nil
}

// wait returns the time until the next held record is ready or a pending commit has to be tried. ok is false if
// there is neither, or if only records are held and the role is paused.
func (d *Delayer) wait() (wait time.Duration, ok bool) {
	if d.commits.pending(nil) {
		wait, ok = time.Second, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tap.paused {
		return wait, ok
	}
	now := d.clock.Now()
	for _, recs := range d.held {
		if w := d.readyAt(recs[0]).Sub(now); !ok || w < wait {
			wait, ok = w, true
		}
	}
	return max(wait, 0), ok
}

// readyAt returns Kafka's time when a record may leave its lane. The clock of the broker that has dated it may differ
// from that of others. If it is ahead, the record stays no longer than the lane's delay from when it was read. If it is
// behind, the record stays for delayerSlack if it is not due: otherwise it would go from lane to lane without end.
func (d *Delayer) readyAt(rec waitingRecord) time.Time {
	stamp, read := rec.Timestamp, d.clock.At(rec.readAt)
	if d.isFirst() {
		return read
	}
	if stamp.After(read) {
		stamp = read
	}
	at, due := stamp.Add(d.delays[rec.Topic]), core.ParseWaiting(rec.Record).Due
	if least := read.Add(delayerSlack); due.After(read) && at.Before(least) {
		at = least
	}
	if due.After(at) && due.Sub(at) <= delayerSlack {
		return due
	}
	return at
}

// move moves all records that are ready, unless the role is paused. Records that the brokers refuse go to the end of
// the shortest lane, so that others do not wait for them; while that lane refuses them too, nothing else is
// published. It publishes without the lock, since that takes time if brokers refuse, and held is read for metrics.
// held does not change meanwhile: the poll is held, so there is no rebalance.
func (d *Delayer) move(ctx context.Context, cl *kgo.Client) error {
	if d.tap.controls.Role(schemas.RoleDelayer) {
		return nil
	}
	var err error
	if len(d.refused) == 0 {
		var out []*kgo.Record
		out, d.moved = d.due(d.clock.Now())
		if d.refused, err = core.Publish(ctx, cl, out); core.IsRetriable(err) {
			d.refusal.record(d.router, d.metrics, err)
		} else if err != nil {
			d.metrics.CountPublishFailures(1)
			return err
		} else if len(out) > 0 {
			d.refusal.clear(d.metrics)
			if d.isFirst() {
				d.router.ReadClock(ctx, cl, out[0])
			}
			d.moves.Store(true)
			d.router.CompareClock(ctx, cl, out[len(out)-1])
		}
		d.countMoved(out, d.refused)
		for _, rec := range d.refused {
			if core.CheckSize(rec) == nil { // or no lane takes it
				rec.Topic = d.router.Config.Topic(schemas.Delay(d.router.Lanes[0].Name))
			}
		}
	}
	if d.refused, err = core.Publish(ctx, cl, d.refused); err != nil {
		if core.IsRetriable(err) {
			d.refusal.record(d.router, d.metrics, err)
			return nil
		}
		d.metrics.CountPublishFailures(1)
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, n := range d.moved {
		d.addInFlight(-1, d.held[at][:n])
		last := d.held[at][n-1]
		d.commits.done(at, kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1})
		if d.held[at] = d.held[at][n:]; len(d.held[at]) == 0 {
			delete(d.held, at)
			cl.ResumeFetchPartitions(at.AsMap())
		}
	}
	return nil
}

// due returns the records to publish for those that are ready, and how many of each partition are.
func (d *Delayer) due(now time.Time) (out []*kgo.Record, moved map[core.Partition]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	moved = map[core.Partition]int{}
	for at, recs := range d.held {
		for _, rec := range recs {
			if d.readyAt(rec).After(now) {
				break
			}
			moved[at]++
			if rec.Attrs.IsControl() { // not moved
				continue
			}
			if out = append(out, d.destination(rec.Record, now)); d.isFirst() {
				return out, moved
			}
		}
	}
	return out, moved
}

// isFirst reports whether the next record to move is the first one, and Kafka's clock is not set. That record goes to
// the shortest lane at once, and Kafka's time of it says whether the clock of the process is ahead.
func (d *Delayer) isFirst() bool { return !d.moves.Load() && !d.clock.IsSet() }

// destination returns the record to publish for rec, which leaves its lane.
func (d *Delayer) destination(rec *kgo.Record, now time.Time) *kgo.Record {
	h := core.ParseWaiting(rec)
	if h.Timestamp.IsZero() { // it was published into a lane
		h.Timestamp = rec.Timestamp
	}
	if h.Role == schemas.RoleDelayer && h.Class != "" { // a dead letter that was refused; if redriven, it has no class
		return &kgo.Record{Topic: d.router.Config.Topic(schemas.Dead), Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
	}
	role := h.Role
	if role == "" {
		role, _ = core.RetryRole(h.Topic)
	}
	again, err := schemas.AgainOf(role, h.Topic), core.CheckSize(rec)
	if _, ok := schemas.Lookup(again); !ok {
		err = retry.Permanent(errors.New("its headers name no role to return to"))
	}
	if err != nil { // not written by this system
		if h.Topic == "" {
			h.Topic, h.Partition, h.Offset = d.router.Config.SchemaTopic(rec.Topic), rec.Partition, rec.Offset
		}
		read := core.Record{Raw: rec, Topic: core.NewTopic(d.router.Config, rec.Topic), RetryHeaders: &h}
		return d.router.FailureRecord(&read, err, now)
	}
	to := d.router.Config.Topic(again)
	left := h.Due.Sub(now)
	if d.isFirst() || left > 0 && !d.clock.IsSure() { // the clock may be far behind
		left = 1
	}
	if left > 0 {
		to = d.router.Config.Topic(schemas.Delay(core.LaneFor(d.router.Lanes, left).Name))
	}
	return &kgo.Record{Topic: to, Key: rec.Key, Value: rec.Value, Headers: h.Apply(rec.Headers)}
}

// drop forgets revoked partitions. It runs in a rebalance, so no poll is held.
func (d *Delayer) drop(cl *kgo.Client, parts map[string][]int32) {
	core.EachPartition(parts, func(at core.Partition) {
		d.commits.forget(at)
		d.reader.forget(at)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.addInFlight(-1, d.held[at])
		delete(d.held, at)
		d.refused = nil
		cl.ResumeFetchPartitions(at.AsMap()) // the client keeps pauses across assignments
	})
}

// addInFlight adds records to those in flight (sign 1), or removes them (sign -1).
func (d *Delayer) addInFlight(sign int, recs []waitingRecord) {
	var bytes int64
	for _, rec := range recs {
		bytes += core.RecordBytes(rec.Record)
	}
	d.metrics.AddInFlight(sign*len(recs), int64(sign)*bytes)
}

// countMoved counts the records of out that are not in refused, by disposition.
func (d *Delayer) countMoved(out, refused []*kgo.Record) {
	letters := 0
	for i, rec := range slices.Concat(out, refused) {
		switch {
		case d.router.Config.SchemaTopic(rec.Topic) != schemas.Dead:
		case i < len(out):
			letters++
		default:
			letters--
		}
	}
	d.metrics.CountHandled(metrics.DispositionDone, len(out)-len(refused)-letters, -1)
	d.metrics.CountHandled(metrics.DispositionDead, letters, -1)
}

// oldest returns the earliest time at which a held record was ready.
func (d *Delayer) oldest() (o metrics.Oldest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, kafka := time.Now(), d.clock.Now()
	for _, recs := range d.held {
		if t := now.Add(d.readyAt(recs[0]).Sub(kafka)); t.Before(now) && (o.Message.IsZero() || t.Before(o.Message)) {
			o.Message = t
		}
	}
	return o
}
