package duplicate

import (
	"maps"
	"slices"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
)

// A spaceSide is a space in one store, as observed.
type spaceSide struct {
	Presence Presence
	// Items is Absent if the space is empty. It is observed only at the destination, if the source is absent.
	Items Presence
	Space storage.Space
	Err   error
}

// A spaceObservation is the complete input of a decision about a space.
type spaceObservation struct {
	Command             *pb.DuplicationCommand
	Rules               policy.Rules
	Source, Destination spaceSide
	FoldCase            bool
}

// decideSpace returns the first row of the space table that applies to s. It is pure and total. No action follows S1b
// and S2, and S3 does not wait for the deletes of the items, since S2 would not act.
func decideSpace(s spaceObservation) Decision {
	from, to := s.Source, s.Destination
	switch {
	case s.Command.GetSpace() == "":
		return Decision{Row: RowSpaceNoID, action: actFail, Result: "no-space-id"}
	case !slices.Contains(s.Rules.Pairs, pairOf(s.Command)):
		return Decision{Row: RowNotInPolicy, Result: "not-in-policy"}
	case from.Presence != Present && from.Presence != Absent, to.Presence != Present && to.Presence != Absent:
		return Decision{Row: RowSpaceUnknown, action: actFail}
	case from.Presence == Present && to.Presence == Absent:
		return Decision{Row: RowSpaceDestinationAbsent, action: actCreateSpace, Result: "created"}
	case from.Presence == Present:
		if s.isInSync() {
			return Decision{Row: RowSpacePresent, Result: "in-sync"}
		}
		return Decision{Row: RowSpacePresent, Result: "not-acted"}
	case to.Presence == Absent:
		return Decision{Row: RowSpaceBothAbsent, Result: "gone"}
	case to.Items == Absent:
		return Decision{Row: RowSpaceEmpty, Result: "not-acted"}
	case to.Items == Present:
		return Decision{Row: RowSpaceNotEmpty, Result: "not-empty"}
	}
	return Decision{Row: RowSpaceUnknown, action: actFail}
}

func (s spaceObservation) isInSync() bool {
	a, b := s.Source.Space, s.Destination.Space
	return equalProperties(a.Properties, b.Properties, s.FoldCase) && maps.Equal(a.ACL, b.ACL)
}
