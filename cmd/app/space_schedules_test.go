package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// anySchedule accepts all schedules of well-formed targets.
func anySchedule(of ScheduleTarget, _ schedule.Schedule) error { return of.check() }

// reconcileBy returns the schedules of the sweep reconcile with some of the settings and some that were set in turn, as
// "PATTERN: SCHEDULE". Those that were set have a pattern or none, and may be empty.
func reconcileBy(configured, set []string) *schedules {
	var of []config.SpaceSchedule
	for _, text := range configured {
		spaces, s, _ := strings.Cut(text, ": ")
		of = append(of, config.SpaceSchedule{Sweep: reconcile.Name, Spaces: spaces, Schedule: schedule.MustParse(s)})
	}
	s := &schedules{}
	s.configure(of)
	for i, text := range set {
		spaces, after, _ := strings.Cut(text, ": ")
		_ = s.apply(&pb.AdminAction{Id: text, Action: actionSetSchedule, After: after,
			Target: ScheduleTarget{reconcile.Name, spaces}.String()}, time.Unix(int64(i), 0), anySchedule)
	}
	return s
}

// Which schedule of the sweep reconcile counts for the space photos of store 2, if that of the settings is every 1d.
func TestSchedulePrecedence(t *testing.T) {
	for name, tt := range map[string]struct {
		configured, set []string
		want            string
	}{
		"none":                          {nil, nil, "every 1d"},
		"of the settings, of its store": {[]string{"acme/2: every 30d"}, nil, "every 30d"},
		"of the settings, of another":   {[]string{"acme/1: every 30d"}, nil, "every 1d"},
		"of the settings, the first":    {[]string{"acme: every 2h", "acme/2: every 30d"}, nil, "every 2h"},
		"set":                           {nil, []string{": every 2h"}, "every 2h"},
		"set, and one of the settings":  {[]string{"acme/2: every 30d"}, []string{": every 2h"}, "every 30d"},
		"off, and one of the settings":  {[]string{"acme/2: every 30d"}, []string{": off"}, "every 30d"},
		"set of its store":              {nil, []string{"acme/2: every 2h"}, "every 2h"},
		"set of its store, then of all": {nil, []string{"acme/2: every 2h", ": every 3h"}, "every 2h"},
		"set of its store to off":       {nil, []string{"acme/2: off"}, "off"},
		"set of another store":          {nil, []string{"acme/1: every 2h"}, "every 1d"},
		"set in place of the settings":  {[]string{"acme/2: every 30d"}, []string{"acme/2: every 2h"}, "every 2h"},
		"set before the settings":       {[]string{"acme/2/photos: every 30d"}, []string{"acme: every 2h"}, "every 2h"},
		"set twice":                     {nil, []string{"acme/2: every 2h", "acme/2: every 3h"}, "every 3h"},
		"the newest of one length":      {nil, []string{"*/2: every 3h", "acme/*: every 2h"}, "every 2h"},
		"set again, the newest":         {nil, []string{"*/2: off", "acme/*: every 2h", "*/2: every 3h"}, "every 3h"},
		"the space before the store":    {nil, []string{"*/*/photos: every 3h", "acme/2: every 2h"}, "every 3h"},
		"the store before the account":  {nil, []string{"acme/2: every 3h", "acme: every 2h"}, "every 3h"},
		"withdrawn":                     {nil, []string{"acme/2: every 2h", "acme/2: "}, "every 1d"},
		"withdrawn, of the settings":    {[]string{"acme/2: every 30d"}, []string{"acme/2: off", "acme/2: "}, "every 30d"},
		"withdrawn, of all":             {nil, []string{"acme/2: off", ": every 2h", "acme/2: "}, "every 2h"},
		"another one withdrawn":         {nil, []string{"acme/2: every 2h", "acme/1: "}, "every 2h"},
		"all withdrawn but of a store":  {nil, []string{"acme/2: every 2h", ": every 3h", ": "}, "every 2h"},
		"an unknown form":               {[]string{"acme/2: every 30d"}, []string{"acme/2: at full moon"}, "every 30d"},
		"no pattern":                    {nil, []string{"acme//2: every 2h"}, "every 1d"},
		"of a space with another name":  {nil, []string{"acme/2/photos : every 2h"}, "every 1d"},
		"a blank is a name":             {nil, []string{" : every 2h"}, "every 1d"},
	} {
		t.Run(name, func(t *testing.T) {
			photos := []schemas.Copy{{Account: "acme", Store: "2", Space: "photos"}}
			s := reconcileBy(tt.configured, tt.set)
			got, _ := s.of(reconcile.Name, photos, schedule.MustParse("every 1d"))
			if got.String() != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if got, _ := s.of(sweep.FixitySweep, photos, schedule.MustParse("every 5d")); got.String() != "every 5d" {
				t.Errorf("another sweep: %s", got)
			}
		})
	}
}

