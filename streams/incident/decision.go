package incident

import (
	"context"
	"slices"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Decision is what an operator decided about an incident.
type Decision struct {
	By, Ref, Reason string // Ref is the id of the action
	Refused         bool   // otherwise approved
}

func (d Decision) step() *pb.IncidentStep {
	s := &pb.IncidentStep{Action: stepApproved, By: d.By, Ref: d.Ref, Detail: d.Reason}
	if d.Refused {
		s.Action = stepRefused
	}
	return s
}

// Decide records a decision about s, which is carried out from then on. It does nothing if the incident is not open, or
// has a step of the decision.
func (b *Board) Decide(ctx context.Context, s Subject, d Decision) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		if closed(i) || hasStep(i, d.step().GetAction(), d.Ref) {
			return nil
		}
		i = withStep(i, now, d.step())
		i.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
		return i
	})
}

// Ordered records that all work that follows from the decision ref about s was ordered. It does nothing if the incident
// is not open, or that is recorded.
func (b *Board) Ordered(ctx context.Context, s Subject, ref, detail string) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		if closed(i) || hasStep(i, stepOrdered, ref) {
			return nil
		}
		return withStep(i, now, &pb.IncidentStep{Action: stepOrdered, Ref: ref, Detail: detail})
	})
}

func hasStep(i *pb.Incident, action, ref string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool {
		return s.GetAction() == action && s.GetRef() == ref
	})
}
