package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/fixityreport"
)

func newStatus() *cobra.Command {
	var (
		f engineFlags
		o *output
	)
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the copies, the work and what waits for a person, on one screen",
		Long: `Shows

  - the copies of each store, and how many have passed a check within their period; BURN is the share that has not,
    in relation to the share that fixity.objective allows: 'millrace fixity status' has each space
  - the messages that roles have not handled, and how long that takes at the rate of the last two seconds
  - the open incidents by kind, how many of them wait for a decision, and dead letters: 'millrace incident list',
    'millrace dead list'
  - what is paused, inactive accounts, and roles that no process runs

Exit codes: 0 fine, also if something waits, 1 error, 2 usage, 5 precondition.`,
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				s, err := a.Overview(ctx)
				if err != nil {
					return err
				}
				if e.state != nil { // roles run only in commands
					s.Unserved = []schemas.Role{}
				}
				if o.form == formJSON {
					return writeJSON(c.OutOrStdout(), s)
				}
				return printStatus(c.OutOrStdout(), s, time.Now())
			})
		},
	}
	f.register(c)
	o = outputFlag(c, formText, formJSON)
	return c
}

// printStatus prints the state of an installation as text.
func printStatus(w io.Writer, r app.Overview, now time.Time) error {
	var b strings.Builder
	section := func(columns string, rows [][]string, none string) {
		if len(rows) == 0 {
			fmt.Fprintf(&b, "%s\n\n", none)
			return
		}
		tw := tabwriter.NewWriter(&b, 2, 0, 2, ' ', 0)
		fmt.Fprintln(tw, columns)
		for _, row := range rows {
			fmt.Fprintln(tw, strings.Join(row, "\t"))
		}
		_ = tw.Flush() // a strings.Builder takes all
		fmt.Fprintln(&b)
	}
	n := func(n uint64) string { return strconv.FormatUint(n, 10) }
	var rows [][]string
	for _, s := range r.Stores {
		rows = append(rows, []string{storeName(s.Account, s.Store), n(s.Copies), strconv.FormatInt(s.Bytes, 10),
			n(s.Verified), fixityreport.ShareText(s.Share), n(s.Overdue), n(s.Failing), n(s.Unknown),
			burnText(s.Burn)})
	}
	section("STORE\tCOPIES\tBYTES\tVERIFIED\tSHARE\tOVERDUE\tFAILING\tUNKNOWN\tBURN", rows, "no copies are on record")
	rows = nil
	for _, work := range r.Work {
		left := "unknown"
		if work.Seconds != nil {
			left = secondsText(*work.Seconds)
		}
		rows = append(rows, []string{string(work.Role), strconv.FormatInt(work.Records, 10), left})
	}
	section("ROLE\tMESSAGES TO HANDLE\tTIME LEFT", rows, "no messages wait for a role")
	rows = nil
	for _, i := range r.Incidents {
		rows = append(rows, []string{i.Kind, strconv.FormatInt(i.Open, 10), strconv.FormatInt(i.Waiting, 10),
			secondsText(now.Sub(i.Oldest).Seconds())})
	}
	section("OPEN INCIDENTS\tNUMBER\tAWAITING APPROVAL\tOLDEST", rows, "no incident is open")
	fmt.Fprintf(&b, "%d incidents wait for a decision: millrace incident list\n", r.Waiting)
	letters := "many"
	if r.DeadLetters != nil {
		letters = strconv.FormatInt(*r.DeadLetters, 10)
	}
	fmt.Fprintf(&b, "%s dead letters: millrace dead list\n", letters)
	for _, l := range []struct {
		what  string
		names []string
	}{{"paused", r.Paused}, {"inactive accounts", r.Inactive}, {"roles that no process runs", words(r.Unserved)}} {
		if len(l.names) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", l.what, strings.Join(l.names, ", "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