// A schedule of spaces counts for the splits with one of them, of both stores of a pair.
func TestPlacesOfSplits(t *testing.T) {
	for split, want := range map[[2]string]string{
		{"fixity", "acme/1/a%2Fb"}:             "[acme/1/a/b/]",
		{"reconcile", "acme/1/maps"}:           "[acme/1/maps/]",
		{"groups", "acme/1/maps"}:              "[acme/1/maps/]",
		{"duplication", "acme/maps/1/2"}:       "[acme/1/maps/ acme/2/maps/]",
		{"stats", "acme"}:                      "[]",
		{expireJob, "acme/1"}:                  "[]",
		{jobName(auditExport, "daily"), "a/b"}: "[]",
	} {
		got := []string{}
		for _, c := range placesOf(split[0], split[1]) {
			got = append(got, c.Account+"/"+c.Store+"/"+c.Space+"/"+c.Item)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%v: got %v, want %s", split, got, want)
		}
	}
}

// A split always has one schedule: that of the pattern that was set which comes first, or of the first pattern of the
// settings, or that which was set for all, or that of the settings. The order in which the actions are read, and how
// often, changes nothing.
func TestEachSplitHasOneSchedule(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "*"})
	pattern := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(name, 1, 3).Draw(t, "parts"), "/")
	})
	need.Check(t, func(t *rapid.T) {
		configured := rapid.SliceOfNDistinct(pattern, 0, 4, rapid.ID[string]).Draw(t, "configured")
		set := rapid.SliceOfN(rapid.OneOf(pattern, rapid.Just("")), 0, 8).Draw(t, "set")
		var of []config.SpaceSchedule
		for i, spaces := range configured {
			of = append(of, config.SpaceSchedule{Sweep: reconcile.Name, Spaces: spaces,
				Schedule: schedule.MustParse(fmt.Sprintf("every %dd", i+2))})
		}
		var actions []*schemas.Delivery
		for i, spaces := range set {
			after := rapid.SampledFrom([]string{"", "off", fmt.Sprintf("every %dh", i+2)}).Draw(t, "after")
			actions = append(actions, &schemas.Delivery{Timestamp: time.Unix(int64(i), 0), Body: &pb.AdminAction{
				Action: actionSetSchedule, Target: ScheduleTarget{reconcile.Name, spaces}.String(), After: after}})
		}
		read := func(all []*schemas.Delivery) *schedules {
			s := &schedules{}
			s.configure(of)
			for _, d := range all {
				if err := s.apply(d.Body.(*pb.AdminAction), d.Timestamp, anySchedule); err != nil {
					t.Fatal(err)
				}
			}
			return s
		}
		other := schedule.MustParse("every 1d")
		once := read(actions)
		again := read(slices.Concat(rapid.Permutation(actions).Draw(t, "order"), actions))
		for _, text := range []string{"a/a/a", "a/a/b", "a/b/a", "b/a/a", "b/b/b", "c/c/c"} {
			parts := strings.Split(text, "/")
			places := []schemas.Copy{{Account: parts[0], Store: parts[1], Space: parts[2]}}
			got, _ := once.of(reconcile.Name, places, other)
			gotAgain, _ := again.of(reconcile.Name, places, other)
			if want := expectedSchedule(of, actions, parts); got.String() != want || gotAgain.String() != want {
				t.Fatalf("%s: got %s, and read again %s, want %s", text, got, gotAgain, want)
			}
			if !slices.ContainsFunc(once.all(reconcile.Name, other), func(s schedule.Schedule) bool {
				return s.String() == got.String()
			}) {
				t.Fatalf("%s: %s is not one of all", text, got)
			}
		}
	})
}

