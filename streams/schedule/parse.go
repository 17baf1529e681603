package schedule

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	wordForm   = regexp.MustCompile(`[^\s"]+`)
	periodForm = regexp.MustCompile(`^(?:(\d+)mo)?(?:(\d+)w)?(?:(\d+)d)?([\d.].*)?$`)
)

const century = 36525 // days

// A word is a part of a text, with its column from 1 in characters.
type word struct {
	text   string
	column int
}

// fault returns an error that says what is wanted in place of w.
func (w word) fault(format string, args ...any) error {
	got := "nothing"
	if w.text != "" {
		got = fmt.Sprintf("%q", w.text)
	}
	return fmt.Errorf("%s at column %d, got %s", fmt.Sprintf(format, args...), w.column, got)
}

// A parser holds the words that are still to be read; the last one is empty and stays.
type parser []word

func (p *parser) next() word {
	w := (*p)[0]
	*p = (*p)[min(1, len(*p)-1):]
	return w
}

// parserOf returns the words of a text.
func parserOf(text string) (p parser) {
	for _, at := range append(wordForm.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		p = append(p, word{text[at[0]:at[1]], 1 + utf8.RuneCountInString(text[:at[0]])})
	}
	return p
}

// Parse reads the text of a schedule. Quotes count as blanks, so that the fields of cron may be in quotes. The error
// says what is wanted, and where: print it after "want".
func Parse(text string) (Schedule, error) {
	p := parserOf(text)
	var s Schedule
	kind := p.next()
	if err := s.parseKind(kind, &p); err != nil {
		return Schedule{}, err
	}
	if w := p[0]; kind.text == "off" && w.text != "" {
		return Schedule{}, w.fault("nothing after off")
	}
	if err := parseOptions(&p, s.parseOption); err != nil {
		return Schedule{}, err
	}
	return s, nil
}

// ParseWindows reads the windows of a schedule, and their zone, by themselves:
//
//	window 22:00-06:00 window 12:00-13:00 zone Europe/Zurich
//
// Only Open, NextOpen and Close count of what it returns. The error is like that of Parse.
func ParseWindows(text string) (Schedule, error) {
	p := parserOf(text)
	var s Schedule
	err := parseOptions(&p, func(option word, p *parser) error {
		if option.text != "window" && option.text != "zone" {
			return option.fault("window or zone")
		}
		return s.parseOption(option, p)
	})
	if err == nil && len(s.windows) == 0 {
		err = p[0].fault("a window such as window 22:00-06:00")
	}
	if err != nil {
		return Schedule{}, err
	}
	return s, nil
}

// parseOptions reads what remains with parse.
func parseOptions(p *parser, parse func(option word, p *parser) error) error {
	seen := map[string]bool{}
	for w := p.next(); w.text != ""; w = p.next() {
		if seen[w.text] && w.text != "window" {
			return w.fault("%s only once", w.text)
		}
		if err := parse(w, p); err != nil {
			return err
		}
		seen[w.text] = true
	}
	return nil
}

// MustParse is Parse of a constant. It panics if that is no schedule.
func MustParse(text string) Schedule {
	s, err := Parse(text)
	if err != nil {
		panic("schedule: want " + err.Error())
	}
	return s
}

// parseKind reads what recurs: nothing, a period or a line of cron.
func (s *Schedule) parseKind(kind word, p *parser) (err error) {
	switch kind.text {
	case "off":
	case "every":
		w := p.next()
		var ok bool
		if s.every, ok = parsePeriod(w.text); !ok {
			return w.fault("a period of at least 1s, such as 20m, 12h, 60d, 1w or 1mo,")
		}
	case "cron":
		s.cron, err = parseCron([5]word{p.next(), p.next(), p.next(), p.next(), p.next()})
	default:
		return kind.fault("off, every and a period, or cron and five fields")
	}
	return err
}

// parseOption reads one of what may follow a period or a line of cron.
func (s *Schedule) parseOption(option word, p *parser) error {
	switch option.text {
	case "start":
		if s.every.days+s.every.months == 0 || s.every.rest > 0 {
			return option.fault("start only after every and whole days, weeks or months,")
		}
		w := p.next()
		if s.start, s.hasStart = parseClock(w.text); !s.hasStart {
			return w.fault("a time of day such as 20:00")
		}
	case "window":
		w := p.next()
		from, until, _ := strings.Cut(w.text, "-")
		a, ok1 := parseClock(from)
		b, ok2 := parseClock(until)
		if !ok1 || !ok2 || a == b {
			return w.fault("two times of day such as 22:00-06:00")
		}
		s.windows = append(s.windows, window{a, b})
	case "zone":
		w := p.next()
		zone, err := time.LoadLocation(w.text)
		// The zone of the machine would differ between processes.
		if err != nil || w.text == "" || w.text == "Local" {
			return w.fault("a time zone such as UTC or Europe/Zurich")
		}
		if s.zone = zone; zone == time.UTC {
			s.zone = nil
		}
	default:
		return option.fault("start, window or zone")
	}
	return nil
}

func parsePeriod(text string) (period, bool) {
	m := periodForm.FindStringSubmatch(text)
	if m == nil {
		return period{}, false
	}
	var n [3]int
	for i, most := range [...]int{century / 31, century / 7, century} {
		var ok bool
		if n[i], ok = number(m[i+1], 1, most); m[i+1] != "" && !ok {
			return period{}, false
		}
	}
	p := period{months: n[0], days: 7*n[1] + n[2]}
	if m[4] != "" {
		var err error
		p.rest, err = time.ParseDuration(m[4])
		if err != nil || p.rest < time.Second || p.rest > century*24*time.Hour {
			return period{}, false
		}
	}
	return p, p != period{}
}

func parseClock(text string) (clock, bool) {
	h, m, _ := strings.Cut(text, ":")
	hours, ok1 := number(h, 0, 23)
	minutes, ok2 := number(m, 0, 59)
	return clock(60*hours + minutes), ok1 && ok2 && len(h) <= 2 && len(m) == 2
}

// String returns the text that Parse reads.
func (s Schedule) String() string {
	text := "every " + s.every.String()
	switch {
	case s.Off():
		return "off"
	case s.cron != nil:
		text = "cron " + s.cron.text
	case s.hasStart:
		text += " start " + s.start.String()
	}
	for _, w := range s.windows {
		text += " window " + w.from.String() + "-" + w.until.String()
	}
	if s.zone != nil {
		text += " zone " + s.zone.String()
	}
	return text
}

// String returns a period in months, days and a duration: 14d reads better than 2w.
func (p period) String() (text string) {
	if p.months > 0 {
		text = fmt.Sprintf("%dmo", p.months)
	}
	if p.days > 0 {
		text += fmt.Sprintf("%dd", p.days)
	}
	if p.rest > 0 {
		rest := p.rest.String()
		for _, zero := range []string{"0s", "0m"} {
			if short := strings.TrimSuffix(rest, zero); slices.Contains([]byte("hm"), short[len(short)-1]) {
				rest = short
			}
		}
		text += rest
	}
	return text
}

func (c clock) String() string { return fmt.Sprintf("%02d:%02d", c/60, c%60) }

// MarshalText returns String, for JSON.
func (s Schedule) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is Parse.
func (s *Schedule) UnmarshalText(text []byte) (err error) {
	*s, err = Parse(string(text))
	return err
}
