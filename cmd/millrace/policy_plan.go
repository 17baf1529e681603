package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
)

func newPolicyPlan() *cobra.Command {
	var account string
	c := listing(&cobra.Command{
		Use:   "plan FILE",
		Short: "Report what a policy would do to the copies on record; nothing is published",
		Long: `Reads a document from FILE, or from stdin if FILE is -, checks it as 'millrace policy set' does, and compares
it with the copies on record in ClickHouse. It does not connect to stores. It prints

  deletes       copies that would be deleted because their sources were, with the spaces
  unmanaged     copies that the policy in force manages, and this one does not: nothing updates or deletes them
  destinations  for each pair of stores: how many items would be copied or updated, or are to be compared because
                digests or sizes are not on record, and how many are equal, excluded or held

The time is estimated at the rate of the pair's fastest minutes in the last 30 days, and unknown if it has copied
nothing since then. Properties are not compared.

Exit codes: 0 fine, 1 error, 2 usage or faults in the document, 5 ClickHouse lacks records: the plan would be wrong,
130 interrupted.`,
		Args: exactly(1),
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		content, err := readDocument(c, args[0])
		if err != nil {
			return err
		}
		return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
			file := app.CheckPolicy(e.cfg, account, args[0], content)
			if err := reportPolicies(c.ErrOrStderr(), file); err != nil {
				return err
			}
			of := file.Account
			if account != "" {
				of = account
			}
			plan, err := a.PlanPolicy(ctx, of, file.Document)
			if err != nil {
				return fmt.Errorf("plan the policy of account %s: %w", of, err)
			}
			return printPlan(c.OutOrStdout(), o, plan)
		})
	})
	c.Flags().StringVar(&account, "account", "", "`ACCOUNT` of the document")
	return c
}

// printPlan prints a plan: as one document, as one destination a line, or as tables.
func printPlan(w io.Writer, o *output, p *app.PolicyPlan) error {
	switch o.form {
	case formJSON:
		return writeJSON(w, p)
	case formNDJSON:
		enc := json.NewEncoder(w)
		for _, d := range p.Destinations {
			if err := enc.Encode(d); err != nil {
				return err
			}
		}
		return nil
	}
	if _, err := io.WriteString(w, planHead(p)); err != nil {
		return err
	}
	return printList(w, o, p.Destinations, plannedTable())
}

// planHead returns the lines above the table of destinations: first the deletes.
func planHead(p *app.PolicyPlan) string {
	var b strings.Builder
	for _, d := range p.Deletes {
		what := "would be deleted, since their sources were"
		if d.Approval {
			what = "would wait for approval to be deleted, since their sources were"
		}
		fmt.Fprintf(&b, "space %s: %s in store %s %s in store %s\n", d.Space, countText(d.PlannedCount), d.Destination, what,
			d.Source)
	}
	if len(p.Deletes) == 0 {
		b.WriteString("no copies would be deleted\n")
	}
	for _, u := range p.Unmanaged {
		fmt.Fprintf(&b, "space %s: %s in store %s would be unmanaged%s\n", u.Space, countText(u.PlannedCount), u.Store,
			unconfigured(u.Configured))
	}
	fmt.Fprintf(&b, "account %s, current revision %d, as of %s", p.Account, p.Revision, stamp(&p.AsOf))
	if p.Behind > 0 {
		fmt.Fprintf(&b, "; %d later changes are not in ClickHouse yet", p.Behind)
	}
	b.WriteString("\n\n")
	return b.String()
}

func unconfigured(configured bool) string {
	if configured {
		return ""
	}
	return ", which is not configured"
}

// countText returns a count as text.
func countText(c app.PlannedCount) string {
	text := fmt.Sprintf("%d items of %d bytes", c.Items, c.Bytes)
	if c.Unsized > 0 {
		text += fmt.Sprintf(" (%d of unknown size)", c.Unsized)
	}
	return text
}

