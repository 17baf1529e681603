package schedule

import (
	"encoding/json"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"off":             "off",
		" off ":           "off",
		"every 20m":       "every 20m",
		"every 90s":       "every 1m30s",
		"every 1.5h":      "every 1h30m",
		"every 1h0m5s":    "every 1h0m5s",
		"every 60m":       "every 1h",
		"every 10s":       "every 10s",
		"every 60d":       "every 60d",
		"every 2w":        "every 14d",
		"every 1mo":       "every 1mo",
		"every 1m":        "every 1m",
		"every 1mo1w1d1h": "every 1mo8d1h",
		"every 1w  start 20:00 window 22:00-06:00" + zurich: "every 7d start 20:00 window 22:00-06:00" + zurich,
		"every 1w zone UTC window 22:00-6:00 start 8:00":    "every 7d start 08:00 window 22:00-06:00",
		"every 1h window 01:00-02:00 window 03:00-04:00":    "every 1h window 01:00-02:00 window 03:00-04:00",
		`cron "0 3 * * 1-5" zone Europe/Zurich`:             "cron 0 3 * * 1-5 zone Europe/Zurich",
		"cron */5 0,12 1-7/2 JAN mon-Fri":                   "cron */5 0,12 1-7/2 jan mon-fri",
	} {
		t.Run(text, func(t *testing.T) {
			if got := parse(t, text).String(); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if got := parse(t, want).String(); got != want {
				t.Errorf("of its text: got %s, want %s", got, want)
			}
		})
	}
}

func TestParseFaults(t *testing.T) {
	const (
		kind   = "off, every and a period, or cron and five fields"
		period = "a period of at least 1s, such as 20m, 12h, 60d, 1w or 1mo,"
		start  = "start only after every and whole days, weeks or months,"
		clock  = "a time of day such as 20:00"
		span   = "two times of day such as 22:00-06:00"
		zone   = "a time zone such as UTC or Europe/Zurich"
		option = "start, window or zone"
		field  = ", *, a range such as 1-5, steps such as */2, or a list of them,"
		minute = "a minute from 0 to 59" + field
		never  = "a day that one of the months has"
	)
	for text, want := range map[string]string{
		"":                           kind + " at column 1, got nothing",
		"20m":                        kind + ` at column 1, got "20m"`,
		"Every 20m":                  kind + ` at column 1, got "Every"`,
		"off zone UTC":               `nothing after off at column 5, got "zone"`,
		"every":                      period + " at column 6, got nothing",
		"every 5":                    period + ` at column 7, got "5"`,
		"every 0s":                   period + ` at column 7, got "0s"`,
		"every 0d":                   period + ` at column 7, got "0d"`,
		"every 500ms":                period + ` at column 7, got "500ms"`,
		"every -5m":                  period + ` at column 7, got "-5m"`,
		"every 1d-5m":                period + ` at column 7, got "1d-5m"`,
		"every 1d1mo":                period + ` at column 7, got "1d1mo"`,
		"every 1M":                   period + ` at column 7, got "1M"`,
		"every 40000d":               period + ` at column 7, got "40000d"`,
		"every 99999999999999999mo":  period + ` at column 7, got "99999999999999999mo"`,
		"every 1000000h":             period + ` at column 7, got "1000000h"`,
		"every 20m 22:00-06:00":      option + ` at column 11, got "22:00-06:00"`,
		"every 6h start 20:00":       start + ` at column 10, got "start"`,
		"every 1d6h start 20:00":     start + ` at column 12, got "start"`,
		"cron 0 3 * * * start 2:00":  start + ` at column 16, got "start"`,
		"every 1d start":             clock + " at column 15, got nothing",
		"every 1d start 20":          clock + ` at column 16, got "20"`,
		"every 1d start 24:00":       clock + ` at column 16, got "24:00"`,
		"every 1d start 20:60":       clock + ` at column 16, got "20:60"`,
		"every 1d start 20:5":        clock + ` at column 16, got "20:5"`,
		"every 1d window 22:00":      span + ` at column 17, got "22:00"`,
		"every 1d window 2:00-2:00":  span + ` at column 17, got "2:00-2:00"`,
		"every 1d zone":              zone + " at column 14, got nothing",
		"every 1d zone Mars/Base":    zone + ` at column 15, got "Mars/Base"`,
		"every 1d zone Local":        zone + ` at column 15, got "Local"`,
		"every 1d zone ../etc":       zone + ` at column 15, got "../etc"`,
		"every 1d zone UTC zone UTC": `zone only once at column 19, got "zone"`,
		"évery 1d é":                 kind + ` at column 1, got "évery"`,
		"every 1d é x":               option + ` at column 10, got "é"`,
		"cron 0 3 * *":               "a day of the week from 0 to 7" + field + " at column 13, got nothing",
		"cron 60 3 * * *":            minute + ` at column 6, got "60"`,
		"cron 5/10 3 * * *":          minute + ` at column 6, got "5/10"`,
		"cron */0 3 * * *":           minute + ` at column 6, got "*/0"`,
		"cron 1, 3 * * *":            minute + ` at column 6, got "1,"`,
		"cron 5-1 3 * * *":           minute + ` at column 6, got "5-1"`,
		"cron +5 3 * * *":            minute + ` at column 6, got "+5"`,
		"cron 0 24 * * *":            "an hour from 0 to 23" + field + ` at column 8, got "24"`,
		"cron 0 0 0 * *":             "a day of the month from 1 to 31" + field + ` at column 10, got "0"`,
		"cron 0 0 * 13 *":            "a month from 1 to 12" + field + ` at column 12, got "13"`,
		"cron 0 0 * * fri-mon":       "a day of the week from 0 to 7" + field + ` at column 14, got "fri-mon"`,
		"cron 0 0 30 2 *":            never + ` at column 10, got "30"`,
		"cron 0 0 31 2,4,6,9,11 *":   never + ` at column 10, got "31"`,
		"cron @daily":                minute + ` at column 6, got "@daily"`,
	} {
		t.Run(text, func(t *testing.T) {
			if s, err := Parse(text); err == nil || err.Error() != want || !s.Off() {
				t.Errorf("got %s, %v, want %s", s, err, want)
			}
		})
	}
}