// expectedSchedule returns the schedule of a split by the documented rule, from the settings and the actions in turn.
func expectedSchedule(configured []config.SpaceSchedule, actions []*schemas.Delivery, split []string) string {
	matches := func(spaces string) bool {
		for i, part := range strings.Split(spaces, "/") {
			if part != "*" && part != split[i] {
				return false
			}
		}
		return true
	}
	set := map[string]string{} // the newest of each pattern
	for _, d := range actions {
		action := d.Body.(*pb.AdminAction)
		set[parseTarget(action.GetTarget()).Spaces] = action.GetAfter()
	}
	for parts := 3; parts > 0; parts-- {
		for _, d := range slices.Backward(actions) {
			action := d.Body.(*pb.AdminAction)
			spaces := parseTarget(action.GetTarget()).Spaces
			if spaces != "" && strings.Count(spaces, "/") == parts-1 && set[spaces] != "" && matches(spaces) {
				return set[spaces] // of the newest that counts: an older action of the pattern is behind it
			}
		}
	}
	for _, c := range configured {
		if matches(c.Spaces) {
			return c.Schedule.String()
		}
	}
	return cmp.Or(set[""], "every 1d")
}

// A sweeper that runs follows the schedules of spaces: each split its own, as they are set and withdrawn. While the one
// of the sweep is off, those of spaces count.
func TestScheduleOfSpacesIsSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		a := trimming(t, b, 0)
		a.cfg.Sweep.Reconcile = schedule.MustParse("every 2h")
		a.schedules.configure([]config.SpaceSchedule{
			{Sweep: reconcile.Name, Spaces: "acme/glacier", Schedule: schedule.MustParse("every 4h")}})
		must(t, a.newActions())
		var mu sync.Mutex // guards done
		done := map[string]int{}
		var splits []sweep.Split
		for _, name := range []string{"acme/nas/busy", "acme/nas/quiet", "acme/glacier/busy"} {
			splits = append(splits, a.job(reconcile.Name, name, StoreName{},
				func(context.Context, *slog.Logger) (map[string]int64, error) {
					mu.Lock()
					defer mu.Unlock()
					done[name]++
					return nil, nil
				}))
		}
		known, err := a.newCheckpoints()
		must(t, err)
		p, err := a.newPeriodic(known, nil, "sweeper", 1)
		must(t, err)
		p.add(a.timetable(reconcile.Name), func(context.Context) ([]sweep.Split, error) {
			return slices.Clone(splits), nil
		})
		a.onJobRequest = p.lookNow
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 3)
		go func() { ended <- a.actions.Run(ctx) }()
		go func() { ended <- known.Run(ctx) }()
		go func() { ended <- p.Run(ctx, p.kinds, p.changed) }()
		step := func(spaces, text string, wait time.Duration, want map[string]int) {
			t.Helper()
			var s *schedule.Schedule
			if text != "settings" && text != "" {
				parsed := schedule.MustParse(text)
				s = &parsed
			}
			if text != "" {
				must(t, a.SetSchedule(t.Context(), ScheduleTarget{reconcile.Name, spaces}, s, Actor{Who: "ann"}))
			}
			mu.Lock()
			clear(done)
			mu.Unlock()
			time.Sleep(wait)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !maps.Equal(done, want) {
				t.Errorf("%s %q: %v in %s, want %v", spaces, text, done, wait, want)
			}
		}
		const busy, quiet, glacier = "acme/nas/busy", "acme/nas/quiet", "acme/glacier/busy"
		step("", "", 10*time.Minute, map[string]int{busy: 1, quiet: 1, glacier: 1})
		step("", "", 2*time.Hour, map[string]int{busy: 1, quiet: 1})
		step("/acme/*/busy", "every 20m", 55*time.Minute, map[string]int{busy: 3, glacier: 3})
		step("acme/glacier/busy", "off", 50*time.Minute, map[string]int{busy: 2})
		step("", "off", time.Hour, map[string]int{busy: 3})
		step("acme/*/busy", "settings", time.Hour, map[string]int{})
		step("acme/glacier/busy", "settings", 90*time.Minute, map[string]int{glacier: 1}) // four hours after the last one
		step("", "settings", time.Hour, map[string]int{busy: 1, quiet: 1})
		if got := len(b.Bodies(schemas.Admin)); got != 6 {
			t.Errorf("%d actions", got)
		}
		cancel()
		for range 3 {
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// Splits are listed while the schedule of one may be on, and each keeps to the windows of its own. A round is late by
// its own period.
func TestTimetableOfSpaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // from midnight on
		var lines logtest.Lines
		tt := newTimetable(reconcile.Name, schedule.Schedule{}, lines.Log())
		tt.set = reconcileBy([]string{"acme/2: every 30d window 02:00-03:00"}, nil)
		kind := tt.of(func(context.Context) ([]sweep.Split, error) {
			var all []sweep.Split
			for _, name := range []string{"acme/1/maps", "acme/2/maps"} {
				all = append(all, sweep.Split{Sweep: reconcile.Name, Name: name,
					Blocked: func(context.Context) error { return nil }})
			}
			return all, nil
		})
		if all, err := kind(t.Context()); len(all) > 0 || err != nil || tt.off() {
			t.Errorf("outside of the window: %d splits, %v", len(all), err)
		}
		time.Sleep(2*time.Hour + time.Minute)
		all, err := kind(t.Context())
		if err != nil || len(all) != 2 {
			t.Fatalf("%d splits, %v", len(all), err)
		}
		now := time.Now()
		for i, on := range []bool{false, true} {
			m := all[i]
			if blocked := m.Blocked(t.Context()); errors.Is(blocked, sweep.ErrNotNow) == on || m.Due(nil, now) != on {
				t.Errorf("%s: due %t, blocked by %v", m.Name, m.Due(nil, now), blocked)
			}
			if next := m.Next(now); next.IsZero() == on || on && next.Before(now.Add(29*24*time.Hour)) {
				t.Errorf("%s: the next round is due at %s", m.Name, next)
			}
		}
		tt.set = reconcileBy(nil, nil)
		if none, _ := kind(t.Context()); len(none) > 0 || !tt.off() || all[1].Due(nil, now) ||
			tt.due(all[1].Name, nil, now) {
			t.Errorf("all are off: %d splits", len(none))
		}
	})
}

