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

// A stream stores one partition of a BatchGroup, one batch at a time.
type batcher struct {
	partition
	g      *BatchGroup
	cl     *kgo.Client
	pacer  *tablePacer // shared with the other streams of its table
	ctx    context.Context
	cancel context.CancelCauseFunc
	wake   chan struct{} // there are more letters
	halt   chan struct{} // closed: begin no batch, and try none again
	done   chan struct{} // closed when run has returned

	mu         sync.Mutex       // guards the rest
	records    []inflightRecord // read and not stored
	bytes      int64            // of them
	firstRead  time.Time        // when the first of them was read that is in no batch; zero: all are
	origin                      // of what was read
	flushNow   bool             // memory is full: what there is is a batch
	batchTaken bool             // a batch of them is at hand
	failing    bool             // and could not be stored so far
	paused     bool
	rewindTo   *kgo.EpochOffset // from where to read again what was let go of; nil: nothing was
	halted     bool             // halt is closed
	storeBegan time.Time        // since when Store is at it; zero: it is not
	ended      bool             // run has returned
	stuck      bool             // it was waited for in vain, and counts as such until it ends
	// discarded: the partition is no longer this stream's.
	discarded bool
}

// An origin says of which log records are, and from where on they were read.
type origin struct {
	incarnation uint32
	start, from int64 // where the log starts, or 0 if the group had committed something; and where reading began
}

func newBatcher(g *BatchGroup, cl *kgo.Client, at partition, table *tablePacer) *batcher {
	ctx, cancel := context.WithCancelCause(g.ctx)
	return &batcher{
		partition: at, g: g, cl: cl, pacer: table, ctx: ctx, cancel: cancel,
		wake: make(chan struct{}, 1), halt: make(chan struct{}), done: make(chan struct{}),
	}
}

// weigh is about what a record takes of memory: of a dead letter, the headers are most of it.
func recordBytes(rec *kgo.Record) int64 {
	n := len(rec.Key) + len(rec.Value) + 512
	for _, h := range rec.Headers {
		n += len(h.Key) + len(h.Value) + headerOverhead
	}
	return int64(n)
}

// headerBytes is what a header takes beside its key and value.
const headerOverhead = 48

// begins reports whether nothing of the log inc was read so far.
func (s *batcher) isNewLog(inc uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incarnation != inc
}

// add queues records of the log inc, which starts at start, and returns how many it took and what they weigh. The
// group had committed offset committed when it began to read; 0 is nothing. With two batches waiting, or all that
// memory is for, the partition is paused.
func (s *batcher) add(recs []*kgo.Record, inc uint32, start, committed int64) (n int, weight int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rewindTo != nil { // they are read again
		return 0, 0
	}
	if s.incarnation != inc {
		s.g.commits.drop(s.partition) // of the old log, if any
		// A record before what was committed is read if the log was made anew, or lost its end.
		s.origin = origin{inc, start, min(max(committed, start), recs[0].Offset)}
		if committed > 0 { // records that were handled and removed since count as well
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

// most is how many bytes may wait, a poll more or less.
func (s *batcher) byteLimit() int64 { return min(2*int64(s.g.cfg.MaxBytes), s.g.cfg.Memory) }

// pause has nothing more read of the partition. s.mu is held.
func (s *batcher) pause() {
	if !s.paused {
		s.paused = true
		s.cl.PauseFetchPartitions(s.asMap())
	}
}

// rouse has run look again.
func (s *batcher) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// hurry has what is there stored without waiting for more.
func (s *batcher) flush() {
	s.mu.Lock()
	s.flushNow = !s.batchTaken && len(s.records) > 0
	s.mu.Unlock()
	s.signal()
}

// waiting returns what waits for more, and whether a batch is being stored or is to be. What fails is neither.
func (s *batcher) queuedBytes() (bytes int64, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failing {
		return 0, false
	}
	return s.bytes, s.flushNow || s.batchTaken
}

// next returns the letters of the next batch, in an array of their own, if it may be stored now, else for how long to
// wait, 0 being for ever.
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

// settle takes a batch that is stored off the queue.
func (s *batcher) complete(batch []inflightRecord, bytes int64) {
	end := batch[len(batch)-1]
	last := end.rec
	s.mu.Lock()
	if s.discarded { // the partition went while Store was at it: it is not ours to commit
		s.mu.Unlock()
		return
	}
	at := position{EpochOffset: kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: last.Offset + 1}, origin: s.origin}
	if end.incarnation == at.incarnation { // else of a log that was made anew since, which no commit is about
		s.g.commits.set(s.partition, at)
	}
	clear(s.records[:len(batch)]) // or the array would keep them
	if s.records = s.records[len(batch):]; len(s.records) == 0 {
		s.records = nil // lets go of the array
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

// discard lets go of what is queued, and of what becomes of a Store that is still at it.
func (s *batcher) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discarded = true
	s.g.memory.add(-s.bytes)
	s.g.metrics.inFlight(-len(s.records), -s.bytes)
	s.records, s.bytes = nil, 0
}

// stop has run return after the Store at hand.
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
				return // it is delivered again
			}
			continue
		}
		left, err := publish(s.ctx, s.cl, dead)
		for ; passes(err) && !s.stopping(); left, err = publish(s.ctx, s.cl, left) {
			refusal.record(s.g.router, s.g.metrics, err)
			if s.keepProbe() < len(batch) {
				break // the few that are kept are stored again, and what becomes of them is published until it is taken
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

// stopping says whether the stream was told to stop.
func (s *batcher) stopping() bool {
	select {
	case <-s.halt:
		return true
	default:
		return false
	}
}

// end says that run has returned.
func (s *batcher) end() {
	s.pacer.remove(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended = true; s.stuck {
		s.g.metrics.ignoring(-1)
	}
	close(s.done)
}

// hangs notes that run was waited for in vain. It reports false if it has returned by now.
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

// mayGo waits until the role is not paused. It reports false when the stream is stopped.
func (s *batcher) waitUnpaused() bool { return s.g.pauser.controls.waitResumed(s.g.cfg.Role, s.halt) }

// sleep waits for letters, or for d if it is not 0. It reports false when the stream is stopped.
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

// batch stores letters, and returns the dead letters of those that cannot be stored.
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

// store stores what from says: all of it or, after a permanent error, each half for itself. ds is what was read
// from it, or nil. Nobody here holds what Store was given: a sink that has put it in other words lets the
// collector have it.
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

// again reads letters that could be read before.
func (s *batcher) decodeAgain(from []*inflightRecord) ([]*schemas.Delivery, error) {
	ds := newDeliveries(len(from))
	for _, l := range from {
		if err := ds.decode(s.g.router, l); err != nil {
			return nil, err
		}
	}
	return ds.all, nil
}

// deliveries are those of a batch, in one piece of memory. Their bodies share that of the records.
type deliveries struct {
	backing []schemas.Delivery
	all     []*schemas.Delivery
}

func newDeliveries(n int) deliveries {
	return deliveries{make([]schemas.Delivery, n), make([]*schemas.Delivery, 0, n)}
}

// read adds what l says.
func (ds *deliveries) decode(r *router, l *inflightRecord) error {
	d := &ds.backing[len(ds.all)]
	if err := r.decode(l, d, schemas.DecodeShared); err != nil {
		return err
	}
	ds.all = append(ds.all, d)
	return nil
}

// enter waits for one of the slots, without which nothing is decoded: that is what takes memory. It reports false
// when the stream is stopped.
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

// at notes since when Store is at work.
func (s *batcher) setStoreBegan(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storeBegan = t
}
