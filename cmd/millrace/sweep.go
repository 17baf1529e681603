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

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/sweep"
)

func newSweep() *cobra.Command {
	return noun("sweep", "Start, follow and pause sweeps", newSweepStart(), newSweepList(), newSweepStatus(),
		newSweepReport(), newPauseOne(sweepScope("pause NAME")), newResumeOne(sweepScope("resume NAME")))
}

// sweepFlags are the flags of sweep start.
type sweepFlags struct {
	engineFlags
	account, store, space string
	all, full, wait       bool
	output                *output
}

func newSweepStart() *cobra.Command {
	var f sweepFlags
	c := &cobra.Command{
		Use:   "start fixity|reconcile|duplication",
		Short: "Request checks, or compare the stores with what is on record, or with each other",
		Long: `With duplication: compares the listings of each space in the two stores of each pair of the policies, without a
request for any item. What is missing at the destination, or differs in size, is copied as after a change; what only the
destination has is looked at. Copies of the same size count as equal unless both listings have digests; with --full the
copier compares every item.

With reconcile: compares the listing of each space in each store with the manifest. An item that no
event has reported is adopted: it is on record from then on, and copied as the policy says. With driver file it must
stay unchanged for reconcile.settle. An item that differs from what is on record is checked, and so is one that is
missing in two rounds in a row. Nothing is deleted or replaced without approval. A round that was interrupted goes on
where it stopped. With --wait the command ends when what it found is planned, copied, checked and on record. This is how
a store that existed before millrace is taken in.

With fixity: requests a check of every copy that is due. The checker makes the checks, and the sink records the results;
with --state all roles except the sweeper run in this command. While more than 10,000 tasks wait for checkers, no
further checks are requested.

With --all every copy is checked regardless of its last pass, and its bytes are read, also in a store with
read: sampled. Such a round is separate from the periodic ones. Without --all, a copy that passed less than
fixity.min_interval ago is skipped.

With --wait the command ends when the result of every check is recorded. It prints how many copies passed, failed,
were skipped, or have lost their properties (metadata-damaged).

Exit codes: 0 fine, 1 error, 2 usage, 3 findings: with --wait a copy failed its check or lost its properties, or a
listing lacks too many copies to conclude anything, 5 precondition, 130 interrupted: the next sweep of the store resumes
the round, except one with --all.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(app.Sweeps(), args[0]) {
				return fmt.Errorf("%w: name a sweep: one of %s", usage.Err, strings.Join(app.Sweeps(), ", "))
			}
			switch {
			case f.all && args[0] != sweep.FixitySweep:
				return fmt.Errorf("%w: --all is of sweep start fixity", usage.Err)
			case f.full && args[0] != app.DuplicationSweep:
				return fmt.Errorf("%w: --full is of sweep start duplication", usage.Err)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if args[0] != sweep.FixitySweep {
				return f.compare(c, args[0])
			}
			return f.run(c)
		},
	}
	f.register(c)
	c.Flags().StringVar(&f.account, "account", "", "only of this `ACCOUNT`")
	c.Flags().StringVar(&f.store, "store", "", "only of the store of this `ID`")
	c.Flags().StringVar(&f.space, "space", "", "only of this `SPACE`")
	c.Flags().BoolVar(&f.all, "all", false,
		"fixity: check every copy, also if its last pass is not older than fixity.period")
	c.Flags().BoolVar(&f.full, "full", false, "duplication: let the copier compare every item")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until the results of what was requested are recorded")
	f.output = outputFlag(c, formText, formJSON)
	return c
}

// A sweepReport is the result of a sweep.
type sweepReport struct {
	Sweep     string           `json:"sweep"`
	Requested int64            `json:"requested"`          // requested checks
	Verdicts  map[string]int64 `json:"verdicts,omitempty"` // with --wait: copies by the verdict of their checks
	Rounds    []sweepRound     `json:"rounds"`             // one per store
}

// A sweepRound is the result for one store.
type sweepRound struct {
	Account   string `json:"account"`
	Store     string `json:"store"`
	Round     string `json:"round"`
	Requested int64  `json:"requested"`
}

// rolesWithoutSweeper returns all roles except the sweeper: this command does its work, and both
// would run the same rounds.
func rolesWithoutSweeper() []schemas.Role {
	return slices.DeleteFunc(app.Roles(), func(r schemas.Role) bool { return r == schemas.RoleSweeper })
}

func (f *sweepFlags) run(c *cobra.Command) error {
	report := sweepReport{Sweep: "fixity", Rounds: []sweepRound{}}
	err := f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		return e.withRoles(c, a, f.engineFlags, rolesWithoutSweeper(), func(ctx context.Context, w *waiter) error {
			var asked atomic.Int64
			err := w.waitWhile(ctx, "checks", []schemas.Role{schemas.RoleChecker}, asked.Load, func(ctx context.Context) error {
				return f.ask(ctx, a, e, &report, func(n int64) { asked.Add(n) })
			})
			if err != nil || !f.wait {
				return err
			}
			return report.wait(ctx, w, a.DB())
		})
	})
	// Report the requested checks even if a later store fails or the command is interrupted.
	if err == nil || len(report.Rounds) > 0 {
		err = errors.Join(err, report.print(c.OutOrStdout(), f))
	}
	if n := report.failed(); err == nil && n > 0 {
		err = fmt.Errorf("%w: %d copies failed their check or lost their properties: see 'millrace incident list'",
			errFindings, n)
	}
	return err
}

// ask requests the checks of all selected stores.
func (f *sweepFlags) ask(ctx context.Context, a *app.App, e *engines, r *sweepReport, asked func(int64)) error {
	for _, acc := range e.cfg.Accounts {
		for _, st := range acc.Stores {
			if f.account != "" && acc.ID != f.account || f.store != "" && st.ID != f.store {
				continue
			}
			o := sweep.Request{
				Account: acc.ID, Store: st.ID, Space: f.space, Begun: begun(),
				All: f.all, Period: e.cfg.Fixity.Period, OnRequested: asked,
			}
			round, err := a.SweepFixity(ctx, o)
			if err != nil {
				return fmt.Errorf("sweep store %s/%s: %w", acc.ID, st.ID, err)
			}
			r.Rounds = append(r.Rounds, sweepRound{acc.ID, st.ID, round.ID, round.Emitted})
			r.Requested += round.Emitted
		}
	}
	return nil
}

// failed returns the number of copies with a finding.
func (r *sweepReport) failed() int64 {
	return r.Verdicts["fail"] + r.Verdicts["missing"] + r.Verdicts["not_captured"] + r.Verdicts[metadataDamaged]
}

// wait waits until the result of every check of the rounds is recorded, and stores the verdicts.
func (r *sweepReport) wait(ctx context.Context, w *waiter, db *clickhouse.DB) error {
	by := []schemas.Role{schemas.RoleChecker, schemas.RoleDelayer, schemas.RoleSink}
	return w.until(ctx, "checks", by, func(ctx context.Context) (p app.Progress, err error) {
		p.Total = r.Requested
		for _, round := range r.Rounds {
			n, err := read.CountFinal(ctx, db, round.Round)
			if err != nil {
				return p, err
			}
			p.Done += n
		}
		if p.Done < p.Total {
			return p, nil
		}
		r.Verdicts, err = verdictsOf(ctx, db, r.Rounds)
		return p, err
	})
}

// metadataDamaged is the entry of the verdicts that counts copies whose recorded properties the
// store cannot return. They have a verdict too.
const metadataDamaged = "metadata-damaged"

// verdictsOf counts the copies of rounds by verdict.
func verdictsOf(ctx context.Context, db *clickhouse.DB, rounds []sweepRound) (map[string]int64, error) {
	verdicts := map[string]int64{}
	for _, round := range rounds {
		results, err := read.RoundResults(ctx, db, round.Round)
		if err != nil {
			return nil, err
		}
		for _, v := range results.Counts {
			if v.Final {
				verdicts[v.Verdict] += int64(v.Copies)
			}
		}
		if results.MetadataDamaged > 0 {
			verdicts[metadataDamaged] += results.MetadataDamaged
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
		fmt.Fprintf(&b, "store %s/%s: round %s: %d checks requested\n",
			round.Account, round.Store, round.Round, round.Requested)
	}
	for _, verdict := range slices.Sorted(maps.Keys(r.Verdicts)) {
		why := ""
		if verdict == "skipped" {
			why = ", because they passed less than fixity.min_interval ago: --all checks them"
		}
		fmt.Fprintf(&b, "%d copies: %s%s\n", r.Verdicts[verdict], verdict, why)
	}
	if f.state != "" && !f.wait && r.Requested > 0 {
		fmt.Fprintf(&b, "%s\n", f.laterWithState("the remaining checks are made"))
	}
	_, err := io.WriteString(out, b.String())
	return err
}
