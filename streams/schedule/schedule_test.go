package schedule

import (
	"testing"
	"time"
	_ "time/tzdata" // the tests do not depend on the zones of the machine
)

const zurich = " zone Europe/Zurich"

func parse(tb testing.TB, text string) Schedule {
	tb.Helper()
	s, err := Parse(text)
	if err != nil {
		tb.Fatalf("%s: want %v", text, err)
	}
	return s
}

// at reads a time; empty: zero. A time without an offset is in UTC.
func at(tb testing.TB, text string) time.Time {
	tb.Helper()
	if text == "" {
		return time.Time{}
	}
	for _, form := range []string{"2006-01-02 15:04", "2006-01-02 15:04:05", "2006-01-02 15:04-07:00"} {
		if t, err := time.Parse(form, text); err == nil {
			return t
		}
	}
	tb.Fatalf("malformed time %q", text)
	return time.Time{}
}

func checkTime(t *testing.T, got, want time.Time) {
	t.Helper()
	if !got.Equal(want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// 2026: the clocks of Zurich change on 29 March at 01:00 and on 25 October at 01:00 UTC.
func TestNext(t *testing.T) {
	for name, tt := range map[string]struct {
		schedule        string
		last, now, want string
	}{
		"off":            {"off", "", "2026-05-01 12:00", ""},
		"off after one":  {"off", "2026-04-01 12:00", "2026-05-01 12:00", ""},
		"never":          {"every 20m", "", "2026-05-01 12:00:07", "2026-05-01 12:00:07"},
		"not yet":        {"every 20m", "2026-05-01 12:00:07", "2026-05-01 12:01", "2026-05-01 12:20:07"},
		"due":            {"every 20m", "2026-05-01 12:00", "2026-05-01 12:20", "2026-05-01 12:20"},
		"overdue":        {"every 20m", "2026-05-01 12:00", "2026-05-03 09:00", "2026-05-01 12:20"},
		"clock set back": {"every 20m", "2026-05-02 12:00", "2026-05-01 12:00", "2026-05-01 12:20"},
		"days":           {"every 60d", "2026-05-01 12:00", "2026-05-01 12:00", "2026-06-30 12:00"},
		"weeks":          {"every 2w", "2026-05-01 12:00", "2026-05-01 12:00", "2026-05-15 12:00"},
		"days and hours": {"every 1d12h", "2026-05-01 12:00", "2026-05-01 12:00", "2026-05-03 00:00"},
		"short day":      {"every 1d" + zurich, "2026-03-28 20:00+01:00", "2026-03-29 00:00", "2026-03-29 20:00+02:00"},
		"24 hours": {"every 24h" + zurich, "2026-03-28 20:00+01:00", "2026-03-29 00:00",
			"2026-03-29 21:00+02:00"},
		"long day":        {"every 1d" + zurich, "2026-10-24 20:00+02:00", "2026-10-25 00:00", "2026-10-25 20:00+01:00"},
		"day into gap":    {"every 1d" + zurich, "2026-03-28 02:30+01:00", "2026-03-29 00:00", "2026-03-29 03:00+02:00"},
		"day into fold":   {"every 1d" + zurich, "2026-10-24 02:30+02:00", "2026-10-25 00:00", "2026-10-25 02:30+02:00"},
		"day out of fold": {"every 1d" + zurich, "2026-10-25 02:30+01:00", "2026-10-25 02:00", "2026-10-26 02:30+01:00"},
		"minutes in fold": {"every 20m" + zurich, "2026-10-25 02:30+01:00", "2026-10-25 02:00",
			"2026-10-25 02:50+01:00"},
		"month":              {"every 1mo", "2026-04-15 12:00", "2026-04-15 12:00", "2026-05-15 12:00"},
		"month end":          {"every 1mo", "2026-01-31 12:00", "2026-02-01 12:00", "2026-02-28 12:00"},
		"month end in leap":  {"every 1mo", "2028-01-31 12:00", "2028-02-01 12:00", "2028-02-29 12:00"},
		"end of short month": {"every 1mo", "2026-02-28 12:00", "2026-03-01 12:00", "2026-03-31 12:00"},
		"no end in leap":     {"every 1mo", "2028-02-28 12:00", "2028-03-01 12:00", "2028-03-28 12:00"},
		"day not in month":   {"every 1mo", "2026-01-30 12:00", "2026-02-01 12:00", "2026-02-28 12:00"},
		"end of zone":        {"every 1mo" + zurich, "2026-01-30 23:30", "2026-02-01 00:00", "2026-02-28 00:30+01:00"},
		"over a year":        {"every 14mo", "2026-11-30 12:00", "2026-12-01 12:00", "2028-01-31 12:00"},
		"month and day":      {"every 1mo1d", "2026-01-31 12:00", "2026-02-01 12:00", "2026-03-01 12:00"},

		"start later today":   {"every 1d start 20:00", "", "2026-05-01 12:00", "2026-05-01 20:00"},
		"start of the minute": {"every 1d start 20:00", "", "2026-05-01 20:00:59", "2026-05-01 20:00"},
		"start tomorrow":      {"every 1d start 20:00", "", "2026-05-01 20:01", "2026-05-02 20:00"},
		"start of zone":       {"every 1d start 20:00" + zurich, "", "2026-05-01 12:00", "2026-05-01 20:00+02:00"},
		"next start":          {"every 1d start 20:00", "2026-05-01 20:00:03", "2026-05-01 21:00", "2026-05-02 20:00"},
		"start after late":    {"every 1d start 20:00", "2026-05-02 09:00", "2026-05-02 10:00", "2026-05-02 20:00"},
		"start in gap": {"every 1d start 02:30" + zurich, "2026-03-28 02:30+01:00", "2026-03-29 00:00",
			"2026-03-29 03:00+02:00"},
		"start after gap": {"every 1d start 02:30" + zurich, "2026-03-29 03:00+02:00", "2026-03-29 09:00",
			"2026-03-30 02:30+02:00"},
		"start in fold": {"every 1d start 02:30" + zurich, "2026-10-24 02:30+02:00", "2026-10-25 00:00",
			"2026-10-25 02:30+02:00"},
		"start after fold": {"every 1d start 02:30" + zurich, "2026-10-25 02:30+02:00", "2026-10-25 01:40",
			"2026-10-26 02:30+01:00"},
		"weekly":        {"every 1w start 20:00", "2026-05-05 01:00", "2026-05-05 09:00", "2026-05-11 20:00"},
		"monthly":       {"every 1mo start 20:00", "2026-01-31 20:00", "2026-02-05 09:00", "2026-02-28 20:00"},
		"missed starts": {"every 1d start 20:00", "2026-05-01 20:00", "2026-05-09 09:00", "2026-05-02 20:00"},

		"never, window":     {"every 20m window 22:00-06:00", "", "2026-05-01 12:00", "2026-05-01 22:00"},
		"never, in window":  {"every 20m window 22:00-06:00", "", "2026-05-01 23:00", "2026-05-01 23:00"},
		"after window":      {"every 20m window 22:00-06:00", "2026-05-02 05:50", "2026-05-02 05:55", "2026-05-02 22:00"},
		"missed in window":  {"every 1d window 22:00-06:00", "2026-05-01 23:00", "2026-05-03 12:00", "2026-05-03 22:00"},
		"missed, in window": {"every 1d window 22:00-06:00", "2026-05-01 23:00", "2026-05-04 02:00", "2026-05-02 23:00"},
		"start and window": {"every 1w start 20:00 window 22:00-06:00", "2026-05-01 22:00", "2026-05-01 23:00",
			"2026-05-08 22:00"},

		"cron":               {"cron 0 3 * * *", "2026-05-01 03:00:02", "2026-05-01 09:00", "2026-05-02 03:00"},
		"cron, never":        {"cron 0 3 * * *", "", "2026-05-01 03:00:30", "2026-05-01 03:00"},
		"cron, never, later": {"cron 0 3 * * *", "", "2026-05-01 03:01", "2026-05-02 03:00"},
		"cron, missed":       {"cron 0 3 * * *", "2026-05-01 03:00", "2026-05-09 09:00", "2026-05-02 03:00"},
		"cron, steps":        {"cron */25 8-16/4 * * *", "2026-05-01 08:50", "2026-05-01 09:00", "2026-05-01 12:00"},
		"cron, list":         {"cron 5,7,40-50/5 * * * *", "2026-05-01 08:40", "2026-05-01 08:41", "2026-05-01 08:45"},
		"cron, weekdays":     {"cron 0 3 * * 1-5", "2026-05-01 03:00", "2026-05-01 09:00", "2026-05-04 03:00"},
		"cron, names":        {"cron 0 3 * JUN,aug Fri-sun", "2026-06-28 03:00", "2026-06-28 09:00", "2026-08-01 03:00"},
		"cron, 7":            {"cron 0 3 * * 7", "2026-05-01 03:00", "2026-05-01 09:00", "2026-05-03 03:00"},
		"cron, 0":            {"cron 0 3 * * 0", "2026-05-01 03:00", "2026-05-01 09:00", "2026-05-03 03:00"},
		"cron, either day":   {"cron 0 3 13 * fri", "2026-05-08 03:00", "2026-05-08 09:00", "2026-05-13 03:00"},
		"cron, both days":    {"cron 0 3 */2 * fri", "2026-05-01 03:00", "2026-05-01 09:00", "2026-05-15 03:00"},
		"cron, leap day":     {"cron 0 3 29 2 *", "2096-02-29 03:00", "2096-03-01 09:00", "2104-02-29 03:00"},
		"cron, leap Sunday":  {"cron 0 3 29 2 */7", "2072-02-28 04:00", "2072-03-01 09:00", "2088-02-29 03:00"},
		"cron, zone":         {"cron 0 3 * * *" + zurich, "2026-05-01 09:00", "2026-05-01 09:00", "2026-05-02 03:00+02:00"},
		"cron, gap": {"cron 30 2 * * *" + zurich, "2026-03-28 09:00", "2026-03-28 09:00",
			"2026-03-29 03:00+02:00"},
		"cron, after gap": {"cron */20 2 * * *" + zurich, "2026-03-29 03:00+02:00", "2026-03-29 09:00",
			"2026-03-30 02:00+02:00"},
		"cron, fold": {"cron 30 2 * * *" + zurich, "2026-10-24 09:00", "2026-10-24 09:00",
			"2026-10-25 02:30+02:00"},
		"cron, after fold": {"cron 30 2 * * *" + zurich, "2026-10-25 02:30+02:00", "2026-10-25 01:40",
			"2026-10-26 02:30+01:00"},
		"cron, in the fold": {"cron */20 2 * * *" + zurich, "2026-10-25 02:05+01:00", "2026-10-25 01:06",
			"2026-10-26 02:00+01:00"},
		"cron, window": {"cron 0 12 * * * window 22:00-06:00", "2026-05-01 22:00", "2026-05-01 23:00", "2026-05-02 22:00"},
	} {
		t.Run(name, func(t *testing.T) {
			got := parse(t, tt.schedule).Next(at(t, tt.last), at(t, tt.now))
			checkTime(t, got, at(t, tt.want))
		})
	}
}

func TestWindows(t *testing.T) {
	const night = "every 20m window 22:00-06:00"
	for name, tt := range map[string]struct {
		schedule        string
		at, open, close string // the next opening and close; empty: never
	}{
		"no window":      {"every 20m", "2026-05-01 12:00", "2026-05-01 12:00", ""},
		"off":            {"off", "2026-05-01 12:00", "2026-05-01 12:00", ""},
		"before":         {night, "2026-05-01 21:59:59", "2026-05-01 22:00", "2026-05-01 21:59:59"},
		"at its begin":   {night, "2026-05-01 22:00", "2026-05-01 22:00", "2026-05-02 06:00"},
		"after midnight": {night, "2026-05-02 05:59:59", "2026-05-02 05:59:59", "2026-05-02 06:00"},
		"at its end":     {night, "2026-05-02 06:00", "2026-05-02 22:00", "2026-05-02 06:00"},
		"two":            {night + " window 12:00-13:00", "2026-05-02 06:00", "2026-05-02 12:00", "2026-05-02 06:00"},
		"adjacent":       {night + " window 06:00-09:00", "2026-05-02 05:00", "2026-05-02 05:00", "2026-05-02 09:00"},
		"all day":        {night + " window 06:00-22:00", "2026-05-02 05:00", "2026-05-02 05:00", ""},
		"until midnight": {"every 20m window 18:00-00:00", "2026-05-01 23:59", "2026-05-01 23:59", "2026-05-02 00:00"},
		"zone":           {night + zurich, "2026-05-01 12:00", "2026-05-01 22:00+02:00", "2026-05-01 12:00"},
		"long night":     {night + zurich, "2026-10-24 22:00+02:00", "2026-10-24 22:00+02:00", "2026-10-25 06:00+01:00"},
		"lost in gap": {"every 20m window 02:10-02:50" + zurich, "2026-03-28 12:00", "2026-03-30 02:10+02:00",
			"2026-03-28 12:00"},
		"cut by gap": {"every 20m window 02:10-03:10" + zurich, "2026-03-28 12:00", "2026-03-29 03:00+02:00",
			"2026-03-28 12:00"},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := parse(t, tt.schedule), at(t, tt.at)
			checkTime(t, s.NextOpen(now), at(t, tt.open))
			checkTime(t, s.Close(now), at(t, tt.close))
			if got, want := s.Open(now), tt.open == tt.at; got != want {
				t.Errorf("open: got %t, want %t", got, want)
			}
		})
	}
}

