// Package mill converts the configuration of the DuraCloud Mill: its properties files, the lists of spaces that its
// looping task producers include and exclude, and the state files of these producers.
package mill

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Line is what became of a line of a properties file or of a list, or of a part of a state file.
type Line struct {
	File   string
	Number int    // 0 in a state file, which has one line
	Text   string // without secrets
	// Became says what the line has become, or why it is not needed, or why it could not be converted.
	Became string
	Failed bool // it could not be converted
}

// A Setting is a setting of millrace, with one value or a list of them.
type Setting struct {
	Key    string
	Values []string
	List   bool
}

// A Result is a converted configuration.
type Result struct {
	Lines    []Line
	Settings []Setting // sorted by key
}

// Failed reports whether a line could not be converted.
func (r *Result) Failed() bool {
	return slices.ContainsFunc(r.Lines, func(l Line) bool { return l.Failed })
}

// Convert converts a properties file, or a state file. open opens the lists and the state files that it names.
func Convert(name string, file io.Reader, open func(string) (io.ReadCloser, error)) (Result, error) {
	c := converter{open: open, settings: map[string]Setting{}}
	text, err := io.ReadAll(file)
	if err != nil {
		return Result{}, fmt.Errorf("read %s: %w", name, err)
	}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		err := c.state(producer{}, name, text)
		return c.result, err
	}
	s := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; s.Scan(); n++ {
		if text := strings.TrimSpace(s.Text()); text != "" && text[0] != '#' && text[0] != '!' {
			c.line(name, n, text)
		}
	}
	if err := s.Err(); err != nil {
		return Result{}, fmt.Errorf("read %s: %w", name, err)
	}
	for _, n := range c.states { // when the schedules are known
		c.named(n.producer, n.file, n.line)
	}
	for _, s := range c.settings {
		c.result.Settings = append(c.result.Settings, s)
	}
	slices.SortFunc(c.result.Settings, func(a, b Setting) int { return strings.Compare(a.Key, b.Key) })
	return c.result, nil
}

type converter struct {
	open     func(string) (io.ReadCloser, error)
	settings map[string]Setting
	result   Result
	states   []namedState
}

// A conversion returns what a value has become.
type conversion func(c *converter, value string) (became string, err error)

// unneeded returns the conversion of what is not needed.
func unneeded(why string) conversion {
	return func(*converter, string) (string, error) { return "not needed: " + why, nil }
}

