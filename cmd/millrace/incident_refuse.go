package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// maxNamed is the number of items that incident refuse names; incident show lists all.
const maxNamed = 100

func newIncidentRefuse() *cobra.Command {
	f := decisionFlags{done: "refused", later: "it is carried out"}
	c := &cobra.Command{
		Use:   "refuse " + keysUse,
		Short: "Refuse lists of deletes or rewrites, and bring the sources back",
		Long: `Refuses the deletes or rewrites that are on the lists of incidents deletes-held or rewrites-held now, and
brings the sources back from the copies: an item that is still deleted, or still has the content that is on the list.
What is replaced is kept. Later deletes and rewrites come to another list. The roles steward, deleter and copier carry
it out.

` + keysLong + `

With --wait the command ends when each item has a result, and names those that were not brought back. With --state all
roles run in this command until then. 'millrace incident show' lists the results.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --wait: another operator decided before, 4 some lists are refused and
others not, or with --wait: some items were not brought back, 5 precondition, such as an incident without a list,
130 interrupted.`,
		Args: someKeys,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.requireReason(); err != nil {
				return err
			}
			return f.decide(c, args, refuseList, f.awaitRefusals)
		},
	}
	f.register(c, "wait until each item of the lists has a result")
	return c
}

// refuseList publishes the refusal of a list.
func refuseList(ctx context.Context, a *app.App, i *pb.Incident, by app.Actor) (decision, error) {
	if !app.HasList(i.GetKind()) {
		return decision{}, fmt.Errorf("%w: incident %s: only a list of deletes or rewrites can be refused",
			precondition.Err, schemas.IncidentKey(i))
	}
	action, n, err := a.RefuseList(ctx, i, by)
	return decision{incident: i, action: action, how: fmt.Sprintf("the sources of %d items will be restored", n)}, err
}

// A refusedList is a refused list, and how far it is worked off.
type refusedList struct {
	decision
	progress read.ListProgress
	decided  read.DecisionResult
}

// awaitRefusals waits until refused lists are worked off, one after the other, and prints what came back.
func (f *decisionFlags) awaitRefusals(c *cobra.Command, e *engines, a *app.App, made []decision) error {
	by := []schemas.Role{schemas.RoleSteward, schemas.RoleDeleter, schemas.RoleCopier, schemas.RoleSink}
	refused := make([]refusedList, len(made))
	err := e.withRoles(c, a, f.engineFlags, app.Roles(), func(ctx context.Context, w *waiter) error {
		for n := range made {
			refused[n].decision = made[n]
			err := w.until(ctx, "restores", by, func(ctx context.Context) (app.Progress, error) {
				return refused[n].look(ctx, a)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range refused {
		if r.decided.Lost() {
			err = errors.Join(err, fmt.Errorf("%w: incident %s: %s",
				errFindings, schemas.IncidentKey(r.incident), r.decided.Detail))
			continue
		}
		err = errors.Join(err, f.report(c, a, r))
	}
	return err
}

// look reads how far the list is worked off.
func (r *refusedList) look(ctx context.Context, a *app.App) (p app.Progress, err error) {
	q := app.QueryOfList(r.incident)
	if r.decided, err = read.ResultOfDecision(ctx, a.DB(), q.Space, r.action); err != nil || r.decided.Lost() {
		return p, err
	}
	if r.progress, err = read.ProgressOfList(ctx, a.DB(), q.Space, q.List); err != nil {
		return p, err
	}
	all, err := openIncidents(ctx, a)
	if err != nil {
		return p, err
	}
	open := all.of(r.incident)
	p = app.Progress{Done: int64(min(r.progress.Ended, r.progress.Items)), Total: int64(r.progress.Items) + 1}
	if r.decided.Result != "" && (open == nil || open.GetId() != r.incident.GetId()) {
		p.Done = p.Total
	}
	return p, nil
}

// report prints how many items of a list are back, and those that are not.
func (f *decisionFlags) report(c *cobra.Command, a *app.App, r refusedList) error {
	r.how = fmt.Sprintf("%d of %d items are back", r.progress.Restored, r.progress.Items)
	if err := f.print(c, r.decision); err != nil || r.progress.Restored >= r.progress.Items {
		return err
	}
	out, q := c.OutOrStdout(), app.QueryOfList(r.incident)
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
	return fmt.Errorf("%w: %d items were not brought back: see 'millrace incident show'",
		errPartly, r.progress.Items-r.progress.Restored)
}
