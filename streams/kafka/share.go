package kafka

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A share is one partition that a Pool owns.
type share struct {
	partition
	in *intake

	stopping atomic.Bool  // no task is begun any more
	over     atomic.Bool  // those that were begun are to end
	busy     atomic.Int64 // tasks that were begun and are not settled
	wary     atomic.Bool  // past tells of deaths
	idle     chan struct{}
	once     sync.Once // closes idle, when stopping and not busy

	mu      sync.Mutex // guards the rest
	tracker *tracker
	paused  bool   // not fetched, as its window is nearly full
	first   int64  // the first offset that was delivered; -1: none yet
	epoch   int32  // of first
	past    past   // what is known of deaths
	opened  bool   // the brokers have been told that tasks may be at work
	told    string // the metadata that was last to be committed
	quiet   bool   // nothing was delivered since the last tick
	polls   fifo[polled]
}

// polled says from when the records of one poll are.
type polled struct {
	end uint64 // the slot after its last
	at  time.Time
}

func newShare(in *intake, at partition, window int) *share {
	return &share{partition: at, in: in, tracker: newTracker(window), idle: make(chan struct{}), first: -1}
}

// begin takes note that a task is begun, unless none is to be.
func (s *share) begin() bool {
	s.busy.Add(1)
	if s.stopping.Load() {
		s.leave()
		return false
	}
	return true
}

// leave takes note that a task that was begun is settled: its outputs are acknowledged, or it
// was given up.
func (s *share) leave() {
	if s.busy.Add(-1) == 0 && s.stopping.Load() {
		s.once.Do(func() { close(s.idle) })
	}
}

// stop has no more tasks begun. idle is closed once those that were are settled.
func (s *share) stop() {
	s.stopping.Store(true)
	if s.busy.Load() == 0 {
		s.once.Do(func() { close(s.idle) })
	}
}

// admit takes note of delivered records, and returns the first one's slot. Once three quarters of the
// window are in flight the partition is paused: the last quarter is room for one more poll.
func (s *share) admit(recs []*kgo.Record) (first uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first < 0 {
		s.first, s.epoch = recs[0].Offset, recs[0].LeaderEpoch
	}
	s.quiet = false
	for i, rec := range recs {
		slot, ok := s.tracker.add(rec.Offset, rec.LeaderEpoch)
		if !ok {
			return 0, false
		}
		if i == 0 {
			first = slot
		}
	}
	s.settle()
	s.polls.push(polled{s.tracker.next, recs[0].Timestamp})
	if !s.paused && s.tracker.inFlight() >= s.window()/4*3 {
		s.paused = true
		s.in.cl.PauseFetchPartitions(s.one()) // with mu held: a resume must not get in front
	}
	return first, true
}

// settle forgets polls of which all is done.
func (s *share) settle() {
	for s.polls.len() > 0 && s.polls.peek().end <= s.tracker.base {
		s.polls.pop()
	}
}

// oldest says from when the oldest record is that is not done, to a poll; not ok: all are.
func (s *share) oldest() (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settle(); s.polls.len() == 0 {
		return at, false
	}
	return s.polls.peek().at, true
}

func (s *share) window() int { return len(s.tracker.ring) }

// finish takes note that the record in slot is done, and has the partition fetched again when there is
// room.
func (s *share) finish(slot uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.finish(slot)
	if s.paused && !s.tracker.dead && s.tracker.inFlight() <= s.window()/4 {
		s.paused = false
		s.in.cl.ResumeFetchPartitions(s.one())
	}
}

// kill makes all that is still in flight count for nothing.
func (s *share) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over.Store(true)
	s.tracker.kill()
}

// dead says that the partition is not ours any more, or is about not to be.
func (s *share) dead() bool { return s.over.Load() }

// full says that the partition is not fetched because its window is nearly full.
func (s *share) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused
}

// open says that tasks are about to be begun, and whether that is not on record yet.
func (s *share) open() (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh = !s.opened
	s.opened = true
	return fresh
}

// rest takes note that a second has passed: a partition of which nothing is in flight, and
// nothing came meanwhile, is at rest.
func (s *share) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened && s.quiet && s.tracker.inFlight() == 0 {
		s.opened = false
	}
	s.quiet = true
}

// position returns what to commit for the partition, if that is news. Once it is stopping, no task is begun any more:
// if none is suspect, who ends the process does not wait for those at work, and they are no cause of its death.
func (s *share) position(now pursuit) (position, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tracker.dead || s.first < 0 {
		return position{}, false
	}
	at, moved := s.tracker.take()
	if s.tracker.base == 0 { // nothing is done yet
		at = kgo.EpochOffset{Epoch: s.epoch, Offset: s.first}
	}
	open := s.opened && !(s.stopping.Load() && len(now.suspect) == 0)
	text := s.past.text(open, at.Offset, now)
	if !moved && text == s.told {
		return position{}, false
	}
	s.told = text
	return position{EpochOffset: at, metadata: text}, true
}

// last is the metadata that was last to be committed.
func (s *share) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told
}

// learn takes in what the commit at offset tells of the past. What is at work by it has died, unless
// it is ours: then only the session was lost.
func (s *share) learn(metadata string, offset int64, ours bool, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past = readPast(metadata, offset, s.window(), !ours)
	s.wary.Store(s.past.horizon > 0 || len(s.past.deaths) > 0)
	died := 0
	for _, n := range s.past.deaths {
		if n > 0 {
			died++
		}
	}
	if died > 0 {
		log.Warn("messages were at work when a process died", "topic", s.topic, "partition", s.id, "messages", died)
	}
}

// suspect returns in how many deaths the message at offset may have been at work, and whether it
// must be on record before it is begun.
func (s *share) suspect(offset int64) (deaths int, careful bool) {
	if !s.wary.Load() {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.past.of(offset)
}
