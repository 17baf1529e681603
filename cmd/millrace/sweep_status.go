package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

const splitStates = `STATE is

  done     its last round has ended
  running  its round has begun and not ended: a process with role sweeper goes on with it, or the command that began it
  failed   its round has failed, and is tried again
  paused   the sweep, the role sweeper, the store or the account is paused, or the account is inactive
  never    no round has begun
  unknown  the store does not answer, so that its spaces are unknown
  excluded sweep.spaces leaves the space out`

// atMostOneSweep is a cobra.PositionalArgs.
func atMostOneSweep(c *cobra.Command, args []string) error {
	if err := atMostOne(c, args); err != nil {
		return err
	}
	for _, name := range args {
		if all := app.Sweeps(); !slices.Contains(all, name) {
			return fmt.Errorf("%w: there is no sweep %q%s", usage.Err, name, suggestion(name, all))
		}
	}
	return nil
}

func newSweepList() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "list",
		Short: "List the splits of all sweeps, and the last round of each",
		Long: `Lists the splits of all sweeps: of fixity, reconcile and groups the spaces in each store, of duplication
the spaces of each pair, of stats the accounts. Rounds that 'millrace sweep start' runs beside the scheduled ones are
listed on their own, as "by hand".

` + splitStates + `

EMITTED is the number of findings, or of requested checks. NEXT is when the next scheduled round is due. It is unknown
for splits that are paused or unknown, and there is none for rounds by hand, excluded splits and sweeps that are off.
ERROR is the error with which the round has failed last.`,
		Args: usage.NoArgs,
	}, func(c *cobra.Command, _ []string, f *engineFlags, o *output) error {
		return f.withSplits(c, func(all []app.SplitStatus) error {
			return printList(c.OutOrStdout(), o, rowsOf(all, splitRowOf), splitTable())
		})
	})
}

// withSplits calls do with the splits of all sweeps, and warns of stores that do not answer.
func (f *engineFlags) withSplits(c *cobra.Command, do func([]app.SplitStatus) error) error {
	return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		all, err := a.SweepStatus(ctx)
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.State == app.SplitUnknown {
				e.log.Warn("the spaces of a store are unknown", "account", s.Account, "store", s.Store, "err", s.Error)
			}
		}
		return do(all)
	})
}

// A splitRow is a split in a list.
type splitRow struct {
	Sweep       string     `json:"sweep"`
	ByHand      bool       `json:"by_hand"`
	Account     string     `json:"account"`
	Store       string     `json:"store"`
	Space       string     `json:"space"`
	Destination string     `json:"destination"`
	State       string     `json:"state"`
	Round       string     `json:"round"`
	Started     *time.Time `json:"started"`
	Finished    *time.Time `json:"finished"`
	Updated     *time.Time `json:"updated"` // the time of the last checkpoint
	Compared    int64      `json:"compared"`
	Emitted     int64      `json:"emitted"`
	Bytes       *int64     `json:"bytes"` // of the compared items
	Next        *time.Time `json:"next"`  // when the next scheduled round is due
	Failed      *time.Time `json:"failed"`
	Error       string     `json:"error"`
}

func splitRowOf(s app.SplitStatus) splitRow {
	var bytes *int64
	if s.Bytes >= 0 {
		bytes = &s.Bytes
	}
	return splitRow{s.Sweep, s.ByHand, s.Account, s.Store, s.Space, s.Destination, s.State, s.Round, set(s.Started),
		set(s.Finished), set(s.Updated), s.Compared, s.Emitted, bytes, set(s.Next), set(s.Failed), s.Error}
}

// sweepName returns the name of a sweep in tables.
func sweepName(sweep string, byHand bool) string {
	if byHand {
		return sweep + " (by hand)"
	}
	return sweep
}

// storeName returns ACCOUNT/STORE, or ACCOUNT of what is about all its stores.
func storeName(account, store string) string {
	if store == "" {
		return account
	}
	return account + "/" + store
}

func splitTable() table[splitRow] {
	const columns = "SWEEP\tSTORE\tSPACE\tDESTINATION\tSTATE\tROUND\tSTARTED\tFINISHED\tEMITTED\tNEXT\tERROR"
	return table[splitRow]{columns, func(r splitRow) []string {
		return []string{sweepName(r.Sweep, r.ByHand), storeName(r.Account, r.Store), r.Space, r.Destination, r.State, r.Round,
			stamp(r.Started), stamp(r.Finished), strconv.FormatInt(r.Emitted, 10), stamp(r.Next), r.Error}
	}}
}

func newSweepStatus() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "status [NAME]",
		Short: "Show how far the unfinished rounds of sweeps are",
		Long: `Shows a line for each sweep with the number of its splits by state, and below it one for each unfinished round.

COMPARED counts the items until the last checkpoint, and BYTES those of them with a known size; of fixity the checks
that were requested. RATE is items per second since the start of the round. SHARE is the compared share of the items
that were on record when the round began; of fixity, the share of the checks that have a final result once all are
requested. END is the estimated end, and NEXT when the first scheduled round of the sweep is due. What is unknown is
shown as "-": share and end of groups, which looks at some items only, of fixity while it requests checks, and of a
store that is taken in; and the bytes of groups.
As json, each sweep is an object with an array of its rounds.`,
		Args: atMostOneSweep,
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		return f.withSplits(c, func(all []app.SplitStatus) error {
			sweeps := sweepStatesOf(all, args, time.Now().UTC().Truncate(time.Second))
			if o.form != formTable {
				return printList(c.OutOrStdout(), o, sweeps, table[sweepState]{})
			}
			return printList(c.OutOrStdout(), o, progressLines(sweeps), progressTable())
		})
	})
}

