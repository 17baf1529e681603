package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

// A batcher stores the records of one partition of a BatchGroup, one batch at a time.
type batcher struct {
	core.Partition
	topic  *core.Topic
	g      *BatchGroup
	cl     *kgo.Client
	pacer  *tablePacer // shared with the other batchers of its table
	ctx    context.Context
	cancel context.CancelCauseFunc
	wake   chan struct{} // records were added, or a batch may start
	halt   chan struct{} // closed: start no batch and retry none
	done   chan struct{} // closed when run has returned

	mu         sync.Mutex    // guards the fields below
	records    []core.Record // read and not stored
	bytes      int64         // of records
	firstRead  time.Time     // when the oldest record outside the current batch was read; zero: there is none
	origin                   // of records
	flushNow   bool          // memory is full: store the records without waiting for more
	batchTaken bool          // a batch is being stored
	failing    bool          // the last attempt to store a batch failed
	paused     bool
	rewindTo   *kgo.EpochOffset // offset to read again from, because records were dropped; nil: none were
	halted     bool             // halt is closed
	storeBegan time.Time        // start of the current call of Store; zero: there is none
	ended      bool             // run has returned
	stuck      bool             // it did not stop in time; counted in the metrics until run returns
	// discarded: the partition no longer belongs to this batcher.
	discarded bool
}

// An origin identifies the log that records were read from, and where reading began.
type origin struct {
	incarnation uint32
	// start is where the log starts, or 0 if the group had a commit; from is where reading began.
	start, from int64
}

func newBatcher(g *BatchGroup, cl *kgo.Client, at core.Partition, table *tablePacer) *batcher {
	ctx, cancel := context.WithCancelCause(g.ctx)
	return &batcher{
		Partition: at, topic: core.NewTopic(g.router.Config, at.Topic), g: g, cl: cl, pacer: table, ctx: ctx, cancel: cancel,
		wake: make(chan struct{}, 1), halt: make(chan struct{}), done: make(chan struct{}),
	}
}

// isNewLog reports whether no record of the log inc has been read.
func (b *batcher) isNewLog(inc uint32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.incarnation != inc
}

// add queues records of the log inc, which starts at start, and returns how many it took and their size.
// committed is the offset that the group had committed when it began to read, or 0. The partition is paused
// when two batches are queued, or as many bytes as the memory allows.
func (b *batcher) add(recs []*kgo.Record, inc uint32, start, committed int64) (n int, weight int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rewindTo != nil { // these records will be read again
		return 0, 0
	}
	if b.incarnation != inc {
		b.g.commits.drop(b.Partition) // a commit of the old log, if any
		// A record below the committed offset means that the log was created again or truncated.
		b.origin = origin{inc, start, min(max(committed, start), recs[0].Offset)}
		if committed > 0 { // records that were handled and then removed also count as handled
			b.start = 0
		}
	}
	if b.firstRead.IsZero() {
		b.firstRead = time.Now()
	}
	for _, rec := range recs {
		b.records = append(b.records, core.Record{Raw: rec, Topic: b.topic, Incarnation: inc})
		weight += core.RecordBytes(rec)
	}
	b.bytes += weight
	if len(b.records) >= 2*b.g.cfg.MaxRows || b.bytes >= b.byteLimit() {
		b.pause()
	}
	b.signal()
	return len(recs), weight
}

// byteLimit is the number of bytes at which the partition is paused. One poll may exceed it.
func (b *batcher) byteLimit() int64 { return min(2*int64(b.g.cfg.MaxBytes), b.g.cfg.Memory) }

// pause stops reading the partition. The caller holds b.mu.
func (b *batcher) pause() {
	if !b.paused {
		b.paused = true
		b.cl.PauseFetchPartitions(b.AsMap())
	}
}

// signal makes run look again.
func (b *batcher) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// flush stores the queued records without waiting for more.
func (b *batcher) flush() {
	b.mu.Lock()
	b.flushNow = !b.batchTaken && len(b.records) > 0
	b.mu.Unlock()
	b.signal()
}

// queuedBytes returns the size of the queued records, and whether a batch is being stored or about to be. For
// a batch that failed both are zero.
func (b *batcher) queuedBytes() (bytes int64, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing {
		return 0, false
	}
	return b.bytes, b.flushNow || b.batchTaken
}

