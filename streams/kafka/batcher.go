package kafka

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A batcher stores the records of one partition of a BatchGroup, one batch at a time.
type batcher struct {
	partition
	g      *BatchGroup
	cl     *kgo.Client
	pacer  *tablePacer // shared with the other batchers of its table
	ctx    context.Context
	cancel context.CancelCauseFunc
	wake   chan struct{} // records were added, or a batch may start
	halt   chan struct{} // closed: start no batch and retry none
	done   chan struct{} // closed when run has returned

	mu         sync.Mutex       // guards the fields below
	records    []inflightRecord // read and not stored
	bytes      int64            // of records
	firstRead  time.Time        // when the oldest record outside the current batch was read; zero: there is none
	origin                      // of records
	flushNow   bool             // memory is full: store the records without waiting for more
	batchTaken bool             // a batch is being stored
	failing    bool             // the last attempt to store a batch failed
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

func newBatcher(g *BatchGroup, cl *kgo.Client, at partition, table *tablePacer) *batcher {
	ctx, cancel := context.WithCancelCause(g.ctx)
	return &batcher{
		partition: at, g: g, cl: cl, pacer: table, ctx: ctx, cancel: cancel,
		wake: make(chan struct{}, 1), halt: make(chan struct{}), done: make(chan struct{}),
	}
}

// recordBytes estimates the memory of a record. The headers are most of a dead letter.
func recordBytes(rec *kgo.Record) int64 {
	n := len(rec.Key) + len(rec.Value) + 512
	for _, h := range rec.Headers {
		n += len(h.Key) + len(h.Value) + headerOverhead
	}
	return int64(n)
}

// headerOverhead is the memory of a header beside its key and value.
const headerOverhead = 48

// isNewLog reports whether no record of the log inc has been read.
func (s *batcher) isNewLog(inc uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incarnation != inc
}

// add queues records of the log inc, which starts at start, and returns how many it took and their size.
// committed is the offset that the group had committed when it began to read, or 0. The partition is paused
// when two batches are queued, or as many bytes as the memory allows.
func (s *batcher) add(recs []*kgo.Record, inc uint32, start, committed int64) (n int, weight int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rewindTo != nil { // these records will be read again
		return 0, 0
	}
	if s.incarnation != inc {
		s.g.commits.drop(s.partition) // a commit of the old log, if any
		// A record below the committed offset means that the log was created again or truncated.
		s.origin = origin{inc, start, min(max(committed, start), recs[0].Offset)}
		if committed > 0 { // records that were handled and then removed also count as handled
			s.start = 0
		}
	}
	if s.firstRead.IsZero() {
		s.firstRead = time.Now()
	}
	for _, rec := range recs {
		s.records = append(s.records, inflightRecord{rec: rec, incarnation: inc})
		weight += recordBytes(rec)
	}
	s.bytes += weight
	if len(s.records) >= 2*s.g.cfg.MaxRows || s.bytes >= s.byteLimit() {
		s.pause()
	}
	s.signal()
	return len(recs), weight
}

// byteLimit is the number of bytes at which the partition is paused. One poll may exceed it.
func (s *batcher) byteLimit() int64 { return min(2*int64(s.g.cfg.MaxBytes), s.g.cfg.Memory) }

// pause stops reading the partition. The caller holds s.mu.
func (s *batcher) pause() {
	if !s.paused {
		s.paused = true
		s.cl.PauseFetchPartitions(s.asMap())
	}
}

// signal makes run look again.
func (s *batcher) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flush stores the queued records without waiting for more.
func (s *batcher) flush() {
	s.mu.Lock()
	s.flushNow = !s.batchTaken && len(s.records) > 0
	s.mu.Unlock()
	s.signal()
}

// queuedBytes returns the size of the queued records, and whether a batch is being stored or about to be. For
// a batch that failed both are zero.
func (s *batcher) queuedBytes() (bytes int64, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing {
		return 0, false
	}
	return s.bytes, s.flushNow || s.batchTaken
}

// nextBatch returns a copy of the records of the next batch if it may be stored now. Otherwise it returns how
// long to wait; 0 means until signal.
func (s *batcher) nextBatch() (batch []inflightRecord, bytes int64, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) == 0 {
		return nil, 0, 0
	}
	n := 0
	for n < len(s.records) && n < s.g.cfg.MaxRows && bytes < int64(s.g.cfg.MaxBytes) {
		bytes += recordBytes(s.records[n].rec)
		n++
	}
	left, ripe := s.g.cfg.MaxAge-time.Since(s.firstRead), young
	switch {
	case s.flushNow, n < len(s.records), n == s.g.cfg.MaxRows, bytes >= int64(s.g.cfg.MaxBytes):
		ripe = complete
	case left <= 0:
		ripe = aged
	}
	switch ok, wait := s.pacer.begin(s, n, s.firstRead, ripe); {
	case ok:
	case ripe == young && (wait == 0 || left < wait):
		return nil, 0, left
	default:
		return nil, 0, wait
	}
	s.flushNow, s.batchTaken = false, true
	if n == len(s.records) {
		s.firstRead = time.Time{}
	}
	return slices.Clone(s.records[:n]), bytes, 0
}

