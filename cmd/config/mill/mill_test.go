package mill

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

const properties = `
# a comment
! another one
mill.db.pass = hush
aws.secretKey=hush
looping.dup.frequency=3d
looping.dup.max-task-queue-size=200000
looping.bit.max-task-queue-size=100000
looping.bit.frequency=2m
looping.bit.state-file-path=/state/bit.json
looping.bit.inclusion-list-file=include.txt
looping.bit.exclusion-list-file=exclude.txt
looping.storagestats.start-time=20:00
looping.storagestats.frequency=7d
max-workers=20
looping.bits.frequency=1m
`

func open(name string) (io.ReadCloser, error) {
	lists := map[string]string{
		"include.txt": "# all of acme\n/acme/.*/.*\n\n/bell/1/photos-2024\n",
		"exclude.txt": "/acme/1/(a|b)\n/acme/2/tmp.*\n",
	}
	text, ok := lists[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

func TestConvert(t *testing.T) {
	r, err := Convert("mill.properties", strings.NewReader(properties), open)
	if err != nil {
		t.Fatal(err)
	}
	var settings []string
	for _, s := range r.Settings {
		settings = append(settings, fmt.Sprint(s.Key, s.Values))
	}
	want := []string{"fixity.period[60d]", "roles.checker.workers[20]", "roles.copier.workers[20]",
		"sweep.duplication[every 3d]", "sweep.max_backlog[200000]", "sweep.spaces.fixity.exclude[acme/2/tmp*]",
		"sweep.spaces.fixity.include[acme/*/* bell/1/photos-2024]", "sweep.stats[every 7d start 20:00]"}
	if !slices.Equal(settings, want) {
		t.Errorf("got %q, want %q", settings, want)
	}
	failed := map[string]bool{}
	for _, l := range r.Lines {
		if l.Became == "" || strings.Contains(l.Text+l.Became, "hush") {
			t.Errorf("line %+v", l)
		}
		if l.Failed {
			failed[fmt.Sprint(l.File, ":", l.Number)] = true
		}
	}
	if len(r.Lines) != 17 || !r.Failed() || len(failed) != 2 || !failed["exclude.txt:1"] || !failed["mill.properties:16"] {
		t.Errorf("%d lines, of which %v have failed", len(r.Lines), failed)
	}
}

func TestConvertOneLine(t *testing.T) {
	for line, want := range map[string]string{
		"looping.dup.frequency=3m":                      "sweep.duplication: every 3mo",
		"looping.dup.frequency=30M":                     "sweep.duplication: every 30m",
		"looping.dup.frequency=0m":                      "sweep.duplication: off",
		"looping.dup.frequency=soon":                    "not converted: want a period",
		"looping.bit.frequency=0m":                      "sweep.fixity: off",
		"looping.dup.max-task-queue-size=many":          "not converted: want a number",
		"looping.storagestats.start-time=8pm":           "not converted: want a time",
		"looping.storagestats.start-time=08:30":         "sweep.stats: every 1d start 08:30",
		"looping.bit.inclusion-list-file=absent":        "not converted: file does not exist",
		"max-workers=0":                                 "not converted: want a number",
		"local-duplication-dir=/policies":               "policies.folder: /policies",
		"queue.name.audit=audit":                        "not needed: Kafka",
		"duplication-policy.bucket-suffix=policy-repo":  "millrace policy import",
		"no.such.property=1":                            "not converted: there is no such property",
		"audit-log-generator.audit-log-space-id=audits": "millrace audit export",
	} {
		r, err := Convert("p", strings.NewReader(line), open)
		if err != nil || len(r.Lines) != 1 || !strings.Contains(r.Lines[0].Became, want) ||
			r.Failed() != strings.HasPrefix(want, "not converted") {
			t.Errorf("%s: got %+v, %v, want %q", line, r.Lines, err, want)
		}
	}
}

// Of a property that is given twice, the last line counts.
func TestConvertTwice(t *testing.T) {
	r, err := Convert("p", strings.NewReader("looping.storagestats.frequency=0d\nlooping.storagestats.start-time=08:30\n"+
		"looping.storagestats.frequency=3d\nlooping.storagestats.start-time=20:00\n"+
		"looping.storagestats.start-time=21:00\nlooping.storagestats.frequency=7d"), open)
	if err != nil || len(r.Settings) != 1 || r.Settings[0].Values[0] != "every 7d start 21:00" {
		t.Errorf("got %+v, %v", r.Settings, err)
	}
}

func TestToPattern(t *testing.T) {
	for text, want := range map[string]string{
		"/acme/1/photos": "acme/1/photos", "/acme": "acme", "/acme/.*": "acme/*", "/acme/*/*": "acme/*/*",
		"/ac.me/1/a\\.b": "ac?me/1/a.b", "/acme/1/x-duracloud-.*": "acme/1/x-duracloud-*",
		"/acme/1/photos/item": "", "/acme/[0-9]+/photos": "", "/acme//photos": "", "/acme/1/a+": "", "/acme/1/a*": "",
		"/acme/1/a|b": "", `/acme/1/\d`: "",
	} {
		got, err := toPattern(text)
		if (err != nil) != (want == "") || got != want {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
}