// A sweepProgress says how far unfinished rounds are. What is nil is unknown.
type sweepProgress struct {
	Compared int64      `json:"compared"`
	Emitted  int64      `json:"emitted"`
	Bytes    *int64     `json:"bytes"` // of the compared items
	Rate     *float64   `json:"rate"`  // compared items per second
	Share    *float64   `json:"share"`
	End      *time.Time `json:"end"` // estimated
}

// A sweepState is a sweep with its unfinished rounds.
type sweepState struct {
	Sweep  string         `json:"sweep"`
	ByHand bool           `json:"by_hand"`
	Splits map[string]int `json:"splits"` // their number by state
	sweepProgress
	Next   *time.Time   `json:"next"` // when the first scheduled round is due
	Failed *time.Time   `json:"failed"`
	Error  string       `json:"error"` // of the round that has failed last
	Rounds []splitState `json:"rounds"`
}

// A splitState is a split with its unfinished round.
type splitState struct {
	splitRow
	Rate  *float64   `json:"rate"`
	Share *float64   `json:"share"`
	End   *time.Time `json:"end"`
}

// sweepStatesOf returns the sweeps of splits, which are sorted by sweep; those with a name, if there are names.
func sweepStatesOf(all []app.SplitStatus, names []string, now time.Time) (sweeps []sweepState) {
	for _, s := range all {
		if len(names) > 0 && !slices.Contains(names, s.Sweep) {
			continue
		}
		if n := len(sweeps); n == 0 || sweeps[n-1].Sweep != s.Sweep || sweeps[n-1].ByHand != s.ByHand {
			sweeps = append(sweeps, sweepState{Sweep: s.Sweep, ByHand: s.ByHand, Splits: map[string]int{},
				Rounds: []splitState{}})
		}
		in := &sweeps[len(sweeps)-1]
		in.Splits[s.State]++
		if !s.Next.IsZero() && (in.Next == nil || s.Next.Before(*in.Next)) {
			in.Next = set(s.Next)
		}
		if !s.Failed.IsZero() && (in.Failed == nil || s.Failed.After(*in.Failed)) {
			in.Failed, in.Error = set(s.Failed), s.Error
		}
		if s.Unfinished() {
			in.Rounds = append(in.Rounds, splitState{splitRowOf(s), known(s.Rate()), known(s.Share), set(s.End(now))})
		}
	}
	for i := range sweeps {
		sweeps[i].sweepProgress = totalOf(sweeps[i].Rounds)
	}
	return sweeps
}

// known returns a pointer to a number; nil if it is not positive.
func known(n float64) *float64 {
	if n <= 0 {
		return nil
	}
	return &n
}

// totalOf adds rounds. Rates are those of running rounds; share and end are known only if those of all rounds are.
func totalOf(rounds []splitState) (t sweepProgress) {
	var rate, items float64
	share, bytes := true, int64(0)
	for _, r := range rounds {
		t.Compared += r.Compared
		t.Emitted += r.Emitted
		if r.Bytes != nil {
			bytes += *r.Bytes
		}
		if r.State == app.SplitRunning && r.Rate != nil {
			rate += *r.Rate
		}
		if share = share && r.Share != nil; share {
			items += float64(r.Compared) / *r.Share
		}
		if r.End != nil && (t.End == nil || r.End.After(*t.End)) {
			t.End = r.End
		}
	}
	t.Rate = known(rate)
	if share && items > 0 {
		t.Share = known(float64(t.Compared) / items)
	}
	if slices.ContainsFunc(rounds, func(r splitState) bool { return r.End == nil }) {
		t.End = nil
	}
	if len(rounds) > 0 && !slices.ContainsFunc(rounds, func(r splitState) bool { return r.Bytes == nil }) {
		t.Bytes = &bytes
	}
	return t
}

// progressLines returns the cells of each sweep, and of its rounds.
func progressLines(sweeps []sweepState) (lines [][]string) {
	for _, s := range sweeps {
		var states []string
		for _, state := range slices.Sorted(maps.Keys(s.Splits)) {
			states = append(states, fmt.Sprintf("%d %s", s.Splits[state], state))
		}
		name := sweepName(s.Sweep, s.ByHand)
		line := append([]string{name, "all", strings.Join(states, ", "), ""}, s.sweepProgress.cells()...)
		lines = append(lines, append(line, stamp(s.Next), s.Error))
		for _, r := range s.Rounds {
			split := storeName(r.Account, r.Store)
			if r.Destination != "" {
				split += " to " + r.Destination
			}
			if r.Space != "" {
				split += ": " + r.Space
			}
			progress := sweepProgress{r.Compared, r.Emitted, r.Bytes, r.Rate, r.Share, r.End}
			line := append([]string{name, split, r.State, r.Round}, progress.cells()...)
			lines = append(lines, append(line, stamp(r.Next), r.Error))
		}
	}
	return lines
}

// cells returns the cells of the numbers. What is unknown is empty.
func (p sweepProgress) cells() []string {
	bytes, rate, share := "", "", ""
	if p.Bytes != nil {
		bytes = strconv.FormatInt(*p.Bytes, 10)
	}
	if p.Rate != nil {
		rate = fmt.Sprintf("%.4g/s", *p.Rate)
	}
	if p.Share != nil {
		share = fmt.Sprintf("%.1f%%", *p.Share*100)
	}
	return []string{strconv.FormatInt(p.Compared, 10), bytes, strconv.FormatInt(p.Emitted, 10), rate, share, stamp(p.End)}
}

func progressTable() table[[]string] {
	return table[[]string]{"SWEEP\tSPLIT\tSTATE\tROUND\tCOMPARED\tBYTES\tEMITTED\tRATE\tSHARE\tEND\tNEXT\tERROR",
		func(cells []string) []string { return cells }}
}
