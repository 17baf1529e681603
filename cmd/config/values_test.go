package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/filter"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0B": 0, "1B": 1, "512KiB": 512 << 10, "200MB": 200e6, "5GiB": 5 << 30, "1.5KiB": 1536, "2 TB": 2e12, "1KB": 1000,
		"": -1, "5": -1, "-1B": -1, "GiB": -1, "1.5B": -1, "1e3B": -1, "5gib": -1, "9999999TiB": -1, "InfB": -1, "0x10B": -1,
	} {
		t.Run(text, func(t *testing.T) {
			got, err := parseSize(text)
			if want == -1 && !errors.Is(err, errSize) || want != -1 && (err != nil || got != want) {
				t.Errorf("got %d, %v, want %d", got, err, want)
			}
		})
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "500ms": 500 * time.Millisecond, "90d": 90 * 24 * time.Hour, "2w": 14 * 24 * time.Hour,
		"1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "10us": 10 * time.Microsecond,
		"3µs": 3 * time.Microsecond, "-1d": -24 * time.Hour,
	} {
		t.Run(text, func(t *testing.T) {
			if got, err := ParseDuration(text); err != nil || got != want {
				t.Errorf("got %v, %v, want %v", got, err, want)
			}
		})
	}
	for _, text := range []string{"", "5", "d", "1y", "1d 2h", "--1d", "1d-2h", "1e3s", "300000d", ".s", "90 d"} {
		t.Run("not "+text, func(t *testing.T) {
			if got, err := ParseDuration(text); !errors.Is(err, errDuration) {
				t.Errorf("got %v, %v, want errDuration", got, err)
			}
		})
	}
}

// Parsing what String and formatDuration write returns the same value.
func TestUnitsRoundTrip(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Range(0, 1<<52).Draw(t, "size"))
		if got, err := parseSize(size.String()); err != nil || got != size {
			t.Errorf("%s: got %d, %v, want %d", size, got, err, size)
		}
		d := time.Duration(rapid.Int64Range(-1<<50, 1<<50).Draw(t, "duration"))
		if got, err := ParseDuration(formatDuration(d)); err != nil || got != d {
			t.Errorf("%s: got %v, %v, want %v", formatDuration(d), got, err, d)
		}
	})
}

func TestSecretResolve(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(file, []byte("from file\n"), 0o600))
	t.Setenv("MILLRACE_A_SECRET", "from env")
	t.Setenv("MILLRACE_EMPTY", "")
	for name, tt := range map[string]struct {
		reference, want, err string
		missing              bool // the error is a precondition
	}{
		"none":               {reference: ""},
		"env":                {reference: "env:MILLRACE_A_SECRET", want: "from env"},
		"env, not set":       {reference: "env:MILLRACE_EMPTY", err: "env:MILLRACE_EMPTY", missing: true},
		"file":               {reference: "file:" + file, want: "from file"},
		"file, absent":       {reference: "file:" + file + ".no", err: "no such file", missing: true},
		"file, not readable": {reference: "file:" + filepath.Dir(file), err: "is a directory"},
		"exec":               {reference: "exec:echo  from exec", want: "from exec"},
		"exec, fails":        {reference: "exec:false --token t0ken", err: "run false for the secret"},
		"exec, not there":    {reference: "exec:/does/not/exist t0ken", err: "run /does/not/exist for the secret"},
		"exec, nothing":      {reference: "exec:true --token t0ken", err: "exec:true", missing: true},
		"exec, no shell":     {reference: "exec:echo $HOME", want: "$HOME"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := ParseSecret(tt.reference)
			must(t, err)
			got, err := s.Resolve(t.Context())
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %q, %v, want %q, %q", got, err, tt.want, tt.err)
			}
			if errors.Is(err, precondition.Err) != tt.missing {
				t.Errorf("%v: a precondition: %t, want %t", err, !tt.missing, tt.missing)
			}
			if err != nil && strings.Contains(err.Error(), "t0ken") {
				t.Errorf("the error contains an argument of the command: %v", err)
			}
		})
	}
}

