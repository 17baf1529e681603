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
type lane struct {
	key     string
	live    []*mutation // of callers that wait
	orphans []*mutation // of which nobody knows what came of them; by ticket
	queue   []*entry    // what is to be told, by settled

	busy      bool // somebody publishes
	resolving bool // somebody looks at the first orphan
	fails     int  // of publishing, in a row
	retryAt   time.Time
	wake      chan struct{} // closed when something has changed; nil while nobody waits

	at    int   // in the heap
	in    *rank // the heap that it is in; nil: none
	first Ticket
}

// A mutation is one that was begun, and of which nobody has noted yet what came of it.
type mutation struct {
	lane    *lane
	ticket  Ticket // 0 until its intent is noted: it will come after all that is done by now
	began   time.Time
	crowded bool
	gone    bool // a look found the item absent
	came    *Content
	entry   *entry // what is told of it, once that is known
}

// An entry is a Change that is to be told.
type entry struct {
	ticket, settled Ticket
	time            int64 // of the Change, in ms
	began           time.Time
	change          *pb.Change
	crowded         bool
	gone            bool // a look found the item absent: what was put in that millisecond was put after it
	unnoted         bool // the outbox has to have it before it is told, and has not

	over bool          // it is told, or aside
	err  error         // why it is aside
	done chan struct{} // closed when it is over; nil while nobody waits for that
}

// next returns what is to be told next; nil where that cannot be said yet, or there is nothing.
func (l *lane) next() *entry {
	if len(l.queue) == 0 || l.busy {
		return nil
	}
	best := l.queue[0]
	if best.crowded {
		for _, e := range l.queue[1:] {
			if e.ticket < l.queue[0].settled && (e.time < best.time || e.time == best.time && e.gone && !best.gone) {
				best = e
			}
		}
	}
	before := func(m *mutation) bool { return m.ticket != 0 && m.ticket < best.settled }
	if slices.ContainsFunc(l.live, before) || slices.ContainsFunc(l.orphans, before) {
		return nil
	}
	return best
}

// add has e told in its turn.
func (l *lane) add(e *entry) {
	i := len(l.queue)
	for i > 0 && l.queue[i-1].settled > e.settled {
		i--
	}
	l.queue = slices.Insert(l.queue, i, e)
}

func (l *lane) remove(e *entry) {
	if l.queue[0] == e {
		l.queue[0] = nil
		l.queue = l.queue[1:]
		return
	}
	l.queue = slices.DeleteFunc(l.queue, func(x *entry) bool { return x == e })
}

// changed returns a channel that is closed when something changes.
func (l *lane) changed() <-chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}

// enter returns a lane of a key; s.mu is held.
func (s *Store) enter(key string) *lane {
	l := s.lanes[key]
	if l == nil {
		l = &lane{key: key}
		s.lanes[key] = l
	}
	return l
}

// arrange puts a lane where it belongs after something has changed, and tells who waits for
// that; s.mu is held.
func (s *Store) arrange(l *lane) {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
	var to *rank
	if e := l.next(); e != nil {
		l.first = e.ticket
		if to = &s.ready; l.fails > 0 {
			to = &s.later
		}
	}
	switch {
	case l.in == to && to != nil:
		heap.Fix(to, l.at)
	case l.in != to:
		if l.in != nil {
			heap.Remove(l.in, l.at)
		}
		if l.in = to; to != nil {
			heap.Push(to, l)
			s.ring()
		}
	}
	if len(l.orphans) > 0 {
		s.orphaned[l.key] = l
	} else {
		delete(s.orphaned, l.key)
	}
	if len(l.live)+len(l.orphans)+len(l.queue) == 0 && !l.resolving {
		delete(s.lanes, l.key)
	}
}

// ring wakes the dispatcher.
func (s *Store) ring() {
	select {
	case s.bell <- struct{}{}:
	default: // it will wake
	}
}

