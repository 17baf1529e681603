package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/sweep/pairs"
)

// historyFlags select a part of a history.
type historyFlags struct {
	since string
	limit int
}

func (f *historyFlags) register(c *cobra.Command, of string) {
	c.Flags().StringVar(&f.since, "since", "",
		"only "+of+" since this `TIME`, or of the last such period: 2006-01-02T15:04:05Z, 90m, 7d")
	c.Flags().IntVar(&f.limit, "limit", 100, "at most `N` "+of+"; 0: all")
}

// parse returns the start of the selected part; the zero time: all.
func (f *historyFlags) parse() (since time.Time, err error) {
	if f.limit < 0 {
		return since, fmt.Errorf("%w: --limit must not be negative", usage.Err)
	}
	if f.since == "" {
		return since, nil
	}
	return sinceTime(f.since, time.Now())
}

func newSweepReport() *cobra.Command {
	var (
		h   historyFlags
		q   read.ReportQuery
		all bool
	)
	c := listing(&cobra.Command{
		Use:   "report [NAME]",
		Short: "Print the newest report of each space of a sweep",
		Long: `Prints the newest report of each space in a store, or of each space of a pair, of one sweep or of all sweeps.
With --all it prints all reports, newest first.

Reports of stats also compare the items and bytes of the two stores of each pair: kind stats/pair. DETAIL says what
differs.

COMPLETE is "no" if the round could not conclude everything: a listing lacks too much, items were being written, or
sizes that stats/pair compares are unknown.`,
		Args: atMostOneSweep,
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		var err error
		if q.Since, err = h.parse(); err != nil {
			return err
		}
		if q.Newest = !all; all {
			q.Limit = h.limit
		} else if c.Flags().Changed("limit") {
			return fmt.Errorf("%w: --limit is of --all", usage.Err)
		}
		if len(args) == 1 {
			q.Kind = reportKind(args[0])
		}
		return f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
			found, err := read.Reports(ctx, db, q)
			if err != nil {
				return err
			}
			return printList(c.OutOrStdout(), o, found, reportTable())
		})
	})
	h.register(c, "reports")
	c.Flags().BoolVar(&all, "all", false, "all reports, not only the newest of each space")
	c.Flags().StringVar(&q.Account, "account", "", "only of this `ACCOUNT`")
	c.Flags().StringVar(&q.Store, "store", "", "only of the store of this `ID`, also as the destination of a pair")
	c.Flags().StringVar(&q.Space, "space", "", "only of this `SPACE`")
	return c
}

// reportKind returns the kind of the reports of a sweep.
func reportKind(sweep string) string {
	if sweep == app.DuplicationSweep {
		return pairs.ReportKind
	}
	return sweep
}

func reportTable() table[read.RoundReport] {
	const columns = "KIND\tSTORE\tSPACE\tDESTINATION\tSTARTED\tFINISHED\tCOMPLETE\tCOUNTS\tDETAIL"
	return table[read.RoundReport]{columns, func(r read.RoundReport) []string {
		complete := "no"
		if r.Complete {
			complete = "yes"
		}
		return []string{r.Kind, r.Account + "/" + r.Store, r.Space, r.Destination, stampOf(r.Started), stampOf(r.Finished),
			complete, countsText(r.Counts), r.Detail}
	}}
}

// countsText returns counts as text, without zeros.
func countsText(counts map[string]int64) string {
	var words []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[what]; n != 0 {
			words = append(words, fmt.Sprintf("%s=%d", what, n))
		}
	}
	return strings.Join(words, " ")
}
