package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// maxNamed is the number of items that incident refuse names; incident show lists all.
const maxNamed = 100

func newIncidentRefuse() *cobra.Command {
	var (
		f      engineFlags
		reason string
		wait   bool
	)
	c := &cobra.Command{
		Use:   "refuse KEY",
		Short: "Refuse a list of deletes or rewrites, and bring the sources back",
		Long: `Refuses the deletes or rewrites that are on the list of an incident deletes-held or rewrites-held now, and
brings the sources back from the copies: an item that is still deleted, or still has the content that is on the list.
What is replaced is kept. Later deletes and rewrites come to another list. The roles steward, deleter and copier carry
it out.

With --wait the command ends when each item has a result, and names those that were not brought back. With --state all
roles run in this command until then. 'millrace incident show' lists the results.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: another operator decided before, 4 with --wait: some items were not
brought back, 5 precondition, such as an incident without a list, 130 interrupted.`,
		Args: exactly(1),
		RunE: func(c *cobra.Command, args []string) error {
			if reason == "" {
				return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
			}
			return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
				open, err := requireOpenIncident(ctx, a, args[0])
				if err != nil {
					return err
				}
				key := schemas.IncidentKey(open)
				if !app.HasList(open.GetKind()) {
					return fmt.Errorf("%w: incident %s: only a list of deletes or rewrites can be refused", precondition.Err, key)
				}
				action, n, err := a.RefuseList(ctx, open, app.Actor{Who: currentUser(), Reason: reason, From: "cli"})
				if err != nil {
					return err
				}
				how := fmt.Sprintf("the sources of %d items will be restored", n)
				switch {
				case wait:
					return f.awaitRefusal(c, e, a, open, action)
				case e.state != nil:
					how = f.laterWithState("it is carried out")
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "refused %s: %s\n", key, how)
				return err
			})
		},
	}
	f.register(c)
	c.Flags().StringVar(&reason, "reason", "", "the reason, which is recorded")
	c.Flags().BoolVar(&wait, "wait", false, "wait until each item of the list has a result")
	return c
}

// awaitRefusal waits until a refused list is worked off, and prints what came back.
func (f *engineFlags) awaitRefusal(
	c *cobra.Command, e *engines, a *app.App, refused *pb.Incident, action string,
) error {
	key, q := schemas.IncidentKey(refused), app.QueryOfList(refused)
	by := []schemas.Role{schemas.RoleSteward, schemas.RoleDeleter, schemas.RoleCopier, schemas.RoleSink}
	var p read.ListProgress
	var decided read.DecisionResult
	err := e.withRoles(c, a, *f, app.Roles(), func(ctx context.Context, w *waiter) error {
		return w.until(ctx, "restores", by, func(ctx context.Context) (app.Progress, error) {
			var err error
			if decided, err = read.ResultOfDecision(ctx, a.DB(), q.Space, action); err != nil {
				return app.Progress{}, err
			}
			if decided.Lost() {
				return app.Progress{}, nil
			}
			if p, err = read.ProgressOfList(ctx, a.DB(), q.Space, q.List); err != nil {
				return app.Progress{}, err
			}
			open, err := openIncident(ctx, a, key)
			progress := app.Progress{Done: int64(min(p.Ended, p.Items)), Total: int64(p.Items) + 1}
			if err == nil && decided.Result != "" && (open == nil || open.GetId() != refused.GetId()) {
				progress.Done = progress.Total
			}
			return progress, err
		})
	})
	switch {
	case err != nil:
		return err
	case decided.Lost():
		return fmt.Errorf("%w: incident %s: %s", errFindings, key, decided.Detail)
	}
	return f.reportRefusal(c, a, q, p)
}

// reportRefusal prints how many items are back, and those that are not.
func (f *engineFlags) reportRefusal(c *cobra.Command, a *app.App, q read.ListQuery, p read.ListProgress) error {
	out := c.OutOrStdout()
	if _, err := fmt.Fprintf(out, "%d of %d items are back\n", p.Restored, p.Items); err != nil {
		return err
	}
	if p.Restored >= p.Items {
		return nil
	}
	named := 0
	for q.Limit = showPage; named < maxNamed; {
		page, err := read.ListedDeletes(c.Context(), a.DB(), q)
		if err != nil {
			return err
		}
		for _, d := range page {
			if d.Back() || named == maxNamed {
				continue
			}
			named++
			if _, err := fmt.Fprintf(out, "%s: %s: %s\n", d.Item, d.Result, d.Why); err != nil {
				return err
			}
		}
		if len(page) < q.Limit {
			break
		}
		q.After = page[len(page)-1].Item
	}
	return fmt.Errorf("%w: %d items were not brought back: see 'millrace incident show'", errPartly, p.Items-p.Restored)
}
