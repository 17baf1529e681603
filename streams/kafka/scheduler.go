package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// A task is one record in a Pool.
type task struct {
	letter
	delivery *schemas.Delivery
	err      error // of decoding
	decoded  bool

	share *share
	slot  uint64
	tries int       // calls in this delivery so far
	began time.Time // of the first
	next  *task     // of the same key
}

func (t *task) bytes() int64 { return int64(len(t.rec.Key)+len(t.rec.Value)) + 512 }

// A share is one partition that a Pool owns.
type share struct {
	partition
	ctx    context.Context // of its tasks
	cancel context.CancelCauseFunc

	mu      sync.Mutex // guards the next two
	tracker *tracker
	paused  bool

	// Guarded by scheduler.mu.
	stopping bool          // no task is begun any more
	busy     int           // tasks that were begun and are not settled
	idle     chan struct{} // closed when stopping and not busy
}

// finish takes note that the record in slot is done, and reports whether the partition
// may be resumed.
func (s *share) finish(slot uint64, window int) (resume bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.finish(slot)
	if s.paused && !s.tracker.dead && s.tracker.inFlight() <= window/4 {
		s.paused = false
		return true
	}
	return false
}

// take returns where to commit the partition, if that is news.
func (s *share) take() (kgo.EpochOffset, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tracker.take()
}

// A scheduler gives out tasks: those of one key one after the other and in order, those
// of different keys side by side. A key is in ready, or at work, or parked; never two
// of these.
type scheduler struct {
	mu      sync.Mutex
	work    sync.Cond   // ready has grown, or closed
	dropped func(*task) // is told of tasks that are not begun, with mu held
	keys    map[string]*queue
	ready   []*queue
	first   int // of ready
	closed  bool
	free    *queue // for reuse
}

// A queue holds the tasks of one key; the head is the one at work.
type queue struct {
	key        string
	head, tail *task
	next       *queue // of the free ones
}

func newScheduler(dropped func(*task)) *scheduler {
	s := &scheduler{keys: map[string]*queue{}, dropped: dropped}
	s.work.L = &s.mu
	return s
}

// add queues tasks under keys.
func (s *scheduler) add(tasks []*task, keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	grown := 0
	for i, t := range tasks {
		if q := s.keys[keys[i]]; q != nil {
			q.tail.next = t
			q.tail = t
			continue
		}
		q := s.free
		if q == nil {
			q = new(queue)
		} else {
			s.free = q.next
		}
		*q = queue{key: keys[i], head: t, tail: t}
		s.keys[keys[i]] = q
		s.push(q)
		grown++
	}
	s.wake(grown)
}

func (s *scheduler) wake(n int) {
	if n > 8 {
		s.work.Broadcast()
		return
	}
	for range n {
		s.work.Signal()
	}
}

func (s *scheduler) push(q *queue) {
	if s.first > 1024 && s.first > len(s.ready)/2 {
		n := copy(s.ready, s.ready[s.first:])
		clear(s.ready[n:])
		s.ready, s.first = s.ready[:n], 0
	}
	s.ready = append(s.ready, q)
}

// take returns the next task, once there is one; ok is false when the scheduler is
// closed. If done is not nil, it is a queue whose head is at its end.
func (s *scheduler) take(done *queue) (t *task, q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done != nil {
		s.shift(done)
	}
	for {
		for s.first == len(s.ready) {
			if s.closed {
				return nil, nil
			}
			s.work.Wait()
		}
		q := s.ready[s.first]
		s.ready[s.first] = nil
		s.first++
		if t := q.head; !t.share.stopping {
			t.share.busy++
			return t, q
		}
		s.dropped(q.head) // it is delivered again, to whoever owns the partition then
		s.shift(q)
	}
}

// shift takes the head off q, and readies what follows.
func (s *scheduler) shift(q *queue) {
	if q.head = q.head.next; q.head != nil {
		s.push(q)
		s.work.Signal()
		return
	}
	delete(s.keys, q.key)
	*q = queue{next: s.free}
	s.free = q
}

// settle says that t, which was taken, is at its end: its outputs are acknowledged, or
// it was given up.
func (s *scheduler) settle(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(t.share)
}

func (s *scheduler) leave(sh *share) {
	sh.busy--
	if sh.stopping && sh.busy == 0 {
		close(sh.idle)
	}
}

// park keeps q, whose head failed, from being taken for d.
func (s *scheduler) park(q *queue, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave(q.head.share)
	time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.push(q)
		s.work.Signal()
	})
}

// stop has no more tasks of sh begun. Its idle is closed once those at work are settled.
func (s *scheduler) stop(sh *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh.stopping {
		return
	}
	sh.stopping = true
	if sh.busy == 0 {
		close(sh.idle)
	}
}

// close ends all waiting.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.work.Broadcast()
}

// A scale weighs what is in memory. Any number may add; one may wait.
type scale struct {
	n     atomic.Int64
	moved chan struct{}
}

func newScale() *scale { return &scale{moved: make(chan struct{}, 1)} }

func (s *scale) add(n int64) {
	s.n.Add(n)
	if n < 0 {
		select {
		case s.moved <- struct{}{}:
		default:
		}
	}
}

// wait returns when there is less than limit on the scale, or ctx is done.
func (s *scale) wait(ctx context.Context, limit int64) {
	for s.n.Load() >= limit && ctx.Err() == nil {
		select {
		case <-s.moved:
		case <-ctx.Done():
		}
	}
}
