package emit

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// An itemQueue orders the mutations of one item, or of one space, until all their Changes are published.
// Store.mu guards the queue and everything in it.
//
// Changes of one item are published in order: if a mutation ended before another began, its Change is
// published first. Among concurrent mutations the Change with the earlier time is first; with equal times,
// the one with the lower outcome ticket. So the Change of a concurrent mutation is published only when
// the outcomes of all of them are known.
type itemQueue struct {
	key     string
	active  []*mutation // calls in progress
	orphans []*mutation // mutations of unknown outcome that no call handles; by ticket
	queued  []*mutation // mutations with a Change to be published; by outcome

	busy      bool // a publish is in progress
	resolving bool // the first orphan is being resolved
	fails     int  // consecutive publish failures
	retryAt   time.Time
	changedC  chan struct{} // closed when the queue changes; nil if no goroutine waits

	heapIndex int        // position in heap
	heap      *queueHeap // that contains the queue; nil: none
	first     outbox.Ticket
}

// A mutation is in progress, has an unknown outcome, or has a Change that is not published yet. It begins in active
// (after a restart in orphans or queued). An outcome moves it to queued, or removes it if nothing was done; a call
// that ends without an outcome moves it to orphans. It leaves queued when it is finished.
type mutation struct {
	queue       *itemQueue
	ticket      outbox.Ticket // 0 until the intent is recorded: then it is greater than all outcomes so far
	began       time.Time
	concurrent  bool
	foundAbsent bool // the look-up found the item absent: a Put in the same millisecond came after it

	// The fields below are set when the outcome is known.

	unrecorded bool          // the outbox must record the Change before it is published, and failed to
	finished   bool          // acknowledged, or rejected with err
	outcome    outbox.Ticket // at which the outcome was recorded; 0: it is unknown
	time       int64         // of the Change, in ms
	change     *pb.Change    // nil: the outbox has it
	err        error         // why it was rejected
	done       chan struct{} // closed when finished; nil if no call waits
}

// next returns the mutation to publish next; nil if there is none, or if an earlier mutation is still in
// progress.
func (q *itemQueue) next() *mutation {
	if len(q.queued) == 0 || q.busy {
		return nil
	}
	best := q.queued[0]
	if best.concurrent {
		for _, m := range q.queued[1:] {
			earlier := m.time < best.time || m.time == best.time && m.foundAbsent && !best.foundAbsent
			if earlier && m.ticket < q.queued[0].outcome {
				best = m
			}
		}
	}
	before := func(m *mutation) bool { return m.ticket != 0 && m.ticket < best.outcome }
	if slices.ContainsFunc(q.active, before) || slices.ContainsFunc(q.orphans, before) {
		return nil
	}
	return best
}

// add inserts m by its outcome ticket.
func (q *itemQueue) add(m *mutation) {
	i := len(q.queued)
	for i > 0 && q.queued[i-1].outcome > m.outcome {
		i--
	}
	q.queued = slices.Insert(q.queued, i, m)
}

func (q *itemQueue) remove(m *mutation) {
	if q.queued[0] == m {
		q.queued[0] = nil
		q.queued = q.queued[1:]
		return
	}
	q.queued = slices.DeleteFunc(q.queued, func(x *mutation) bool { return x == m })
}

// changed returns a channel that is closed at the next change of the queue.
func (q *itemQueue) changed() <-chan struct{} {
	if q.changedC == nil {
		q.changedC = make(chan struct{})
	}
	return q.changedC
}

// queueOf returns the queue of a key and creates it if needed; s.mu is held.
func (s *Store) queueOf(key string) *itemQueue {
	q := s.queues[key]
	if q == nil {
		q = &itemQueue{key: key}
		s.queues[key] = q
	}
	return q
}

// reschedule moves a queue to the right heap after a change, wakes the goroutines that wait for
// a change and removes the queue if it is empty; s.mu is held.
func (s *Store) reschedule(q *itemQueue) {
	if q.changedC != nil {
		close(q.changedC)
		q.changedC = nil
	}
	var to *queueHeap
	if m := q.next(); m != nil {
		q.first = m.ticket
		if to = &s.ready; q.fails > 0 {
			to = &s.retrying
		}
	}
	switch {
	case q.heap == to && to != nil:
		heap.Fix(to, q.heapIndex)
	case q.heap != to:
		if q.heap != nil {
			heap.Remove(q.heap, q.heapIndex)
		}
		if q.heap = to; to != nil {
			heap.Push(to, q)
			s.wake()
		}
	}
	if len(q.orphans) > 0 {
		s.withOrphans[q.key] = q
	} else {
		delete(s.withOrphans, q.key)
	}
	if len(q.active)+len(q.orphans)+len(q.queued) == 0 && !q.resolving {
		delete(s.queues, q.key)
	}
}

// wake wakes the dispatcher.
func (s *Store) wake() {
	select {
	case s.wakeup <- struct{}{}:
	default: // a wake-up is pending
	}
}