func TestParseWindows(t *testing.T) {
	s, err := ParseWindows("window 22:00-06:00 window 12:00-13:00 zone Europe/Zurich")
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]bool{
		"2026-07-01T19:59:00Z": false, "2026-07-01T20:00:00Z": true, "2026-07-02T03:59:00Z": true,
		"2026-07-02T04:00:00Z": false, "2026-07-02T10:30:00Z": true, "2026-12-01T20:30:00Z": false,
	} {
		moment, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Open(moment); got != want {
			t.Errorf("at %s: open %v, want %v", at, got, want)
		}
	}
	for text, want := range map[string]string{
		"":                             "a window such as window 22:00-06:00 at column 1, got nothing",
		"zone UTC":                     "a window such as window 22:00-06:00 at column 9, got nothing",
		"22:00-06:00":                  `window or zone at column 1, got "22:00-06:00"`,
		"window 1:00-2:00 start 20:00": `window or zone at column 18, got "start"`,
		"window 2:00-2:00":             `two times of day such as 22:00-06:00 at column 8, got "2:00-2:00"`,
		"window 1:00-2:00 zone Mars":   `a time zone such as UTC or Europe/Zurich at column 23, got "Mars"`,
		"zone UTC zone UTC":            `zone only once at column 10, got "zone"`,
		"every 1d window 22:00-06:00":  `window or zone at column 1, got "every"`,
	} {
		if _, err := ParseWindows(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// A schedule is a text in JSON.
func TestJSON(t *testing.T) {
	want := `{"Schedule":"every 1d start 20:00"}`
	var v struct{ Schedule Schedule }
	if err := json.Unmarshal([]byte(want), &v); err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(v); err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if err := json.Unmarshal([]byte(`{"Schedule":"daily"}`), &v); err == nil {
		t.Error("a malformed schedule is accepted")
	}
}

// Whatever Parse accepts has a text that means the same, and is due some time.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"off", "every 1mo2w3d4h5m6s", "every 1w start 20:00 window 22:00-06:00 zone Europe/Zurich",
		`cron "*/5 0,12 1-7/2 jan-mar mon-fri,0" zone America/New_York`, "cron 0 0 30 2 *", "cron 0 0 29 2 */7", "every 1.5h",
	} {
		f.Add(text, int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, text string, seconds int64) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		again := parse(t, s.String())
		if again.String() != s.String() {
			t.Fatalf("%q: got %q, want %q", text, again, s)
		}
		now := time.Unix(seconds%5_000_000_000, 0)
		for _, last := range []time.Time{{}, now.Add(-time.Hour), now.Add(time.Hour)} {
			due := s.Next(last, now)
			if due.IsZero() != s.Off() || !s.Off() && !due.After(now.Add(-time.Hour-time.Minute)) {
				t.Fatalf("%q: after %s at %s: got %s", text, last, now, due)
			}
			if got := again.Next(last, now); !got.Equal(due) {
				t.Fatalf("%q: got %s, want %s", s, got, due)
			}
		}
	})
}
