package steward

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
)

const (
	// groupAfter is the number of incidents with one cause that are reported one by one, if they are opened within
	// groupWindow. Further ones have a parent, which is reported once.
	groupAfter  = 20
	groupWindow = time.Hour
	// smallSpace is the number of copies from which Config.MaxMissing counts, as in the sweep reconcile.
	smallSpace = 100
	// fewCopies is the number of missing copies of a small space that are repaired without approval.
	fewCopies = 5
)

// A scope is what the incidents of a group have in common.
type scope int

// The scopes.
const (
	ofNone   scope = iota // it has no group
	ofSpace               // kind, and space of a store
	ofStore               // kind and store
	ofWorker              // the worker that found them
)

// recent are the numbers of incidents that were opened within groupWindow and have the same space and kind, store and
// kind, or worker as one of them, which is included.
type recent struct{ space, store, worker int }

// scopeOf returns the smallest scope with more incidents than groupAfter.
func scopeOf(n recent) scope {
	switch {
	case n.space > groupAfter:
		return ofSpace
	case n.store > groupAfter:
		return ofStore
	case n.worker > groupAfter:
		return ofWorker
	}
	return ofNone
}

// lostTooMuch reports whether so many missing copies of a space with some live ones on record have one cause: they are
// all of it, or more than a share of it. A few copies are not too much of a small space, unless they are all.
func lostTooMuch(missing, live int64, share float64) bool {
	return missing > 1 && missing >= live ||
		float64(missing) > share*float64(live) && (live >= smallSpace || missing > fewCopies)
}

// mayBeTooMuch reports whether lostTooMuch depends on the number of live copies.
func mayBeTooMuch(missing int64, share float64) bool {
	return missing > 1 || float64(missing) > share*smallSpace
}

// groupOf returns the subject of the parent of i and the other incidents of a scope; it is zero for ofNone, and for
// ofWorker if the worker is unknown.
func groupOf(i *pb.Incident, s scope) incident.Subject {
	g := incident.Subject{Account: i.GetAccount(), Store: i.GetStore(), Kind: incident.Grouped, Name: i.GetKind()}
	switch {
	case s == ofSpace:
		g.Space = i.GetSpace()
		return g
	case s == ofStore:
		return g
	case s == ofWorker && i.GetWorker() != "":
		return incident.Subject{Kind: incident.Grouped, Name: i.GetWorker()}
	}
	return incident.Subject{}
}

// heldOf returns the subject of the incident about the repairs of a space of a store that wait for one approval.
func heldOf(space schemas.Copy) incident.Subject {
	return incident.Subject{Account: space.Account, Store: space.Store, Space: space.Space, Kind: incident.RepairsHeld}
}

// group sets the parent of i, which is being opened, if many incidents have the same cause.
func (s *Steward) group(i *pb.Incident) {
	if about := groupOf(i, scopeOf(s.table.recent(i))); about.Kind != "" {
		i.Parent = about.Incident().GetId()
		i.Opened = timestamppb.New(s.joinedAt(about, i.GetOpened().AsTime()))
	}
}

// joinedAt returns when a child comes to a parent, by the clock of its checker. To one that a person has closed it
// comes after the close, whatever that clock says: the parent must open again.
func (s *Steward) joinedAt(about incident.Subject, at time.Time) time.Time {
	if closed := s.board.ClosedAt(about); s.board.Accepted(about) && !at.After(closed) {
		return closed.Add(time.Millisecond)
	}
	return at
}