// A fixity round takes what falls due before the next one of its space, and goes on by the schedule of its space.
func TestFixityByTheScheduleOfTheSpace(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 0)
	s.a.cfg.Sweep.Fixity = schedule.Schedule{}
	s.a.schedules.configure([]config.SpaceSchedule{
		{Sweep: sweep.FixitySweep, Spaces: "acme/1/p*", Schedule: schedule.MustParse("every 30d")}})
	next := s.a.fixityRounds().Next
	for space, want := range map[string]time.Duration{"photos": 30 * 24 * time.Hour, "maps": 0} {
		got := next(schemas.Copy{Account: "acme", Store: "1", Space: space}, s.begun)
		if want == 0 != got.IsZero() || want > 0 && !got.Equal(s.begun.Add(want)) {
			t.Errorf("%s: the next round is due at %s", space, got)
		}
		if got := s.a.isScheduled(StoreName{"acme", "1"}, space); got != (want > 0) {
			t.Errorf("%s: is scheduled: %t", space, got)
		}
	}
}

// The list has the schedules of spaces before that of their sweep, in the order in which they count.
func TestListSchedulesOfSpaces(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
	a := trimming(t, b, 0)
	cfg := config.Default()
	a.cfg = &cfg
	a.schedules.configure([]config.SpaceSchedule{
		{Sweep: reconcile.Name, Spaces: "/acme/glacier", Schedule: schedule.MustParse("every 30d")},
		{Sweep: reconcile.Name, Spaces: "acme/nas", Schedule: schedule.MustParse("every 1h")}})
	for _, set := range [][2]string{
		{"acme", "off"}, {"acme/nas", "every 2h"}, {"acme/1/photos", "every 3h"}, {"", "off"},
	} {
		s := schedule.MustParse(set[1])
		err := a.SetSchedule(t.Context(), ScheduleTarget{reconcile.Name, set[0]}, &s, Actor{Who: "ann"})
		must(t, err)
	}
	all, err := a.Schedules(t.Context())
	must(t, err)
	var got []string
	for _, in := range all {
		configured := "none"
		if in.Configured != nil {
			configured = in.Configured.String()
		}
		if in.Name == reconcile.Name {
			got = append(got, fmt.Sprintf("%s: %s, configured %s, by %s", in, in.Schedule, configured, in.Set.GetWho()))
		}
	}
	want := []string{
		"reconcile acme/1/photos: every 3h, configured none, by ann",
		"reconcile acme/nas: every 2h, configured every 1h, by ann",
		"reconcile acme: off, configured none, by ann",
		"reconcile acme/glacier: every 30d, configured every 30d, by ",
		"reconcile: off, configured every 1d, by ann",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
