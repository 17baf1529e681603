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
type assignment struct {
	partition
	fetcher      *fetcher
	backlog      bool         // it is of the backlog topic
	unackedMoves atomic.Int64 // messages that are moved, and not acknowledged

	stopping     atomic.Bool  // no task is begun any more
	cancelled    atomic.Bool  // those that were begun are to end
	running      atomic.Int64 // tasks that were begun and are not settled
	hasDeaths    atomic.Bool  // past tells of deaths
	recordedDone atomic.Int64 // what is on record is known to be done below it, but for what it names
	idle         chan struct{}
	closeIdle    sync.Once // closes idle, when stopping and not busy

	mu           sync.Mutex // guards the rest
	tracker      *tracker
	paused       bool         // not fetched, as its window is nearly full
	pausedSince  time.Time    // of paused
	firstOffset  int64        // the first offset that was delivered; -1: none yet
	firstEpoch   int32        // of first
	crashes      crashHistory // what is known of deaths
	openRecorded bool         // the brokers have been told that tasks may be at work
	metadata     string       // the metadata that was last to be committed
	quiet        bool         // nothing was delivered since the last tick
	polls        fifo[pollMark]
}

// polled says from when the records of one poll are.
type pollMark struct {
	end uint64 // the slot after its last
	at  time.Time
}

func newAssignment(in *fetcher, at partition, window int) *assignment {
	return &assignment{partition: at, fetcher: in, backlog: at.topic == in.backlogTopic, tracker: newTracker(window), idle: make(chan struct{}), firstOffset: -1}
}

// begin takes note that a task is begun, unless none is to be.
func (s *assignment) beginTask() bool {
	s.running.Add(1)
	if s.stopping.Load() {
		s.endTask()
		return false
	}
	return true
}

// leave takes note that a task that was begun is settled: its outputs are acknowledged, or it
// was given up.
func (s *assignment) endTask() {
	if s.running.Add(-1) == 0 && s.stopping.Load() {
		s.closeIdle.Do(func() { close(s.idle) })
	}
}

// stop has no more tasks begun. idle is closed once those that were are settled.
func (s *assignment) stop() {
	s.stopping.Store(true)
	if s.running.Load() == 0 {
		s.closeIdle.Do(func() { close(s.idle) })
	}
}

// admit takes note of delivered records, and returns the first one's slot, and which of them were done before.
// Once three quarters of the window are in flight the partition is paused: the last quarter is room for one more poll.
func (s *assignment) track(recs []*kgo.Record) (first uint64, done []bool, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.firstOffset < 0 {
		s.firstOffset, s.firstEpoch = recs[0].Offset, recs[0].LeaderEpoch
		s.recordedDone.Store(max(s.recordedDone.Load(), s.firstOffset)) // as is committed before the first task is begun
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
		if s.crashes.completed.isDone(rec.Offset, rec.LeaderEpoch) {
			done[i] = true
			s.tracker.finish(slot)
		}
	}
	s.dropDonePolls()
	from := recs[0].Timestamp
	if s.backlog { // since when it was there before
		from = parseRetryHeaders(recs[0].Headers).timestamp
	}
	s.polls.push(pollMark{s.tracker.next, from})
	s.evictStragglers(false)
	if !s.paused && s.tracker.inFlight() >= s.window()/4*3 {
		s.paused, s.pausedSince = true, time.Now()
		s.fetcher.cl.PauseFetchPartitions(s.asMap()) // with mu held: a resume must not get in front
	}
	return first, done, true
}

// settle forgets polls of which all is done.
func (s *assignment) dropDonePolls() {
	for s.polls.len() > 0 && s.polls.peek().end <= s.tracker.base {
		s.polls.pop()
	}
}

// maxLate is how many records that are late a commit has room to name, at least. There may be more, up to half of a window.
const maxStragglers = 1024

// pass makes room in the window if half of it is done, behind records that take long, or if it is full and no more than a
// quarter is not done, or than half of it if it has been stuck.
func (s *assignment) evictStragglers(stuck bool) {
	done := s.tracker.doneCount()
	most := s.paused && (stuck || s.tracker.inFlight()-done <= s.window()/4)
	if s.tracker.unfinished > s.window()/2 || done < s.window()/2 && !most || s.tracker.inFlight() == 0 {
		return
	}
	s.dropDonePolls()
	s.tracker.evict(s.polls.peek().at)
	s.dropDonePolls()
}

// oldest says from when the oldest record is that is not done, to a poll; not ok: all are.
func (s *assignment) oldest() (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropDonePolls()
	switch {
	case len(s.tracker.stragglers) > 0:
		return s.tracker.stragglers[0].notBefore, true
	case s.polls.len() == 0:
		return at, false
	}
	return s.polls.peek().at, true
}

