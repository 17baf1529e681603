package steward

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// reconcile combines the incident that this process holds, which may be nil, with the newest record of the topic, read.
// It returns the one that has all steps of the other, or both merged if each has steps that the other lacks. stale
// reports that read differs from the result, so that the topic needs a new record.
//
// Only one process handles the messages of a copy, and it reads the topic first. But a suspended process may publish an
// old decision when it resumes.
func reconcile(held, read *pb.Incident) (now *pb.Incident, stale bool) {
	switch {
	case held == nil:
		return read, false
	case held.GetId() != read.GetId():
		if held.GetOpened().AsTime().After(read.GetOpened().AsTime()) {
			return withOrders(held, read), true
		}
		now = withOrders(read, held)
		return now, now != read
	}
	missed, added := missingSteps(read, held), missingSteps(held, read)
	switch {
	case len(missed) == 0:
		return read, false
	case len(added) == 0:
		return held, true
	}
	return merge(held, read), true
}

// withOrders returns i with steps for the repairs of other, if they may be unfinished. other is an incident of the same
// key that i replaces.
func withOrders(i, other *pb.Incident) *pb.Incident {
	if other.GetState() != pb.IncidentState_INCIDENT_STATE_REPAIRING {
		return i
	}
	number, carried := other.GetRepairs(), i
	for _, s := range slices.Backward(other.GetSteps()) {
		if s.GetAction() != stepOrdered || number == 0 {
			continue
		}
		command := orderID(other.GetId(), number)
		number--
		if orderedByAnother(i, command) {
			continue
		}
		if carried == i {
			carried = clone(i)
		}
		carried.StepCount++
		carried.Steps = append(carried.Steps,
			&pb.IncidentStep{Time: s.GetTime(), Action: stepOther, Ref: command, By: s.GetBy(), Detail: s.GetDetail()})
	}
	if carried != i {
		slices.SortStableFunc(carried.Steps, byTime)
	}
	return carried
}

// orderedByAnother reports whether command is a repair order of an incident that i has replaced (see withOrders).
func orderedByAnother(i *pb.Incident, command string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool {
		return s.GetAction() == stepOther && s.GetRef() == command
	})
}

func byTime(a, b *pb.IncidentStep) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) }

// missingSteps returns the steps of other that i has never had. It skips steps that are older than the oldest step of i
// if i has dropped steps.
func missingSteps(i, other *pb.Incident) (steps []*pb.IncidentStep) {
	cut := int(i.GetStepCount()) > len(i.GetSteps()) && len(i.GetSteps()) > 0
	for _, s := range other.GetSteps() {
		if hasRef(i, s.GetRef()) || cut && s.GetTime().AsTime().Before(i.GetSteps()[0].GetTime().AsTime()) {
			continue
		}
		steps = append(steps, s)
	}
	return steps
}

// merge returns an incident with the steps of both a and b, which have the same id. Its state is that of the one with
// the newer check, but it is repairing if only the other one has ordered the newest repair.
func merge(a, b *pb.Incident) *pb.Incident {
	if order := cmp.Or(
		a.GetChecked().AsTime().Compare(b.GetChecked().AsTime()),
		cmp.Compare(closedRank(a), closedRank(b)),
		a.GetUpdated().AsTime().Compare(b.GetUpdated().AsTime()),
	); order < 0 {
		a, b = b, a
	}
	missed := missingSteps(a, b)
	i := proto.CloneOf(a)
	for _, s := range missed {
		i.Steps = append(i.Steps, proto.CloneOf(s))
	}
	slices.SortStableFunc(i.Steps, byTime)
	i.StepCount = max(a.GetStepCount()+int32(len(missed)), b.GetStepCount()+1)
	if b.GetUpdated().AsTime().After(a.GetUpdated().AsTime()) {
		i.Updated = b.GetUpdated()
	}
	if b.GetRepairs() > a.GetRepairs() {
		i.Repairs = b.GetRepairs()
		if !closed(a) && b.GetState() == pb.IncidentState_INCIDENT_STATE_REPAIRING {
			i.State, i.Size = b.GetState(), b.GetSize()
		}
	}
	return i
}

// closedRank orders closed incidents after open ones.
func closedRank(i *pb.Incident) int {
	if closed(i) {
		return 1
	}
	return 0
}
