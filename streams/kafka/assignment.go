package kafka

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// An assignment is one partition that is assigned to a Pool.
type assignment struct {
	partition
	fetcher      *fetcher
	backlog      bool         // it is of the backlog topic
	unackedMoves atomic.Int64 // messages moved to the backlog topic and not acknowledged

	stopping     atomic.Bool  // no more tasks start
	cancelled    atomic.Bool  // started tasks must end; their results are ignored
	running      atomic.Int64 // tasks that have started and not ended
	hasDeaths    atomic.Bool  // crashes is not empty
	recordedDone atomic.Int64 // offset below which the last commit describes all records
	idle         chan struct{}
	closeIdle    sync.Once // closes idle when stopping and running is 0

	mu           sync.Mutex // guards the fields below
	tracker      *tracker
	paused       bool // not fetched, because its window is nearly full
	pausedSince  time.Time
	firstOffset  int64        // first offset that was delivered; -1: none yet
	firstEpoch   int32        // leader epoch of firstOffset
	crashes      crashHistory // tasks that were running when processes died
	openRecorded bool         // a commit says that tasks may be running
	metadata     string       // last metadata that was staged for a commit
	quiet        bool         // nothing was delivered since the last tick
	polls        fifo[pollMark]
}

// A pollMark holds the time of the records of one poll.
type pollMark struct {
	end uint64 // the slot after the poll's last one
	at  time.Time
}

func newAssignment(in *fetcher, at partition, window int) *assignment {
	return &assignment{partition: at, fetcher: in, backlog: at.topic == in.backlogTopic, tracker: newTracker(window), idle: make(chan struct{}), firstOffset: -1}
}

// beginTask counts a task that is about to start. It reports false if the partition is stopping.
func (s *assignment) beginTask() bool {
	s.running.Add(1)
	if s.stopping.Load() {
		s.endTask()
		return false
	}
	return true
}

// endTask ends a task that has started: its outputs are acknowledged, or it was abandoned.
func (s *assignment) endTask() {
	if s.running.Add(-1) == 0 && s.stopping.Load() {
		s.closeIdle.Do(func() { close(s.idle) })
	}
}

// stop prevents the start of tasks. idle is closed when those that have started have ended.
func (s *assignment) stop() {
	s.stopping.Store(true)
	if s.running.Load() == 0 {
		s.closeIdle.Do(func() { close(s.idle) })
	}
}

// track adds delivered records to the window. It returns the slot of the first one, and which of them were
// done before. When three quarters of the window are in flight the partition is paused; the last quarter has
// room for one more poll. ok is false if the window is full.
func (s *assignment) track(recs []*kgo.Record) (first uint64, done []bool, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.firstOffset < 0 {
		s.firstOffset, s.firstEpoch = recs[0].Offset, recs[0].LeaderEpoch
		s.recordedDone.Store(max(s.recordedDone.Load(), s.firstOffset)) // this is committed before the first task starts
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
	if s.backlog { // the time at which it was first read
		from = parseRetryHeaders(recs[0].Headers).timestamp
	}
	s.polls.push(pollMark{s.tracker.next, from})
	s.evictStragglers(false)
	if !s.paused && s.tracker.inFlight() >= s.window()/4*3 {
		s.paused, s.pausedSince = true, time.Now()
		s.fetcher.cl.PauseFetchPartitions(s.asMap()) // with mu held, so that no resume comes first
	}
	return first, done, true
}

// dropDonePolls drops the marks of polls that are done.
func (s *assignment) dropDonePolls() {
	for s.polls.len() > 0 && s.polls.peek().end <= s.tracker.base {
		s.polls.pop()
	}
}

// maxStragglers is the number of stragglers that always fit into the metadata of a commit. There may be more,
// up to half of a window.
const maxStragglers = 1024

// evictStragglers makes room in the window if half of it is done behind records that take long. It also does
// so if the partition is paused and at most a quarter of the window is not done, or half if stuck.
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

// oldest returns the time of the oldest record that is not done, within one poll. ok is false if all are
// done.
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

// finish marks the record in slot as done, and resumes fetching if there is room.
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

// resumeIfRoom resumes fetching if there is room in the window.
func (s *assignment) resumeIfRoom() {
	room := s.window() / 4
	if s.fetcher.diversion.active.Load() { // most of the next poll is likely to be moved
		room = s.window() / 2
	}
	if s.paused && !s.tracker.discarded && s.tracker.inFlight() <= room {
		s.paused = false
		s.fetcher.cl.ResumeFetchPartitions(s.asMap())
	}
}

// resumeStuck resumes fetching of a stuck partition if at most half of its window is not done.
func (s *assignment) resumeStuck() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evictStragglers(true)
	s.resumeIfRoom()
}

// discard makes the results of all records in flight ignored.
func (s *assignment) discard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled.Store(true)
	s.tracker.discard()
}

// isCancelled reports whether the partition is revoked, or about to be.
func (s *assignment) isCancelled() bool { return s.cancelled.Load() }

// isPaused reports whether the partition is not fetched because its window is nearly full.
func (s *assignment) isPaused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused
}

// stuckFor reports whether the partition has not been fetched for d, and will not be until more tasks end.
func (s *assignment) stuckFor(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused && time.Since(s.pausedSince) >= d && s.tracker.inFlight() > s.window()/4
}

// manyStragglers reports whether there are half of maxStragglers or more.
func (s *assignment) manyStragglers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.tracker.stragglers) >= maxStragglers/2
}

// markOpen records that tasks are about to start. It reports whether no commit says so yet.
func (s *assignment) markOpen() (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh = !s.openRecorded
	s.openRecorded = true
	return fresh
}

// markQuiet is called every second. A partition without records in flight, and without new ones for a second,
// is at rest.
func (s *assignment) markQuiet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.openRecorded && s.quiet && s.tracker.unfinished == 0 {
		s.openRecorded = false
	}
	s.quiet = true
}

// position returns the position to commit, and whether it has changed. A stopping partition starts no more
// tasks. If none of its tasks is suspect, it is committed as closed: the process may be killed before they
// end, and they are not the cause of that.
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

// lastMetadata returns the last metadata that was staged for a commit.
func (s *assignment) lastMetadata() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.metadata
}

// loadCrashes loads the crash history from the metadata of the commit at offset. If the commit is not ours,
// its owner is gone and the tasks that it names as running have died. If it is ours, only the session was
// lost.
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

// deathCounts returns the number of deaths by offset.
func (s *assignment) deathCounts() map[int64]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.crashes.deaths)
}

// crashRisk returns the number of deaths in which the message at offset may have been running. careful
// reports whether it must be recorded before it starts. far reports whether it should be: it is so far ahead
// that a death would not be attributed to it.
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