// begin adds a mutation to the queue of key, after earlier mutations of unknown outcome are resolved: the
// state that this mutation may overwrite is the only evidence of them.
func (s *Store) begin(ctx context.Context, key string) (*mutation, error) {
	for {
		_ = s.retryDone() // maintain and later calls retry
		s.mu.Lock()
		q := s.queueOf(key)
		unrecorded := q.firstUnrecorded()
		if len(q.orphans) == 0 && unrecorded == nil {
			m := &mutation{queue: q, concurrent: len(q.active) > 0}
			for _, other := range q.active {
				other.concurrent = true
			}
			q.active = append(q.active, m)
			s.mu.Unlock()
			return m, nil
		}
		s.mu.Unlock()
		var err error
		if unrecorded != nil {
			err = s.recordOutcome(ctx, unrecorded)
		} else {
			err = s.resolveFirst(ctx, q)
		}
		if err != nil {
			return nil, err
		}
	}
}

// firstUnrecorded returns a mutation with a Change that the outbox failed to record but must; nil if there is
// none.
func (q *itemQueue) firstUnrecorded() *mutation {
	if i := slices.IndexFunc(q.queued, func(m *mutation) bool { return m.unrecorded }); i >= 0 {
		return q.queued[i]
	}
	return nil
}

// recordOutcome records the Change of a mutation that the outbox failed to record at first.
func (s *Store) recordOutcome(ctx context.Context, m *mutation) error {
	_, err := s.cfg.Outbox.Outcome(m.ticket, m.change)
	if err == nil {
		err = s.cfg.Outbox.Safe(ctx)
	}
	if err != nil && !errors.Is(err, outbox.ErrNotHeld) { // it may have been published meanwhile
		return fmt.Errorf("record outcome: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.unrecorded = false
	return nil
}

// end removes a mutation without a Change.
func (s *Store) end(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deactivate(m)
	s.reschedule(m.queue)
}

// abandon ends a mutation after its call returned early or panicked. A mutation with a recorded intent may
// have been made: it becomes an orphan.
func (s *Store) abandon(m *mutation) {
	s.mu.Lock()
	live, intended := slices.Contains(m.queue.active, m), m.ticket != 0
	s.mu.Unlock()
	switch {
	case !live: // already ended
	case intended:
		s.orphan(m)
	default:
		s.end(m)
	}
}

// deactivate removes a mutation from the active calls; s.mu is held.
func (s *Store) deactivate(m *mutation) {
	m.queue.active = slices.DeleteFunc(m.queue.active, func(x *mutation) bool { return x == m })
}

// enqueue adds the Change of a mutation to its queue.
func (s *Store) enqueue(m *mutation, outcome outbox.Ticket, c *pb.Change, unrecorded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deactivate(m)
	m.queue.orphans = slices.DeleteFunc(m.queue.orphans, func(x *mutation) bool { return x == m })
	m.outcome, m.change, m.unrecorded = outcome, c, unrecorded
	m.time = c.GetTime().AsTime().UnixMilli()
	m.queue.add(m)
	s.reschedule(m.queue)
}

// orphan hands a mutation of unknown outcome over to be resolved.
func (s *Store) orphan(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deactivate(m)
	q := m.queue
	q.orphans = append(q.orphans, m)
	slices.SortFunc(q.orphans, func(a, b *mutation) int { return int(int64(a.ticket) - int64(b.ticket)) })
	s.reschedule(q)
	s.wake()
}

// load fills the queues with the mutations that the outbox holds from an earlier process.
func (s *Store) load() {
	for h := range s.cfg.Outbox.Held() {
		q := s.queueOf(h.Key)
		m := &mutation{queue: q, ticket: h.Ticket, began: h.Began, concurrent: h.Concurrent}
		if h.Outcome == 0 {
			q.orphans = append(q.orphans, m)
		} else {
			m.outcome, m.time = h.Outcome, h.Time.UnixMilli()
			q.add(m)
		}
		s.reschedule(q)
	}
}

// A queueHeap is a heap of queues.
type queueHeap struct {
	queues []*itemQueue
	less   func(a, b *itemQueue) bool
}

var _ heap.Interface = (*queueHeap)(nil)

// Len implements heap.Interface.
func (r *queueHeap) Len() int { return len(r.queues) }

// Less implements heap.Interface.
func (r *queueHeap) Less(i, j int) bool { return r.less(r.queues[i], r.queues[j]) }

// Swap implements heap.Interface.
func (r *queueHeap) Swap(i, j int) {
	r.queues[i], r.queues[j] = r.queues[j], r.queues[i]
	r.queues[i].heapIndex, r.queues[j].heapIndex = i, j
}

// Push implements heap.Interface.
func (r *queueHeap) Push(x any) {
	q := x.(*itemQueue)
	q.heapIndex = len(r.queues)
	r.queues = append(r.queues, q)
}

// Pop implements heap.Interface.
func (r *queueHeap) Pop() any {
	n := len(r.queues) - 1
	q := r.queues[n]
	r.queues[n] = nil
	r.queues = r.queues[:n]
	return q
}
