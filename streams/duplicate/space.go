package duplicate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A SpaceSide is a space in one store, as observed.
type SpaceSide struct {
	Presence Presence
	// Items is Absent if the space is empty. It is observed only at the destination, if the source is absent.
	Items Presence
	Space storage.Space
	// Record is the audit record of the space: LIVE if it was created last, with the time and origin of its last Change;
	// TOMBSTONE if it was deleted last. nil: it was not read.
	Record *pb.Record
	Err    error
}

// A SpaceObservation is the complete input of a decision about a space.
type SpaceObservation struct {
	Command             *pb.DuplicationCommand
	Rules               policy.Rules
	Source, Destination SpaceSide
	FoldCase            bool
	// Hold is the hold of the whole space; nil if there is none. A hold of a prefix is about items.
	Hold *policy.Hold
}

// decideSpace returns the first row of the space table that applies to s. It is pure and total.
func decideSpace(s SpaceObservation) Decision {
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
		return s.present()
	case to.Presence == Absent:
		return Decision{Row: RowSpaceBothAbsent, Result: "gone"}
	case to.Items == Absent:
		return s.empty()
	case to.Items == Present:
		return Decision{Row: RowSpaceNotEmpty, action: actWait, Result: "not-empty"}
	}
	return Decision{Row: RowSpaceUnknown, action: actFail}
}

// present decides S1b: both sides have the space. Unknown properties are never carried.
func (s SpaceObservation) present() Decision {
	d := Decision{Row: RowSpacePresent, Result: "in-sync"}
	row, ok := known(s.Destination.Record)
	switch {
	case s.Source.Space.PropertiesUnknown:
		d.Result = "properties-unknown"
	case !s.isInSync() && s.Hold != nil:
		return s.held(d.Row)
	case !s.isInSync():
		d.action, d.Result = actSetSpace, "properties-set"
	case s.Destination.Record == nil:
		d.action = actReadRecords
	case !ok:
		return Decision{Row: RowSpaceUnknown, action: actFail}
	default:
		// An execution that died before it published its Change leaves a record that is older than its command.
		at := later(schemas.ChangedAt(s.Command), s.Command.GetTime())
		d.Announce = row.GetState() != pb.RecordState_RECORD_STATE_LIVE ||
			row.GetTime().AsTime().Before(at.AsTime().Truncate(time.Millisecond))
	}
	return d
}

func (s SpaceObservation) isInSync() bool {
	a, b := s.Source.Space, s.Destination.Space
	return !b.PropertiesUnknown && storage.EqualUser(a.Properties, b.Properties, s.FoldCase) && maps.Equal(a.ACL, b.ACL)
}

// empty decides S2: the source lacks the space, and at the destination it is empty. The rules for the delete of an item
// apply. Only a delete on record that is newer than the space proves that the space was not lost.
func (s SpaceObservation) empty() Decision {
	if s.Source.Record == nil || s.Destination.Record == nil {
		return Decision{Row: RowSpaceEmpty, action: actReadRecords}
	}
	from, okFrom := known(s.Source.Record)
	to, okTo := known(s.Destination.Record)
	if !okFrom || !okTo {
		return Decision{Row: RowSpaceUnknown, action: actFail}
	}
	deleted := from.GetTime().AsTime()
	rule := s.Rules.DeletesOf(pairOf(s.Command), deleted)
	switch {
	case !isTombstone(from):
		return Decision{Row: RowSpaceEmpty, Result: "orphan"}
	case isLive(to) && to.GetOrigin() == pb.Origin_ORIGIN_CLIENT && !deleted.After(to.GetTime().AsTime()):
		return Decision{Row: RowSpaceEmpty, Result: "kept-newer"}
	case rule == policy.KeepCopy:
		return Decision{Row: RowSpaceEmpty, Result: resultKept}
	case s.Hold != nil:
		return s.held(RowSpaceEmpty)
	}
	return Decision{
		Row: RowSpaceEmpty, action: actDelete, Result: "deletion-ordered", Deleted: deleted,
		NeedsApproval: rule != policy.Propagate || !isFact(from.GetOrigin()),
	}
}

// isFact reports whether an origin is that of a program that deletes spaces itself, and does not infer deletes.
func isFact(o pb.Origin) bool {
	return o == pb.Origin_ORIGIN_CLIENT || o == pb.Origin_ORIGIN_DUPLICATION
}

func (s SpaceObservation) held(row Row) Decision {
	return Observation{Hold: s.Hold}.held(Decision{Row: row})
}

