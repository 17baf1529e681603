package emit

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A lane is what goes on with one item, or one space, until all of it is told. Store.mu guards
// it and all that hangs on it.
//
// Changes of one item do not overtake: one that was done before another began is told before it.
// Of those that were under way together the one with the earlier time is told first, and of one time the one
// whose outcome was noted first, so none of them is told before it is known what came of all.
type itemQueue struct {
	key     string
	active  []*mutation     // of callers that wait
	orphans []*mutation     // of which nobody knows what came of them; by ticket
	changes []*queuedChange // what is to be told, by settled

	busy      bool // somebody publishes
	resolving bool // somebody looks at the first orphan
	fails     int  // of publishing, in a row
	retryAt   time.Time
	changedC  chan struct{} // closed when something has changed; nil while nobody waits

	heapIndex int        // in the heap
	heap      *queueHeap // the heap that it is in; nil: none
	first     Ticket
}

// A mutation is one that was begun, and of which nobody has noted yet what came of it.
type mutation struct {
	queue       *itemQueue
	ticket      Ticket // 0 until its intent is noted: it will come after all that is done by now
	began       time.Time
	concurrent  bool
	foundAbsent bool // a look found the item absent
	streamed    *Content
	queued      *queuedChange // what is told of it, once that is known
}

// An entry is a Change that is to be told.
type queuedChange struct {
	ticket, outcome Ticket
	time            int64 // of the Change, in ms
	began           time.Time
	change          *pb.Change
	concurrent      bool
	foundAbsent     bool // a look found the item absent: what was put in that millisecond was put after it
	unrecorded      bool // the outbox has to have it before it is told, and has not

	finished bool          // it is told, or aside
	err      error         // why it is aside
	done     chan struct{} // closed when it is over; nil while nobody waits for that
}

// next returns what is to be told next; nil where that cannot be said yet, or there is nothing.
func (l *itemQueue) next() *queuedChange {
	if len(l.changes) == 0 || l.busy {
		return nil
	}
	best := l.changes[0]
	if best.concurrent {
		for _, e := range l.changes[1:] {
			if e.ticket < l.changes[0].outcome && (e.time < best.time || e.time == best.time && e.foundAbsent && !best.foundAbsent) {
				best = e
			}
		}
	}
	before := func(m *mutation) bool { return m.ticket != 0 && m.ticket < best.outcome }
	if slices.ContainsFunc(l.active, before) || slices.ContainsFunc(l.orphans, before) {
		return nil
	}
	return best
}

// add has e told in its turn.
func (l *itemQueue) add(e *queuedChange) {
	i := len(l.changes)
	for i > 0 && l.changes[i-1].outcome > e.outcome {
		i--
	}
	l.changes = slices.Insert(l.changes, i, e)
}

func (l *itemQueue) remove(e *queuedChange) {
	if l.changes[0] == e {
		l.changes[0] = nil
		l.changes = l.changes[1:]
		return
	}
	l.changes = slices.DeleteFunc(l.changes, func(x *queuedChange) bool { return x == e })
}

// changed returns a channel that is closed when something changes.
func (l *itemQueue) changed() <-chan struct{} {
	if l.changedC == nil {
		l.changedC = make(chan struct{})
	}
	return l.changedC
}

// enter returns a lane of a key; s.mu is held.
func (s *Store) queueOf(key string) *itemQueue {
	l := s.queues[key]
	if l == nil {
		l = &itemQueue{key: key}
		s.queues[key] = l
	}
	return l
}

// arrange puts a lane where it belongs after something has changed, and tells who waits for
// that; s.mu is held.
func (s *Store) reschedule(l *itemQueue) {
	if l.changedC != nil {
		close(l.changedC)
		l.changedC = nil
	}
	var to *queueHeap
	if e := l.next(); e != nil {
		l.first = e.ticket
		if to = &s.ready; l.fails > 0 {
			to = &s.retrying
		}
	}
	switch {
	case l.heap == to && to != nil:
		heap.Fix(to, l.heapIndex)
	case l.heap != to:
		if l.heap != nil {
			heap.Remove(l.heap, l.heapIndex)
		}
		if l.heap = to; to != nil {
			heap.Push(to, l)
			s.wake()
		}
	}
	if len(l.orphans) > 0 {
		s.withOrphans[l.key] = l
	} else {
		delete(s.withOrphans, l.key)
	}
	if len(l.active)+len(l.orphans)+len(l.changes) == 0 && !l.resolving {
		delete(s.queues, l.key)
	}
}