func TestLongerThan(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]bool{"every 1d": false, "every 25h": true, "every 2d": true, "every 1mo": true,
		"off": false, "every 1m": false, "cron 0 0 1 1 *": true, "cron 0 3 * * *": false, "cron 0 3 1 * *": true,
		"cron 0 3 * * mon-fri": true, "cron * * * * *": false, "cron */5 * * 3 *": true,
		"cron 0 */12 * * *": false, "cron 0 3 29 2 *": true, "cron 0 3 * * * zone Europe/Zurich": false} {
		if got := parse(t, text).LongerThan(day); got != want {
			t.Errorf("%s: longer than a day: %v", text, got)
		}
	}
	for text, want := range map[string]time.Duration{"cron 0 0 1 * *": 31 * day, "cron 0 3 * * mon-fri": 3 * day,
		"cron 0 6,18 * * *": 12 * time.Hour, "cron 0 0 1 1 *": 365 * day} {
		if s := parse(t, text); s.LongerThan(want) || !s.LongerThan(want-2*time.Hour) {
			t.Errorf("%s: the longest time is not %v", text, want)
		}
	}
}

func TestShorterThan(t *testing.T) {
	for text, want := range map[string]bool{
		"every 59s": true, "every 1m": false, "every 1d1s": false, "every 1mo": false, "cron * * * * *": false, "off": false,
	} {
		if got := parse(t, text).ShorterThan(time.Minute); got != want {
			t.Errorf("%s: got %t, want %t", text, got, want)
		}
	}
}
