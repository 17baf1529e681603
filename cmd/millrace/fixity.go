package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/fixityreport"
)

func newFixity() *cobra.Command {
	return noun("fixity", "Check copies, and show how sure it is that they are intact", newFixityStatus(),
		newFixityOverdue(), newFixityCheck(), newFixityImport(), newFixityRounds(), newFixityReport(), newFixityAnalysis())
}

// copiesScope is the form of an argument that selects copies.
const copiesScope = "[ACCOUNT[/STORE[/SPACE]]]"

// atMostOneScope returns the selected copies of the arguments of a command, at most one. parts is the number of parts
// that it may have; the fourth one is the prefix of items, which may contain slashes.
func atMostOneScope(args []string, parts int) (of schemas.Copy, err error) {
	if len(args) == 0 {
		return of, nil
	}
	words := strings.SplitN(args[0], "/", max(parts, 4))
	if len(words) > parts || slices.Contains(words[:min(len(words), 3)], "") {
		form := copiesScope
		if parts == 4 {
			form = checkScope
		}
		return of, fmt.Errorf("%w: %q is not %s", usage.Err, args[0], form)
	}
	for i, part := range []*string{&of.Account, &of.Store, &of.Space, &of.Item} {
		if i < len(words) {
			*part = words[i]
		}
	}
	return of, nil
}

// requireStores returns a usage error for an account or a store that is not configured.
func requireStores(cfg *config.Config, of schemas.Copy) error {
	var accounts, stores []string
	for _, acc := range cfg.Accounts {
		accounts = append(accounts, acc.ID)
		if of.Account != "" && acc.ID != of.Account {
			continue
		}
		for _, st := range acc.Stores {
			stores = append(stores, st.ID)
		}
	}
	switch {
	case of.Account != "" && !slices.Contains(accounts, of.Account):
		return fmt.Errorf("%w: there is no account %q%s", usage.Err, of.Account, suggestion(of.Account, accounts))
	case of.Store != "" && !slices.Contains(stores, of.Store):
		return fmt.Errorf("%w: there is no store %q%s", usage.Err, of.Store, suggestion(of.Store, stores))
	}
	return nil
}

// withCopies calls do with the copies that the arguments select.
func (f *engineFlags) withCopies(
	c *cobra.Command, args []string, parts int, do func(ctx context.Context, a *app.App, of schemas.Copy) error,
) error {
	of, err := atMostOneScope(args, parts)
	if err != nil {
		return err
	}
	return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		if err := requireStores(e.cfg, of); err != nil {
			return err
		}
		return do(ctx, a, of)
	})
}

func newFixityStatus() *cobra.Command {
	return listing(&cobra.Command{
		Use:   "status " + copiesScope,
		Short: "Show how many copies of each space have passed a check within their period",
		Long: `Shows a line for each space in each store with copies on record.

VERIFIED is the number of copies whose content has passed a check within the period (fixity.period), and SHARE its
share of all COPIES. In a store that is not always read (READ never or 5%) a check counts that compared what the store
asserts. OVERDUE are the others: 'millrace fixity overdue' lists them. BURN is their share of all COPIES, in relation to
the share that fixity.objective allows: above 1 the objective is missed. FAILING are copies whose last conclusive check
failed, and UNKNOWN those whose newest check had no answer: see 'millrace incident list'. OLDEST is the oldest of the
last passes. RATE is the number of checks per second in the last 24 hours, and END when the overdue copies
are checked at this rate. DETECTION, of a store that is not always read, is the probability that the checks of a period
read at least one of 1, 10 or 100 damaged copies, if the damage lasts for the period and no copy is overdue.`,
		Args: atMostOne,
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		return f.withCopies(c, args, 3, func(ctx context.Context, a *app.App, of schemas.Copy) error {
			now := time.Now().UTC()
			all, err := a.FixityStatus(ctx, of, now)
			if err != nil {
				return err
			}
			row := func(s app.SpaceFixity) fixityRow { return fixityRowOf(&s, now) }
			return printList(c.OutOrStdout(), o, rowsOf(all, row), fixityTable())
		})
	})
}

// A fixityRow is the state of the checks of a space in a store.
type fixityRow struct {
	Account string  `json:"account"`
	Store   string  `json:"store"`
	Space   string  `json:"space"`
	Read    int     `json:"read_percent"` // the share of the copies whose bytes are read in a period
	Period  float64 `json:"period_seconds"`
	Copies  uint64  `json:"copies"`
	Bytes   int64   `json:"bytes"` // of the copies with a known size
	Passed  uint64  `json:"verified"`
	Share   float64 `json:"verified_share"`
	// Objective is that of Share. Burn is the share that is overdue, in relation to the share that the objective allows.
	Objective float64    `json:"objective"`
	Burn      float64    `json:"burn_rate"`
	Overdue   uint64     `json:"overdue"`
	Failing   uint64     `json:"failing"`
	Unknown   uint64     `json:"unknown"`
	Oldest    *time.Time `json:"oldest"`
	Newest    *time.Time `json:"newest"`
	Rate      float64    `json:"rate"`
	End       *time.Time `json:"end"`
	// Detection is of damage that a period finds; null: the bytes of all copies are read.
	Detection []fixityreport.Detection `json:"detection"`
}

