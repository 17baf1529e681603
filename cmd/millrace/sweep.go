package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/filter"
)

func newSweep() *cobra.Command {
	return noun("sweep", "Start, follow and pause sweeps", newSweepStart(), newSweepList(), newSweepStatus(),
		newSweepReport(), newPauseOne(sweepScope("pause NAME")), newResumeOne(sweepScope("resume NAME")), newSweepSkip())
}

// sweepFlags are the flags of sweep start.
type sweepFlags struct {
	engineFlags
	account, store, space string
	prefix                string // of the items, with all
	include, exclude      []string
	filter                filter.Filter // of include and exclude
	named                 bool          // no copies are an error
	all, full, wait       bool
	dryRun                bool
	begun                 time.Time // of the rounds, by Kafka's clock
	listing               sweepListing
	output                *output
}

const sweepStartLong = `With duplication: compares the listings of each space in the two stores of each pair of the
policies, without a request for any item. What is missing at the destination, or differs in size, is copied as after a
change; what only the destination has is looked at. Copies of the same size count as equal unless both listings have
digests; with --full the copier compares every item.

With reconcile: compares the listing of each space in each store with the manifest. An item that no
event has reported is adopted: it is on record from then on, and copied as the policy says. With driver file it must
stay unchanged for reconcile.settle. An item that differs from what is on record is checked, and so is one that is
missing in two rounds in a row. Nothing is deleted or replaced without approval. A round that was interrupted goes on
where it stopped. With --wait the command ends when what it found is planned, copied, checked and on record. This is how
a store that existed before millrace is taken in.

With --listing it compares a listing that other software has made, such as an S3 Inventory or the output of find, in
place of the listing of the store: see 'millrace import --help' for the formats. --space names the space of all rows.
A listing is old, so nothing follows from it alone: the store is asked for each item about which the listing and the
manifest differ, and for no other. Copies with a record that is newer than the listing are not compared. A copy that
such a round misses is checked only if the round by hand before it, without a listing, missed it too. If a row has a
fault, or a listing is damaged, nothing is compared. The same command continues a round that was interrupted; with
another listing a new one begins.

With fixity: requests a check of every copy that is due. The checker makes the checks, and the sink records the results;
with --state all roles except the sweeper run in this command. While more than 10,000 tasks wait for checkers, no
further checks are requested. A store that role sweeper has not reached for five minutes (incident
store-unavailable) gets no checks: the other stores do, and the same command requests them later. With --all, and over
some items, a round that has begun waits until the store answers.

With --all every copy is checked regardless of its last pass, and its bytes are read, also in a store with
read: sampled. Such a round is separate from the periodic ones. Without --all, a copy that passed less than
fixity.min_interval ago is skipped.

With stats: counts the items and bytes of each space in each store on record, and compares those of each account with
its allocation, and those of the source and of the destination of each pair of the policies.

With groups: reads the manifest documents of the files that DuraCloud's clients have stored in chunks, and compares
the chunks that they name with what is on record. Those that are absent or differ are checked.

With --spaces and --except the command is about the spaces, and the items, that the patterns select: they have the form
of the setting sweep.spaces, which is about scheduled rounds only. Of a pair, both stores must be selected. A round over
some items of a space has no report of the space, and an interruption ends it; with reconcile it checks nothing that is
missing. With groups, patterns select whole spaces.

With --dry-run nothing is requested or put on record: the command prints what a round would request or find now, in
items and bytes, and how long that takes at least, by the fastest minutes of the last 30 days, and with fixity by
fixity.budgets. The time is unknown if a store was not checked, or a pair has not copied, in these days.

With --wait the command ends when the result of every check is recorded, or the round ends without some, as an hour
after the last result. It prints how many copies passed, failed, were skipped, or have lost their properties
(metadata-damaged), and how many checks have no final result.

Exit codes: 0 fine, 1 error, 2 usage, 3 findings: with --wait a copy failed its check or lost its properties, a
listing lacks too many copies to conclude anything, has a fault or is damaged, or a group of chunks is incomplete or
differs, 4 with --wait: some checks have no final result, 5 precondition,
130 interrupted: the next sweep of the store resumes the round, except one with --all.`

