package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
)

// maxNamed is the number of items that incident refuse names; incident show lists all.
const maxNamed = 100

// refuseFlags are the flags of incident refuse.
type refuseFlags struct {
	decisionFlags
	all bool

	out     io.Writer
	earlier map[string]app.RestoreRequest // by space: what was lost before its lists were opened
}

func newIncidentRefuse() *cobra.Command {
	f := refuseFlags{decisionFlags: decisionFlags{action: held.ActionRefuse, done: "refused",
		later: "it is carried out"}, earlier: map[string]app.RestoreRequest{}}
	c := &cobra.Command{
		Use:   "refuse " + keysOrEventUse,
		Short: "Refuse lists of deletes or rewrites, and bring the sources back",
		Long: `Refuses the deletes or rewrites that are on the lists of incidents deletes-held or rewrites-held now, and
brings the sources back from the copies: an item that is still deleted, or still has the content that is on the list.
What is replaced is kept. Later deletes and rewrites come to another list. The roles steward, deleter and copier carry
it out.

What was deleted or replaced before the brake held is on no list. The command prints how many items of the space these
are: those that were deleted or replaced in the source in the hour before the list was opened, the one that the brake
counts. With --all all stores of the policy get the content that each item had before that, as by the 'object restore
--prefix --at' that is printed; the command then waits, as with --wait.

A list of deletes that a person asked for ('object delete') is closed: the copies stay, and nothing is to be brought
back.

` + keysLong + `

` + eventLong + `

With --wait the command ends when each item has a result, and names those that were not brought back. With --state all
roles run in this command until then. 'millrace incident show' lists the results.

Exit codes: 0 fine, 1 error, 2 usage, 3 with --all: an order failed, 4 some lists are refused and others not, or with
--wait: some items were not brought back, 5 precondition, such as an incident without a list, one about which another
operator decided before, or a source that cannot be written, 130 interrupted.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.requireReason(); err != nil {
				return err
			}
			f.wait, f.out = f.wait || f.all, c.OutOrStdout()
			return f.decide(c, args, f.refuse, f.awaitRefusals)
		},
	}
	f.register(c, "wait until each item of the lists has a result")
	f.registerEvent(c)
	c.Flags().BoolVar(&f.all, "all", false, "also restore what was deleted or replaced before the brake held")
	return c
}

// refuse publishes the refusal of a list, and prints what was lost before it.
func (f *refuseFlags) refuse(ctx context.Context, a *app.App, i *pb.Incident, by app.Actor) (decision, error) {
	if !app.HasList(i.GetKind()) {
		return decision{}, fmt.Errorf("%w: incident %s: only a list of deletes or rewrites can be refused",
			precondition.Err, schemas.IncidentKey(i))
	}
	if app.IsAsked(i) { // nothing was lost
		return closeIncident(ctx, a, i, by)
	}
	earlier, lost, err := a.Earlier(ctx, i, by)
	if err != nil {
		return decision{}, err
	}
	action, n, err := a.DecideList(ctx, i, by, held.ActionRefuse)
	if err != nil {
		return decision{}, err
	}
	space := spaceOf(i)
	if _, known := f.earlier[space]; lost > 0 && !known {
		f.earlier[space] = earlier
		_, err = fmt.Fprintf(f.out, "%s: %d items were deleted or replaced before, after %s:"+
			" 'millrace object restore %q --prefix --at %[3]s --reason TEXT' brings back what was there then\n",
			schemas.IncidentKey(i), lost, earlier.At.UTC().Format(time.RFC3339), space)
	}
	return decision{incident: i, action: action, how: fmt.Sprintf("the sources of %d items will be restored", n)}, err
}

// spaceOf returns the space of an incident, as object restore --prefix takes it.
func spaceOf(i *pb.Incident) string { return i.GetAccount() + "/" + i.GetSpace() + "/" }

// A refusedList is a refused list, and how far it is worked off.
type refusedList struct {
	decision
	listEnd
}

// awaitRefusals waits until refused lists are worked off, one after the other, and prints what came back. With --all it
// then restores what was lost before, once for each space.
func (f *refuseFlags) awaitRefusals(c *cobra.Command, e *engines, a *app.App, made []decision) error {
	by := []schemas.Role{schemas.RoleSteward, schemas.RoleDeleter, schemas.RoleCopier, schemas.RoleSink}
	refused := make([]refusedList, len(made))
	var earlier []restoreResult
	err := e.withRoles(c, a, f.engineFlags, app.Roles(), func(ctx context.Context, w *waiter) error {
		for n := range made {
			refused[n].decision = made[n]
			if made[n].how == howClosed {
				continue
			}
			err := w.until(ctx, "restores", by, func(ctx context.Context) (app.Progress, error) {
				return refused[n].look(ctx, a)
			})
			if err != nil {
				return err
			}
			space := spaceOf(made[n].incident)
			r, ok := f.earlier[space]
			if !f.all || !ok {
				continue
			}
			delete(f.earlier, space)
			result, err := w.restore(ctx, a, r, true)
			if earlier = append(earlier, result); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range refused {
		err = errors.Join(err, f.report(c, a, r))
	}
	for _, r := range earlier {
		err = errors.Join(err, r.print(c.OutOrStdout(), &restoreFlags{output: &output{form: formText}}), r.verdict())
	}
	return err
}

// look reads how far the list is worked off.
func (r *refusedList) look(ctx context.Context, a *app.App) (p app.Progress, err error) {
	if r.listEnd, err = listEndOf(ctx, a, r.decision); err != nil {
		return p, err
	}
	all, err := openIncidents(ctx, a)
	if err != nil {
		return p, err
	}
	open := all.of(r.incident)
	p = app.Progress{Done: int64(min(r.progress.Ended, r.progress.Items)), Total: int64(r.progress.Items) + 1}
	if r.isOver() && (open == nil || open.GetId() != r.incident.GetId()) {
		p.Done = p.Total
	}
	return p, nil
}

// report prints how many items of a list are back, and those that are not.
func (f *refuseFlags) report(c *cobra.Command, a *app.App, r refusedList) error {
	if r.how == howClosed {
		return f.print(c, r.decision)
	}
	r.how = fmt.Sprintf("%d of %d items are back", r.progress.Restored, r.progress.Items)
	if err := f.print(c, r.decision); err != nil || r.progress.Restored >= r.progress.Items {
		return err
	}
	out, named := c.OutOrStdout(), 0
	q, _, err := app.QueryOfList(c.Context(), a.DB(), r.incident)
	if err != nil {
		return err
	}
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
