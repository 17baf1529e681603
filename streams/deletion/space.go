package deletion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// iterateSpace observes, decides and acts once for a command about a space.
func (w *execution) iterateSpace(ctx context.Context) ([]schemas.Message, error) {
	s := w.sides.ObserveSpace(ctx)
	d, err := w.sides.DecideSpace(ctx, &s) // it observes again after the records were read
	if err != nil {
		return nil, err
	}
	e := ending{row: d.Row, result: d.Result, detail: d.Detail, outcome: pb.Outcome_OUTCOME_NOTHING}
	switch {
	case s.Source.Presence == duplicate.Present:
		e = ending{row: duplicate.RowSpaceEmpty, result: "not-deleted", detail: "the source has the space",
			outcome: pb.Outcome_OUTCOME_HANDED_ON, copy: w.spaceBack(w.command.GetDeleted().AsTime())}
	case d.Row == duplicate.RowSpaceBothAbsent:
		if e.change, err = w.sides.SpaceGone(ctx, s, func(deleted time.Time) bool {
			return w.isApproved(duplicate.DeleteEffect(w.sides.Copy, deleted, storage.Object{}))
		}); err != nil {
			return nil, err
		}
	case w.awaitsHold(d):
		return nil, duplicate.AwaitHold(s.Hold)
	case d.Deleted.IsZero():
	default:
		return w.deleteSpaceAllowed(ctx, s, d)
	}
	return w.messages(e), nil
}

// deleteSpaceAllowed is deleteAllowed for a space, which counts as one delete.
func (w *execution) deleteSpaceAllowed(
	ctx context.Context, s duplicate.SpaceObservation, d duplicate.Decision,
) ([]schemas.Message, error) {
	effect := duplicate.DeleteEffect(w.sides.Copy, d.Deleted, storage.Object{})
	l, err := w.leave(ctx, d, s.Rules, effect)
	if err != nil || l.ended != nil {
		return l.ended, err
	}
	out, err := w.deleteSpace(ctx, s, d, effect, l.list)
	if deletedNothing(err) || err == nil && !w.spaceDeleted {
		l.permit.GiveBack()
	}
	return out, err
}

// deleteSpace deletes the space, which was seen empty, if the source still lacks it and the rules in force still allow
// it, and observes the source afterwards. The store refuses a space that holds an item.
func (w *execution) deleteSpace(
	ctx context.Context, s duplicate.SpaceObservation, d duplicate.Decision, effect, list string,
) ([]schemas.Message, error) {
	at, store := w.sides.Copy, w.sides.Store
	present, err := w.sourceHasSpace(ctx)
	switch {
	case err != nil:
	case present:
		err = fmt.Errorf("%w: the source has the space %q again", storage.ErrChanged, at.Space)
	default:
		err = w.sides.ConfirmSpace(s, d)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotTried, err)
	}
	err = store.DeleteSpace(ctx, at.Space)
	switch {
	case errors.Is(err, storage.ErrNoSpace):
		return nil, fmt.Errorf("%w: delete space %q in store %s: %w", storage.ErrChanged, at.Space, at.Store, err)
	case errors.Is(err, storage.ErrNotEmpty):
		return w.messages(ending{row: duplicate.RowSpaceEmpty, result: "not-empty", detail: err.Error(),
			outcome: pb.Outcome_OUTCOME_NOTHING}), nil
	}
	change := w.sides.SpaceDeleted(s.Destination.Record, d.Deleted)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), observeTimeout)
	defer cancel()
	present, lookErr := w.sourceHasSpace(ctx)
	e := ending{row: duplicate.RowSpaceEmpty, result: "deleted", outcome: pb.Outcome_OUTCOME_DONE, change: change,
		effect: effect, list: list}
	switch {
	case err != nil && (!present || retry.IsPermanent(err)):
		return nil, fmt.Errorf("delete space %q in store %s: %w", at.Space, at.Store, err)
	case err != nil: // it may have been deleted
		w.spaceDeleted = true
		e.result, e.detail, e.outcome, e.change = "not-deleted", err.Error(), pb.Outcome_OUTCOME_HANDED_ON, nil
		e.copy = w.spaceBack(change.GetTime().AsTime())
		return w.messages(e), nil
	case present || lookErr != nil:
		e.detail, e.copy = "the source may have the space again", w.spaceBack(change.GetTime().AsTime())
	}
	w.spaceDeleted = true
	return w.messages(e), nil
}

// sourceHasSpace stats the space of the source. That it is absent was confirmed before.
func (w *execution) sourceHasSpace(ctx context.Context) (bool, error) {
	at := w.sides.SourceCopy
	_, err := w.sides.SourceStore.StatSpace(ctx, at.Space)
	if errors.Is(err, storage.ErrNoSpace) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stat space %q in store %s: %w", at.Space, at.Store, err)
	}
	return true, nil
}

// spaceBack returns the command to observe the space on both sides again. A Change that it leads to is later than the
// delete at a time.
func (w *execution) spaceBack(deleted time.Time) *schemas.Message {
	m := w.copyCommand(storage.Object{})
	c := m.Body.(*pb.DuplicationCommand)
	c.CauseOp, c.ChangeTime = pb.Op_OP_CREATE_SPACE, timestamppb.New(deleted.Add(time.Millisecond))
	return m
}
