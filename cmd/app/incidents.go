package app

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/steward"
)

// newIncidents makes the incident board and the table that feeds it.
func (a *App) newIncidents() (err error) {
	a.incidentBoard = incident.NewBoard(a.producer, a.log)
	a.spaceHolds = newSpaceHolds()
	a.onIncident = append(a.onIncident, a.incidentBoard.Apply, a.spaceHolds.Apply)
	a.incidents, err = kafka.NewTable(a.kafka, schemas.Incidents, incidentsTo(func(key []byte, i *pb.Incident) {
		for _, apply := range a.onIncident {
			apply(key, i)
		}
	}))
	if err != nil {
		return fmt.Errorf("make the incidents table: %w", err)
	}
	a.incidents.OnUnreadable(a.spaceHolds.Unreadable)
	return nil
}

// incidentsTo returns a table function that passes the records of the topic incidents to apply; a
// tombstone is nil.
func incidentsTo(apply func(key []byte, i *pb.Incident)) func([]byte, *schemas.Delivery) error {
	return func(key []byte, d *schemas.Delivery) error {
		i, _ := d.Body.(*pb.Incident)
		apply(key, i)
		return nil
	}
}

// maintainIncidents does until ctx is done what no message about a copy leads to: it reports the incidents that were
// opened, and publishes again those of its copies that another process has overwritten. It does so for an incident that
// two consecutive looks find overwritten; after one, the newest record may still be on its way. Without it, the
// decisions of this process would be published only with the next message about the copy, which may be months later.
func (a *App) maintainIncidents(
	ctx context.Context, s *steward.Steward, owned func(context.Context) (func(key string) bool, error),
) error {
	t := time.NewTicker(cmp.Or(a.republishInterval, 10*time.Second))
	defer t.Stop()
	last := map[string]int32{} // step counts of the incidents that the last look found
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if s.ReportDue() {
			s.Report()
		}
		now := map[string]int32{}
		var again []*pb.Incident
		for _, i := range s.Overwritten() {
			key := schemas.IncidentKey(i)
			if now[key] = i.GetStepCount(); last[key] == now[key] {
				again = append(again, i)
			}
		}
		if last = now; len(again) == 0 {
			continue
		}
		var messages []schemas.Message
		owns, err := owned(ctx)
		for _, i := range again {
			if err == nil && owns(schemas.ItemKey(i.GetAccount(), i.GetSpace(), i.GetItem())) {
				messages = append(messages, schemas.Message{Topic: schemas.Incidents, Body: i})
			}
		}
		if len(messages) > 0 {
			a.log.Warn("republish incidents that another process has overwritten", "count", len(messages))
			err = a.producer.Publish(ctx, messages...)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("retry to republish incidents", "err", err)
		}
	}
}

// An Actor is the operator who acts, the reason, and the program that the action came through.
type Actor struct{ Who, Reason, From string }

// action returns an admin action of the actor, now, with a random id and without what it is about.
func (by Actor) action(do, target string) *pb.AdminAction {
	return &pb.AdminAction{Id: schemas.NewID(), Time: timestamppb.Now(), Who: by.Who, Action: do, Target: target,
		Reason: by.Reason, From: by.From}
}

// decision returns the admin action of an operator about an incident. Its key is that of the results
// about the copy, so that it reaches the steward of the copy. It names the state that the operator
// saw, so that it does not apply to a later one.
func (by Actor) decision(do string, i *pb.Incident) *pb.AdminAction {
	a := by.action(do, schemas.IncidentKey(i))
	a.Account, a.Store, a.Space, a.Item = i.GetAccount(), i.GetStore(), i.GetSpace(), i.GetItem()
	a.Incident, a.Seen = i.GetId(), steward.Seen(i)
	return a
}

// publishDecision publishes an action about an incident, and returns its id.
func (a *App) publishDecision(ctx context.Context, done *pb.AdminAction) (action string, err error) {
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: done}); err != nil {
		return "", fmt.Errorf("publish the decision about incident %s: %w", done.GetTarget(), err)
	}
	return done.GetId(), nil
}

// ApproveRepair publishes an operator's approval of the repair of the incident in the state i, and
// returns the id of the action. It refuses an incident that the steward would not repair.
func (a *App) ApproveRepair(ctx context.Context, i *pb.Incident, by Actor) (action string, err error) {
	key := schemas.IncidentKey(i)
	switch {
	case !steward.Repairable(i.GetKind()):
		return "", fmt.Errorf("%w: incident %s: there is no repair for the kind %s", precondition.Err, key, i.GetKind())
	case steward.Acceptable(i.GetKind()) && i.GetObject() == nil:
		return "", fmt.Errorf("%w: incident %s: no check has found the copy yet", precondition.Err, key)
	case steward.WritesStore(i.GetKind()):
		if err := a.checkRepairs(i); err != nil {
			return "", err
		}
	}
	return a.publishDecision(ctx, by.decision(steward.ActionApprove, i))
}

// checkRepairs returns an error that wraps precondition.Err if repair is off for the store of an incident.
func (a *App) checkRepairs(i *pb.Incident) error {
	if a.stores.RepairMode(i.GetAccount(), i.GetStore(), i.GetOpened().AsTime()) != steward.Off {
		return nil
	}
	return fmt.Errorf("%w: incident %s: repair is off for store %s/%s",
		precondition.Err, schemas.IncidentKey(i), i.GetAccount(), i.GetStore())
}

// CheckAccept returns an error that wraps precondition.Err if the steward would not accept the copy
// of an incident.
func CheckAccept(i *pb.Incident) error {
	switch key := schemas.IncidentKey(i); {
	case !steward.Acceptable(i.GetKind()):
		return fmt.Errorf("%w: incident %s: copies with incidents of the kind %s cannot be accepted",
			precondition.Err, key, i.GetKind())
	case i.GetObject() == nil || len(i.GetFound()) == 0:
		return fmt.Errorf("%w: incident %s: no check has read the copy yet", precondition.Err, key)
	}
	return nil
}

// Accept publishes an operator's decision that what the copy of the incident in the state i holds
// is right, and returns the id of the action. With force, bytes count too that have changed under
// the version on record.
func (a *App) Accept(ctx context.Context, i *pb.Incident, by Actor, force bool) (action string, err error) {
	if err := CheckAccept(i); err != nil {
		return "", err
	}
	do := steward.ActionAccept
	if force {
		do = steward.ActionAcceptForced
	}
	return a.publishDecision(ctx, by.decision(do, i))
}

// CloseIncident closes an open incident for an operator. The steward closes an incident of an item
// soon after the action is published. An incident without an item is closed when CloseIncident
// returns.
func (a *App) CloseIncident(ctx context.Context, i *pb.Incident, by Actor) error {
	done := by.decision(steward.ActionClose, i)
	if HasList(i.GetKind()) {
		action, _, err := a.DecideList(ctx, i, by, held.ActionClose)
		if err != nil {
			return err
		}
		done.Id = action
	} else if _, err := a.publishDecision(ctx, done); err != nil || i.GetItem() != "" {
		return err
	}
	// It needs its own table and board: those of the process run only while its roles run.
	b := incident.NewBoard(a.producer, a.log)
	return a.readTable(ctx, schemas.Incidents, incidentsTo(b.Apply), func(ctx context.Context) error {
		if b.OpenedAgain(i) {
			return fmt.Errorf("close incident %s: %w", done.GetTarget(), incident.ErrOtherIncident)
		}
		return b.CloseBy(ctx, done.GetTarget(), done)
	})
}