func newSweepStart() *cobra.Command {
	var f sweepFlags
	c := &cobra.Command{
		Use:   "start fixity|reconcile|duplication|stats|groups",
		Short: "Request checks, compare stores with the records or with each other, check chunked items, count copies",
		Long:  sweepStartLong,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(app.Sweeps(), args[0]) {
				return fmt.Errorf("%w: name a sweep: one of %s", usage.Err, strings.Join(app.Sweeps(), ", "))
			}
			switch {
			case f.all && args[0] != sweep.FixitySweep:
				return fmt.Errorf("%w: --all is of sweep start fixity", usage.Err)
			case f.full && args[0] != app.DuplicationSweep:
				return fmt.Errorf("%w: --full is of sweep start duplication", usage.Err)
			case f.dryRun && args[0] == app.StatsSweep:
				return fmt.Errorf("%w: sweep start stats has no --dry-run: it only counts, and requests nothing", usage.Err)
			case f.dryRun && f.wait:
				return fmt.Errorf("%w: --dry-run requests nothing, so that there is nothing to --wait for", usage.Err)
			case args[0] == app.StatsSweep && (f.store != "" || f.space != "" || f.isFiltered()):
				return fmt.Errorf("%w: sweep start stats counts whole accounts: it has no --store, --space, --spaces or --except",
					usage.Err)
			}
			return errors.Join(f.readFilter(), f.checkListing(c, args[0]))
		},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case sweep.FixitySweep:
				return f.run(c)
			case app.StatsSweep:
				return f.count(c)
			}
			return f.compare(c, args[0])
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.account, "account", "", "only of this `ACCOUNT`")
	c.Flags().StringVar(&f.store, "store", "", "only of the store of this `ID`")
	c.Flags().StringVar(&f.space, "space", "", "only of this `SPACE`; with --listing: the space of all its rows")
	c.Flags().StringArrayVar(&f.include, "spaces", nil,
		"only what `PATTERN` selects: ACCOUNT[/STORE[/SPACE[/ITEM]]], as in sweep.spaces; may be repeated")
	c.Flags().StringArrayVar(&f.exclude, "except", nil, "nothing that `PATTERN` selects; may be repeated")
	f.listing.register(c)
	c.Flags().BoolVar(&f.all, "all", false,
		"fixity: check every copy, also if its last pass is not older than fixity.period")
	c.Flags().BoolVar(&f.full, "full", false, "duplication: let the copier compare every item")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "only count what would be requested or found; nothing changes")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until the results of what was requested are recorded")
	f.output = outputFlag(c, formText, formJSON)
	return c
}

func (f *sweepFlags) isFiltered() bool { return len(f.include)+len(f.exclude) > 0 }

// readFilter parses the patterns.
func (f *sweepFlags) readFilter() (err error) {
	if f.filter, err = filter.New(f.include, f.exclude); err != nil {
		return fmt.Errorf("%w: --spaces or --except: %w", usage.Err, err)
	}
	return nil
}

// A sweepReport is the result of a sweep.
type sweepReport struct {
	Sweep     string           `json:"sweep"`
	DryRun    bool             `json:"dry_run,omitempty"`  // nothing was requested
	Requested int64            `json:"requested"`          // requested checks
	Checked   int64            `json:"checked,omitempty"`  // with --wait: copies with a final result
	Bytes     int64            `json:"requested_bytes"`    // their size on record
	Seconds   *float64         `json:"seconds,omitempty"`  // with --dry-run: the estimated time of the checks, if known
	Verdicts  map[string]int64 `json:"verdicts,omitempty"` // with --wait: copies by the verdict of their checks
	Rounds    []sweepRound     `json:"rounds"`             // one per space in a store
	// Unanswered counts, with --wait, the requested checks without a final result.
	Unanswered int64 `json:"unanswered,omitempty"`

	asked []app.FixityRound
}

// A sweepRound is the result for one space in a store.
type sweepRound struct {
	Account   string `json:"account"`
	Store     string `json:"store"`
	Space     string `json:"space"`
	Round     string `json:"round"`
	Requested int64  `json:"requested"`
	Bytes     int64  `json:"requested_bytes"`
	Joined    bool   `json:"joined,omitempty"` // the round was under way: only what it had not requested is requested
}

// rolesWithoutSweeper returns all roles except the sweeper: this command does its work, and both
// would run the same rounds.
func rolesWithoutSweeper() []schemas.Role {
	return slices.DeleteFunc(app.Roles(), func(r schemas.Role) bool { return r == schemas.RoleSweeper })
}

