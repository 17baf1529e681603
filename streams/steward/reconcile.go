package steward

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// reconcile returns what to hold of an incident when the topic says read and held, which may be nil, was decided: what
// takes more into account or, if each takes something into account that the other does not, both. behind says that
// read lacks something, so that the topic's newest record is not what is held.
//
// A process owns all that concerns a copy, and has read the topic when it begins to; but one that was frozen may
// publish, when it wakes up, what it had decided before.
func reconcile(held, read *pb.Incident) (now *pb.Incident, behind bool) {
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
	missed, added := lacks(read, held), lacks(held, read)
	switch {
	case len(missed) == 0:
		return read, false
	case len(added) == 0:
		return held, true
	}
	return unite(held, read), true
}

// withOrders returns an incident with the repairs that another one of its key, which does not count, has ordered, and
// that may not have come to their end.
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
			carried = edit(i)
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

// orderedByAnother says that a command is an order of another incident of i's key, which was given at the same time.
func orderedByAnother(i *pb.Incident, command string) bool {
	return slices.ContainsFunc(i.GetSteps(), func(s *pb.IncidentStep) bool { return s.GetAction() == stepOther && s.GetRef() == command })
}

func byTime(a, b *pb.IncidentStep) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) }

// lacks returns the steps of other that i does not carry and has not carried before.
func lacks(i, other *pb.Incident) (steps []*pb.IncidentStep) {
	cut := int(i.GetStepCount()) > len(i.GetSteps()) && len(i.GetSteps()) > 0
	for _, s := range other.GetSteps() {
		if knows(i, s.GetRef()) || cut && s.GetTime().AsTime().Before(i.GetSteps()[0].GetTime().AsTime()) {
			continue
		}
		steps = append(steps, s)
	}
	return steps
}

// unite returns an incident with the steps of both a and b, which are of one id. It stands where the one stands that
// took the newer check into account; but a repair that only the other has ordered is on its way.
func unite(a, b *pb.Incident) *pb.Incident {
	if order := cmp.Or(
		a.GetChecked().AsTime().Compare(b.GetChecked().AsTime()),
		cmp.Compare(rank(a), rank(b)),
		a.GetUpdated().AsTime().Compare(b.GetUpdated().AsTime()),
	); order < 0 {
		a, b = b, a
	}
	missed := lacks(a, b)
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

// rank is greater for an incident that is closed.
func rank(i *pb.Incident) int {
	if closed(i) {
		return 1
	}
	return 0
}
