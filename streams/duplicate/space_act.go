package duplicate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// executeSpace executes a command about a space. Stores have no conditional writes of spaces: of two executions at
// once the last write may carry older properties, so both sides are observed again after a write. One Change reports
// what the execution left.
func (w *execution) executeSpace(ctx context.Context) error {
	wrote, err := pb.Op_OP_UNSPECIFIED, errStale
	for i := 0; i < maxIterations && errors.Is(err, errStale); i++ {
		s := w.ObserveSpace(ctx)
		if wrote != 0 && s.isWritten() {
			w.space, err = s.Destination.Space, nil
			break
		}
		var d Decision
		if d, err = w.DecideSpace(ctx, &s); err != nil {
			break
		}
		if wrote != 0 && d.action != actCreateSpace && d.action != actSetSpace {
			if d.action != actNothing { // the source was deleted
				err = fmt.Errorf("row %s applies", d.Row)
			}
			break
		}
		var op pb.Op
		if op, err = w.actOnSpace(ctx, s, d); err != nil || op == 0 {
			continue
		}
		err = errStale // until it is observed again
		if wrote != pb.Op_OP_CREATE_SPACE {
			wrote = op
		}
	}
	switch {
	case wrote != 0:
		if err != nil {
			w.orderAgain(err)
		}
		w.emit(schemas.Changes, w.spaceChange(wrote, w.space))
		return nil
	case errors.Is(err, errStale):
		return fmt.Errorf("execute command %s: %w", w.Command.GetId(), err)
	}
	return err
}

// isWritten reports whether the destination has what the source has.
func (s SpaceObservation) isWritten() bool {
	return s.Source.Presence == Present && s.Destination.Presence == Present &&
		(s.isInSync() || s.Source.Space.PropertiesUnknown)
}

// actOnSpace acts once, and returns the op of what it has written; 0 if the execution has ended without a write.
func (w *execution) actOnSpace(ctx context.Context, s SpaceObservation, d Decision) (pb.Op, error) {
	switch d.action {
	case actCreateSpace:
		if err := w.observer.confirmMarker(ctx, w.Copy, w.Store, time.Now().Add(-markerAge)); err != nil {
			return 0, err
		}
		err := w.Store.CreateSpace(ctx, s.Source.Space)
		if err != nil {
			return 0, markStale(fmt.Errorf("create space %q in store %s: %w", w.Copy.Space, w.Copy.Store, err))
		}
		w.finishSpace(s, d)
		return pb.Op_OP_CREATE_SPACE, nil
	case actSetSpace:
		return w.setSpace(ctx, s, d)
	case actWait:
		return 0, w.waitForItems(d)
	case actDelete:
		w.finish(d, pb.Outcome_OUTCOME_HANDED_ON)
		w.emit(schemas.Deletions, w.spaceDeletion(s, d))
		return 0, nil
	}
	if d.Announce {
		op := pb.Op_OP_SET_SPACE_PROPERTIES
		if !isLive(s.Destination.Record) {
			op = pb.Op_OP_CREATE_SPACE
		}
		w.emit(schemas.Changes, w.spaceChange(op, s.Destination.Space))
	}
	w.detail = d.Detail
	w.finish(d, pb.Outcome_OUTCOME_NOTHING)
	return 0, nil
}

// setSpace acts on S1b. A store that cannot keep the properties keeps what it has, and the result says so.
func (w *execution) setSpace(ctx context.Context, s SpaceObservation, d Decision) (pb.Op, error) {
	op := pb.Op_OP_SET_SPACE_PROPERTIES
	if !s.Destination.Space.PropertiesUnknown &&
		storage.EqualUser(s.Source.Space.Properties, s.Destination.Space.Properties, s.FoldCase) {
		op = pb.Op_OP_SET_ACL
	}
	err := w.Store.SetSpace(ctx, s.Source.Space)
	switch {
	case err == nil:
		w.finishSpace(s, d)
		return op, nil
	case w.outcome == pb.Outcome_OUTCOME_DONE: // the result is that of the first write
	case errors.Is(err, storage.ErrUnsupported), errors.Is(err, storage.ErrTooLarge):
		d.Result, w.detail = "properties-unsupported", err.Error()
		w.finish(d, pb.Outcome_OUTCOME_NOTHING)
		return 0, nil
	}
	return 0, markStale(fmt.Errorf("set properties of space %q in store %s: %w", w.Copy.Space, w.Copy.Store, err))
}