func (f *sweepFlags) run(c *cobra.Command) error {
	report := sweepReport{Sweep: "fixity", DryRun: f.dryRun, Rounds: []sweepRound{}}
	err := f.withApp(c, func(ctx context.Context, a *app.App, e *engines) (err error) {
		if err := requireStores(e.cfg, schemas.Copy{Account: f.account, Store: f.store}); err != nil {
			return err
		}
		if f.begun, err = a.Begin(ctx, f.dryRun); err != nil {
			return err
		}
		if f.dryRun {
			err := f.ask(ctx, a.SweepFixity, e, &report, nil)
			if err == nil {
				report.Seconds, err = a.CheckTime(ctx, report.asked)
			}
			return err
		}
		return e.withRoles(c, a, f.engineFlags, rolesWithoutSweeper(), func(ctx context.Context, w *waiter) error {
			var asked atomic.Int64
			if f.all {
				w.again = "these are made, and the rest is not requested"
			}
			err := w.waitWhile(ctx, "checks", []schemas.Role{schemas.RoleChecker}, asked.Load, func(ctx context.Context) error {
				return f.ask(ctx, a.SweepFixity, e, &report, func(n int64) { asked.Add(n) })
			})
			if err != nil || !f.wait {
				return err
			}
			return report.wait(ctx, w, a, f.all)
		})
	})
	if err == nil && f.isFiltered() && len(report.Rounds) == 0 {
		err = fmt.Errorf("%w: there is no such space: see 'millrace space list'", precondition.Err)
	}
	if err == nil && f.named && report.Requested == 0 {
		err = fmt.Errorf("%w: no such copies are on record: see 'millrace space list'", precondition.Err)
	}
	// Report the requested checks even if another store fails or the command is interrupted.
	if err == nil || len(report.Rounds) > 0 {
		err = errors.Join(err, report.print(c.OutOrStdout(), f))
	}
	if err == nil {
		err = report.findings()
	}
	return err
}

// findings returns an error that wraps errFindings if a check has found a fault, else errPartly if one has no result.
func (r *sweepReport) findings() error {
	unanswered := ""
	if r.Unanswered > 0 {
		unanswered = fmt.Sprintf("%d checks have no final result: see 'millrace dead list'", r.Unanswered)
	}
	switch n := r.failed(); {
	case n > 0 && unanswered != "":
		unanswered = "; " + unanswered
		fallthrough
	case n > 0:
		return fmt.Errorf("%w: %d copies failed their check or lost their properties: see 'millrace incident list'%s",
			errFindings, n, unanswered)
	case unanswered != "":
		return fmt.Errorf("%w: %s", errPartly, unanswered)
	}
	return nil
}

// requestChecks is the type of App.SweepFixity.
type requestChecks func(context.Context, app.FixityRequest) ([]app.FixityRound, error)