// plannedTable returns the table of the destinations of a plan.
func plannedTable() table[app.PlannedDestination] {
	n := func(c app.PlannedCount) string { return strconv.FormatInt(c.Items, 10) }
	return table[app.PlannedDestination]{
		"SOURCE\tDESTINATION\tPAIR\tSPACES\tCOPY\tUPDATE\tBYTES\tTIME\tCOMPARE\tUNCHANGED\tEXCLUDED\tHELD\tDELETE" +
			"\tKEPT\tORPHAN\tCOMMANDS",
		func(d app.PlannedDestination) []string {
			took := "unknown"
			if d.Seconds != nil {
				took = secondsText(*d.Seconds)
			}
			deletes := n(d.Delete)
			if d.Approve.Items > 0 {
				deletes += " + " + n(d.Approve) + " to approve"
			}
			return []string{d.Source, d.Destination, string(d.Change), strconv.Itoa(len(d.Spaces)), n(d.Copy), n(d.Update),
				strconv.FormatInt(d.Bytes, 10), took, n(d.Compare), n(d.Unchanged), n(d.Excluded), n(d.Held), deletes, n(d.Kept),
				n(d.Orphan), strconv.FormatInt(d.Commands, 10)}
		},
	}
}

func newPolicyUnmanaged() *cobra.Command {
	var items bool
	c := listing(&cobra.Command{
		Use:   "unmanaged [ACCOUNT]",
		Short: "Count or list the copies to which no policy leads",
		Long: `Counts the live copies on record that no policy manages, by store and space: their store is neither a source
nor a destination of their space in the policy in force, nor the account's primary store. Such copies are still checked,
and are neither updated nor deleted. They are left behind by removed pairs and policies, by spaces that are ignored, and
by stores that the configuration no longer has.

With --items each copy is listed.

Exit codes: 0 fine, 1 error, 2 usage, 5 ClickHouse lacks records, 130 interrupted.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%w: name one account or none; see '%s --help'", usage.Err, c.CommandPath())
			}
			return nil
		},
	}, func(c *cobra.Command, args []string, f *engineFlags, o *output) error {
		account := strings.Join(args, "")
		return f.withApp(c, func(ctx context.Context, a *app.App, _ *engines) error {
			all, err := a.Unmanaged(ctx, account)
			if err != nil {
				return err
			}
			if !items {
				return printList(c.OutOrStdout(), o, all, unmanagedTable())
			}
			return listUnmanaged(ctx, c.OutOrStdout(), o, a, all)
		})
	})
	c.Flags().BoolVar(&items, "items", false, "list each copy")
	return c
}

// unmanagedTable returns the table of the counts of unmanaged copies.
func unmanagedTable() table[app.UnmanagedCopies] {
	const columns = "ACCOUNT\tSTORE\tCONFIGURED\tSPACE\tITEMS\tBYTES"
	return table[app.UnmanagedCopies]{columns, func(u app.UnmanagedCopies) []string {
		return []string{u.Account, u.Store, strconv.FormatBool(u.Configured), u.Space, strconv.FormatInt(u.Items, 10),
			strconv.FormatInt(u.Bytes, 10)}
	}}
}

// listUnmanaged prints the copies in the given spaces of stores.
func listUnmanaged(
	ctx context.Context, w io.Writer, o *output, a *app.App, spaces []app.UnmanagedCopies,
) error {
	l := list[app.UnmanagedItem]{w: w, form: o.form, table: unmanagedItemTable()}
	for _, s := range spaces {
		if err := a.UnmanagedItems(ctx, s, l.print); err != nil {
			return err
		}
	}
	return l.end()
}

func unmanagedItemTable() table[app.UnmanagedItem] {
	return table[app.UnmanagedItem]{"ACCOUNT\tSTORE\tSPACE\tITEM\tBYTES\tTIME", func(u app.UnmanagedItem) []string {
		size := "unknown"
		if u.Size != nil {
			size = strconv.FormatInt(*u.Size, 10)
		}
		return []string{u.Account, u.Store, u.Space, u.Item, size, stamp(&u.Time)}
	}}
}