// complete removes a stored batch from the queue and stages its commit.
func (s *batcher) complete(batch []inflightRecord, bytes int64) {
	end := batch[len(batch)-1]
	last := end.rec
	s.mu.Lock()
	if s.discarded { // the partition was revoked while Store ran: its owner commits
		s.mu.Unlock()
		return
	}
	at := position{EpochOffset: kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1}, origin: s.origin}
	if end.incarnation == at.incarnation { // otherwise the log was created again, and the commit would not apply to it
		s.g.commits.set(s.partition, at)
	}
	clear(s.records[:len(batch)]) // for the garbage collector
	if s.records = s.records[len(batch):]; len(s.records) == 0 {
		s.records = nil // frees the array
	}
	s.bytes, s.batchTaken, s.failing = s.bytes-bytes, false, false
	back := s.rewindTo != nil
	resume := !back && s.paused && len(s.records) < s.g.cfg.MaxRows && s.bytes < s.byteLimit()/2
	s.paused = s.paused && !resume
	s.mu.Unlock()
	s.g.metrics.settled(batch)
	s.g.metrics.inFlight(-len(batch), -bytes)
	if resume {
		s.cl.ResumeFetchPartitions(s.asMap())
	}
	s.g.memory.add(-bytes)
	if s.g.isAwaited(s.partition) {
		s.g.uncommitted.Add(int64(len(batch)))
	}
	s.g.signalCommit()
	if back {
		s.g.requestRewind()
	}
}

// discard drops the queued records, and the result of a call of Store that still runs.
func (s *batcher) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discarded = true
	s.g.memory.add(-s.bytes)
	s.g.metrics.inFlight(-len(s.records), -s.bytes)
	s.records, s.bytes = nil, 0
}

// stop makes run return after the current call of Store.
func (s *batcher) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.halted {
		s.halted = true
		close(s.halt)
	}
}

// run stores batches until it is stopped.
func (s *batcher) run() {
	var refusal refusal // of dead letters
	defer s.end()
	defer refusal.clear(s.g.metrics)
	for tries := 0; ; {
		batch, bytes, wait := s.nextBatch()
		if batch == nil {
			if !s.sleep(wait) {
				return
			}
			continue
		}
		if !s.waitUnpaused() || !s.acquireSlot() {
			s.pacer.end()
			return
		}
		dead, err := s.storeBatch(batch)
		<-s.g.storeSlots
		s.pacer.end()
		if err != nil {
			tries++
			if !s.backOff(batch, tries, err) {
				return // the batch is delivered again
			}
			continue
		}
		left, err := publish(s.ctx, s.cl, dead)
		for ; passes(err) && !s.stopping(); left, err = publish(s.ctx, s.cl, left) {
			refusal.record(s.g.router, s.g.metrics, err)
			if s.keepProbe() < len(batch) {
				break // the records that were kept are stored again, and then their dead letters are published again
			}
		}
		switch {
		case err == nil:
			tries = 0
			refusal.clear(s.g.metrics)
			s.complete(batch, bytes)
		case passes(err) && !s.stopping():
			tries++
			if !s.backOff(batch, tries, err) {
				return
			}
		default:
			s.g.metrics.unpublished(1)
			if !s.stopping() {
				s.g.fail(err)
			}
			return
		}
	}
}