// ask requests the checks of all selected stores. A failure of one does not keep it from the others.
func (f *sweepFlags) ask(
	ctx context.Context, request requestChecks, e *engines, r *sweepReport, asked func(int64),
) error {
	var errs []error
	for _, o := range f.requests(e) {
		o.Detach, o.OnRequested = true, asked
		rounds, err := request(ctx, o)
		r.asked = append(r.asked, rounds...)
		for _, round := range rounds {
			r.Rounds = append(r.Rounds, sweepRound{round.Account, round.Store, round.Space, round.ID, round.Emitted,
				round.Counts[sweep.RequestedBytes], !round.Started.Equal(o.Begun)})
			r.Requested += round.Emitted
			r.Bytes += round.Counts[sweep.RequestedBytes]
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep store %s/%s: %w", o.Account, o.Store, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// requests returns the requests for the selected stores.
func (f *sweepFlags) requests(e *engines) (all []app.FixityRequest) {
	for _, acc := range e.cfg.Accounts {
		for _, st := range acc.Stores {
			if (f.account == "" || acc.ID == f.account) && (f.store == "" || st.ID == f.store) {
				all = append(all, app.FixityRequest{Account: acc.ID, Store: st.ID, Space: f.space, Prefix: f.prefix,
					Filter: f.filter, Begun: f.begun, All: f.all, DryRun: f.dryRun})
			}
		}
	}
	return all
}

// failed returns the number of copies with a finding.
func (r *sweepReport) failed() int64 {
	n := r.Verdicts[metadataDamaged]
	for _, verdict := range failedVerdicts() {
		n += r.Verdicts[verdict]
	}
	return n
}

// failedVerdicts returns the verdicts of copies that are not as on record.
func failedVerdicts() []string { return []string{"fail", "missing", "not_captured"} }

// wait ends the rounds, which takes until they have their results, waits until their reports are on record, and stores
// the verdicts.
func (r *sweepReport) wait(ctx context.Context, w *waiter, a *app.App, all bool) error {
	by := []schemas.Role{schemas.RoleChecker, schemas.RoleDelayer, schemas.RoleSink}
	var ended atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := a.EndFixity(gctx, r.asked, all)
		ended.Store(err == nil)
		return err
	})
	g.Go(func() error {
		return w.until(gctx, "checks", by, func(ctx context.Context) (p app.Progress, err error) {
			over := ended.Load()
			for _, round := range r.asked {
				now, err := read.SpaceRoundProgress(ctx, a.DB(), round.Results())
				if err != nil {
					return p, err
				}
				p.Done += now.Final
			}
			if p.Total = p.Done; !over { // the last one counts when the rounds have ended
				p.Total = max(1, r.Requested)
				p.Done = min(p.Done, p.Total-1)
			}
			return p, nil
		})
	})
	if err := g.Wait(); err != nil {
		return err
	}
	err := w.until(ctx, "reports", []schemas.Role{schemas.RoleSink}, a.Stored(schemas.Reports))
	if err != nil {
		return err
	}
	if r.Unanswered, err = a.Unanswered(ctx, r.asked, all); err != nil {
		return err
	}
	r.Verdicts, err = verdictsOf(ctx, a.DB(), r.asked)
	for verdict, n := range r.Verdicts {
		if verdict != "skipped" && verdict != metadataDamaged {
			r.Checked += n
		}
	}
	return err
}

// metadataDamaged is the entry of the verdicts that counts copies whose recorded properties the
// store cannot return. They have a verdict too.
const metadataDamaged = "metadata-damaged"

// verdictsOf counts the copies of rounds by verdict, and those that have lost their properties.
func verdictsOf(ctx context.Context, db *clickhouse.DB, rounds []app.FixityRound) (map[string]int64, error) {
	verdicts := map[string]int64{}
	for _, round := range rounds {
		counted, err := read.SpaceRoundVerdicts(ctx, db, round.Results())
		if err != nil {
			return nil, err
		}
		for verdict, n := range counted {
			verdicts[verdict] += n
		}
	}
	return verdicts, nil
}

func (r *sweepReport) print(out io.Writer, f *sweepFlags) error {
	if f.output.form == formJSON {
		return writeJSON(out, r)
	}
	var b strings.Builder
	for _, round := range r.Rounds {
		what := fmt.Sprintf("round %s: %d checks requested, of %d bytes", round.Round, round.Requested, round.Bytes)
		switch {
		case round.Joined:
			what += ", some before: it was under way"
		case r.DryRun:
			what = fmt.Sprintf("%d checks of %d bytes would be requested", round.Requested, round.Bytes)
		}
		fmt.Fprintf(&b, "space %s in store %s/%s: %s\n", round.Space, round.Account, round.Store, what)
	}
	if r.Seconds != nil && r.Requested > 0 {
		fmt.Fprintf(&b, "they take %s at least, by the rates of the last 30 days and the budgets\n", secondsText(*r.Seconds))
	}
	for _, verdict := range slices.Sorted(maps.Keys(r.Verdicts)) {
		why := ""
		if verdict == "skipped" {
			why = ", because they passed less than fixity.min_interval ago: --all checks them"
		}
		fmt.Fprintf(&b, "%d copies: %s%s\n", r.Verdicts[verdict], verdict, why)
	}
	if r.Unanswered > 0 {
		fmt.Fprintf(&b, "%d checks: no final result\n", r.Unanswered)
	}
	if f.state != "" && !f.wait && !f.dryRun && r.Requested > 0 {
		fmt.Fprintf(&b, "%s\n", f.laterWithState("the remaining checks are made"))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// secondsText describes an estimated time.
func secondsText(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}