// known returns a record that was read; false if its source did not answer.
func known(r *pb.Record) (*pb.Record, bool) {
	return r, r.GetState() != pb.RecordState_RECORD_STATE_UNSPECIFIED
}

// ObserveSpace observes the space of the command in both stores.
func (sc *Sides) ObserveSpace(ctx context.Context) SpaceObservation {
	return sc.withRules(sc.observeSpaces(ctx)) // now, since records may have been waited for
}

func (sc *Sides) observeSpaces(ctx context.Context) SpaceObservation {
	s := SpaceObservation{Command: sc.Command}
	if sc.Store == nil {
		return s
	}
	s.FoldCase = sc.SourceStore.Capabilities().FoldsPropertyCase || sc.Store.Capabilities().FoldsPropertyCase
	s.Source = sc.observer.observeSpace(ctx, sc.SourceCopy, sc.SourceStore)
	s.Destination = sc.observer.observeSpace(ctx, sc.Copy, sc.Store)
	if s.Source.Presence != Absent || s.Destination.Presence != Present {
		return s
	}
	s.Destination.Items = Absent
	for _, err := range sc.Store.List(ctx, sc.Copy.Space, "") {
		s.Destination.Items = Present
		if err != nil {
			s.Destination.Items, s.Destination.Err = Unknown, fmt.Errorf("list space %q: %w", sc.Copy.Space, err)
		}
		break
	}
	return s
}

// withRules returns s with the rules that are in force now.
func (sc *Sides) withRules(s SpaceObservation) SpaceObservation {
	now := sc.observation()
	s.Rules, s.Hold = now.Rules, now.Hold
	return s
}

// ConfirmSpace is Confirm for a decision about a space.
func (sc *Sides) ConfirmSpace(s SpaceObservation, d Decision) error {
	return d.confirm(decideSpace(sc.withRules(s)))
}

// observeSpace is observeSide and confirmSpaceAbsent for a space.
func (l *Observer) observeSpace(ctx context.Context, c schemas.Copy, store storage.Store) SpaceSide {
	side := l.statSpace(ctx, c, store)
	if side.Presence != Absent {
		return side
	}
	err := l.spaceMayBeAbsent(ctx, c)
	if err == nil {
		return side
	}
	if side = l.statSpace(ctx, c, store); side.Presence == Absent {
		return SpaceSide{Err: err}
	}
	return side
}

func (l *Observer) statSpace(ctx context.Context, c schemas.Copy, store storage.Store) SpaceSide {
	space, err := store.StatSpace(ctx, c.Space)
	if err == nil {
		return SpaceSide{Presence: Present, Space: space}
	}
	if !errors.Is(err, storage.ErrNoSpace) {
		return SpaceSide{Err: fmt.Errorf("stat space %q in store %s: %w", c.Space, c.Store, err)}
	}
	if err := l.confirmMarker(ctx, c, store, time.Now()); err != nil {
		return SpaceSide{Err: fmt.Errorf("confirm that space %q is absent: %w", c.Space, err)}
	}
	return SpaceSide{Presence: Absent}
}

// DecideSpace decides about a space, and reads the records that the decision needs. Reading takes seconds, so both
// sides are observed again after it and s is replaced.
func (sc *Sides) DecideSpace(ctx context.Context, s *SpaceObservation) (Decision, error) {
	d := decideSpace(*s)
	if d.action == actReadRecords {
		records, err := sc.ReadSpaceRecords(ctx)
		if err != nil {
			return d, err
		}
		*s = sc.ObserveSpace(ctx)
		s.Source.Record, s.Destination.Record = records[0], records[1]
		d = decideSpace(*s)
	}
	if d.action != actFail {
		return d, nil
	}
	err := errors.Join(s.Source.Err, s.Destination.Err)
	if err == nil {
		err = retry.Unavailable(errors.New("it is unknown whether the space exists"))
	}
	return d, fmt.Errorf("decide row %s of space %q: %w", d.Row, sc.Copy.Space, err)
}

// ReadSpaceRecords reads the audit records of the space in the source and in the destination afresh.
func (sc *Sides) ReadSpaceRecords(ctx context.Context) ([2]*pb.Record, error) {
	source, destination := sc.SourceCopy.WithoutItem(), sc.Copy.WithoutItem()
	records, err := FreshRecords(ctx, sc.observer.records, destination, source, destination)
	if err != nil {
		return [2]*pb.Record{}, err
	}
	at := func(i int) *pb.Record { return cmp.Or(records[i].GetAudit(), &pb.Record{}) }
	return [2]*pb.Record{at(0), at(1)}, nil
}
