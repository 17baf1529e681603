package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/inventory"
)

// maxAhead is how far the clock of a provider may be ahead.
const maxAhead = 5 * time.Minute

func newFixityImport() *cobra.Command {
	var (
		f    engineFlags
		when string
		o    *output
	)
	c := &cobra.Command{
		Use:   "import REPORT... --time TIME",
		Short: "Import checksums that S3 Batch Operations has computed",
		Long: `Imports completion reports of jobs 'Compute checksum' of S3 Batch Operations: the CSV files below results/, or
'-' for stdin. Each checksum is compared with the records of its copy:

  agreed          a check that passed is recorded, with evidence level 3. It does not count as a reading of the bytes
  differs         no fault is concluded: a check that reads the bytes is requested, ahead of the scheduled checks
  not comparable  the checksum is COMPOSITE, or of an algorithm that is not on record
  not current     the record is of another object, or of one that was written after --time
  unknown         no copy is on record at this key
  failed          the task of the job failed: nothing follows

TIME is when the job was created, or earlier. Repeating the command with the same reports and TIME has no further
effect, except that checks of copies that differ are made again.

Exit codes: 0 fine, 1 error, such as a file that is no such report, 2 usage, 5 precondition, 130 interrupted. After an
error or an interruption, the rows that were counted are published.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: name a report; see '%s --help'", usage.Err, c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			since, err := time.Parse(time.RFC3339, when)
			if err != nil {
				return fmt.Errorf("%w: --time is when the job was created, such as 2006-01-02T15:04:05Z, not %q", usage.Err, when)
			}
			if since.After(time.Now().Add(maxAhead)) {
				return fmt.Errorf("%w: --time %s is in the future", usage.Err, when)
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				done, err := a.ImportComputed(ctx, reportRows(c.InOrStdin(), args), since)
				if done.Compared[fixity.ComputedDiffers] > 0 && e.state != nil {
					fmt.Fprintln(c.ErrOrStderr(), f.laterWithState("the checks are made"))
				}
				return errors.Join(err, printComputed(c.OutOrStdout(), o, done))
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&when, "time", "", "`TIME` of the creation of the job, as 2006-01-02T15:04:05Z")
	o = outputFlag(c, formText, formJSON)
	return c
}

// reportRows returns the rows of reports, one after the other.
func reportRows(stdin io.Reader, names []string) iter.Seq2[inventory.ComputedRow, error] {
	return func(yield func(inventory.ComputedRow, error) bool) {
		for _, name := range names {
			if !eachReportRow(stdin, name, yield) {
				return
			}
		}
	}
}

// eachReportRow yields the rows of one report. It returns false if yield has, or after an error.
func eachReportRow(stdin io.Reader, name string, yield func(inventory.ComputedRow, error) bool) bool {
	r := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			yield(inventory.ComputedRow{}, fmt.Errorf("%w: open the report: %w", usage.Err, err))
			return false
		}
		defer file.Close() // only read from
		r = file
	}
	for row, err := range inventory.ComputedRows(name, r) {
		if !yield(row, err) || err != nil {
			return false
		}
	}
	return true
}

// A computedReport is the document of fixity import.
type computedReport struct {
	Rows          int64         `json:"rows"`
	Agreed        int64         `json:"agreed"`
	Differ        int64         `json:"differ"` // requested checks
	NotComparable int64         `json:"not_comparable"`
	NotCurrent    int64         `json:"not_current"`
	Unknown       int64         `json:"unknown"`
	Failed        int64         `json:"failed"`
	Named         []computedRow `json:"named"` // the first 100 rows that neither agree nor are unknown
}

// A computedRow is a row of a report.
type computedRow struct {
	File   string `json:"file"`
	Line   int64  `json:"line"`
	Key    string `json:"key"`
	Result string `json:"result"`
	Copy   string `json:"copy,omitempty"`
	Detail string `json:"detail,omitempty"`
}

func printComputed(out io.Writer, o *output, done app.ComputedImport) error {
	n := done.Compared
	r := computedReport{Rows: done.Rows, Agreed: n[fixity.ComputedAgrees], Differ: n[fixity.ComputedDiffers],
		NotComparable: n[fixity.ComputedIncomparable], NotCurrent: n[fixity.ComputedNotCurrent],
		Unknown: n[fixity.ComputedUnknown], Failed: done.Failed, Named: []computedRow{}}
	for _, row := range done.Named {
		named := computedRow{File: row.At.File, Line: row.At.Line, Key: row.Key, Result: row.What, Detail: row.Why}
		if row.Copy.Item != "" {
			named.Copy = row.Copy.String()
		}
		r.Named = append(r.Named, named)
	}
	if o.form == formJSON {
		return writeJSON(out, r)
	}
	for _, row := range r.Named {
		what := row.Result
		if row.Detail != "" {
			what += ": " + row.Detail
		}
		if _, err := fmt.Fprintf(out, "%s:%d: %s: %s\n", row.File, row.Line, row.Key, what); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%d rows: %d agreed, %d differ and are checked, %d not comparable, %d not current, "+
		"%d unknown, %d failed\n", r.Rows, r.Agreed, r.Differ, r.NotComparable, r.NotCurrent, r.Unknown, r.Failed)
	return err
}
