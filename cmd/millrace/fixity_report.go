package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/sinks/fixityreport"
)

func newFixityRounds() *cobra.Command {
	var (
		h   historyFlags
		all bool
	)
	c := listing(&cobra.Command{
		Use:   "rounds " + copiesScope,
		Short: "List the newest fixity round of each space, and its result",
		Long: `Lists the newest fixity round of each space in each store that has ended, or with --all all rounds, newest
first. Rounds that are under way are in 'millrace sweep status fixity'. RESULT is

  success     every copy of the space has passed a check of its bytes within the period, and nothing was found
  findings    copies have failed their check, or have lost their properties
  incomplete  nothing was found, but copies have not passed within the period, or checks have no final result, as of
              a store that does not answer, or the round is one of 'fixity check' over the items with a prefix

CHECKED is the number of copies with a final result of the round, which checks only what is due, and FINDINGS that of
its findings. COVERAGE is the share of the copies of the space that have passed within the period.

COMPARED is when the listing of the space was compared with the records at last (sweep reconcile), which may be after
the round, and LISTING what differed: a copy is missing if two rounds in a row have not found it.`,
		Args: atMostOne,
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		q := read.ReportQuery{Newest: !all}
		of, err := atMostOneScope(args, 3)
		if err != nil {
			return err
		}
		q.Account, q.Store, q.Space = of.Account, of.Store, of.Space
		if q.Since, err = h.parse(); err != nil {
			return err
		}
		if all {
			q.Limit = h.limit
		} else if c.Flags().Changed("limit") {
			return fmt.Errorf("%w: --limit is of --all", usage.Err)
		}
		return f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
			rounds, err := app.FixityReports(ctx, db, q)
			if err != nil {
				return err
			}
			return printList(c.OutOrStdout(), o, rowsOf(rounds, roundRowOf), roundTable())
		})
	})
	h.register(c, "rounds")
	c.Flags().BoolVar(&all, "all", false, "all rounds, not only the newest of each space")
	return c
}

// A roundRow is a fixity round in a list.
type roundRow struct {
	Account  string           `json:"account"`
	Store    string           `json:"store"`
	Space    string           `json:"space"`
	Part     bool             `json:"part"` // of some items
	Round    string           `json:"round"`
	Started  *time.Time       `json:"started"`
	Finished *time.Time       `json:"finished"`
	Result   string           `json:"result"`
	Complete bool             `json:"complete"`
	Checked  int64            `json:"checked"`
	Found    int64            `json:"findings"`
	Coverage *float64         `json:"coverage"`
	Counts   map[string]int64 `json:"counts"`
	Detail   string           `json:"detail"`
	// Compared is the newest comparison of the listing with the records; null: there is none.
	Compared *fixityreport.Comparison `json:"comparison"`
}

func roundRowOf(r fixityreport.Round) roundRow {
	row := roundRow{r.Account, r.Store, r.Space, r.Part, r.Round, set(r.Started), set(r.Finished), r.Result(), r.Complete,
		r.Checked(), r.Found(), nil, r.Counts, r.Detail, r.Compared}
	if share, ok := r.Coverage(); ok {
		row.Coverage = &share
	}
	return row
}

func roundTable() table[roundRow] {
	const columns = "STORE\tSPACE\tROUND\tSTARTED\tFINISHED\tRESULT\tCHECKED\tFINDINGS\tCOVERAGE\tCOMPARED\tLISTING" +
		"\tDETAIL"
	return table[roundRow]{columns, func(r roundRow) []string {
		coverage, compared, listing := "", "", r.Compared.Words()
		if r.Coverage != nil {
			coverage = fixityreport.ShareText(*r.Coverage)
		}
		if r.Compared != nil {
			compared = stampOf(r.Compared.Finished)
			if r.Compared.Detail != "" {
				listing += ", " + r.Compared.Detail
			}
		}
		return []string{storeName(r.Account, r.Store), r.Space, r.Round, stamp(r.Started), stamp(r.Finished), r.Result,
			strconv.FormatInt(r.Checked, 10), strconv.FormatInt(r.Found, 10), coverage, compared, listing, r.Detail}
	}}
}

func newFixityReport() *cobra.Command {
	var (
		f     engineFlags
		q     read.ReportQuery
		since string
		o     *output
	)
	c := &cobra.Command{
		Use:   "report " + copiesScope,
		Short: "Write the report of the newest fixity round of each space",
		Long: `Writes the report of the newest fixity round of each space in each store that has ended; with --round that of
one round, and with --since those of all rounds that have ended since.

Forms of the output:

  json   rounds with their result, counts and findings
  csv    every checked copy (RFC 4180)
  tsv    every checked copy, in the 11 columns of DuraCloud's reports: date-checked, account, store-id, store-type,
         space-id, content-id, result (success, failure, error for unknown, ignore), content-checksum,
         provider-checksum, manifest-checksum, details; with backslashes before tabs, line breaks and backslashes
  html   a page with the rounds and up to 1,000 findings of each, without scripts, which can be printed

RESULT and COVERAGE are those of 'millrace fixity rounds'. Of each round, json and html also have the newest comparison
of the listing of its space with the records (sweep reconcile), or that there was none.`,
		Args: atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			of, err := atMostOneScope(args, 3)
			if err != nil {
				return err
			}
			q.Account, q.Store, q.Space = of.Account, of.Store, of.Space
			if since != "" && q.Round != "" {
				return fmt.Errorf("%w: --round is one round, and --since are several", usage.Err)
			}
			q.Newest = q.Round == "" && since == ""
			if since != "" {
				if q.Since, err = sinceTime(since, time.Now()); err != nil {
					return err
				}
			}
			return f.withDB(c, func(ctx context.Context, db *clickhouse.DB) error {
				rounds, err := app.FixityReports(ctx, db, q)
				if err != nil {
					return err
				}
				if q.Round != "" && len(rounds) == 0 {
					return fmt.Errorf("%w: no round %q has ended: see 'millrace fixity rounds'", usage.Err, q.Round)
				}
				fixityreport.Sort(rounds)
				return fixityreport.Format(o.form).Write(c.OutOrStdout(), rounds)
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&q.Round, "round", "", "the report of the round with this `ID`")
	c.Flags().StringVar(&since, "since", "",
		"the reports of rounds that have ended since this `TIME`, or within the last such period: 2006-01-02T15:04:05Z, 7d")
	o = outputFlag(c, words(fixityreport.Formats())...)
	return c
}
