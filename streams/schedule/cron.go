package schedule

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// A cron is a line of cron. The fields are sets of numbers, as bits.
type cron struct {
	text                                   string
	minutes, hours, days, months, weekdays uint64
	either                                 bool // one of days and weekdays suffices
}

// cronYears is more than the years between two days that a line may select: 29 February on a Sunday is at most 40 years
// after another.
const cronYears = 41

// A cronField is a field of a line of cron.
type cronField struct {
	name     string
	min, max int
	words    []string // of the values, from min on
}

func cronFields() [5]cronField {
	return [...]cronField{
		{"a minute", 0, 59, nil},
		{"an hour", 0, 23, nil},
		{"a day of the month", 1, 31, nil},
		{"a month", 1, 12, strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec")},
		{"a day of the week", 0, 7, strings.Fields("sun mon tue wed thu fri sat")},
	}
}

func parseCron(fields [5]word) (*cron, error) {
	var texts [5]string
	var sets [5]uint64
	for i, f := range cronFields() {
		texts[i] = strings.ToLower(fields[i].text)
		var ok bool
		if sets[i], ok = f.parse(texts[i]); !ok {
			return nil, fields[i].fault("%s from %d to %d, *, a range such as 1-5, steps such as */2, or a list of them,",
				f.name, f.min, f.max)
		}
	}
	c := &cron{strings.Join(texts[:], " "), sets[0], sets[1], sets[2], sets[3], sets[4] | sets[4]>>7, // 7 is Sunday too
		texts[2][0] != '*' && texts[4][0] != '*'}
	if (Schedule{cron: c}).cronAfter(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fields[2].fault("a day that one of the months has")
	}
	return c, nil
}

// parse reads a list of values, ranges and steps.
func (f cronField) parse(text string) (set uint64, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		low, high, ranged := strings.Cut(span, "-")
		from, to, step := f.min, f.max, 1
		if span != "*" {
			if from, ok = f.value(low); !ok {
				return 0, false
			}
			if to = from; ranged {
				if to, ok = f.value(high); f.max == 7 && to == 0 && from > 0 {
					to = 7 // fri-sun
				}
				if !ok || to < from {
					return 0, false
				}
			}
		}
		if stepped {
			if step, ok = number(stepText, 1, f.max); !ok || span != "*" && !ranged {
				return 0, false
			}
		}
		for n := from; n <= to; n += step {
			set |= 1 << n
		}
	}
	return set, true
}

func (f cronField) value(text string) (int, bool) {
	if i := slices.Index(f.words, text); i >= 0 {
		return f.min + i, true
	}
	return number(text, f.min, f.max)
}

// number reads one or more digits.
func number(text string, least, most int) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && strings.Trim(text, "0123456789") == "" && least <= n && n <= most
}

// day reports whether c selects the day of a wall time.
func (c *cron) day(wall time.Time) bool {
	day, weekday := has(c.days, wall.Day()), has(c.weekdays, int(wall.Weekday()))
	return has(c.months, int(wall.Month())) && (day && weekday || c.either && (day || weekday))
}

// longestGap returns the longest time between two starts in two years.
func (c *cron) longestGap() (longest time.Duration) {
	const day, days = 24 * time.Hour, 730
	var starts []time.Duration // on a day
	for minute := range 24 * 60 {
		if has(c.hours, minute/60) && has(c.minutes, minute%60) {
			starts = append(starts, clock(minute).duration())
		}
	}
	last := time.Duration(0) // since the first day
	for n := range days {
		if !c.day(time.Date(2026, 1, 1+n, 0, 0, 0, 0, time.UTC)) {
			continue
		}
		for _, start := range starts {
			at := time.Duration(n)*day + start
			longest, last = max(longest, at-last), at
		}
	}
	return max(longest, days*day-last)
}

// cronAfter returns the first start after t; the zero time if there is none.
func (s Schedule) cronAfter(t time.Time) time.Time {
	from := s.wall(t)
	for day := midnight(from); day.Before(from.AddDate(cronYears, 0, 0)); day = day.AddDate(0, 0, 1) {
		if !s.cron.day(day) {
			continue
		}
		for hour := range 24 {
			if !has(s.cron.hours, hour) {
				continue
			}
			for minute := range 60 {
				wall := day.Add(clock(60*hour + minute).duration())
				if !has(s.cron.minutes, minute) || !wall.After(from) {
					continue
				}
				// A wall time that occurs again, or one in a gap that ended at t, gives no start after t.
				if at := s.instant(wall); at.After(t) {
					return at
				}
			}
		}
	}
	return time.Time{}
}

func has(set uint64, n int) bool { return set>>n&1 == 1 }
