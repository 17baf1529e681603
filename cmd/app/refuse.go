package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
)

// DecideList publishes the decision of an operator about the list of an incident: of what is stored of it.
func (a *App) DecideList(
	ctx context.Context, i *pb.Incident, by Actor, do string,
) (action string, n uint64, err error) {
	done, n, err := a.CheckList(ctx, i, by, do)
	if err != nil {
		return "", 0, err
	}
	if action, err = a.publishDecision(ctx, done); err == nil {
		err = a.checkDecided(ctx, i, action)
	}
	return action, n, err
}

// ErrNothingWaits is an error for a list that was decided about, or of which nothing is on record.
var ErrNothingWaits = fmt.Errorf("%w", precondition.Err)

// CheckList returns the action of a decision about the list of an incident, and the number of items that are stored of
// the list. The error says why the decision cannot be made.
func (a *App) CheckList(
	ctx context.Context, i *pb.Incident, by Actor, do string,
) (done *pb.AdminAction, n uint64, err error) {
	key := schemas.IncidentKey(i)
	q, d, err := QueryOfList(ctx, a.db, i)
	if err != nil {
		return nil, 0, err
	}
	if do == held.ActionRefuse && !held.Kind(q.Kind).CanRefuse() {
		return nil, 0, fmt.Errorf("%w: incident %s: nothing can be restored in place of %s: approve the list, or close it",
			precondition.Err, key, held.Kind(q.Kind).Act())
	}
	done = by.decision(do, i)
	if q.Until != nil {
		if d.Action != held.ActionClose || do != held.ActionApprove {
			return nil, 0, fmt.Errorf("%w: incident %s: %s decided before (%s): see 'millrace incident list'",
				ErrNothingWaits, key, d.By, d.Action)
		}
		done.Before = d.ID
	} else {
		// What a rebuild brings back later was not seen.
		if err := a.withoutGaps(ctx, func() error {
			seen, err := read.SeenResults(ctx, a.db, q.Space)
			q.Until = &seen
			return err
		}); err != nil {
			return nil, 0, fmt.Errorf("incident %s: %w", key, err)
		}
	}
	p, err := read.ProgressOfList(ctx, a.db, q)
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("incident %s: %w", key, err)
	case p.Items == 0:
		return nil, 0, fmt.Errorf("%w: incident %s: nothing of its list is on record yet: is role sink running?",
			ErrNothingWaits, key)
	}
	if why := a.stores.refusesRestores(q.Space.Account, p.Source); why != "" && do == held.ActionRefuse {
		return nil, 0, fmt.Errorf("%w: incident %s: its items cannot be restored: store %s: %s: %s", precondition.Err,
			key, p.Source, why, exportHint(q.Space.Account+"/"+q.Space.Space, time.Time{}))
	}
	done.After = q.Until.String()
	return done, p.Items, nil
}

// checkDecided returns an error that wraps precondition.Err if the decision with an id about the list of an incident
// has no effect: another one was before it in the topic, or the copies are kept for good.
func (a *App) checkDecided(ctx context.Context, i *pb.Incident, id string) error {
	l, _ := listOf(incident.SubjectOf(i))
	var decisions held.Decisions
	apply := func(_ []byte, d *schemas.Delivery) error {
		if action, ok := d.Body.(*pb.AdminAction); ok {
			decisions.Apply(action, d.Timestamp)
		}
		return nil
	}
	return a.readTable(ctx, schemas.Admin, apply, func(context.Context) error {
		d, _, decided := decisions.About(l)
		switch {
		case !decided:
			return fmt.Errorf("%w: incident %s: the list before it is not decided about", precondition.Err,
				schemas.IncidentKey(i))
		case d.ID != id:
			return fmt.Errorf("%w: incident %s: %s decided before (%s), at %s", precondition.Err, schemas.IncidentKey(i),
				d.By, d.Action, d.At.UTC().Format(time.RFC3339))
		}
		return nil
	})
}

// QueryOfList returns the query for the list of an incident, by the decisions that are stored, and the decision
// about it: the zero value if there is none. A list that only a key names must exist.
func QueryOfList(
	ctx context.Context, db *clickhouse.DB, i *pb.Incident,
) (q read.ListQuery, d held.Decision, err error) {
	l, ok := listOf(incident.SubjectOf(i))
	if !ok {
		return q, d, fmt.Errorf("%w: incident %s has no list", precondition.Err, schemas.IncidentKey(i))
	}
	all, err := read.DecisionsAbout(ctx, db, l.Space.Account, l.Space.Space)
	if err != nil {
		return q, d, fmt.Errorf("incident %s: %w", schemas.IncidentKey(i), err)
	}
	var decisions held.Decisions
	for _, one := range all {
		decisions.Apply(one, one.GetTime().AsTime())
	}
	if i.GetState() == pb.IncidentState_INCIDENT_STATE_UNSPECIFIED && l.Number > decisions.Open(l.Space, l.Kind).Number {
		return q, d, fmt.Errorf("%w: incident %s: there is no such list", precondition.Err, schemas.IncidentKey(i))
	}
	d, _, _ = decisions.About(l)
	return queryOf(&decisions, l), d, nil
}

// KeptBy returns the decision that keeps the copies of the list of an incident, and how many it keeps still; 0 if none
// does.
func KeptBy(ctx context.Context, db *clickhouse.DB, i *pb.Incident) (d held.Decision, n int64, err error) {
	q, d, err := QueryOfList(ctx, db, i)
	if err == nil && q.Until != nil && d.Keeps() {
		n, err = read.KeptOfList(ctx, db, q)
	}
	return d, n, err
}

// Earlier returns the request that restores what the brake of a list let through: the items of the space that were
// deleted or replaced in the source in the hour that the brake counted when it put the first item on the list, and that
// are on no list. They get back their content from before. n is their number, and r.At is before all of them.
func (a *App) Earlier(ctx context.Context, i *pb.Incident, by Actor) (r RestoreRequest, n uint64, err error) {
	q, _, err := QueryOfList(ctx, a.db, i)
	if err != nil || q.Kind != string(held.Limit) && q.Kind != string(held.Rewrites) {
		return r, 0, err
	}
	p, err := read.ProgressOfList(ctx, a.db, q)
	if err != nil || p.Items == 0 {
		return r, 0, err
	}
	r = RestoreRequest{Account: q.Space.Account, Space: q.Space.Space, Prefix: true, By: by,
		lost: &read.Lost{Store: p.Source, From: p.First.Add(-time.Hour).Truncate(5 * time.Minute), Until: p.First}}
	n, first, err := read.CountLost(ctx, a.db, read.ItemQuery{Account: r.Account, Space: r.Space, Lost: r.lost})
	r.At = first.Truncate(time.Second).Add(-time.Second) // services date objects in seconds
	return r, n, err
}

// ListOfKey returns an incident with the key of a list, whose items are on record even if it is closed; nil if the key
// is not that of a list.
func ListOfKey(key string) *pb.Incident {
	l, ok := held.ListOf(&pb.AdminAction{Target: key})
	if i := listSubject(l).Incident(); ok && schemas.IncidentKey(i) == key {
		return i
	}
	return nil
}
