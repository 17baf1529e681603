package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// keysUse and keysLong say how the commands that decide about incidents take their keys.
const (
	keysUse        = "KEY [KEY...]"
	keysOrEventUse = "{KEY... | --event ACCOUNT/SPACE}"
	keysLong       = `Each incident is decided about on its own, in the state that the command reads: a failure does not
stop the others. With '-' as the only key, the keys are the lines of stdin, as from
'millrace incident list -o json | jq -r .[].key'.`
)

// eventLong says how the commands that decide about lists take an event.
const eventLong = `With --event ACCOUNT/SPACE and no key the decision is about each open list of the space, at all
destinations: a program that deletes or replaces much in one space leads to a list at each. All of them are checked
first, and if one cannot be decided about, none is.`

// someKeys accepts one or more keys.
func someKeys(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: name the incidents by their keys; see '%s --help'", usage.Err, c.CommandPath())
	}
	return nil
}

// incidentKeys returns the keys that args name, each once.
func incidentKeys(c *cobra.Command, args []string) (keys []string, err error) {
	if slices.Equal(args, []string{"-"}) {
		lines := bufio.NewScanner(c.InOrStdin())
		for args = nil; lines.Scan(); {
			if line := strings.TrimSpace(lines.Text()); line != "" {
				args = append(args, line)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%w: read the keys: %w", usage.Err, err)
		}
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("%w: there are no keys on stdin", usage.Err)
	}
	return unique(args), nil
}

// unique returns keys, each once.
func unique(keys []string) (all []string) {
	seen := map[string]bool{}
	for _, key := range keys {
		if !seen[key] {
			all = append(all, key)
		}
		seen[key] = true
	}
	return all
}

// A decision is what an operator has decided about an incident, which was as it is here.
type decision struct {
	incident *pb.Incident
	action   string // the id of the action
	how      string // what follows; howClosed: nothing
}

// howClosed is the end of an incident that is closed when the command ends.
const howClosed = "closed"

// decisionFlags are the flags of the commands that decide about incidents.
type decisionFlags struct {
	engineFlags
	reason string
	wait   bool
	event  string // ACCOUNT/SPACE: its lists, in place of keys

	action string // what is decided about lists; see package held
	done   string // the decision in a word, as it is printed: approved
	later  string // what happens to it when the roles run: it is carried out
}

// register adds the flags; that of --wait unless its description is empty.
func (f *decisionFlags) register(c *cobra.Command, wait string) {
	f.engineFlags.register(c)
	c.Flags().StringVar(&f.reason, "reason", "", "the reason, which is recorded")
	if wait != "" {
		c.Flags().BoolVar(&f.wait, "wait", false, wait)
	}
}

// registerEvent adds the flag --event.
func (f *decisionFlags) registerEvent(c *cobra.Command) {
	c.Flags().StringVar(&f.event, "event", "", "all open lists of this `ACCOUNT/SPACE`, in place of keys")
	c.Args = func(c *cobra.Command, args []string) error {
		switch {
		case f.event == "":
			return someKeys(c, args)
		case len(args) > 0:
			return fmt.Errorf("%w: --event takes no keys", usage.Err)
		}
		return nil
	}
}

// requireReason returns a usage error if there is no reason.
func (f *decisionFlags) requireReason() error {
	if f.reason == "" {
		return fmt.Errorf("%w: --reason is missing: it is recorded", usage.Err)
	}
	return nil
}

// A decider publishes a decision about an incident in the state i. Its error names the incident.
type decider func(ctx context.Context, a *app.App, i *pb.Incident, by app.Actor) (decision, error)

// An awaiter waits for the ends of decisions, and prints them.
type awaiter func(c *cobra.Command, e *engines, a *app.App, made []decision) error

// decide decides about the incidents that args name, and prints what follows.
func (f *decisionFlags) decide(c *cobra.Command, args []string, do decider, await awaiter) error {
	var keys []string
	if f.event == "" {
		var err error
		if keys, err = incidentKeys(c, args); err != nil {
			return err
		}
	}
	return f.withApp(c, func(ctx context.Context, a *app.App, e *engines) error {
		open, err := openIncidents(ctx, a)
		if err != nil {
			return err
		}
		by := app.Actor{Who: currentUser(), Reason: f.reason, From: "cli"}
		if f.event != "" {
			keys, err = open.event(f.event, func(i *pb.Incident) error {
				_, _, err := a.CheckList(ctx, i, by, f.action)
				return err
			})
			if err != nil {
				return err
			}
		}
		made, err := decideEach(ctx, keys, open,
			func(i *pb.Incident) (decision, error) { return do(ctx, a, i, by) })
		if f.wait && len(made) > 0 {
			return errors.Join(err, await(c, e, a, made))
		}
		for _, d := range made {
			if e.state != nil && d.how != howClosed {
				d.how = f.laterWithState(f.later)
			}
			err = errors.Join(err, f.print(c, d))
		}
		return err
	})
}

// print prints what follows from a decision.
func (f *decisionFlags) print(c *cobra.Command, d decision) error {
	_, err := fmt.Fprintf(c.OutOrStdout(), "%s %s: %s\n", f.done, schemas.IncidentKey(d.incident), d.how)
	return err
}

// decideEach calls do for the open incident of each key, or its list, and returns the decisions that were made. The
// error has all failures. It wraps errPartly, and none of them, if other decisions were made.
func decideEach(
	ctx context.Context, keys []string, open incidents, do func(*pb.Incident) (decision, error),
) (made []decision, err error) {
	var failed []error
	for _, key := range keys {
		var d decision
		i, err := open.require(key)
		if l := app.ListOfKey(key); err != nil && l != nil { // a list that was closed can still be approved
			i, err = l, nil
		}
		if err == nil {
			d, err = do(i)
		}
		if err == nil {
			made = append(made, d)
			continue
		}
		if failed = append(failed, err); ctx.Err() != nil {
			return made, errors.Join(failed...)
		}
	}
	if err = errors.Join(failed...); err != nil && len(made) > 0 {
		err = fmt.Errorf("%w: %d of %d incidents: %v", errPartly, len(made), len(keys), err) //nolint:errorlint // one code
	}
	return made, err
}

// incidents are open incidents by key.
type incidents map[string]*pb.Incident

// openIncidents returns all open incidents.
func openIncidents(ctx context.Context, a *app.App) (incidents, error) {
	all, err := read.OpenIncidents(ctx, a.DB(), "")
	if err != nil {
		return nil, fmt.Errorf("read the incidents: %w", err)
	}
	return byKey(all), nil
}

func byKey(all []*pb.Incident) incidents {
	open := make(incidents, len(all))
	for _, i := range all {
		open[schemas.IncidentKey(i)] = i
	}
	return open
}

// require returns the incident with a key, or an error if there is none.
func (open incidents) require(key string) (*pb.Incident, error) {
	if i := cmp.Or(open[key], open["-"+key]); i != nil {
		return i, nil
	}
	return nil, fmt.Errorf("no open incident has the key %q: see 'millrace incident list'", key)
}

// event returns the keys of the lists of an event that wait for a decision. The error is that of the first one that
// fails the check.
func (open incidents) event(of string, check func(*pb.Incident) error) (keys []string, err error) {
	var skipped error
	for _, key := range slices.Sorted(maps.Keys(open)) {
		if app.EventOf(open[key]) != of {
			continue
		}
		switch skipped = check(open[key]); {
		case errors.Is(skipped, app.ErrNothingWaits):
		case skipped != nil:
			return nil, fmt.Errorf("nothing is decided: %w", skipped)
		default:
			keys = append(keys, key)
		}
	}
	switch {
	case len(keys) == 0 && skipped != nil:
		return nil, fmt.Errorf("nothing is decided: %w", skipped)
	case len(keys) == 0:
		return nil, fmt.Errorf("no list of %q is open: see 'millrace incident list'", of)
	}
	return keys, nil
}

// of returns the open incident with the key of i; nil if there is none.
func (open incidents) of(i *pb.Incident) *pb.Incident { return open[schemas.IncidentKey(i)] }

// awaitRepairs waits until each incident is closed, and what is on its list has ended, or its repair has failed or
// cannot be made. The error names the incidents that are still open.
func (f *decisionFlags) awaitRepairs(c *cobra.Command, e *engines, a *app.App, made []decision) error {
	by := []schemas.Role{schemas.RoleSteward, schemas.RoleCopier, schemas.RoleChecker, schemas.RoleSink}
	if slices.ContainsFunc(made, func(d decision) bool {
		return app.HasList(d.incident.GetKind()) || d.incident.GetKind() == "resurrected"
	}) {
		by = append(by, schemas.RoleDeleter)
	}
	last := make([]string, len(made)) // the last steps of those that stay open
	err := e.withRoles(c, a, f.engineFlags, app.Roles(), func(ctx context.Context, w *waiter) error {
		return w.until(ctx, "repairs", by, func(ctx context.Context) (app.Progress, error) {
			now, err := openIncidents(ctx, a)
			if err != nil {
				return app.Progress{}, err
			}
			p := app.Progress{Total: int64(len(made))}
			for n, d := range made {
				var over bool
				over, last[n] = repairEnded(now.of(d.incident), d.incident, d.action)
				if over && last[n] == "" && app.HasList(d.incident.GetKind()) { // its incident may have been closed before
					l, err := listEndOf(ctx, a, d)
					if over = l.isOver(); err != nil {
						return app.Progress{}, err
					}
				}
				if over {
					p.Done++
				}
			}
			return p, nil
		})
	})
	if err != nil {
		return err
	}
	for n, d := range made {
		if last[n] != "" {
			err = errors.Join(err, fmt.Errorf("%w: the incident %s is still open: %s", errFindings,
				schemas.IncidentKey(d.incident), last[n]))
			continue
		}
		if d.how = "the incident is closed"; app.HasList(d.incident.GetKind()) {
			d.how = "all that is on the list has a result"
		}
		err = errors.Join(err, f.print(c, d))
	}
	return err
}

// A listEnd is how far a decision about a list is carried out.
type listEnd struct {
	decided  read.DecisionResult
	progress read.ListProgress
}

func listEndOf(ctx context.Context, a *app.App, d decision) (l listEnd, err error) {
	q, _, err := app.QueryOfList(ctx, a.DB(), d.incident)
	if err == nil {
		l.decided, err = read.ResultOfDecision(ctx, a.DB(), q.Space, d.action)
	}
	if err == nil {
		l.progress, err = read.ProgressOfList(ctx, a.DB(), q)
	}
	return l, err
}

// isOver reports whether all that follows from the decision was ordered, and each item of the list has a result since.
func (l listEnd) isOver() bool { return l.decided.Result != "" && l.progress.Ended >= l.progress.Items }

// repairEnded reports whether the repair approved by an action has ended, and, if the incident is
// still open, its last step. now is the present state of the open incident with the same key; nil
// if there is none.
func repairEnded(now, approved *pb.Incident, action string) (over bool, open string) {
	if now == nil || now.GetId() != approved.GetId() {
		return true, ""
	}
	if now.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return false, ""
	}
	// During a repair the steward ignores an approval. Then the end of that repair counts: of one that was under way, or
	// that another operator has approved meanwhile.
	taken := approved.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING ||
		approved.GetState() == pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL &&
			now.GetState() == pb.IncidentState_INCIDENT_STATE_OPEN
	for _, s := range now.GetSteps() {
		if s.GetRef() == action && s.GetAction() == "decision-outdated" {
			return true, stepText(s)
		}
		taken = taken || s.GetRef() == action
	}
	if !taken {
		return false, ""
	}
	return true, lastStep(now)
}