// finishSpace ends the execution after a write. The result is that of the first one.
func (w *execution) finishSpace(s SpaceObservation, d Decision) {
	if w.space = s.Source.Space; w.outcome != pb.Outcome_OUTCOME_DONE {
		w.finish(d, pb.Outcome_OUTCOME_DONE)
	}
}

// waitNotEmpty is the cause of the wait of S3.
const waitNotEmpty = "space-not-empty"

// waitForItems acts on S3. No order is promised between a space and its items, whose deletes may be on their way.
func (w *execution) waitForItems(d Decision) error {
	if n := w.delivery.WaitsFor(waitNotEmpty); n < len(w.cfg.WaitIntervals) {
		err := fmt.Errorf("row %s of space %q in store %s: %s", d.Row, w.Copy.Space, w.Copy.Store, d.Result)
		return retry.WaitFor(waitNotEmpty, err, time.Now().Add(w.cfg.WaitIntervals[max(n, 0)]))
	}
	w.finish(d, pb.Outcome_OUTCOME_NOTHING)
	return nil
}

// spaceDeletion orders the delete of an empty space from the deleter.
func (w *execution) spaceDeletion(s SpaceObservation, d Decision) *pb.DeletionCommand {
	c := w.deletionCommand(Observation{Command: w.Command, Rules: s.Rules}, d)
	c.Destination, c.Approved = nil, "" // spaces have no identity, and no correction is about a space
	return c
}

// spaceChange returns the Change of the destination's space after op.
func (w *execution) spaceChange(op pb.Op, space storage.Space) *pb.Change {
	c := &pb.Change{
		Op: op, Account: w.Copy.Account, Store: w.Copy.Store, Space: w.Copy.Space,
		Properties: space.Properties, Acl: space.ACL, PropertiesUnknown: space.PropertiesUnknown,
		// Stores do not date spaces. The command's time is the same in every execution, and so is the id of the Change.
		Time: later(schemas.ChangedAt(w.Command), w.Command.GetTime()),
	}
	if c.Time == nil {
		c.Time = record.Time(w.delivery.Timestamp)
	}
	return w.seal(c, w.origin())
}

// SpaceDeleted returns the Change of a space of the destination that was deleted because of the source's delete at a
// time. Stores do not date spaces: the time is that delete's, and later than the space's last Change on record.
func (sc *Sides) SpaceDeleted(last *pb.Record, deleted time.Time) *pb.Change {
	at := deleted
	if came := last.GetTime(); came != nil && !at.After(came.AsTime()) {
		at = came.AsTime().Add(time.Millisecond)
	}
	return record.Seal(&pb.Change{
		Op: pb.Op_OP_DELETE_SPACE, Account: sc.Copy.Account, Store: sc.Copy.Store, Space: sc.Copy.Space,
		Time: timestamppb.New(at.Truncate(time.Millisecond)), Origin: pb.Origin_ORIGIN_DUPLICATION,
		Agent: "deleter", Cause: sc.Command.GetId(),
	})
}

// SpaceGone returns the Change of a space that both sides lack, if it is live on record and S2 would have deleted it
// without another approval than that of a delete for which approved is true; else nil. A deleter that died after its
// delete leaves such a record.
func (sc *Sides) SpaceGone(
	ctx context.Context, s SpaceObservation, approved func(deleted time.Time) bool,
) (*pb.Change, error) {
	records, err := sc.ReadSpaceRecords(ctx)
	if err != nil {
		return nil, err
	}
	s.Source.Record, s.Destination.Record = records[0], records[1]
	d := s.empty()
	if !isLive(records[1]) || d.action != actDelete || d.NeedsApproval && !approved(d.Deleted) {
		return nil, nil
	}
	return sc.SpaceDeleted(records[1], d.Deleted), nil
}
