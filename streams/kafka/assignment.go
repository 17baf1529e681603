package kafka

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/schedule"
)

// An assignment is one partition that is assigned to a Pool.
type assignment struct {
	core.Partition
	fetcher      *fetcher
	topic        *core.Topic
	backlog      bool         // it is of the backlog topic
	unackedMoves atomic.Int64 // messages moved to the backlog topic and not acknowledged

	gate      *schedule.Gate
	cancelled atomic.Bool // started tasks must end; their results are ignored
	hasDeaths atomic.Bool // crashes is not empty

	mu           sync.Mutex // guards the fields below
	tracker      *tracker
	paused       bool // not fetched, because its window is nearly full
	pausedSince  time.Time
	firstOffset  int64        // first offset that was delivered; -1: none yet
	firstEpoch   int32        // leader epoch of firstOffset
	crashes      crashHistory // tasks that were running when processes died
	openRecorded bool         // a commit says that tasks may be running
	metadata     string       // last metadata that was staged for a commit
	staged       int64        // end of the tracker when a commit was last staged
	quiet        bool         // nothing was delivered since the last tick
	polls        []pollMark   // of records that are not done, oldest first
}

// A pollMark holds the time of the records of one poll.
type pollMark struct {
	end uint64 // the slot after the poll's last one
	at  time.Time
}

func newAssignment(f *fetcher, at core.Partition, window int) *assignment {
	return &assignment{
		Partition: at, fetcher: f, topic: core.NewTopic(f.p.kafka, at.Topic), backlog: at.Topic == f.backlogTopic,
		tracker: newTracker(window), gate: schedule.NewGate(), firstOffset: -1,
	}
}

// track adds delivered records to the window. It returns the slot of the first one, and which of them were
// done before. When three quarters of the window are in flight the partition is paused; the last quarter has
// room for one more poll. ok is false if the window is full.
func (a *assignment) track(recs []*kgo.Record) (first uint64, done []bool, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.firstOffset < 0 {
		a.firstOffset, a.firstEpoch = recs[0].Offset, recs[0].LeaderEpoch
		a.staged = a.firstOffset // this is committed before the first task starts
	}
	a.quiet = false
	done = make([]bool, len(recs))
	for i, rec := range recs {
		slot, ok := a.tracker.add(rec.Offset, rec.LeaderEpoch)
		if !ok {
			return 0, nil, false
		}
		if i == 0 {
			first = slot
		}
		if a.crashes.completed.isDone(rec.Offset, rec.LeaderEpoch) {
			done[i] = true
			a.tracker.finish(slot)
		}
	}
	a.dropDonePolls()
	from := recs[0].Timestamp
	if a.backlog { // the time at which it was first read
		from = core.ParseRetryHeaders(recs[0].Headers).Timestamp
	}
	a.polls = append(a.polls, pollMark{a.tracker.next, from})
	a.evictStragglers(false)
	if !a.paused && a.tracker.inFlight() >= a.window()/4*3 {
		a.paused, a.pausedSince = true, time.Now()
		a.fetcher.cl.PauseFetchPartitions(a.AsMap()) // with mu held, so that no resume comes first
	}
	return first, done, true
}

// dropDonePolls drops the marks of polls that are done.
func (a *assignment) dropDonePolls() {
	for len(a.polls) > 0 && a.polls[0].end <= a.tracker.base {
		a.polls = a.polls[1:]
	}
}

// maxStragglers is the number of stragglers that always fit into the metadata of a commit. There may be more,
// up to half of a window.
const maxStragglers = 1024

// evictStragglers makes room in the window if half of it is done behind records that take long. It also does
// so if the partition is paused and at most a quarter of the window is not done, or half if stuck.
func (a *assignment) evictStragglers(stuck bool) {
	done := a.tracker.doneCount()
	most := a.paused && (stuck || a.tracker.inFlight()-done <= a.window()/4)
	if a.tracker.unfinished > a.window()/2 || done < a.window()/2 && !most || a.tracker.inFlight() == 0 {
		return
	}
	a.dropDonePolls()
	a.tracker.evict(a.polls[0].at)
	a.dropDonePolls()
}

// oldest returns the time of the oldest record that is not done, within one poll. ok is false if all are
// done.
func (a *assignment) oldest() (at time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropDonePolls()
	switch {
	case len(a.tracker.stragglers) > 0:
		return a.tracker.stragglers[0].notBefore, true
	case len(a.polls) == 0:
		return at, false
	}
	return a.polls[0].at, true
}

