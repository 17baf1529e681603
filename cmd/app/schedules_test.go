package app

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// A schedule that is set counts at once in a process that runs, whatever was planned before, and until the settings
// count again.
func TestScheduleIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, 0)
		a.cfg.Trim.Schedule = schedule.MustParse("every 10h")
		must(t, a.newActions())
		var done atomic.Int64
		split := a.job(trimJob, trimTopics, StoreName{}, func(context.Context, *slog.Logger) (map[string]int64, error) {
			done.Add(1)
			return nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- a.actions.Run(ctx) }()
		go func() { ended <- runJobs(ctx, t, a, trimJob, a.cfg.Trim.Schedule, split) }()
		step := func(text string, wait time.Duration, want int) {
			t.Helper()
			if text != "" {
				var s *schedule.Schedule
				if text != "settings" {
					parsed := schedule.MustParse(text)
					s = &parsed
				}
				must(t, a.SetSchedule(t.Context(), ScheduleTarget{Name: trimJob}, s, Actor{Who: "ann"}))
			}
			done.Store(0)
			time.Sleep(wait)
			synctest.Wait()
			if n := int(done.Load()); n != want {
				t.Errorf("%q: %d iterations in %s, want %d", text, n, wait, want)
			}
		}
		step("", time.Hour+time.Minute, 1)
		step("every 3m", 16*time.Minute, 6) // the first one is late
		step("off", 2*time.Hour, 0)
		step("settings", 7*time.Hour, 0)
		step("", time.Hour, 1) // ten hours after the last one
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// The newest schedule of a name counts. What this version cannot read does not.
func TestSchedules(t *testing.T) {
	t.Parallel()
	configured := schedule.MustParse("every 1d")
	check := func(_ ScheduleTarget, s schedule.Schedule) error {
		if s.String() == "every 3h" {
			return errTrimOff
		}
		return nil
	}
	type set struct {
		name, text string
		hours      int
	}
	for name, tt := range map[string]struct {
		sets []set
		want string
	}{
		"none":             {nil, "every 1d"},
		"set":              {[]set{{"trim", "every 2h", 1}}, "every 2h"},
		"set twice":        {[]set{{"trim", "every 2h", 1}, {"trim", "off", 1}}, "off"},
		"read again":       {[]set{{"trim", "off", 2}, {"trim", "every 2h", 1}}, "off"},
		"the settings":     {[]set{{"trim", "every 2h", 1}, {"trim", "", 2}}, "every 1d"},
		"another name":     {[]set{{"expire", "every 2h", 1}}, "every 1d"},
		"an unknown form":  {[]set{{"trim", "at full moon", 1}}, "every 1d"},
		"a refused one":    {[]set{{"trim", "every 2h", 1}, {"trim", "every 3h", 2}}, "every 1d"},
		"another one then": {[]set{{"trim", "every 2h", 1}, {"trim", "at full moon", 2}}, "every 1d"},
	} {
		t.Run(name, func(t *testing.T) {
			var s schedules
			base := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
			for _, one := range tt.sets {
				err := s.apply(&pb.AdminAction{Id: one.text, Action: actionSetSchedule, Target: one.name, After: one.text},
					base.Add(time.Duration(one.hours)*time.Hour), check)
				if refused := one.text == "every 3h"; refused && !errors.Is(err, errTrimOff) {
					t.Errorf("%s: %v", one.text, err)
				}
			}
			_ = s.apply(&pb.AdminAction{Action: actionStartJob, Target: "trim", After: "off"}, base.Add(9*time.Hour), check)
			got, id := s.of("trim", nil, configured)
			if got.String() != tt.want || (id != "") != (tt.want != "every 1d") {
				t.Errorf("got %s by %q, want %s", got, id, tt.want)
			}
		})
	}
}

// What the settings refuse is refused, and so are names without a schedule. What is set is listed.
func TestSetScheduleFaults(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
	a := trimming(t, b, 0)
	cfg := config.Default()
	a.cfg = &cfg
	const tooRare = "every 200d: is longer than the shortest fixity.period: copies would be checked too rarely"
	const noSpaces = " has one schedule: only the sweeps fixity, reconcile, duplication, groups have schedules of spaces"
	const wantParts = ": want ACCOUNT[/STORE[/SPACE[/ITEM]]], of names or patterns such as *"
	for _, tt := range []struct{ name, spaces, text, want string }{
		{"trim", "", "every 30s", "every 30s: want a period of 1m or more"},
		{sweep.FixitySweep, "", "every 200d", tooRare},
		{sweep.FixitySweep, "acme", "every 200d", tooRare},
		{reconcile.Name, "acme", "every 30s", "every 30s: want a period of 1m or more"},
		{StatsSweep, "acme", "every 1d", "stats" + noSpaces},
		{"trim", "acme", "every 1d", "trim" + noSpaces},
		{reconcile.Name, "acme/1/photos/x", "every 1d", `"acme/1/photos/x" has more parts than ACCOUNT/STORE/SPACE`},
		{reconcile.Name, "/", "off", `"/" has an empty part` + wantParts},
		{reconcile.Name, "/", "", `"/" has an empty part` + wantParts},
		{reconcile.Name, "//acme", "off", `"//acme" has an empty part` + wantParts},
		{reconcile.Name, "acme/1", "", "no schedule is set for reconcile acme/1: see 'millrace schedule list'"},
	} {
		var s *schedule.Schedule
		if tt.text != "" {
			parsed := schedule.MustParse(tt.text)
			s = &parsed
		}
		err := a.SetSchedule(t.Context(), ScheduleTarget{tt.name, tt.spaces}, s, Actor{})
		if !errors.Is(err, precondition.Err) || err.Error() != precondition.Err.Error()+": "+tt.want {
			t.Errorf("%s %s %s: %v", tt.name, tt.spaces, tt.text, err)
		}
	}
	every := schedule.MustParse("every 1d")
	a.cfg.Trim.Schedule = schedule.Schedule{}
	err := a.SetSchedule(t.Context(), ScheduleTarget{Name: trimJob}, &every, Actor{})
	if !errors.Is(err, precondition.Err) || !errors.Is(err, errTrimOff) {
		t.Errorf("trim is off in the settings: %v", err)
	}
	a.cfg.Trim.Schedule = every
	err = a.SetSchedule(t.Context(), ScheduleTarget{Name: "audit.export/none"}, nil, Actor{})
	if !errors.As(err, new(*UnknownNameError)) {
		t.Errorf("a name without a schedule: %v", err)
	}
	off := schedule.Schedule{}
	err = a.SetSchedule(t.Context(), ScheduleTarget{Name: StatsSweep}, &off, Actor{Who: "ann", Reason: "a test"})
	must(t, err)
	all, err := a.Schedules(t.Context())
	if err != nil || len(all) != 7 {
		t.Fatalf("%d schedules, %v", len(all), err)
	}
	for _, in := range all {
		if set := in.Name == StatsSweep; (in.Set != nil) != set || in.Schedule.Off() != set || in.Configured.Off() {
			t.Errorf("%s: %s, configured %s, set by %v", in.Name, in.Schedule, in.Configured, in.Set)
		}
	}
}

// A schedule that a command with other settings has set counts only where the settings of the process allow it.
func TestSetScheduleOfOtherSettings(t *testing.T) {
	t.Parallel()
	cfg, lines := config.Default(), &logtest.Lines{}
	a := &App{cfg: &cfg, log: lines.Log()}
	for n, tt := range []struct {
		name, set, configured, want string
		ignored                     int // in all
	}{
		{sweep.FixitySweep, "every 200d", "every 1d", "every 1d", 1}, // longer than the shortest period
		{sweep.FixitySweep, "every 2d", "every 1d", "every 2d", 1},
		{trimJob, "every 30s", "every 1d", "every 1d", 2},
		{trimJob, "every 2d", "off", "off", 3}, // the rights may be left out
		{trimJob, "off", "off", "off", 3},
		{trimJob, "every 2d", "every 1d", "every 2d", 3},
	} {
		configured := schedule.MustParse(tt.configured)
		switch tt.name {
		case sweep.FixitySweep:
			cfg.Sweep.Fixity = configured
		case trimJob:
			cfg.Trim.Schedule = configured
		}
		at := time.Date(2026, 3, 1, 0, n, 0, 0, time.UTC)
		a.applySchedule(&pb.AdminAction{Id: "x", Action: actionSetSchedule, Target: tt.name, After: tt.set}, at)
		if got := a.scheduleOf(tt.name).String(); got != tt.want {
			t.Errorf("%s %s: %s counts, want %s", tt.name, tt.set, got, tt.want)
		}
		if got := lines.Count("ignore a schedule that was set"); got != tt.ignored {
			t.Errorf("%s %s: %d warnings, want %d", tt.name, tt.set, got, tt.ignored)
		}
	}
}