// conversions are those of the known properties.
func conversions() map[string]conversion {
	backlog := func(c *converter, value string) (string, error) { return c.backlog(value) }
	return map[string]conversion{
		"looping.dup.frequency": func(c *converter, value string) (string, error) {
			return c.every("sweep.duplication", value, "")
		},
		"looping.dup.max-task-queue-size": backlog, "looping.bit.max-task-queue-size": backlog,
		"looping.dup.state-file-path": stateFile(producers()[0]), "looping.bit.state-file-path": stateFile(producers()[1]),
		"looping.bit.frequency": func(c *converter, value string) (string, error) {
			p, err := parsePeriod(value)
			if err != nil {
				return "", err
			}
			if p == "" {
				return c.set("sweep.fixity", "off"), nil
			}
			if months, is := strings.CutSuffix(p, "mo"); is { // durations have no months
				n, err := strconv.Atoi(months)
				if err != nil {
					return "", err
				}
				p = fmt.Sprint(n*30, "d")
			}
			return c.set("fixity.period", p), nil
		},
		"looping.bit.inclusion-list-file": func(c *converter, value string) (string, error) {
			return c.list("sweep.spaces.fixity.include", value)
		},
		"looping.bit.exclusion-list-file": func(c *converter, value string) (string, error) {
			return c.list("sweep.spaces.fixity.exclude", value)
		},
		"looping.storagestats.frequency": func(c *converter, value string) (string, error) {
			return c.every("sweep.stats", value, "")
		},
		"looping.storagestats.start-time": func(c *converter, value string) (string, error) {
			return c.every("sweep.stats", "", value)
		},
		"looping.storagestats.max-task-queue-size": unneeded("the stats sweep asks the records, and has no queue"),
		"looping.storagestats.inclusion-list-file": unneeded("the stats sweep counts all spaces"),
		"looping.storagestats.exclusion-list-file": unneeded("the stats sweep counts all spaces"),
		"max-workers": func(c *converter, value string) (string, error) {
			if n, err := strconv.Atoi(value); err != nil || n < 1 {
				return "", fmt.Errorf("want a number of workers")
			}
			c.set("roles.checker.workers", value)
			c.set("roles.copier.workers", value)
			return "roles.checker.workers and roles.copier.workers: " + value, nil
		},
		"local-duplication-dir": func(c *converter, value string) (string, error) {
			return c.set("policies.folder", value), nil
		},
		"duplication-policy.bucket-suffix": unneeded("name the bucket: policies.folder: s3://BUCKET, or read its " +
			"documents once: millrace policy import s3://BUCKET"),
		"duplication-policy.refresh-frequency": unneeded("the folder is read again once in policies.interval"),
		"manifest.expiration-time":             unneeded("the records of deleted items stay: they are few"),
		"audit-log-generator.audit-log-space-id": unneeded("millrace audit export writes the audit log to a directory; " +
			"copy that to the space"),
		"workdir":        workdir,
		"global.workdir": unneeded("copies are streamed"),
	}
}

// prefixes are the first parts of properties that are not needed, and why.
func prefixes() map[string]string {
	return map[string]string{
		"queue.":        "Kafka has the queues: kafka.brokers",
		"rabbitmq.":     "Kafka has the queues: kafka.brokers",
		"mill.db.":      "ClickHouse has the records: clickhouse.addresses",
		"db.":           "accounts and stores are in the setting accounts",
		"aws.":          "credentials of stores are in accounts[].stores[], or in the environment",
		"notification.": "no alert is shipped: make yours from the metrics and the incidents (docs/operating.md)",
	}
}

// secret matches properties whose values are not printed.
var secret = regexp.MustCompile(`(?i)pass|secret|accesskey`)

func (c *converter) line(file string, number int, text string) {
	key, value, _ := strings.Cut(text, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if secret.MatchString(key) && value != "" {
		text = key + "=(not shown)"
	}
	l := Line{File: file, Number: number, Text: text}
	at := len(c.result.Lines)
	c.result.Lines = append(c.result.Lines, l) // before those of the list that it names
	var err error
	if convert, known := conversions()[key]; known {
		l.Became, err = convert(c, value)
	} else {
		l.Became = c.otherLine(key)
		l.Failed = l.Became == ""
	}
	switch {
	case err != nil:
		l.Became, l.Failed = "not converted: "+err.Error(), true
	case l.Failed:
		l.Became = "not converted: there is no such property"
	}
	c.result.Lines[at] = l
}

// otherLine returns why a property is not needed; "" if it is not known.
func (c *converter) otherLine(key string) string {
	for prefix, why := range prefixes() {
		if strings.HasPrefix(key, prefix) {
			return "not needed: " + why
		}
	}
	return ""
}

// set sets a setting, and says so.
func (c *converter) set(key, value string) string {
	c.settings[key] = Setting{Key: key, Values: []string{value}}
	return key + ": " + value
}

// backlog takes the largest queue of all task producers.
func (c *converter) backlog(value string) (string, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 1 {
		return "", fmt.Errorf("want a number of tasks")
	}
	const key = "sweep.max_backlog"
	if was := c.settings[key].Values; len(was) > 0 {
		if other, _ := strconv.ParseInt(was[0], 10, 64); other >= n {
			return fmt.Sprintf("nothing: %s is %d for all sweeps, by another line", key, other), nil
		}
	}
	return c.set(key, strconv.FormatInt(n, 10)), nil
}

// every adds a period, or a start, to a schedule that is not off.
func (c *converter) every(key, period, start string) (string, error) {
	text := ""
	if was := c.settings[key].Values; len(was) > 0 {
		text = was[0]
	}
	if period != "" {
		p, err := parsePeriod(period)
		if err != nil {
			return "", err
		}
		if p == "" {
			return c.set(key, "off"), nil
		}
		_, at, timed := strings.Cut(text, " start ")
		if text = "every " + p; timed {
			text += " start " + at
		}
	}
	if start != "" && text != "off" {
		if !startTime.MatchString(start) {
			return "", fmt.Errorf("want a time such as 20:00")
		}
		if text == "" {
			text = "every 1d"
		}
		text, _, _ = strings.Cut(text, " start ")
		text += " start " + start
	}
	return c.set(key, text), nil
}

var (
	startTime = regexp.MustCompile(`^([01][0-9]|2[0-3]):[0-5][0-9]$`)
	oldPeriod = regexp.MustCompile(`^([0-9]+)([smhdM])$`)
)

// parsePeriod returns a period of the Mill as one of millrace: "1m" is a month there, and "1M" a minute. "" is none:
// no run is scheduled.
func parsePeriod(text string) (string, error) {
	m := oldPeriod.FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("want a period such as 3h, 3d or 3m, which is three months")
	}
	units := map[string]string{"s": "s", "M": "m", "h": "h", "d": "d", "m": "mo"}
	n := strings.TrimLeft(m[1], "0")
	if n == "" {
		return "", nil
	}
	return n + units[m[2]], nil
}

