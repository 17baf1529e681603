package config

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/filter"
)

// Fixity configures how copies are checked.
type Fixity struct {
	// The time in which every copy is read at least once.
	Period time.Duration `key:"period"`
	// Other periods, of some spaces. The first entry whose pattern matches counts.
	Periods []SpacePeriod `key:"periods"`
	// The share of the copies that shall have passed a check within their period. The burn rate in the
	// status and in metrics is the share that has not, in relation to the rest, which may be overdue.
	Objective Share `key:"objective"`
	// How much the rounds over some stores check in a day. The first entry whose pattern matches counts.
	Budgets []StoreBudget `key:"budgets"`
	// A sweep skips a copy that passed a check within this time; sweep start --all does not.
	MinInterval time.Duration `key:"min_interval"`
	// A difference found within this time after the newest change of the item is checked again before
	// it counts as a fault.
	Settle time.Duration `key:"settle"`
	// The intervals before the re-checks, of a check and of a command with a missing source. After the
	// last re-check the fault is final. A repair waits for the first interval for the records that it
	// needs.
	Recheck []time.Duration `key:"recheck"`
	// How long a fresh read of the records waits until the sinks have caught up.
	FreshWait time.Duration `key:"fresh_wait"`
	// Whether every copy is checked as soon as it is written.
	AfterCopy bool `key:"after_copy"`
	// Where the reports of rounds are written.
	Reports []FixityReport `key:"reports"`
}

// FixityReport writes the reports of fixity rounds to files.
type FixityReport struct {
	// The name of the reports, which begins the names of the files.
	Name string `key:"name"`
	// The account whose rounds are reported; empty: all.
	Account string `key:"account"`
	// When a file is written of the rounds that have ended since the one before.
	Schedule schedule.Schedule `key:"schedule"`
	// The format of the files: html, json, csv or tsv; empty: html.
	Format string `key:"format"`
	// The space in which the files are items, as ACCOUNT/STORE/SPACE. They are copied and checked like others.
	Space string `key:"space"`
	// Or the directory of the files, on the machine of the role sweeper that writes them.
	Dir string `key:"dir"`
}

// To returns the space of the files; empty if they are in a directory. The settings have been validated.
func (r FixityReport) To() (account, store, space string) { return spaceOf(r.Space) }

// FormatOrDefault returns the format of the files.
func (r FixityReport) FormatOrDefault() string { return cmp.Or(r.Format, "html") }

// SpacePeriod is the period of the checks of some spaces.
type SpacePeriod struct {
	// The spaces, as ACCOUNT[/STORE[/SPACE]]; * and ? stand for any names.
	Spaces string `key:"spaces"`
	// The time in which every copy in them is read at least once.
	Period time.Duration `key:"period"`
}

// StoreBudget bounds the checks that the scheduled rounds request of each of some stores in 24 hours. Those of rounds
// by hand count, and are not bounded.
type StoreBudget struct {
	// The stores, as ACCOUNT[/STORE]; * and ? stand for any names.
	Stores string `key:"stores"`
	// The number of checks; 0: any. Copies whose newest check did not pass take a quarter at most, of each number.
	Items int `key:"items"`
	// The bytes of the checked copies; 0: any.
	Bytes Size `key:"bytes"`
	// The number of requests that the checks make to a store; 0: any. A check makes three, and driver s3 one more for
	// each further 16 MiB of the copy; two with read: never.
	Requests int `key:"requests"`
	// The times of the day in which checks are requested, as 'window 22:00-06:00 zone Europe/Zurich', with the windows
	// of a schedule. Requested checks may end after them. Default: any time.
	Windows string `key:"windows"`
}

// Open reports whether checks may be requested at a time. The windows have been validated.
func (b StoreBudget) Open(at time.Time) bool {
	windows, err := schedule.ParseWindows(b.Windows)
	return b.Windows == "" || err == nil && windows.Open(at)
}