// ring wakes the dispatcher.
func (s *Store) wake() {
	select {
	case s.wakeup <- struct{}{}:
	default: // it will wake
	}
}

// begin has a mutation of the item with this key known, after it has found out what came of
// earlier ones: what is there now is the only evidence of them.
func (s *Store) begin(ctx context.Context, key string) (*mutation, error) {
	for {
		_ = s.retryDone() // it is tried again
		s.mu.Lock()
		l := s.queueOf(key)
		e := l.firstUnrecorded()
		if len(l.orphans) == 0 && e == nil {
			m := &mutation{queue: l, concurrent: len(l.active) > 0}
			for _, other := range l.active {
				other.concurrent = true
			}
			l.active = append(l.active, m)
			s.mu.Unlock()
			return m, nil
		}
		s.mu.Unlock()
		var err error
		if e != nil {
			err = s.recordOutcome(ctx, e)
		} else {
			err = s.resolveFirst(ctx, l)
		}
		if err != nil {
			return nil, err
		}
	}
}

// unnoted returns a Change that the outbox has to have and has not.
func (l *itemQueue) firstUnrecorded() *queuedChange {
	if i := slices.IndexFunc(l.changes, func(e *queuedChange) bool { return e.unrecorded }); i >= 0 {
		return l.changes[i]
	}
	return nil
}

// note has the outbox note a Change that it could not note when it came.
func (s *Store) recordOutcome(ctx context.Context, e *queuedChange) error {
	_, err := s.cfg.Outbox.Outcome(e.ticket, e.change)
	if err == nil {
		err = s.cfg.Outbox.Safe(ctx)
	}
	if err != nil && !errors.Is(err, errNotHeld) { // it may have been told meanwhile
		return fmt.Errorf("note what was done: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.unrecorded = false
	return nil
}

// end forgets a mutation of which there is nothing to tell.
func (s *Store) end(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deactivate(m)
	s.reschedule(m.queue)
}

// leaveOff ends what the call of a mutation has left, as one does that is refused, or panics. If there is an intent, the
// mutation may have been made, and is looked into.
func (s *Store) abandon(m *mutation) {
	s.mu.Lock()
	live, intended := slices.Contains(m.queue.active, m), m.ticket != 0
	s.mu.Unlock()
	switch {
	case !live: // it has an end
	case intended:
		s.orphan(m)
	default:
		s.end(m)
	}
}

// leave takes a mutation out of those whose callers wait; s.mu is held.
func (s *Store) deactivate(m *mutation) {
	m.queue.active = slices.DeleteFunc(m.queue.active, func(x *mutation) bool { return x == m })
}

// settle has the Change of a mutation told in its turn.
func (s *Store) enqueue(m *mutation, settled Ticket, c *pb.Change, unnoted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deactivate(m)
	m.queue.orphans = slices.DeleteFunc(m.queue.orphans, func(x *mutation) bool { return x == m })
	m.queued = &queuedChange{
		ticket: m.ticket, outcome: settled, change: c, concurrent: m.concurrent, foundAbsent: m.foundAbsent, unrecorded: unnoted,
		time: c.GetTime().AsTime().UnixMilli(), began: m.began,
	}
	m.queue.add(m.queued)
	s.reschedule(m.queue)
}

// orphan has a mutation looked into.
func (s *Store) orphan(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deactivate(m)
	l := m.queue
	l.orphans = append(l.orphans, m)
	slices.SortFunc(l.orphans, func(a, b *mutation) int { return int(int64(a.ticket) - int64(b.ticket)) })
	s.reschedule(l)
	s.wake()
}

// load takes in what an outbox holds of another life.
func (s *Store) load() {
	for h := range s.cfg.Outbox.Held() {
		l := s.queueOf(h.Key)
		if h.Outcome == 0 {
			l.orphans = append(l.orphans, &mutation{queue: l, ticket: h.Ticket, began: h.Began, concurrent: h.Concurrent})
		} else {
			l.add(&queuedChange{
				ticket: h.Ticket, outcome: h.Outcome, concurrent: h.Concurrent, time: h.Time.UnixMilli(), began: h.Began,
			})
		}
		s.reschedule(l)
	}
}

// A rank is a heap of lanes.
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
	l := x.(*itemQueue)
	l.heapIndex = len(r.queues)
	r.queues = append(r.queues, l)
}

// Pop implements heap.Interface.
func (r *queueHeap) Pop() any {
	n := len(r.queues) - 1
	l := r.queues[n]
	r.queues[n] = nil
	r.queues = r.queues[:n]
	return l
}