func TestParseSecretRefusesSecrets(t *testing.T) {
	for _, text := range []string{"hunter2", "env:", "env:A=b", "file:", "exec: ", "ENV:A", "https://x"} {
		if s, err := ParseSecret(text); !errors.Is(err, errSecret) || !s.IsZero() {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	s, err := ParseSecret("exec:vault --token t0ken")
	must(t, err)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "config", ClickHouse{Password: s})
	asJSON, err := json.Marshal(ClickHouse{Password: s})
	must(t, err)
	printed := log.String() + string(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		printed += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, struct{ Inner Secret }{s})
	}
	if strings.Contains(printed, "t0ken") || strings.Contains(printed, "vault") || !strings.Contains(printed, hidden) {
		t.Errorf("got %s", printed)
	}
	if none := (Secret{}).String(); none != "" {
		t.Errorf("no secret prints %q", none)
	}
}

// No space that a pattern matches has a shorter period than that which bounds its schedules.
func TestShortestPeriod(t *testing.T) {
	pattern := rapid.Custom(func(t *rapid.T) string {
		part := rapid.SampledFrom([]string{"a", "b", "ab", "*", "a*", "[a]", "?", `\a`})
		return rapid.SampledFrom([]string{"", "/"}).Draw(t, "slash") +
			strings.Join(rapid.SliceOfN(part, 1, 3).Draw(t, "parts"), "/")
	})
	need.Check(t, func(t *rapid.T) {
		f := Fixity{Period: time.Duration(rapid.IntRange(1, 9).Draw(t, "period"))}
		for _, spaces := range rapid.SliceOfN(pattern, 0, 4).Draw(t, "periods") {
			f.Periods = append(f.Periods, SpacePeriod{spaces, time.Duration(rapid.IntRange(1, 9).Draw(t, "period"))})
		}
		spaces := rapid.OneOf(pattern, rapid.Just("")).Draw(t, "spaces")
		of := filter.Filter{}
		if spaces != "" {
			var err error
			if of, err = filter.New([]string{spaces}, nil); err != nil {
				t.Fatal(err)
			}
		}
		name := rapid.SampledFrom([]string{"a", "b", "ab", "c"})
		account, store, space := name.Draw(t, "account"), name.Draw(t, "store"), name.Draw(t, "space")
		if got := f.PeriodOf(account, store, space); of.Selects(account, store, space) && got < f.shortestPeriod(spaces) {
			t.Fatalf("%s/%s/%s has %d, %q at least %d", account, store, space, got, spaces, f.shortestPeriod(spaces))
		}
	})
}

// CheckSchedule refuses what the settings refuse.
func TestCheckSchedule(t *testing.T) {
	c := Default()
	c.Fixity.Period = 90 * day
	c.Fixity.Periods = []SpacePeriod{{Spaces: "/acme/2", Period: 100 * day}, {Spaces: "acme/3", Period: 10 * day},
		{Spaces: "acme/nas/ph*", Period: 10 * day}, {Spaces: "acme/4", Period: 365 * day}}
	const short = "every 59s: want a period of 1m or more"
	for _, tt := range []struct{ name, spaces, schedule, want string }{
		{"fixity", "", "off", ""}, {"fixity", "", "every 1m", ""}, {"fixity", "", "every 10d", ""},
		{"fixity", "", "every 59s", short}, {"reconcile", "", "every 59s", short}, {"groups", "a", "every 59s", short},
		{"fixity", "", "every 11d", "every 11d: " + tooRare},
		{"reconcile", "", "every 11d", ""}, {"trim", "", "every 11d", ""},
		// The first period that matches all spaces of the pattern bounds it, and those before that may match one.
		{"fixity", "acme/2", "every 100d", ""}, {"fixity", "/acme/2/maps", "every 100d", ""},
		{"fixity", "acme/2", "every 101d", "every 101d: " + tooRare},
		{"fixity", "acme/22", "every 90d", ""}, {"fixity", "acme/22", "every 91d", "every 91d: " + tooRare},
		{"fixity", "acme/4", "every 365d", ""}, {"fixity", "*/4", "every 11d", ""}, // acme/3 is another store
		{"fixity", "a*/[3]", "every 11d", "every 11d: " + tooRare},
		{"fixity", "acme/nas/photos", "every 11d", "every 11d: " + tooRare},
		{"fixity", "acme/nas", "every 11d", "every 11d: " + tooRare}, {"fixity", "acme/nas/maps", "every 11d", ""},
		{"fixity", "acme/*", "every 11d", "every 11d: " + tooRare},
		{"fixity", "acme/3", "every 11d", "every 11d: " + tooRare},
	} {
		got := ""
		if err := CheckSchedule(&c, tt.name, tt.spaces, schedule.MustParse(tt.schedule)); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%+v: got %q", tt, got)
		}
	}
}
