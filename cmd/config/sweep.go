package config

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/filter"
)

// Sweep configures the sweeps, which find what events missed.
type Sweep struct {
	// The share of the copies of a space that a listing of the store may lack. If it lacks more, and the space has 100
	// copies or more, or if it lacks all, nothing is concluded from what it lacks, and the incident listing-incomplete
	// opens. Likewise, if checks find that so many copies are missing within a period, further repairs wait for the
	// approval of the incident repairs-held.
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
	// The number of records in the topics to which a sweep publishes that their roles have not handled yet. Above it,
	// the sweep waits until half of them are left.
	MaxBacklog int `key:"max_backlog"`
	// The number of pages of all sweeps at which a process works at the same time.
	Workers int `key:"workers"`
	// The spaces of the scheduled rounds of each sweep. Rounds by hand select theirs with 'sweep start --spaces'.
	Spaces SweepSpaces `key:"spaces"`
}

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

func validateSweep(s Sweep, fault report) {
	for key, is := range map[string]schedule.Schedule{
		"sweep.fixity": s.Fixity, "sweep.reconcile": s.Reconcile, "sweep.duplication": s.Duplication,
		"sweep.groups": s.Groups, "sweep.stats": s.Stats,
	} {
		validateSchedule(key, is, fault)
	}
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
