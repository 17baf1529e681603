package app

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/filter"
)

// A ScheduleTarget is what has a schedule: a sweep or job, or some spaces of a sweep.
type ScheduleTarget struct {
	Name string
	// Spaces is a pattern of spaces, ACCOUNT[/STORE[/SPACE]]; empty: the schedule is that of all that have no other.
	Spaces string
}

// String returns the target as actions have it. A name has no blank.
func (t ScheduleTarget) String() string {
	if t.Spaces == "" {
		return t.Name
	}
	return t.Name + " " + t.Spaces // names of spaces may end with a blank
}

func parseTarget(text string) (t ScheduleTarget) {
	t.Name, t.Spaces, _ = strings.Cut(text, " ")
	return t.normal()
}

// normal returns t with a pattern in the one form that identifies it.
func (t ScheduleTarget) normal() ScheduleTarget {
	t.Spaces = strings.TrimPrefix(t.Spaces, "/")
	return t
}

// check returns why there is no such schedule.
func (t ScheduleTarget) check() error {
	if t.Spaces == "" {
		return nil
	}
	if sweeps := config.SpaceSweeps(); !slices.Contains(sweeps, t.Name) {
		return fmt.Errorf("%s has one schedule: only the sweeps %s have schedules of spaces", t.Name,
			strings.Join(sweeps, ", "))
	}
	return filter.Check(t.Spaces)
}

// A spaceSchedule is the schedule of some spaces of a sweep.
type spaceSchedule struct {
	spaces     string // a pattern of filter.Check
	only       filter.Filter
	schedule   schedule.Schedule
	configured *schedule.Schedule // of the settings for the same pattern; nil: they have none
	set        *pb.AdminAction    // nil: the schedule is that of the settings
	at         time.Time          // of the record of set
}

// newSpaceSchedule returns the schedule of the spaces of a pattern.
func newSpaceSchedule(spaces string, s schedule.Schedule) (spaceSchedule, error) {
	only, err := filter.New([]string{spaces}, nil)
	return spaceSchedule{spaces: spaces, only: only, schedule: s}, err
}

// matches reports whether the pattern of s matches a place of a split. Of a pair, one suffices, as with what
// sweep.spaces.duplication excludes: the round lists both stores.
func (s spaceSchedule) matches(places []schemas.Copy) bool {
	return slices.ContainsFunc(places, func(p schemas.Copy) bool { return s.only.Selects(p.Account, p.Store, p.Space) })
}

// byPrecedence returns the schedules of spaces of a sweep so that the first one that matches counts. Those that
// operators have set are before those of the settings, and replace them if the pattern is the same: SPACE before STORE
// before ACCOUNT, then the newest first. Those of the settings keep their order. It is a pure function.
func byPrecedence(set, configured []spaceSchedule) []spaceSchedule {
	all := slices.SortedFunc(slices.Values(set), func(a, b spaceSchedule) int {
		return cmp.Or(cmp.Compare(strings.Count(b.spaces, "/"), strings.Count(a.spaces, "/")), b.at.Compare(a.at),
			cmp.Compare(a.spaces, b.spaces))
	})
	for _, c := range configured {
		i := slices.IndexFunc(all, func(s spaceSchedule) bool { return s.spaces == c.spaces })
		if i < 0 {
			all = append(all, c)
		} else if all[i].set != nil {
			all[i].configured = c.configured
		}
	}
	return all
}

// configuredSpaces returns the schedules of spaces of the settings, by sweep. The settings have been checked.
func configuredSpaces(of []config.SpaceSchedule) map[string][]spaceSchedule {
	all := map[string][]spaceSchedule{}
	for _, c := range of {
		s, err := newSpaceSchedule(ScheduleTarget{c.Sweep, c.Spaces}.normal().Spaces, c.Schedule)
		if err != nil {
			panic("the settings were not checked: " + err.Error())
		}
		s.configured = &c.Schedule
		all[c.Sweep] = append(all[c.Sweep], s)
	}
	return all
}

// placesOf returns the spaces in stores that a split of a sweep is about: both of a pair; none of the stats sweep and
// of jobs, which have no schedules of spaces.
func placesOf(sweep, split string) []schemas.Copy {
	s, _ := namesOf(sweep, split)
	return s.places()
}

func (s *SplitStatus) places() (all []schemas.Copy) {
	for _, store := range []string{s.Store, s.Destination} {
		if store != "" {
			all = append(all, schemas.Copy{Account: s.Account, Store: store, Space: s.Space})
		}
	}
	return all
}