func (a *assignment) window() int { return len(a.tracker.ring) }

// finish marks the record in slot as done, and resumes fetching if there is room.
func (a *assignment) finish(slot uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tracker.finish(slot)
	if a.paused {
		a.evictStragglers(false)
	}
	if a.tracker.end.Offset-a.staged >= int64(a.window()/2) {
		a.fetcher.requestCommit()
	}
	a.resumeIfRoom()
}

// resumeIfRoom resumes fetching if there is room in the window.
func (a *assignment) resumeIfRoom() {
	room := a.window() / 4
	if a.fetcher.diversion.active.Load() { // most of the next poll is likely to be moved
		room = a.window() / 2
	}
	if a.paused && !a.tracker.discarded && a.tracker.inFlight() <= room {
		a.paused = false
		a.fetcher.cl.ResumeFetchPartitions(a.AsMap())
	}
}

// resumeStuck resumes fetching of a stuck partition if at most half of its window is not done.
func (a *assignment) resumeStuck() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.evictStragglers(true)
	a.resumeIfRoom()
}

// discard makes the results of all records in flight ignored.
func (a *assignment) discard() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancelled.Store(true)
	a.tracker.discard()
}

// isCancelled reports whether the partition is revoked, or about to be.
func (a *assignment) isCancelled() bool { return a.cancelled.Load() }

// isPaused reports whether the partition is not fetched because its window is nearly full.
func (a *assignment) isPaused() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.paused
}

// stuckFor reports whether the partition has not been fetched for d, and will not be until more tasks end.
func (a *assignment) stuckFor(d time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.paused && time.Since(a.pausedSince) >= d && a.tracker.inFlight() > a.window()/4
}

// manyStragglers reports whether there are half of maxStragglers or more.
func (a *assignment) manyStragglers() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.tracker.stragglers) >= maxStragglers/2
}

// markOpen records that tasks are about to start. It reports whether no commit says so yet.
func (a *assignment) markOpen() (fresh bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fresh = !a.openRecorded
	a.openRecorded = true
	return fresh
}

// markQuiet is called every second. A partition without records in flight, and without new ones for a second,
// is at rest.
func (a *assignment) markQuiet() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.openRecorded && a.quiet && a.tracker.unfinished == 0 {
		a.openRecorded = false
	}
	a.quiet = true
}

// position returns the position to commit, and whether it has changed. A stopping partition starts no more
// tasks. If none of its tasks is suspect, it is committed as closed: the process may be killed before they
// end, and they are not the cause of that.
func (a *assignment) position(running map[int64]bool) (position, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tracker.discarded || a.firstOffset < 0 {
		return position{}, false
	}
	at, moved := a.tracker.take()
	a.staged = max(a.staged, a.tracker.end.Offset)
	if a.tracker.base == 0 { // nothing is done yet
		at = kgo.EpochOffset{Epoch: a.firstEpoch, Offset: a.firstOffset}
	}
	stopping := a.gate.Closed()
	open := a.openRecorded && !(stopping && !slices.Contains(slices.Collect(maps.Values(running)), true))
	text := a.crashes.encode(a.fetcher.p.id, open, at.Offset, running, a.tracker.completedAhead(stopping, maxStragglers))
	if !moved && text == a.metadata {
		return position{}, false
	}
	a.metadata = text
	return position{EpochOffset: at, metadata: text}, true
}

// loadCrashes loads the crash history from the metadata of the commit at offset.
func (a *assignment) loadCrashes(metadata string, offset int64, log *slog.Logger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.crashes = parseCrashHistory(metadata, offset, a.window(), a.fetcher.p.id)
	a.hasDeaths.Store(a.crashes.horizon > 0 || len(a.crashes.deaths) > 0)
	died := 0
	for _, n := range a.crashes.deaths {
		if n > 0 {
			died++
		}
	}
	if died > 0 {
		log.Warn("suspect messages of dead process", "topic", a.Topic, "partition", a.ID, "messages", died)
	}
}

// deathCounts returns the number of deaths by offset.
func (a *assignment) deathCounts() map[int64]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.crashes.deaths)
}

// crashRisk returns the number of deaths in which the message at offset may have been running, and whether it must be
// recorded before it starts.
func (a *assignment) crashRisk(offset int64) (deaths int, mustRecord bool) {
	if !a.hasDeaths.Load() {
		return 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.crashes.deathsOf(offset)
}