// begin has a mutation of the item with this key known, after it has found out what came of
// earlier ones: what is there now is the only evidence of them.
func (s *Store) begin(ctx context.Context, key string) (*mutation, error) {
	for {
		_ = s.finish() // it is tried again
		s.mu.Lock()
		l := s.enter(key)
		e := l.unnoted()
		if len(l.orphans) == 0 && e == nil {
			m := &mutation{lane: l, crowded: len(l.live) > 0}
			for _, other := range l.live {
				other.crowded = true
			}
			l.live = append(l.live, m)
			s.mu.Unlock()
			return m, nil
		}
		s.mu.Unlock()
		var err error
		if e != nil {
			err = s.note(ctx, e)
		} else {
			err = s.resolveFirst(ctx, l)
		}
		if err != nil {
			return nil, err
		}
	}
}

// unnoted returns a Change that the outbox has to have and has not.
func (l *lane) unnoted() *entry {
	if i := slices.IndexFunc(l.queue, func(e *entry) bool { return e.unnoted }); i >= 0 {
		return l.queue[i]
	}
	return nil
}

// note has the outbox note a Change that it could not note when it came.
func (s *Store) note(ctx context.Context, e *entry) error {
	_, err := s.cfg.Outbox.Outcome(e.ticket, e.change)
	if err == nil {
		err = s.cfg.Outbox.Safe(ctx)
	}
	if err != nil && !errors.Is(err, errNotHeld) { // it may have been told meanwhile
		return fmt.Errorf("note what was done: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.unnoted = false
	return nil
}

// end forgets a mutation of which there is nothing to tell.
func (s *Store) end(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(m)
	s.arrange(m.lane)
}

// leaveOff ends what the call of a mutation has left, as one does that is refused, or panics. If there is an intent, the
// mutation may have been made, and is looked into.
func (s *Store) leaveOff(m *mutation) {
	s.mu.Lock()
	live, intended := slices.Contains(m.lane.live, m), m.ticket != 0
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
func (s *Store) leave(m *mutation) {
	m.lane.live = slices.DeleteFunc(m.lane.live, func(x *mutation) bool { return x == m })
}

// settle has the Change of a mutation told in its turn.
func (s *Store) settle(m *mutation, settled Ticket, c *pb.Change, unnoted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(m)
	m.lane.orphans = slices.DeleteFunc(m.lane.orphans, func(x *mutation) bool { return x == m })
	m.entry = &entry{
		ticket: m.ticket, settled: settled, change: c, crowded: m.crowded, gone: m.gone, unnoted: unnoted,
		time: c.GetTime().AsTime().UnixMilli(), began: m.began,
	}
	m.lane.add(m.entry)
	s.arrange(m.lane)
}

// orphan has a mutation looked into.
func (s *Store) orphan(m *mutation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(m)
	l := m.lane
	l.orphans = append(l.orphans, m)
	slices.SortFunc(l.orphans, func(a, b *mutation) int { return int(int64(a.ticket) - int64(b.ticket)) })
	s.arrange(l)
	s.ring()
}

// load takes in what an outbox holds of another life.
func (s *Store) load() {
	for h := range s.cfg.Outbox.Held() {
		l := s.enter(h.Key)
		if h.Settled == 0 {
			l.orphans = append(l.orphans, &mutation{lane: l, ticket: h.Ticket, began: h.Began, crowded: h.Crowded})
		} else {
			l.add(&entry{
				ticket: h.Ticket, settled: h.Settled, crowded: h.Crowded, time: h.Time.UnixMilli(), began: h.Began,
			})
		}
		s.arrange(l)
	}
}

// A rank is a heap of lanes.
type rank struct {
	lanes []*lane
	less  func(a, b *lane) bool
}

var _ heap.Interface = (*rank)(nil)

// Len implements heap.Interface.
func (r *rank) Len() int { return len(r.lanes) }

// Less implements heap.Interface.
func (r *rank) Less(i, j int) bool { return r.less(r.lanes[i], r.lanes[j]) }

// Swap implements heap.Interface.
func (r *rank) Swap(i, j int) {
	r.lanes[i], r.lanes[j] = r.lanes[j], r.lanes[i]
	r.lanes[i].at, r.lanes[j].at = i, j
}

// Push implements heap.Interface.
func (r *rank) Push(x any) {
	l := x.(*lane)
	l.at = len(r.lanes)
	r.lanes = append(r.lanes, l)
}

// Pop implements heap.Interface.
func (r *rank) Pop() any {
	n := len(r.lanes) - 1
	l := r.lanes[n]
	r.lanes[n] = nil
	r.lanes = r.lanes[:n]
	return l
}
