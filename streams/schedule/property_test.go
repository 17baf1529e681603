package schedule

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
)

// zones change their clocks by an hour, by half an hour, at midnight, during Ramadan, by a day, and never.
func zones() []string {
	return []string{
		"Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca",
		"Pacific/Apia", "Asia/Kathmandu", "UTC",
	}
}

// drawn is a schedule with its parts.
type drawn struct {
	Schedule
	text, period, zone    string
	start, cron, windowed bool
}

func draw(t *rapid.T) drawn {
	d := drawn{zone: rapid.SampledFrom(zones()).Draw(t, "zone")}
	clock := rapid.Custom(func(t *rapid.T) string {
		return clock(10 * rapid.IntRange(0, 143).Draw(t, "minute")).String()
	})
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		d.cron = true
		d.text = "cron " + strings.Join([]string{
			rapid.SampledFrom([]string{"0", "30", "*/20", "5,55", "*"}).Draw(t, "minutes"),
			rapid.SampledFrom([]string{"*", "0", "2", "1-3", "*/6", "23"}).Draw(t, "hours"),
			rapid.SampledFrom([]string{"*", "1", "31", "*/2"}).Draw(t, "days"),
			rapid.SampledFrom([]string{"*", "1-12/3", "mar,oct"}).Draw(t, "months"),
			rapid.SampledFrom([]string{"*", "sun", "mon-fri"}).Draw(t, "weekdays"),
		}, " ")
	case 1:
		d.period = strconv.Itoa(rapid.IntRange(1, 200_000).Draw(t, "seconds")) + "s"
		d.text = "every " + d.period
	default:
		unit := rapid.SampledFrom([]string{"d", "w", "mo"}).Draw(t, "unit")
		d.period = strconv.Itoa(rapid.IntRange(1, 70).Draw(t, "number")) + unit
		d.text = "every " + d.period
		if d.start = rapid.Bool().Draw(t, "start"); d.start {
			d.text += " start " + clock.Draw(t, "at")
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "windows") {
		from, until := clock.Draw(t, "from"), clock.Draw(t, "until")
		if from != until {
			d.text += " window " + from + "-" + until
			d.windowed = true
		}
	}
	d.text += " zone " + d.zone
	s, err := Parse(d.text)
	if err != nil {
		t.Fatalf("%s: want %v", d.text, err)
	}
	d.Schedule = s
	return d
}

// drawTime draws a time of the years 2009 to 2029, often near a change of the clock.
func drawTime(t *rapid.T, zone *time.Location) time.Time {
	at := time.Unix(rapid.Int64Range(1_230_768_000, 1_861_920_000).Draw(t, "time"), 0).In(zone)
	if _, change := at.ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(t, "near a change") {
		at = change.Add(time.Duration(rapid.IntRange(-100_000, 10_000).Draw(t, "seconds")) * time.Second)
	}
	return at
}

// The next iteration is after the last one and within the windows, and the time that passes until then changes nothing.
// Once begun, however late, it is not due again.
func TestNextIsDueOnce(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		s := draw(t)
		last := drawTime(t, s.location())
		now := last.Add(time.Duration(rapid.Int64Range(0, 100*24*3600).Draw(t, "later")) * time.Second)
		due := s.Next(last, now)
		switch {
		case !due.After(last):
			t.Fatalf("%s: %s is not after %s", s.text, due, last)
		case !due.After(now) && !s.Open(now) || due.After(now) && !s.Open(due):
			t.Fatalf("%s: at %s: due at %s, outside of the windows", s.text, now, due)
		}
		if first := s.Next(last, last); due.Before(first) || due.After(now) && !due.Equal(s.NextOpen(later(first, now))) {
			t.Fatalf("%s: at %s: got %s, at %s: got %s", s.text, last, first, now, due)
		}
		begun := later(due, now)
		if half := now.Add(begun.Sub(now) / 2); !s.Next(last, half).Equal(due) {
			t.Fatalf("%s: at %s: got %s, at %s: got %s", s.text, now, due, half, s.Next(last, half))
		}
		if got := s.Next(last, begun); got.After(begun) {
			t.Fatalf("%s: at %s: got %s, at %s: got %s", s.text, now, due, begun, got)
		}
		if again := s.Next(begun, begun); !again.After(begun) {
			t.Fatalf("%s: begun at %s and due again at %s", s.text, begun, again)
		}
	})
}