// stopping reports whether stop was called.
func (s *batcher) stopping() bool {
	select {
	case <-s.halt:
		return true
	default:
		return false
	}
}

// end marks run as returned.
func (s *batcher) end() {
	s.pacer.remove(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended = true; s.stuck {
		s.g.metrics.ignoring(-1)
	}
	close(s.done)
}

// markStuck records that run did not stop in time. It reports false if run has returned meanwhile.
func (s *batcher) markStuck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.stuck = true
	s.g.metrics.ignoring(1)
	return true
}

// waitUnpaused waits until the role is not paused. It reports false when the batcher is stopped.
func (s *batcher) waitUnpaused() bool { return s.g.pauser.controls.waitResumed(s.g.cfg.Role, s.halt) }

// sleep waits for a signal, and for at most d if d is not 0. It reports false when the batcher is stopped.
func (s *batcher) sleep(d time.Duration) bool {
	var due <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-s.halt:
		return false
	case <-s.wake:
	case <-due:
	}
	return true
}

// storeBatch stores records, and returns the dead letters of those that cannot be stored.
func (s *batcher) storeBatch(records []inflightRecord) (dead []*kgo.Record, err error) {
	ds, from := newDeliveries(len(records)), make([]*inflightRecord, 0, len(records))
	for i := range records {
		l := &records[i]
		if s.g.router.ignores(l.rec) {
			continue
		}
		if err := ds.decode(s.g.router, l); err != nil {
			dead = append(dead, s.g.router.outcome(l, nil, err)...)
			continue
		}
		from = append(from, l)
	}
	end := s.g.router.spans(s.ctx, from)
	bad, err := s.storeSplit(from, ds.all)
	end(err)
	return append(dead, bad...), err
}

// storeSplit stores records. After a permanent error it stores each half separately, so that only the records
// that cause the error become dead letters. ds are the decoded records, or nil. Nothing keeps a reference to
// what Store gets, so that the memory is free once the sink has converted it.
func (s *batcher) storeSplit(from []*inflightRecord, ds []*schemas.Delivery) (dead []*kgo.Record, err error) {
	if len(from) == 0 {
		return nil, nil
	}
	if ds == nil {
		if ds, err = s.decodeAgain(from); err != nil {
			return nil, err
		}
	}
	err = s.callSink(ds)
	switch {
	case err == nil || !retry.IsPermanent(err) || s.ctx.Err() != nil:
		return nil, err
	case len(from) == 1:
		return s.g.router.outcome(from[0], nil, err), nil
	}
	half := len(from) / 2
	a, err := s.storeSplit(from[:half], nil)
	if err != nil {
		return nil, err
	}
	b, err := s.storeSplit(from[half:], nil)
	return append(a, b...), err
}

// decodeAgain decodes records that were decoded before.
func (s *batcher) decodeAgain(from []*inflightRecord) ([]*schemas.Delivery, error) {
	ds := newDeliveries(len(from))
	for _, l := range from {
		if err := ds.decode(s.g.router, l); err != nil {
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

// decode appends the delivery of l.
func (ds *deliveries) decode(r *router, l *inflightRecord) error {
	d := &ds.backing[len(ds.all)]
	if err := r.decode(l, d, schemas.DecodeShared); err != nil {
		return err
	}
	ds.all = append(ds.all, d)
	return nil
}

// acquireSlot waits for one of the store slots. Decoding takes most of the memory, so no batch is decoded
// without a slot. It reports false when the batcher is stopped.
func (s *batcher) acquireSlot() bool {
	select {
	case <-s.halt:
		return false
	case s.g.storeSlots <- struct{}{}:
		return true
	}
}

func (s *batcher) callSink(ds []*schemas.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = retry.Permanent(fmt.Errorf("sink panicked: %v\n%s", v, debug.Stack()))
		}
	}()
	s.setStoreBegan(time.Now())
	s.g.metrics.working(1)
	defer func(began time.Time) {
		s.g.metrics.called(time.Since(began))
		s.g.metrics.working(-1)
		s.setStoreBegan(time.Time{})
	}(time.Now())
	return s.g.sink.Store(s.ctx, ds)
}

// setStoreBegan records when the current call of Store began.
func (s *batcher) setStoreBegan(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeBegan = t
}
