// Package schedule says when recurring work starts, and when it may go on. One grammar serves sweeps, jobs, stores and
// spaces, as text of one line:
//
//	off
//	every 20m
//	every 60d
//	every 1w start 20:00 window 22:00-06:00 zone Europe/Zurich
//	cron 0 3 * * mon-fri zone Europe/Zurich
//
// A period is a Go duration after any of mo, w and d: 1mo, 1w, 60d, 1d12h, 90s; at least one second. Months, weeks and
// days are those of the calendar of the zone, so that a day with a change of the clock is one day; hours are always 60
// minutes. A month after the last day of a month is the last day of the next one (31 January, 28 February, 31 March);
// otherwise it is the same day, or the last one if there is no such day.
//
// A line of cron has the five fields minute, hour, day of month, month and day of week, with lists, ranges, steps and
// English names of three letters; 0 and 7 are Sunday. If both fields of days are restricted, either suffices; as in
// cron, a field that begins with * is not restricted, and then both must match.
//
// With "start", work with a period of whole days begins at that time of the day. With one or more windows, it begins
// and goes on only within them; a window may include midnight. Times of the day are those of the zone, by default UTC.
// A start that a change of the clock leaves out is at the end of the gap; one that occurs twice is at the first
// occurrence. Windows are open by what the clock shows.
//
// The package has no state and never reads the clock.
package schedule

import (
	"slices"
	"time"
)

// A Schedule is what Parse returns. The zero Schedule is off.
type Schedule struct {
	every   period
	cron    *cron // nil: every counts
	start   clock // for every, if hasStart
	windows []window
	zone    *time.Location // nil: UTC

	hasStart bool
}

// A period is the sum of its fields.
type period struct {
	months, days int
	rest         time.Duration
}

// A clock is a time of day, in minutes.
type clock int

// A window is open from one time of day until another, of the next day if that is earlier.
type window struct{ from, until clock }

// scan limits the search for an opening or a close. An opening is at most two days away: a change of the clock may
// leave out the window of one day.
const scan = 3 * 24 * time.Hour

// Off reports whether the work does not recur.
func (s Schedule) Off() bool { return s.cron == nil && s.every == period{} }

// LongerThan reports whether the time between two iterations can be longer than d, with months of 31 days. For a line
// of cron it considers the days of two years, and allows for the hour by which the end of summer time delays a start.
func (s Schedule) LongerThan(d time.Duration) bool {
	const day = 24 * time.Hour
	if s.cron == nil {
		return time.Duration(31*s.every.months+s.every.days)*day+s.every.rest > d
	}
	return s.cron.longestGap() > d+time.Hour
}

// ShorterThan reports whether s has a period that is shorter than d. A line of cron has none.
func (s Schedule) ShorterThan(d time.Duration) bool {
	return !s.Off() && s.cron == nil && s.every.months+s.every.days == 0 && s.every.rest < d
}

// Next returns when the next iteration is due: now or earlier if it is due now; the zero time if s is off. last is when
// the last iteration started, not when it was due; zero if there was none.
//
// The next iteration is due a period after last, or at the first start after it. However many starts were missed, one
// iteration is due. Outside of the windows, it is due when the next one opens.
//
// Without a last one, an iteration is due at once; with a time of day or a line of cron it is due at the first start
// from the minute of now on. That start moves with now: keep it, or ask once a minute.
//
// A last after now counts as now, since the clock was set back. Keep now as the start of the last iteration then, so
// that the next one is due a period later and does not move with the clock.
func (s Schedule) Next(last, now time.Time) time.Time {
	if s.Off() {
		return time.Time{}
	}
	now = now.In(s.location()) // without the monotonic clock, which steps do not change
	never := last.IsZero()
	if last = last.In(s.location()); last.After(now) {
		last = now
	}
	var due time.Time
	minute := now.Truncate(time.Minute)
	switch {
	case s.cron != nil && never:
		due = s.cronAfter(minute.Add(-1))
	case s.cron != nil:
		due = s.cronAfter(last)
	case s.hasStart && never:
		if due = s.startOf(s.wall(now), 0); due.Before(minute) {
			due = s.startOf(s.wall(now), 1)
		}
	case s.hasStart:
		due = s.afterStart(last)
	case never:
		due = now
	case s.every.months+s.every.days == 0:
		due = last.Add(s.every.rest) // also in an hour that occurs twice
	default:
		due = s.instant(s.every.after(s.wall(last))).Add(s.every.rest)
	}
	if due.Before(now) && !s.Open(now) {
		due = now // too late for the window in which it was due
	}
	return s.NextOpen(due)
}