// nextBatch returns a copy of the records of the next batch if it may be stored now. Otherwise it returns how
// long to wait; 0 means until signal.
func (b *batcher) nextBatch() (batch []core.Record, bytes int64, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.records) == 0 {
		return nil, 0, 0
	}
	n := 0
	for n < len(b.records) && n < b.g.cfg.MaxRows && bytes < int64(b.g.cfg.MaxBytes) {
		bytes += core.RecordBytes(b.records[n].Raw)
		n++
	}
	left, ready := b.g.cfg.MaxAge-time.Since(b.firstRead), young
	switch {
	case b.flushNow, n < len(b.records), n == b.g.cfg.MaxRows, bytes >= int64(b.g.cfg.MaxBytes):
		ready = complete
	case left <= 0:
		ready = aged
	}
	switch ok, wait := b.pacer.begin(b, n, b.firstRead, ready); {
	case ok:
	case ready == young && (wait == 0 || left < wait):
		return nil, 0, left
	default:
		return nil, 0, wait
	}
	b.flushNow, b.batchTaken = false, true
	if n == len(b.records) {
		b.firstRead = time.Time{}
	}
	return slices.Clone(b.records[:n]), bytes, 0
}

// complete removes a stored batch from the queue and stages its commit.
func (b *batcher) complete(batch []core.Record, bytes int64) {
	end := batch[len(batch)-1]
	last := end.Raw
	b.mu.Lock()
	if b.discarded { // do not commit: the partition was revoked while Store ran
		b.mu.Unlock()
		return
	}
	at := position{EpochOffset: kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1}, origin: b.origin}
	if end.Incarnation == at.incarnation { // otherwise the log was created again, and the commit would not apply to it
		b.g.commits.set(b.Partition, at)
	}
	clear(b.records[:len(batch)]) // for the garbage collector
	if b.records = b.records[len(batch):]; len(b.records) == 0 {
		b.records = nil // frees the array
	}
	b.bytes, b.batchTaken, b.failing = b.bytes-bytes, false, false
	back := b.rewindTo != nil
	resume := !back && b.paused && len(b.records) < b.g.cfg.MaxRows && b.bytes < b.byteLimit()/2
	b.paused = b.paused && !resume
	b.mu.Unlock()
	countSettled(b.g.metrics, batch)
	b.g.metrics.AddInFlight(-len(batch), -bytes)
	if resume {
		b.cl.ResumeFetchPartitions(b.AsMap())
	}
	b.g.memory.add(-bytes)
	if b.g.isAwaited(b.Partition) {
		b.g.uncommitted.Add(int64(len(batch)))
	}
	b.g.signalCommit()
	if back {
		b.g.requestRewind()
	}
}

// discard drops the queued records, and the result of a call of Store that still runs.
func (b *batcher) discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.discarded = true
	b.g.memory.add(-b.bytes)
	b.g.metrics.AddInFlight(-len(b.records), -b.bytes)
	b.records, b.bytes = nil, 0
}

// stop makes run return after the current call of Store.
func (b *batcher) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.halted {
		b.halted = true
		close(b.halt)
	}
}

// run stores batches until it is stopped.
func (b *batcher) run() {
	var refusal refusal // of dead letters
	defer b.end()
	defer refusal.clear(b.g.metrics)
	for tries := 0; ; {
		batch, bytes, wait := b.nextBatch()
		if batch == nil {
			if !b.sleep(wait) {
				return
			}
			continue
		}
		if !b.g.pauser.controls.WaitResumed(b.g.cfg.Role, b.halt) || !b.acquireSlot() {
			b.pacer.end()
			return
		}
		dead, err := b.storeBatch(batch)
		<-b.g.storeSlots
		b.pacer.end()
		if err != nil {
			tries++
			if !b.backOff(batch, tries, err) {
				return // the batch is delivered again
			}
			continue
		}
		left, err := core.Publish(b.ctx, b.cl, dead)
		for ; core.IsRetriable(err) && !b.stopping(); left, err = core.Publish(b.ctx, b.cl, left) {
			refusal.record(b.g.router, b.g.metrics, err)
			if b.keepProbe() < len(batch) {
				break // the records that were kept are stored again, and then their dead letters are published again
			}
		}
		switch {
		case err == nil:
			tries = 0
			refusal.clear(b.g.metrics)
			b.complete(batch, bytes)
		case core.IsRetriable(err) && !b.stopping():
			tries++
			if !b.backOff(batch, tries, err) {
				return
			}
		default:
			b.g.metrics.CountPublishFailures(1)
			if !b.stopping() {
				b.g.fail(err)
			}
			return
		}
	}
}

// stopping reports whether stop was called.
func (b *batcher) stopping() bool {
	select {
	case <-b.halt:
		return true
	default:
		return false
	}
}

