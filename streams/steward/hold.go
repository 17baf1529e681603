package steward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// holdMode returns the mode for the repair of i, a clone, whose copy is missing. A repair that would have mode is held
// if the store has lost too much of the space: then it waits for the approval of the parent, or its own one, and the
// mode is Approve. After the approval of the parent the mode is Auto. A repair that is held stays so, even if the
// parent was closed.
//
// An unknown number of copies decides nothing: the error is of class unavailable, unless the repair needs an approval
// anyway.
func (s *Steward) holdMode(ctx context.Context, i *pb.Incident, c cause, mode Mode) (Mode, error) {
	about := heldOf(schemas.CopyOf(i).WithoutItem())
	id := about.Incident().GetId()
	const awaiting = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
	switch {
	case s.approval(about) != nil:
		i.Parent = id
		return Auto, nil
	case i.GetParent() == id && i.GetState() == awaiting:
		return Approve, nil
	case s.board.IsOpen(about):
	default:
		hold, err := s.lostTooMuch(ctx, i, c.at, s.board.ClosedAt(about))
		switch {
		case err != nil && mode == Approve:
			s.log.Warn("ask for approval one by one", "copy", schemas.CopyOf(i).String(), "err", err)
			return mode, nil
		case err != nil:
			i.State = pb.IncidentState_INCIDENT_STATE_OPEN
			return mode, err
		case !hold:
			return mode, nil
		}
	}
	i.Parent, i.State, c.at = id, awaiting, s.joinedAt(about, notAhead(c.at))
	s.step(i, stepHeld, c, "")
	return Approve, nil
}

// lostTooMuch reports whether the copies of the space of i that are missing are too many to be repaired without
// approval. Those that were repaired count too if they were missing in the last round, which ends at a time, but not
// from before forgiven.
func (s *Steward) lostTooMuch(ctx context.Context, i *pb.Incident, at, forgiven time.Time) (bool, error) {
	space := schemas.CopyOf(i).WithoutItem()
	since := at.Add(-s.config.Round(space))
	if forgiven.After(since) {
		since = forgiven
	}
	missing := s.table.lost(space, since)
	if !mayBeTooMuch(missing, s.config.MaxMissing) { // usual case
		return false, nil
	}
	wait, cancel := context.WithTimeout(ctx, recordsTimeout/2)
	defer cancel()
	live, err := s.copies.Live(wait, space)
	switch {
	case err == nil:
		return lostTooMuch(missing, live, s.config.MaxMissing), nil
	case errors.Is(ctx.Err(), context.Canceled):
		return false, context.Cause(ctx)
	}
	return false, retry.Unavailable(fmt.Errorf("count the copies of %s: %w", space, err))
}