// afterStart returns the time of day at which an iteration is due a period after the one that began at last. An
// iteration that began late counts as that of the start before it, so that it does not move the later ones.
func (s Schedule) afterStart(last time.Time) time.Time {
	day := s.wall(last)
	if s.startOf(day, 0).After(last) {
		day = day.AddDate(0, 0, -1)
	}
	return s.startOf(s.every.after(day), 0)
}

// startOf returns the start on the day of a wall time, or some days later.
func (s Schedule) startOf(wall time.Time, later int) time.Time {
	return s.instant(midnight(wall).AddDate(0, 0, later).Add(s.start.duration()))
}

// Open reports whether work may go on at a time: always without windows.
func (s Schedule) Open(at time.Time) bool {
	wall := s.wall(at)
	minute := clock(wall.Hour()*60 + wall.Minute())
	return len(s.windows) == 0 || slices.ContainsFunc(s.windows, func(w window) bool {
		if w.from < w.until {
			return w.from <= minute && minute < w.until
		}
		return w.from <= minute || minute < w.until
	})
}

// NextOpen returns the first time from at on when work may go on, which is at itself if it may.
func (s Schedule) NextOpen(at time.Time) time.Time { return s.seek(at, true) }

// Close returns the first time from at on when work must not go on: at itself if it must not; the zero time if it
// always may.
func (s Schedule) Close(at time.Time) time.Time { return s.seek(at, false) }

// seek returns the first time from at on that is open, or that is not. Windows begin and end at full minutes.
func (s Schedule) seek(at time.Time, open bool) time.Time {
	if s.Open(at) == open {
		return at
	}
	for t := at.Truncate(time.Minute); len(s.windows) > 0 && t.Sub(at) < scan; {
		if t = t.Add(time.Minute); s.Open(t) == open {
			return t
		}
	}
	return time.Time{}
}

func (s Schedule) location() *time.Location {
	if s.zone == nil {
		return time.UTC
	}
	return s.zone
}

// wall returns what calendar and clock of the zone show at t, as a time in UTC. UTC has all days and times of day,
// so that calendars are computed with it.
func (s Schedule) wall(t time.Time) time.Time {
	_, offset := t.In(s.location()).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// instant returns when the zone first shows a wall time; if it never does, the end of the gap.
func (s Schedule) instant(wall time.Time) time.Time {
	const farther = 24 * time.Hour // than any offset, so that one is from before a change and one from after it
	var before time.Time
	for _, near := range []time.Duration{-farther, farther} {
		_, offset := wall.Add(near).In(s.location()).Zone()
		t := wall.Add(-time.Duration(offset) * time.Second).In(s.location())
		if s.wall(t).Equal(wall) {
			return t
		}
		if near < 0 {
			before = t
		}
	}
	end, _ := before.ZoneBounds()
	return end
}

// after returns the wall time that is the months and days of p after another.
func (p period) after(wall time.Time) time.Time {
	if p.months > 0 {
		first := wall.AddDate(0, p.months, 1-wall.Day())
		day, last := wall.Day(), first.AddDate(0, 1, -1).Day()
		if day > last || wall.AddDate(0, 0, 1).Day() == 1 {
			day = last
		}
		wall = first.AddDate(0, 0, day-1)
	}
	return wall.AddDate(0, 0, p.days)
}

func midnight(wall time.Time) time.Time { return wall.Truncate(24 * time.Hour) }

func (c clock) duration() time.Duration { return time.Duration(c) * time.Minute }