// end marks run as returned.
func (b *batcher) end() {
	b.pacer.remove(b)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended = true; b.stuck {
		b.g.metrics.AddStuck(-1)
	}
	close(b.done)
}

// markStuck records that run did not stop in time. It reports false if run has returned meanwhile.
func (b *batcher) markStuck() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.stuck = true
	b.g.metrics.AddStuck(1)
	return true
}

// sleep waits for a signal, and for at most d if d is not 0. It reports false when the batcher is stopped.
func (b *batcher) sleep(d time.Duration) bool {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-b.halt:
		return false
	case <-b.wake:
	case <-due:
	}
	return true
}

// storeBatch stores records, and returns the dead letters of those that cannot be stored.
func (b *batcher) storeBatch(records []core.Record) (dead []*kgo.Record, err error) {
	ds, from := newDeliveries(len(records)), make([]*core.Record, 0, len(records))
	for i := range records {
		ir := &records[i]
		if ir.Ignored() {
			continue
		}
		if err := ds.decode(b.g.router, ir); err != nil {
			dead = append(dead, b.g.router.OutputsFor(ir, nil, err)...)
			continue
		}
		from = append(from, ir)
	}
	end := b.g.router.Spans(b.ctx, from)
	bad, err := b.storeSplit(from, ds.all)
	end(err)
	return append(dead, bad...), err
}

// storeSplit stores records. After a permanent error it stores each half separately, so that only the records
// that cause the error become dead letters. ds are the decoded records, or nil. Nothing keeps a reference to
// what Store gets, so that the memory is free once the sink has converted it.
func (b *batcher) storeSplit(from []*core.Record, ds []*schemas.Delivery) (dead []*kgo.Record, err error) {
	if len(from) == 0 {
		return nil, nil
	}
	if ds == nil {
		if ds, err = b.decodeAgain(from); err != nil {
			return nil, err
		}
	}
	err = b.callSink(ds)
	switch {
	case err == nil || !retry.IsPermanent(err) || b.ctx.Err() != nil:
		return nil, err
	case len(from) == 1:
		return b.g.router.OutputsFor(from[0], nil, err), nil
	}
	half := len(from) / 2
	first, err := b.storeSplit(from[:half], nil)
	if err != nil {
		return nil, err
	}
	second, err := b.storeSplit(from[half:], nil)
	return append(first, second...), err
}

// decodeAgain decodes records that were decoded before.
func (b *batcher) decodeAgain(from []*core.Record) ([]*schemas.Delivery, error) {
	ds := newDeliveries(len(from))
	for _, ir := range from {
		if err := ds.decode(b.g.router, ir); err != nil {
			return nil, err
		}
	}
	return ds.all, nil
}

// deliveries are the decoded records of a batch, in one allocation. Their bodies share memory with the
// records.
type deliveries struct {
	backing []schemas.Delivery
	all     []*schemas.Delivery
}

func newDeliveries(n int) deliveries {
	return deliveries{make([]schemas.Delivery, n), make([]*schemas.Delivery, 0, n)}
}

// decode appends the delivery of ir.
func (ds *deliveries) decode(r *core.Router, ir *core.Record) error {
	d := &ds.backing[len(ds.all)]
	if err := r.Decode(ir, d, schemas.DecodeShared); err != nil {
		return err
	}
	ds.all = append(ds.all, d)
	return nil
}

// acquireSlot waits for one of the store slots. Decoding takes most of the memory, so no batch is decoded
// without a slot. It reports false when the batcher is stopped.
func (b *batcher) acquireSlot() bool {
	select {
	case <-b.halt:
		return false
	case b.g.storeSlots <- struct{}{}:
		return true
	}
}

func (b *batcher) callSink(ds []*schemas.Delivery) (err error) {
	defer catchPanic(&err, "sink")
	b.setStoreBegan(time.Now())
	b.g.metrics.AddBusy(1)
	defer func(began time.Time) {
		b.g.metrics.ObserveCall(time.Since(began))
		b.g.metrics.AddBusy(-1)
		b.setStoreBegan(time.Time{})
	}(time.Now())
	return b.g.sink.Store(b.ctx, ds)
}

// setStoreBegan records when the current call of Store began.
func (b *batcher) setStoreBegan(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.storeBegan = t
}

// countSettled counts records by disposition. Their handler calls were observed already.
func countSettled(m *metrics.Role, records []core.Record) {
	var n [metrics.Dispositions]int
	for i := range records {
		n[records[i].Disposition]++
	}
	for f := range metrics.Dispositions {
		m.CountHandled(f, n[f], -1)
	}
}
