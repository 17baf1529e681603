package app

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
)

// A timetable lets the rounds of a kind of sweep, or of a job, begin and go on by a schedule.
type timetable struct {
	name       string
	configured schedule.Schedule
	set        *schedules // that count in place of the configured one, also for some splits
	log        *slog.Logger
	now        func() time.Time
	// requested reports whether a round was requested besides the schedule. Then it begins and goes on whatever that
	// says. nil: none is.
	requested func(sweep, split string) bool
	// The next rounds, by split. Only the goroutine that looks for due rounds uses them. Without them, the first start at
	// a time of day would move on with the clock, and so would one after the clock was set back.
	planned map[string]plannedRound
	logged  time.Time // when a clock that was set back was logged

	mu     sync.Mutex    // guards what follows
	latest []sweep.Split // that were listed last
	listed bool
}

// A plannedRound is the next round of a split.
type plannedRound struct {
	last string    // the round before; empty: none
	by   string    // which schedule it was planned by
	from time.Time // when that began, or when the round was planned if there is none
	due  time.Time
}

func newTimetable(name string, s schedule.Schedule, log *slog.Logger) *timetable {
	return &timetable{name: name, configured: s, set: new(schedules), log: log, now: time.Now,
		planned: map[string]plannedRound{}}
}

// schedule returns the schedule that counts now for a split.
func (t *timetable) schedule(split string) schedule.Schedule {
	s, _ := t.identified(split)
	return s
}

// identified returns the schedule that counts now for a split, and what identifies it if it is not the configured one.
func (t *timetable) identified(split string) (schedule.Schedule, string) {
	return t.set.of(t.name, placesOf(t.name, split), t.configured)
}

// all returns each schedule that counts now for some split.
func (t *timetable) all() []schedule.Schedule {
	return t.set.all(t.name, t.configured)
}

// off reports whether no split has rounds by a schedule.
func (t *timetable) off() bool {
	return !slices.ContainsFunc(t.all(), func(s schedule.Schedule) bool { return !s.Off() })
}

// mayWork reports whether rounds by a schedule may begin and go on at a time.
func mayWork(s schedule.Schedule, at time.Time) bool { return !s.Off() && s.Open(at) }

// of returns kind with splits that keep to their schedules. kind is not called while nothing may be done.
func (t *timetable) of(kind sweep.Kind) sweep.Kind {
	return func(ctx context.Context) ([]sweep.Split, error) {
		now := t.now()
		if t.requested == nil &&
			!slices.ContainsFunc(t.all(), func(s schedule.Schedule) bool { return mayWork(s, now) }) {
			return nil, nil
		}
		all, err := kind(ctx)
		for i := range all {
			t.apply(&all[i])
		}
		if err == nil {
			t.mu.Lock()
			t.latest, t.listed = all, true
			t.mu.Unlock()
		}
		return all, unlessAway(err)
	}
}

// splits returns the splits that were listed last, when all could be; false if they never were.
func (t *timetable) splits() (all []sweep.Split, listed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.latest), t.listed
}

func (t *timetable) apply(m *sweep.Split) {
	name, split, blocked := m.Sweep, m.Name, m.Blocked
	requested := func() bool { return t.requested != nil && t.requested(name, split) }
	m.Due = func(last *pb.Checkpoint, now time.Time) bool {
		return requested() || t.due(split, last, now)
	}
	m.Next = func(started time.Time) time.Time { return t.schedule(split).Next(started, started) }
	m.Blocked = func(ctx context.Context) error {
		if !mayWork(t.schedule(split), t.now()) && !requested() {
			return sweep.ErrNotNow
		}
		return blocked(ctx)
	}
}

// due reports whether a round of a split is due after the round of the last checkpoint, which has ended or is nil. The
// windows are not considered: Blocked does that.
func (t *timetable) due(split string, last *pb.Checkpoint, now time.Time) bool {
	s, by := t.identified(split)
	if s.Off() {
		return false
	}
	from := now
	if last != nil {
		from = last.GetStarted().AsTime()
	}
	p, ok := t.planned[split]
	if ok = ok && p.last == last.GetRound() && p.by == by; ok {
		from = p.from
	}
	if from.After(now) { // the clock was set back: now counts instead, so that the round is due within a period
		if now.Sub(t.logged).Abs() >= time.Hour { // one line for all splits
			t.log.Warn("plan rounds anew after the clock was set back", "sweep", t.name, "split", split, "from", from,
				"now", now)
			t.logged = now
		}
		from, ok = now, false
	}
	if !ok {
		p = plannedRound{last: last.GetRound(), by: by, from: from}
		after := from
		if last == nil {
			after = time.Time{}
		}
		p.due = s.Next(after, from)
		t.planned[split] = p
	}
	return !p.due.After(now)
}
