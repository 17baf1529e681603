package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/filter"
)

// Sweep configures the sweeps, which find what events missed.
type Sweep struct {
	// The share of the copies of a space that a listing of the store may lack. If it lacks more, and the space has 100
	// copies or more, or if it lacks all, nothing is concluded from what it lacks, and the incident listing-incomplete
	// opens. Missing copies of a space are repaired up to this share within an hour, or three times it within 30 days;
	// further repairs wait on a list of the incident repairs-held.
	MaxMissing Share `key:"max_missing"`
	// When a round of fixity checks begins over each space in a store. It requests checks of the copies that are due by
	// fixity.period before the next round.
	Fixity schedule.Schedule `key:"fixity"`
	// When a round begins over each space in a store that compares its listing with the records.
	Reconcile schedule.Schedule `key:"reconcile"`
	// When a round begins over each space of a pair of stores that compares the two.
	Duplication schedule.Schedule `key:"duplication"`
	// When a round begins over each space in a store that looks for chunked items that lack chunks.
	Groups schedule.Schedule `key:"groups"`
	// When the items and bytes of the spaces of an account are counted for the view space_stats.
	Stats schedule.Schedule `key:"stats"`
	// Other schedules, of some spaces. The first entry of a sweep whose pattern matches counts.
	Schedules []SpaceSchedule `key:"schedules"`
	// The number of records in the topics to which a sweep publishes that their roles have not handled yet. Above it,
	// the sweep waits until half of them are left.
	MaxBacklog int `key:"max_backlog"`
	// The number of pages of all sweeps at which a process works at the same time.
	Workers int `key:"workers"`
	// The spaces of the scheduled rounds of each sweep. Rounds by hand select theirs with 'sweep start --spaces'.
	Spaces SweepSpaces `key:"spaces"`
}

// SpaceSchedule is the schedule of a sweep over some spaces.
type SpaceSchedule struct {
	// The sweep. The sweep stats counts whole accounts, and has one schedule.
	Sweep string `key:"sweep" oneof:"fixity|reconcile|duplication|groups"`
	// The spaces, as ACCOUNT[/STORE[/SPACE]]; * and ? stand for any characters of a name. Of a pair of stores, one that
	// matches suffices.
	Spaces string `key:"spaces"`
	// When a round begins over each of them, of fixity at least once in the shortest of their periods. For none, leave
	// them out with sweep.spaces.
	Schedule schedule.Schedule `key:"schedule"`
}

// SpaceSweeps returns the names of the sweeps that have schedules of spaces.
func SpaceSweeps() []string { return []string{fixitySweep, "reconcile", "duplication", "groups"} }

// SweepSpaces selects the spaces, and the items, of the scheduled rounds.
type SweepSpaces struct {
	// Without checks the copies of a space become overdue.
	Fixity SpaceFilter `key:"fixity"`
	// Without this sweep, what events have missed is never found.
	Reconcile SpaceFilter `key:"reconcile"`
	// Of a pair, both stores must be selected.
	Duplication SpaceFilter `key:"duplication"`
	// Of a space without this sweep it is not known whether its chunked items are whole.
	Groups SpaceFilter `key:"groups"`
}

// SpaceFilter selects spaces, and items in them, by patterns.
type SpaceFilter struct {
	// What is swept, as ACCOUNT[/STORE[/SPACE[/ITEM]]]. * and ? stand for any characters of a name; ** in ITEM for any
	// folders. Empty: all.
	Include []string `key:"include"`
	// What is not swept, in the same form.
	Exclude []string `key:"exclude"`
}

// Reconcile configures the sweep that compares the listings of stores with the records.
type Reconcile struct {
	// How long an item that no event has reported must stay unchanged before it is taken in. Objects of S3 appear
	// whole, and are taken in at once.
	Settle time.Duration `key:"settle"`
}

// fixitySweep is the name of the sweep whose rounds a period bounds.
const fixitySweep = "fixity"

func validateSweep(c *Config, fault report) {
	s := c.Sweep
	for key, is := range map[string]schedule.Schedule{
		"sweep.fixity": s.Fixity, "sweep.reconcile": s.Reconcile, "sweep.duplication": s.Duplication,
		"sweep.groups": s.Groups, "sweep.stats": s.Stats,
	} {
		validateSchedule(key, is, fault)
	}
	validateFixitySchedule("sweep.fixity", s.Fixity, c.Fixity.shortestPeriod(""), fault)
	validateSpaceSchedules(c, fault)
	between("sweep.max_backlog", s.MaxBacklog, 1_000_000_000, fault)
	between("sweep.workers", s.Workers, 256, fault)
	for key, f := range map[string]SpaceFilter{
		"fixity": s.Spaces.Fixity, "reconcile": s.Spaces.Reconcile, "duplication": s.Spaces.Duplication,
		"groups": s.Spaces.Groups,
	} {
		for list, texts := range map[string][]string{"include": f.Include, "exclude": f.Exclude} {
			for i, text := range texts {
				if err := filter.CheckItems(text); err != nil {
					fault(fmt.Sprintf("sweep.spaces.%s.%s[%d]", key, list, i), text, err.Error())
				}
			}
		}
	}
}

func validateSpaceSchedules(c *Config, fault report) {
	seen := map[[2]string]string{} // sweep and pattern to path
	for i, s := range c.Sweep.Schedules {
		at := fmt.Sprintf("sweep.schedules[%d]", i)
		if s.Sweep == "" { // the tag refuses others
			fault(at+".sweep", nil, "is missing")
		}
		of := [2]string{s.Sweep, strings.TrimPrefix(s.Spaces, "/")}
		switch err := filter.Check(s.Spaces); {
		case s.Spaces == "":
			fault(at+".spaces", nil, "is missing")
		case err != nil:
			fault(at+".spaces", s.Spaces, err.Error())
		case seen[of] != "":
			fault(at+".spaces", s.Spaces, "has a schedule of this sweep in "+seen[of])
		}
		seen[of] = at
		if s.Schedule.Off() {
			fault(at+".schedule", s.Schedule, "want a schedule: sweep.spaces leaves spaces out")
		}
		if validateSchedule(at+".schedule", s.Schedule, fault); s.Sweep == fixitySweep {
			validateFixitySchedule(at+".schedule", s.Schedule, c.Fixity.shortestPeriod(s.Spaces), fault)
		}
	}
}