// list adds the patterns of a list of spaces.
func (c *converter) list(key, file string) (string, error) {
	r, err := c.open(file)
	if err != nil {
		return "", err
	}
	defer r.Close()
	setting := Setting{Key: key, List: true}
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		text := strings.TrimSpace(s.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		l := Line{File: file, Number: n, Text: text}
		if pattern, err := toPattern(text); err != nil {
			l.Became, l.Failed = "not converted: "+err.Error(), true
		} else {
			l.Became = pattern
			setting.Values = append(setting.Values, pattern)
		}
		c.result.Lines = append(c.result.Lines, l)
	}
	if err := s.Err(); err != nil {
		return "", err
	}
	if len(setting.Values) == 0 {
		return "nothing: the list is empty, or none of it could be converted", nil
	}
	c.settings[key] = setting
	return fmt.Sprintf("%s: %d patterns", key, len(setting.Values)), nil
}

// toPattern converts an expression for /ACCOUNT/STORE/SPACE to a pattern of sweep.spaces. It converts names, dots and
// the expressions ".*" and "*"; other regular expressions have no pattern that means the same.
func toPattern(text string) (string, error) {
	parts := strings.Split(strings.Trim(text, "/"), "/")
	if len(parts) > 3 {
		return "", fmt.Errorf("it has more parts than /ACCOUNT/STORE/SPACE")
	}
	for i, part := range parts {
		if part == "" {
			return "", fmt.Errorf("it has an empty part")
		}
		var b strings.Builder
		for j := 0; j < len(part); j++ {
			switch ch := part[j]; {
			case part[j:] == "*" && j == 0, strings.HasPrefix(part[j:], ".*"):
				b.WriteByte('*')
				j += len(".*") - 1
			case ch == '\\' && j+1 < len(part) && strings.IndexByte(`.-_`, part[j+1]) >= 0:
				j++
				b.WriteByte(part[j])
			case ch == '.':
				b.WriteByte('?')
			case strings.IndexByte(`\*+?()[]{}|^$`, ch) >= 0:
				return "", fmt.Errorf("%q has no meaning in a pattern: list the spaces, or use * and ?", ch)
			default:
				b.WriteByte(ch)
			}
		}
		parts[i] = b.String()
	}
	return strings.Join(parts, "/"), nil
}
