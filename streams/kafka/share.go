package kafka

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A share is one partition that a Pool owns.
type share struct {
	partition
	in      *intake
	backlog bool         // it is of the backlog topic
	moving  atomic.Int64 // messages that are moved, and not acknowledged

	stopping atomic.Bool  // no task is begun any more
	over     atomic.Bool  // those that were begun are to end
	busy     atomic.Int64 // tasks that were begun and are not settled
	wary     atomic.Bool  // past tells of deaths
	known    atomic.Int64 // what is on record is known to be done below it, but for what it names
	idle     chan struct{}
	once     sync.Once // closes idle, when stopping and not busy

	mu      sync.Mutex // guards the rest
	tracker *tracker
	paused  bool      // not fetched, as its window is nearly full
	since   time.Time // of paused
	first   int64     // the first offset that was delivered; -1: none yet
	epoch   int32     // of first
	past    past      // what is known of deaths
	opened  bool      // the brokers have been told that tasks may be at work
	told    string    // the metadata that was last to be committed
	quiet   bool      // nothing was delivered since the last tick
	polls   fifo[polled]
}

// polled says from when the records of one poll are.
type polled struct {
	end uint64 // the slot after its last
	at  time.Time
}

func newShare(in *intake, at partition, window int) *share {
	return &share{partition: at, in: in, backlog: at.topic == in.backlog, tracker: newTracker(window), idle: make(chan struct{}), first: -1}
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

// admit takes note of delivered records, and returns the first one's slot, and which of them were done before.
// Once three quarters of the window are in flight the partition is paused: the last quarter is room for one more poll.
func (s *share) admit(recs []*kgo.Record) (first uint64, done []bool, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first < 0 {
		s.first, s.epoch = recs[0].Offset, recs[0].LeaderEpoch
		s.known.Store(max(s.known.Load(), s.first)) // as is committed before the first task is begun
	}
	s.quiet = false
	done = make([]bool, len(recs))
	for i, rec := range recs {
		slot, ok := s.tracker.add(rec.Offset, rec.LeaderEpoch)
		if !ok {
			return 0, nil, false
		}
		if i == 0 {
			first = slot
		}
		if s.past.ahead.done(rec.Offset, rec.LeaderEpoch) {
			done[i] = true
			s.tracker.finish(slot)
		}
	}
	s.settle()
	from := recs[0].Timestamp
	if s.backlog { // since when it was there before
		from = readTrail(recs[0].Headers).timestamp
	}
	s.polls.push(polled{s.tracker.next, from})
	s.pass(false)
	if !s.paused && s.tracker.inFlight() >= s.window()/4*3 {
		s.paused, s.since = true, time.Now()
		s.in.cl.PauseFetchPartitions(s.one()) // with mu held: a resume must not get in front
	}
	return first, done, true
}

// settle forgets polls of which all is done.
func (s *share) settle() {
	for s.polls.len() > 0 && s.polls.peek().end <= s.tracker.base {
		s.polls.pop()
	}
}

// maxLate is how many records that are late a commit has room to name, at least. There may be more, up to half of a window.
const maxLate = 1024

// pass makes room in the window if half of it is done, behind records that take long, or if it is full and no more than a
// quarter is not done, or than half of it if it has been stuck.
func (s *share) pass(stuck bool) {
	done := s.tracker.done()
	most := s.paused && (stuck || s.tracker.inFlight()-done <= s.window()/4)
	if s.tracker.open > s.window()/2 || done < s.window()/2 && !most || s.tracker.inFlight() == 0 {
		return
	}
	s.settle()
	s.tracker.pass(s.polls.peek().at)
	s.settle()
}

// oldest says from when the oldest record is that is not done, to a poll; not ok: all are.
func (s *share) oldest() (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	switch {
	case len(s.tracker.late) > 0:
		return s.tracker.late[0].from, true
	case s.polls.len() == 0:
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
	if s.paused {
		s.pass(false)
	}
	if s.tracker.at.Offset-s.known.Load() >= int64(s.window()/2) {
		s.in.hurry()
	}
	s.resume()
}

// resume has the partition fetched again when there is room.
func (s *share) resume() {
	room := s.window() / 4
	if s.in.diverted.any.Load() { // the rest of a poll is likely to be moved
		room = s.window() / 2
	}
	if s.paused && !s.tracker.dead && s.tracker.inFlight() <= room {
		s.paused = false
		s.in.cl.ResumeFetchPartitions(s.one())
	}
}

// goOn has a partition that was stuck fetched again if no more than half of the window is not done.
func (s *share) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pass(true)
	s.resume()
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

// stuck reports whether the partition has not been fetched for d, and is not about to be.
func (s *share) stuck(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused && time.Since(s.since) >= d && s.tracker.inFlight() > s.window()/4
}

// crowded reports whether half as many records are late as a commit has room to name.
func (s *share) crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tracker.late) >= maxLate/2
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
	if s.opened && s.quiet && s.tracker.open == 0 {
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
	text, done := s.past.text(open, at.Offset, now, s.tracker.ahead(s.stopping.Load(), maxLate))
	if !moved && text == s.told {
		return position{}, false
	}
	s.told = text
	return position{EpochOffset: at, metadata: text, done: done}, true
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
	s.known.Store(max(offset, s.past.ahead.end.Offset))
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

// suspects returns the offsets of messages that were at work in deaths, with how many.
func (s *share) suspects() map[int64]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.past.deaths)
}

// suspect returns in how many deaths the message at offset may have been at work, and whether it
// must be on record before it is begun. far says that it should be: a death would not be known to be its.
func (s *share) suspect(offset int64) (deaths int, careful, far bool) {
	far = offset >= s.known.Load()+int64(s.window())
	if !s.wary.Load() {
		return 0, false, far
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	deaths, careful = s.past.of(offset)
	return deaths, careful, far
}