func (s *assignment) window() int { return len(s.tracker.ring) }

// finish takes note that the record in slot is done, and has the partition fetched again when there is
// room.
func (s *assignment) finish(slot uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracker.finish(slot)
	if s.paused {
		s.evictStragglers(false)
	}
	if s.tracker.end.Offset-s.recordedDone.Load() >= int64(s.window()/2) {
		s.fetcher.requestCommit()
	}
	s.resumeIfRoom()
}

// resume has the partition fetched again when there is room.
func (s *assignment) resumeIfRoom() {
	room := s.window() / 4
	if s.fetcher.diversion.active.Load() { // the rest of a poll is likely to be moved
		room = s.window() / 2
	}
	if s.paused && !s.tracker.discarded && s.tracker.inFlight() <= room {
		s.paused = false
		s.fetcher.cl.ResumeFetchPartitions(s.asMap())
	}
}

// goOn has a partition that was stuck fetched again if no more than half of the window is not done.
func (s *assignment) resumeStuck() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evictStragglers(true)
	s.resumeIfRoom()
}

// kill makes all that is still in flight count for nothing.
func (s *assignment) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled.Store(true)
	s.tracker.discard()
}

// dead says that the partition is not ours any more, or is about not to be.
func (s *assignment) isCancelled() bool { return s.cancelled.Load() }

// full says that the partition is not fetched because its window is nearly full.
func (s *assignment) isPaused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused
}

// stuck reports whether the partition has not been fetched for d, and is not about to be.
func (s *assignment) stuckFor(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused && time.Since(s.pausedSince) >= d && s.tracker.inFlight() > s.window()/4
}

// crowded reports whether half as many records are late as a commit has room to name.
func (s *assignment) manyStragglers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tracker.stragglers) >= maxStragglers/2
}

// open says that tasks are about to be begun, and whether that is not on record yet.
func (s *assignment) markOpen() (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh = !s.openRecorded
	s.openRecorded = true
	return fresh
}

// rest takes note that a second has passed: a partition of which nothing is in flight, and
// nothing came meanwhile, is at rest.
func (s *assignment) markQuiet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.openRecorded && s.quiet && s.tracker.unfinished == 0 {
		s.openRecorded = false
	}
	s.quiet = true
}

// position returns what to commit for the partition, if that is news. Once it is stopping, no task is begun any more:
// if none is suspect, who ends the process does not wait for those at work, and they are no cause of its death.
func (s *assignment) position(now runningOffsets) (position, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tracker.discarded || s.firstOffset < 0 {
		return position{}, false
	}
	at, moved := s.tracker.take()
	if s.tracker.base == 0 { // nothing is done yet
		at = kgo.EpochOffset{Epoch: s.firstEpoch, Offset: s.firstOffset}
	}
	open := s.openRecorded && !(s.stopping.Load() && len(now.suspect) == 0)
	text, done := s.crashes.encode(open, at.Offset, now, s.tracker.completedAhead(s.stopping.Load(), maxStragglers))
	if !moved && text == s.metadata {
		return position{}, false
	}
	s.metadata = text
	return position{EpochOffset: at, metadata: text, done: done}, true
}

// last is the metadata that was last to be committed.
func (s *assignment) lastMetadata() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.metadata
}

// learn takes in what the commit at offset tells of the past. What is at work by it has died, unless
// it is ours: then only the session was lost.
func (s *assignment) loadCrashes(metadata string, offset int64, ours bool, log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crashes = parseCrashHistory(metadata, offset, s.window(), !ours)
	s.hasDeaths.Store(s.crashes.horizon > 0 || len(s.crashes.deaths) > 0)
	s.recordedDone.Store(max(offset, s.crashes.completed.end.Offset))
	died := 0
	for _, n := range s.crashes.deaths {
		if n > 0 {
			died++
		}
	}
	if died > 0 {
		log.Warn("messages were at work when a process died", "topic", s.topic, "partition", s.id, "messages", died)
	}
}

// suspects returns the offsets of messages that were at work in deaths, with how many.
func (s *assignment) deathCounts() map[int64]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.crashes.deaths)
}

// suspect returns in how many deaths the message at offset may have been at work, and whether it
// must be on record before it is begun. far says that it should be: a death would not be known to be its.
func (s *assignment) crashRisk(offset int64) (deaths int, careful, far bool) {
	far = offset >= s.recordedDone.Load()+int64(s.window())
	if !s.hasDeaths.Load() {
		return 0, false, far
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	deaths, careful = s.crashes.deathsOf(offset)
	return deaths, careful, far
}
