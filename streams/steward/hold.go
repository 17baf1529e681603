package steward

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// smallSpace is the number of copies from which Config.MaxMissing counts, as in the sweep reconcile.
	smallSpace = 100
	// fewCopies is the number of missing copies of a small space that are repaired without approval.
	fewCopies = 5
)

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

// heldOf returns the subject of the incident about the held repairs of a space of a store.
func heldOf(space schemas.Copy) incident.Subject {
	return incident.Subject{Account: space.Account, Store: space.Store, Space: space.Space, Kind: incident.RepairsHeld}
}

// holdMode returns the mode for the repair of i, a clone, whose copy is missing. A repair that would have mode is held
// if the store has lost too much of the space, or repairs of the space are held: then it waits for an approval, and the
// mode is Approve. A repair that waits goes on waiting, even if the loss becomes smaller, and one that was approved is
// not held again.
//
// An unknown number of copies decides nothing: the error is of class unavailable, unless the repair needs an approval
// anyway.
func (s *Steward) holdMode(ctx context.Context, i *pb.Incident, c cause, mode Mode) (Mode, error) {
	about := heldOf(schemas.CopyOf(i).WithoutItem())
	const awaiting = pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL
	switch {
	case i.GetState() == awaiting:
		return Approve, nil
	case hasStep(i, stepApproved):
		return mode, nil
	case s.board.IsOpen(about):
	default:
		missing, err := s.lostTooMuch(ctx, i, c.at, s.board.DecidedAt(about))
		switch {
		case err != nil && mode == Approve:
			s.log.Warn("ask for approval one by one", "copy", schemas.CopyOf(i).String(), "err", err)
			return mode, nil
		case err != nil:
			i.State = pb.IncidentState_INCIDENT_STATE_OPEN
			return mode, err
		case missing == 0:
			return mode, nil
		}
		if err := s.board.Open(ctx, about, heldDetail(missing)); err != nil {
			return mode, err
		}
	}
	i.State = awaiting
	s.step(i, stepHeld, c, "")
	return Approve, nil
}

func heldDetail(missing int64) string {
	return fmt.Sprintf("%d copies of the space are missing, or were repaired within a round: more than sweep.max_missing,"+
		" or all of it; further repairs wait for approval", missing)
}

// lostTooMuch returns the number of copies of the space of i that are missing if they are too many to be repaired
// without approval; else 0. Copies that were repaired count too if they were missing in the last round, which ends at a
// time, but not from before forgiven.
func (s *Steward) lostTooMuch(ctx context.Context, i *pb.Incident, at, forgiven time.Time) (int64, error) {
	space := schemas.CopyOf(i).WithoutItem()
	since := at.Add(-s.config.Round(space))
	if forgiven.After(since) {
		since = forgiven
	}
	missing := s.table.lost(space, since)
	if !mayBeTooMuch(missing, s.config.MaxMissing) { // usual case
		return 0, nil
	}
	wait, cancel := context.WithTimeout(ctx, recordsTimeout/2)
	defer cancel()
	live, err := s.copies.Live(wait, space)
	switch {
	case err == nil && lostTooMuch(missing, live, s.config.MaxMissing):
		return missing, nil
	case err == nil:
		return 0, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return 0, context.Cause(ctx)
	}
	return 0, retry.Unavailable(fmt.Errorf("count the copies of %s: %w", space, err))
}

// HeldApprovals returns the approvals that follow from a, the approval of the held repairs of a space: one for each of
// all that waits for approval, as the operator saw it. They have an effect while hold, the incident of the space, is
// open.
func HeldApprovals(a *pb.AdminAction, hold *pb.Incident, all []*pb.Incident) (approvals []*pb.AdminAction) {
	for _, i := range all {
		if i.GetKind() != kindMissing || i.GetState() != pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL ||
			schemas.CopyOf(i).WithoutItem() != schemas.CopyOf(hold) {
			continue
		}
		one := proto.CloneOf(a)
		one.Id, one.Target, one.Item = schemas.ID("approve-held", a.GetId(), i.GetId()), schemas.IncidentKey(i), i.GetItem()
		one.Incident, one.Seen, one.After = i.GetId(), Seen(i), openedAt(hold.GetOpened().AsTime())
		one.Reason = "approved with " + a.GetTarget()
		if a.GetReason() != "" {
			one.Reason += ": " + a.GetReason()
		}
		approvals = append(approvals, one)
	}
	return approvals
}

func openedAt(t time.Time) string { return t.Format(time.RFC3339Nano) }

// isWithdrawn reports whether a follows from the approval of the held repairs of a space whose incident was closed
// since. It may be open again: for another loss.
func (s *Steward) isWithdrawn(space schemas.Copy, a *pb.AdminAction) bool {
	return a.GetAfter() != "" && a.GetAfter() != openedAt(s.board.OpenedAt(heldOf(space)))
}

// approveHeld records an approval of the held repairs of a space in their incident. HeldApprovals are its effect.
func (s *Steward) approveHeld(ctx context.Context, a *pb.AdminAction) error {
	about, is := heldOf(schemas.CopyOf(a).WithoutItem()), false
	err := s.board.Approved(ctx, about, incident.Decision{By: a.GetWho(), Ref: a.GetId(), Reason: a.GetReason()},
		func(i *pb.Incident) bool {
			is = i != nil && schemas.IncidentKey(i) == a.GetTarget() && Seen(i) == a.GetSeen()
			return is
		})
	if err == nil && !is {
		s.log.Warn("ignore approval of held repairs: there is no such incident, or it was opened again",
			"target", a.GetTarget(), "who", a.GetWho(), "action", a.GetId())
	}
	return err
}

// Due reports whether Maintain has work to do.
func (s *Steward) Due() bool { return s.reports.due() || len(s.unsettled()) > 0 }

// Maintain reports incidents that were opened. It also opens the incidents of spaces of which repairs are held, unless
// an operator has closed them, and closes those of spaces of which none waits for approval, held or not: an approval
// of the incident is for all that wait. Only the process that owns the key of such an incident does it.
func (s *Steward) Maintain(ctx context.Context, owns func(key string) bool) error {
	if s.reports.due() {
		s.Report()
	}
	for about, missing := range s.unsettled() {
		var err error
		switch {
		case !owns(schemas.ItemKey(about.Account, about.Space, "")):
		case s.board.IsOpen(about):
			err = s.board.Close(ctx, about, "no repair waits any more")
		default:
			err = s.board.Open(ctx, about, heldDetail(missing))
		}
		if err != nil {
			return fmt.Errorf("steward: update the incident of held repairs: %w", err)
		}
	}
	return nil
}

// unsettled returns the incidents of held repairs that are to be opened or closed, with the numbers of missing copies.
// One that has just been opened stays open, since the record of its first copy may not be read yet.
func (s *Steward) unsettled() map[incident.Subject]int64 {
	all := map[incident.Subject]int64{}
	waiting := s.table.waiting()
	for space, l := range waiting {
		if about := heldOf(space); l.held > 0 && !s.board.IsOpen(about) && !s.board.Accepted(about) {
			all[about] = l.open
		}
	}
	for _, about := range s.board.OpenOf(incident.RepairsHeld) {
		space := schemas.Copy{Account: about.Account, Store: about.Store, Space: about.Space}
		if waiting[space].waiting == 0 && time.Since(s.board.OpenedAt(about)) >= s.openAtLeast {
			all[about] = 0
		}
	}
	return all
}
