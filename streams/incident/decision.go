package incident

import (
	"cmp"
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

func (d Decision) step() string {
	if d.Refused {
		return stepRefused
	}
	return stepApproved
}

// Decide records a decision about s, which is carried out from then on. It reports whether this decision counts: of two
// decisions about an incident the first one does, as often as it is recorded, and none about a closed incident but the
// one whose work was ordered before. An incident that is not known here has no earlier decision.
func (b *Board) Decide(ctx context.Context, s Subject, d Decision) (counts bool, err error) {
	err = b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		last := lastDecision(i)
		same := last != nil && last.GetRef() == d.Ref
		switch counts = i == nil || same && (!closed(i) || isOrdered(i)); {
		case counts, closed(i), last != nil:
			return nil
		}
		counts = true
		i = withStep(i, now, &pb.IncidentStep{Action: d.step(), By: d.By, Ref: d.Ref, Detail: d.Reason})
		i.State = pb.IncidentState_INCIDENT_STATE_REPAIRING
		return i
	})
	return counts && err == nil, err
}

// Approved records that the incident about s, for which is returns true, was approved, if the work that follows needs
// no state of the incident. It may be closed by then. Approved does nothing if the incident has a step of the decision.
func (b *Board) Approved(ctx context.Context, s Subject, d Decision, is func(*pb.Incident) bool) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		if !is(i) || slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetRef() == d.Ref }) {
			return nil
		}
		return withStep(i, now, &pb.IncidentStep{Action: stepApproved, By: d.By, Ref: d.Ref, Detail: d.Reason})
	})
}

// Ordered records that all work that follows from the decision about s was ordered. It does nothing if none is being
// carried out, or that is recorded.
func (b *Board) Ordered(ctx context.Context, s Subject, detail string) error {
	return b.change(ctx, s.Key(), func(i *pb.Incident, now time.Time) *pb.Incident {
		last := decisionOf(i)
		if last == nil || isOrdered(i) {
			return nil
		}
		return withStep(i, now, &pb.IncidentStep{Action: stepOrdered, Ref: last.GetRef(), Detail: detail})
	})
}

// A Phase says how far the work on an incident is.
type Phase int

// The phases.
const (
	Undecided Phase = iota // also if it is not open
	Decided                // the work is being ordered
	Ordered                // all of it was ordered
)

// PhaseOf returns the phase of the incident about s, and whether it was refused.
func (b *Board) PhaseOf(s Subject) (p Phase, refused bool) {
	i := b.get(s.Key())
	last := decisionOf(i)
	switch {
	case last == nil:
		return Undecided, false
	case isOrdered(i):
		p = Ordered
	default:
		p = Decided
	}
	return p, last.GetAction() == stepRefused
}

// decisionOf returns the step of the decision that is being carried out; nil if there is none.
func decisionOf(i *pb.Incident) *pb.IncidentStep {
	if i.GetState() != pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return nil
	}
	return lastDecision(i)
}

// lastDecision returns the step of the newest decision about i since it was opened; nil if there is none.
func lastDecision(i *pb.Incident) *pb.IncidentStep {
	for _, s := range slices.Backward(i.GetSteps()) {
		switch s.GetAction() {
		case stepApproved, stepRefused:
			return s
		case stepOpened:
			return nil
		}
	}
	return nil
}

// RefusedIn returns the subjects of the incidents about a space of a store whose refusal is being carried out, ordered
// by key.
func (b *Board) RefusedIn(account, store, space string) []Subject {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []Subject
	for key := range b.refused {
		if i := b.known[key]; i.GetAccount() == account && i.GetStore() == store && i.GetSpace() == space {
			all = append(all, subjectOf(i))
		}
	}
	slices.SortFunc(all, func(a, c Subject) int { return cmp.Compare(a.Key(), c.Key()) })
	return all
}

// isOrdered reports whether the work of the newest decision was ordered.
func isOrdered(i *pb.Incident) bool {
	for _, s := range slices.Backward(i.GetSteps()) {
		switch s.GetAction() {
		case stepOrdered:
			return true
		case stepApproved, stepRefused:
			return false
		}
	}
	return false
}

// repeatDecision adds the steps of the decision that is being carried out again, if the next step pushes the decision
// out of the record, which has the newest steps only.
func repeatDecision(i *pb.Incident) {
	if len(i.GetSteps()) < maxSteps || i.GetSteps()[0] != decisionOf(i) {
		return
	}
	again := []*pb.IncidentStep{i.GetSteps()[0]}
	if n := slices.IndexFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetAction() == stepOrdered }); n > 0 {
		again = append(again, i.GetSteps()[n])
	}
	i.StepCount += int32(len(again))
	i.Steps = append(i.Steps, again...)
}