// A period is not shortened, other than by a change of the clock, a time of day or the days of a month.
func TestPeriodIsKept(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		s := draw(t)
		if s.cron || s.start || s.windowed {
			return
		}
		last := drawTime(t, s.location())
		got := s.Next(last, last).Sub(last)
		least := 24*time.Hour*time.Duration(s.every.days+28*s.every.months) + s.every.rest
		most := 24*time.Hour*time.Duration(s.every.days+31*s.every.months) + s.every.rest
		change := 25 * time.Hour // a day of Apia, and an hour
		if s.every.days+s.every.months == 0 {
			change = 0
		}
		if got < least-change || got > most+change {
			t.Fatalf("%s: after %s: %s, want %s to %s", s.text, last, got, least, most)
		}
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// starts returns the starts in the year after from, each iteration of which begins late.
func starts(s Schedule, from time.Time, late time.Duration) (all []time.Time) {
	for due := s.Next(from, from); due.Before(from.AddDate(1, 0, 0)); due = s.Next(due.Add(late), due.Add(late)) {
		all = append(all, due)
	}
	return all
}

// walk calls shown with the wall times of a year, five minutes apart, that the clock first shows, or leaves out, at t.
func walk(s Schedule, from time.Time, shown func(wall, t time.Time)) {
	const step = 5 * time.Minute
	wall := s.wall(from)
	for t := from; t.Before(from.AddDate(1, 0, 0)); t = t.Add(step) {
		for now := s.wall(t); wall.Before(now); {
			wall = wall.Add(step)
			shown(wall, t)
		}
	}
}

// In each zone and year with changes of the clock, lines of cron and starts at a time of day are due as the clock shows
// them, in order, and each once.
func TestYears(t *testing.T) {
	lines := []string{
		"cron 30 2 * * *", "cron */20 1-3 * * *", "cron 0 0 * * *", "cron 0 * * mar,oct,nov *", "cron 15 1 1 * sun",
		"every 1d start 02:10", "every 1d start 00:00", "every 1d start 01:55",
	}
	for _, zone := range zones() {
		t.Run(zone, func(t *testing.T) {
			years := []int{2026}
			if zone == "Pacific/Apia" {
				years = []int{2011} // it left out a day
			}
			for _, year := range years {
				all := make([]Schedule, len(lines))
				for i, line := range lines {
					all[i] = parse(t, line+" zone "+zone)
				}
				from := time.Date(year, 1, 1, 0, 0, 0, 0, all[0].location())
				want := make([][]time.Time, len(lines))
				walk(all[0], from, func(wall, t time.Time) {
					minute := clock(wall.Hour()*60 + wall.Minute())
					for i, s := range all {
						due := s.hasStart && minute == s.start
						if c := s.cron; c != nil {
							due = has(c.hours, wall.Hour()) && has(c.minutes, wall.Minute()) && c.day(wall)
						}
						if n := len(want[i]); due && (n == 0 || want[i][n-1].Before(t)) {
							want[i] = append(want[i], t)
						}
					}
				})
				for i, s := range all {
					got := starts(s, from, 0)
					if !slices.EqualFunc(got, want[i], time.Time.Equal) {
						t.Errorf("%s, %d: got %d starts, %.500v, want %d, %.500v", s, year, len(got), got, len(want[i]), want[i])
					}
				}
			}
		})
	}
}

// Iterations that begin late do not move the later ones, and a process that was down begins one.
func TestLateAndMissed(t *testing.T) {
	s := parse(t, "every 1d start 20:00"+zurich)
	from := time.Date(2026, 1, 1, 20, 0, 0, 0, s.location())
	for _, late := range []time.Duration{3 * time.Second, 5 * time.Hour, 22 * time.Hour} {
		got := starts(s, from, late)
		if len(got) != 364 {
			t.Errorf("%s late: got %d starts in a year", late, len(got))
		}
		for _, start := range got {
			if start.Hour() != 20 || start.Minute() != 0 {
				t.Errorf("%s late: got a start at %s", late, start)
			}
		}
	}
	back := from.AddDate(0, 0, 30).Add(-7 * time.Hour) // of the process
	if due := s.Next(from, back); due.After(back) {
		t.Errorf("got %s, want a start at once", due)
	}
	checkTime(t, s.Next(back, back), from.AddDate(0, 0, 30))
}

// poll runs a schedule as callers do, once a minute from a time on, and returns how many iterations began.
func poll(s Schedule, last *time.Time, from time.Time, during time.Duration) (n int) {
	for now := from; now.Sub(from) < during; now = now.Add(time.Minute) {
		if last.After(now) {
			*last = now
		}
		if due := s.Next(*last, now); !due.After(now) {
			*last = now
			n++
		}
	}
	return n
}

// The clock steps by an hour and by a day, both ways. A step back holds no start up for longer than a period; a step
// ahead is one missed start, however many.
func TestClockSteps(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	for name, tt := range map[string]struct {
		schedule string
		step     time.Duration
		want     int // iterations in the two days after the step
	}{
		"minutes, hour back":   {"every 20m", -hour, 143},
		"minutes, day back":    {"every 20m", -day, 143},
		"minutes, hour ahead":  {"every 20m", hour, 144},
		"minutes, day ahead":   {"every 20m", day, 144},
		"days, hour back":      {"every 1d", -hour, 1},
		"days, day back":       {"every 1d", -day, 1},
		"days, hour ahead":     {"every 1d", hour, 2},
		"days, day ahead":      {"every 1d", day, 2},
		"start, hour back":     {"every 1d start 12:00", -hour, 2}, // 12:00 again
		"start, day back":      {"every 1d start 12:00", -day, 1},
		"start, hour ahead":    {"every 1d start 12:00", hour, 2},
		"start, day ahead":     {"every 1d start 12:00", day, 2},
		"cron, hour back":      {"cron 0 12 * * *", -hour, 2},
		"cron, day back":       {"cron 0 12 * * *", -day, 1},
		"cron, hour ahead":     {"cron 0 12 * * *", hour, 2},
		"cron, day ahead":      {"cron 0 12 * * *", day, 2},
		"long, day back":       {"every 60d", -day, 0},
		"long, hour ahead":     {"every 60d", hour, 0},
		"windows, a day back":  {"every 20m window 00:00-12:00", -day, 72},
		"windows, a day ahead": {"every 20m window 00:00-12:00", day, 72},
	} {
		t.Run(name, func(t *testing.T) {
			s := parse(t, tt.schedule)
			last := at(t, "2026-05-10 12:00")
			if got := poll(s, &last, last.Add(tt.step), 2*day); got != tt.want {
				t.Errorf("got %d iterations, want %d", got, tt.want)
			}
		})
	}
}