// BudgetOf returns the budget of a store; false if it has none. The patterns have been validated.
func (f Fixity) BudgetOf(account, store string) (StoreBudget, bool) {
	for _, b := range f.Budgets {
		if of, err := filter.New([]string{b.Stores}, nil); err == nil && of.Selects(account, store, "") {
			return b, true
		}
	}
	return StoreBudget{}, false
}

// PeriodOf returns the period of a space in a store. The patterns have been validated.
func (f Fixity) PeriodOf(account, store, space string) time.Duration {
	for _, p := range f.Periods {
		if of, err := filter.New([]string{p.Spaces}, nil); err == nil && of.Selects(account, store, space) {
			return p.Period
		}
	}
	return f.Period
}

// shortestPeriod returns the shortest period that a space may have that a pattern matches, or any space if that is
// empty. An entry with the same pattern, or with its first parts, matches all of them, so that later ones do not count.
func (f Fixity) shortestPeriod(spaces string) time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for _, p := range f.Periods {
		if apart(p.Spaces, spaces) {
			continue
		}
		shortest = min(shortest, p.Period)
		if of := strings.Trim(p.Spaces, "/") + "/"; strings.HasPrefix(strings.TrimPrefix(spaces, "/")+"/", of) {
			return shortest
		}
	}
	return min(shortest, f.Period)
}

// apart reports whether no space matches both of two patterns, since a part of one is a name that the other does not
// match. Of two parts with wildcards it is not known.
func apart(a, b string) bool {
	as, bs := strings.Split(strings.TrimPrefix(a, "/"), "/"), strings.Split(strings.TrimPrefix(b, "/"), "/")
	for i := range min(len(as), len(bs)) {
		for _, p := range [][2]string{{as[i], bs[i]}, {bs[i], as[i]}} {
			name := p[1] != "" && !strings.ContainsAny(p[1], `*?[\`)
			if ok, _ := path.Match(p[0], p[1]); name && p[0] != "" && !ok { // the patterns have been checked
				return true
			}
		}
	}
	return false
}

// tooRare is what is wrong with a schedule of the fixity sweep.
const tooRare = "is longer than the shortest fixity.period: copies would be checked too rarely"

// validateFixitySchedule reports a schedule of the fixity sweep that is longer than a period of its spaces.
func validateFixitySchedule(key string, s schedule.Schedule, shortest time.Duration, fault report) {
	if shortest > 0 && s.LongerThan(shortest) {
		fault(key, s, tooRare)
	}
}

func validateFixity(c *Config, fault report) {
	f := c.Fixity
	positive("fixity.period", f.Period, fault)
	if f.Objective <= 0 || f.Objective >= 1 {
		fault("fixity.objective", f.Objective, "want more than 0% and less than 100%: the rest may be overdue")
	}
	notNegative("fixity.min_interval", f.MinInterval, fault)
	shortest := f.shortestPeriod("")
	for i, p := range f.Periods {
		at := fmt.Sprintf("fixity.periods[%d]", i)
		positive(at+".period", p.Period, fault)
		if err := filter.Check(p.Spaces); err != nil {
			fault(at+".spaces", p.Spaces, err.Error())
		}
	}
	if f.MinInterval > shortest && shortest > 0 {
		fault("fixity.min_interval", formatDuration(f.MinInterval),
			"is longer than fixity.period: every sweep would skip the copies that are due")
	}
	notNegative("fixity.settle", f.Settle, fault)
	increasing("fixity.recheck", f.Recheck, fault)
	positive("fixity.fresh_wait", f.FreshWait, fault)
	for i, b := range f.Budgets {
		at := fmt.Sprintf("fixity.budgets[%d]", i)
		if err := filter.CheckStores(b.Stores); err != nil {
			fault(at+".stores", b.Stores, err.Error())
		}
		none := b.Items == 0 && b.Bytes == 0 && b.Requests == 0 && b.Windows == ""
		if b.Items < 0 || b.Bytes < 0 || b.Requests < 0 || none {
			fault(at, b.Stores, "want items, bytes or requests, of 1 or more, or windows")
		}
		if _, err := schedule.ParseWindows(b.Windows); b.Windows != "" && err != nil {
			fault(at+".windows", b.Windows, "want "+err.Error())
		}
	}
}