func fixityRowOf(s *app.SpaceFixity, now time.Time) fixityRow {
	return fixityRow{Account: s.Account, Store: s.Store, Space: s.Space, Read: s.Sample, Period: s.Period.Seconds(),
		Copies: s.Live, Bytes: s.Bytes, Passed: s.Live - s.Overdue, Share: s.Share(),
		Objective: float64(s.Objective), Burn: s.Burn, Overdue: s.Overdue,
		Failing: s.Failing, Unknown: s.Unknown, Oldest: set(s.Oldest), Newest: set(s.Newest), Rate: s.Rate,
		End: set(s.End(now)), Detection: fixityreport.Detections(s.Sample, int64(s.Live))}
}

// readText describes which copies of a store are read.
func readText(percent int) string {
	switch percent {
	case 0:
		return "never"
	case 100:
		return "always"
	}
	return fmt.Sprintf("%d%%", percent)
}

func burnText(rate float64) string { return strconv.FormatFloat(rate, 'f', 2, 64) }

func fixityTable() table[fixityRow] {
	const columns = "STORE\tSPACE\tREAD\tCOPIES\tVERIFIED\tSHARE\tBURN\tOVERDUE\tFAILING\tUNKNOWN\tOLDEST\tRATE\tEND" +
		"\tDETECTION"
	return table[fixityRow]{columns, func(r fixityRow) []string {
		n := func(n uint64) string { return strconv.FormatUint(n, 10) }
		rate := ""
		if r.Rate > 0 {
			rate = fmt.Sprintf("%.3g/s", r.Rate)
		}
		return []string{storeName(r.Account, r.Store), r.Space, readText(r.Read), n(r.Copies), n(r.Passed),
			fixityreport.ShareText(r.Share), burnText(r.Burn), n(r.Overdue), n(r.Failing), n(r.Unknown),
			stamp(r.Oldest), rate, stamp(r.End), fixityreport.DetectionText(r.Detection)}
	}}
}

// checkScope is the form of an argument that selects copies by a prefix of their items, too.
const checkScope = "[ACCOUNT[/STORE[/SPACE[/PREFIX]]]]"

func newFixityOverdue() *cobra.Command {
	var limit int
	c := listing(&cobra.Command{
		Use:   "overdue " + checkScope,
		Short: "List the copies without a passed check within their period",
		Long: `Lists copies whose content has not passed a check within fixity.period, by store and space: those that have
never passed, then those with the oldest pass. PREFIX is the beginning of the items.`,
		Args: func(c *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("%w: --limit must not be negative", usage.Err)
			}
			return atMostOne(c, args)
		},
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		return f.withCopies(c, args, 4, func(ctx context.Context, a *app.App, of schemas.Copy) error {
			l := list[overdueRow]{w: c.OutOrStdout(), form: o.form, table: overdueTable()}
			err := a.EachOverdue(ctx, of, time.Now(), limit, func(page []app.OverdueCopy) error {
				return l.print(rowsOf(page, func(r app.OverdueCopy) overdueRow {
					return overdueRow{r.Account, r.Store, r.Space, r.Item, set(r.LastPass), r.Period.Seconds()}
				}))
			})
			return errors.Join(err, l.end())
		})
	})
	c.Flags().IntVar(&limit, "limit", 1000, "at most `N` copies; 0: all")
	return c
}

// An overdueRow is an overdue copy in a list.
type overdueRow struct {
	Account  string     `json:"account"`
	Store    string     `json:"store"`
	Space    string     `json:"space"`
	Item     string     `json:"item"`
	LastPass *time.Time `json:"last_pass"`
	Period   float64    `json:"period_seconds"`
}

func overdueTable() table[overdueRow] {
	return table[overdueRow]{"STORE\tSPACE\tITEM\tLAST PASS", func(r overdueRow) []string {
		return []string{storeName(r.Account, r.Store), r.Space, r.Item, stamp(r.LastPass)}
	}}
}

func newFixityCheck() *cobra.Command {
	f := sweepFlags{all: true, named: true}
	c := &cobra.Command{
		Use:   "check ACCOUNT[/STORE[/SPACE[/PREFIX]]]",
		Short: "Check copies now, ahead of the scheduled checks",
		Long: `Requests a check of every selected copy, whenever it passed last, and has its bytes read, also in a store
that reads only a sample (not with read: never). The checks go ahead of scheduled ones. PREFIX is the beginning of the
items, or one whole item.

With --wait the command ends when each check has a final result, or an hour after the last one if some were lost. It
prints how many copies passed, failed, or have lost their properties (metadata-damaged), and how many checks have no
final result, and the rounds have their reports ('fixity rounds'). With --dry-run nothing is requested: it prints the
number of checks, their bytes, and how long they take at least, by the rates of the last 30 days.

With --state all roles except the sweeper run in this command.

Exit codes: 0 fine, 1 error, 2 usage, 3 findings: with --wait a copy failed its check or lost its properties,
4 with --wait: no copy failed, but some checks have no final result, 5 precondition, such as no copies that are
selected, 130 interrupted: the checks that were requested are still made.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%w: name what is checked, as ACCOUNT[/STORE[/SPACE[/PREFIX]]]", usage.Err)
			}
			if f.dryRun && f.wait {
				return fmt.Errorf("%w: --dry-run requests nothing, for which --wait could wait", usage.Err)
			}
			of, err := atMostOneScope(args, 4)
			f.account, f.store, f.space, f.prefix = of.Account, of.Store, of.Space, of.Item
			return err
		},
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	f.register(c)
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "only count what would be checked; nothing is requested")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until the results are recorded")
	f.output = outputFlag(c, formText, formJSON)
	return c
}
