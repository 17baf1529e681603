package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/fixityreport"
)

func newFixityAnalysis() *cobra.Command {
	var (
		f     engineFlags
		since string
		all   bool
		o     *output
	)
	c := &cobra.Command{
		Use:   "analysis ACCOUNT[/STORE[/SPACE]]",
		Short: "Show what failed checks have in common, and the rate of errors",
		Long: `Compares the copies that have failed a check with all that were checked, by store, space, first directory and
the month in which they were written, and the first check of each copy that failed with all checks until then, by
worker, host, version of millrace and hour.

It prints what failures have in common more often than chance explains (one such line would be there by chance once in
a thousand reports), and the rate of failed copies for each 10^15 bytes that were read, with an interval of 95 %.
A check without an answer counts as none.

Exit codes: 0 fine, also if copies have failed, 1 error, 2 usage.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			of, err := atMostOneScope(args, 3)
			if err != nil {
				return err
			}
			from, err := sinceTime(since, time.Now())
			if err != nil {
				return err
			}
			if of.Account == "" {
				return fmt.Errorf("%w: name the account", usage.Err)
			}
			q := read.FailureQuery{Account: of.Account, Store: of.Store, Space: of.Space, Span: read.Span{From: from}}
			return f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
				totals, groups, err := read.Failures(ctx, db, q)
				if err != nil {
					return err
				}
				a := analysisOf(totals, groups, from, all)
				if o.form == formJSON {
					return writeJSON(c.OutOrStdout(), a)
				}
				return a.print(c.OutOrStdout())
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&since, "since", "365d",
		"checks since this `TIME`, or of the last such period: 2006-01-02T15:04:05Z, 7d")
	c.Flags().BoolVar(&all, "all", false,
		"list up to 1,000 groups of each kind with failures, not only those that stand out")
	o = outputFlag(c, formText, formJSON)
	return c
}

// An analysis is what checks have found since some time.
type analysis struct {
	Since  time.Time            `json:"since"`
	Copies uint64               `json:"copies"` // that were checked
	Failed uint64               `json:"failed"` // of them
	Checks uint64               `json:"checks"`
	Bytes  int64                `json:"bytes"`
	First  *time.Time           `json:"first_failure"`
	Rate   *fixityreport.Rate   `json:"failed_per_petabyte"` // for each 10^15 bytes; null: none were read
	Causes []fixityreport.Cause `json:"causes"`
	Groups []read.FailureGroup  `json:"groups,omitempty"` // with --all
}

func analysisOf(t read.FailureTotals, groups []read.FailureGroup, since time.Time, all bool) analysis {
	a := analysis{Since: since.UTC(), Copies: t.Copies, Failed: t.Failed, Checks: t.Checks, Bytes: t.Bytes,
		First: set(t.FirstFailed()), Causes: fixityreport.Causes(t.Groups, groups)}
	if a.Causes == nil {
		a.Causes = []fixityreport.Cause{}
	}
	if t.Bytes > 0 {
		rate := fixityreport.RateOf(t.Failed, float64(t.Bytes)/1e15)
		a.Rate = &rate
	}
	for _, g := range groups {
		if all && g.Failed > 0 {
			a.Groups = append(a.Groups, g)
		}
	}
	return a
}

func (a analysis) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "since %s: %d checks of %d copies, %d bytes read\n", a.Since.Format(time.RFC3339), a.Checks, a.Copies,
		a.Bytes)
	fmt.Fprintf(&b, "%d copies have failed", a.Failed)
	if a.First != nil {
		fmt.Fprintf(&b, ", the first at %s", stamp(a.First))
	}
	fmt.Fprintln(&b)
	if a.Rate != nil {
		fmt.Fprintf(&b, "%.3g failed copies for each 10^15 bytes, between %.3g and %.3g with a probability of 95 %%\n",
			a.Rate.Value, a.Rate.Low, a.Rate.High)
	}
	tw := tabwriter.NewWriter(&b, 2, 0, 2, ' ', 0)
	switch {
	case len(a.Causes) > 0:
		fmt.Fprintln(tw, "\nIN COMMON\tVALUE\tALL\tFAILED\tEXPECTED\tSHARE OF FAILURES")
		for _, c := range a.Causes {
			fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%.1f\t%s\n", c.Dimension, orDash(c.Value), c.Total, c.Failed, c.Expected,
				fixityreport.ShareText(c.Share))
		}
	case a.Failed > 0:
		fmt.Fprintln(tw, "the failures have nothing in common that chance would not explain")
	}
	if len(a.Groups) > 0 {
		fmt.Fprintln(tw, "\nBY\tVALUE\tALL\tFAILED")
		for _, g := range a.Groups {
			fmt.Fprintf(tw, "%s\t%s\t%d\t%d\n", g.Dimension, orDash(g.Value), g.Total, g.Failed)
		}
	}
	_ = tw.Flush() // a strings.Builder takes all
	_, err := io.WriteString(w, b.String())
	return err
}
