package app

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/steward"
)

// RefuseList publishes an operator's refusal of the list of an incident: the sources of its items are to be restored.
// It returns the id of the action and the number of items. Items that come to the list later are not refused.
func (a *App) RefuseList(ctx context.Context, i *pb.Incident, by Actor) (action string, n uint64, err error) {
	return a.decideList(ctx, i, by, steward.ActionRefuse)
}

// decideList publishes the decision of an operator about the list of an incident.
func (a *App) decideList(
	ctx context.Context, i *pb.Incident, by Actor, do string,
) (action string, n uint64, err error) {
	if i.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return "", 0, fmt.Errorf("%w: incident %s: the list was approved or refused before: see 'millrace incident list'",
			precondition.Err, schemas.IncidentKey(i))
	}
	q := QueryOfList(i)
	p, err := read.ProgressOfList(ctx, a.db, q.Space, q.List)
	switch {
	case err != nil:
		return "", 0, fmt.Errorf("incident %s: %w", schemas.IncidentKey(i), err)
	case p.Items == 0:
		return "", 0, fmt.Errorf("%w: incident %s: nothing of its list is on record yet: is role sink running?",
			precondition.Err, schemas.IncidentKey(i))
	}
	if why := a.stores.refusesRestores(q.Space.Account, p.Source); why != "" && do == steward.ActionRefuse {
		return "", 0, fmt.Errorf("%w: incident %s: its items cannot be restored: store %s: %s: %s", precondition.Err,
			schemas.IncidentKey(i), p.Source, why, exportHint(q.Space.Account+"/"+q.Space.Space, time.Time{}))
	}
	done := by.decision(do, i)
	done.After = p.Last.Format(time.RFC3339Nano)
	action, err = a.publishDecision(ctx, done)
	return action, p.Items, err
}

// Earlier returns the request that restores what the brake of a list let through: the items of the space that were
// deleted or replaced in the source in the hour that the brake counted when it put the first item on the list, and that
// are on no list. They get back their content from before. n is their number, and r.At is before all of them.
func (a *App) Earlier(ctx context.Context, i *pb.Incident, by Actor) (r RestoreRequest, n uint64, err error) {
	q := QueryOfList(i)
	p, err := read.ProgressOfList(ctx, a.db, q.Space, q.List)
	if err != nil || p.Items == 0 || brake.ReasonOf(q.List) == brake.ReasonApproval {
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
	parts := schemas.SplitKey(key)
	if len(parts) < 5 || len(parts) > 6 || parts[3] != "" || !HasList(parts[4]) {
		return nil
	}
	return incident.Subject{Account: parts[0], Store: parts[1], Space: parts[2], Kind: parts[4],
		Name: strings.Join(parts[5:], "")}.Incident()
}
