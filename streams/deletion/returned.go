package deletion

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// A returned is the complete input of a decision about a copy that came back after its delete.
type returned struct {
	// order has the object that the operator saw, and the time of the tombstone that it is under.
	order    *pb.DeletionCommand
	copy     duplicate.Side // observed after the record was read
	record   *pb.CopyRecord
	hold     *policy.Hold // nil: none is in force
	readOnly bool
}

// decide decides C0d. It is pure. ok is true if the copy is to be deleted: it is the object that the operator saw, and
// nothing was recorded of it since. The caller knows the presence of the copy and its record.
func (s returned) decide() (e ending, ok bool) {
	e = ending{row: duplicate.RowRepairDelete, result: "repair-moot", outcome: pb.Outcome_OUTCOME_NOTHING}
	switch {
	case s.copy.Presence != duplicate.Present:
		e.detail = "the copy is gone"
	case s.record.GetManifest().GetState() != pb.RecordState_RECORD_STATE_TOMBSTONE:
		e.detail = "the item is not on record as deleted any more"
	case !s.lastEvent().Equal(s.order.GetDeleted().AsTime()):
		e.detail = "the records have changed since the copy was found"
	case s.record.GetManifest().GetDisputed() && s.record.GetManifest().GetVersion() == s.copy.Object.Version:
		e.detail = "by the reported times the object is newer than its delete"
	case s.isWrittenLater():
		e.detail = "the audit log has a write after the delete"
	case !record.Is(s.copy.Object, s.order.GetDestination()) || !s.sameTime():
		e.detail = "the store has another object than the one that was seen"
	case s.hold != nil:
		e.result = "held"
		e.detail = s.hold.String()
	case s.readOnly:
		e.result, e.detail = resultRefused, "the store is read-only"
	default:
		e.result, e.outcome = "deleted", pb.Outcome_OUTCOME_DONE
		return e, true
	}
	return e, false
}

// resultRefused is the result of an order that the brake or the store does not allow.
const resultRefused = "repair-refused"

// lastEvent returns the time of the newest event on record.
func (s returned) lastEvent() time.Time {
	m, a := s.record.GetManifest().GetTime().AsTime(), s.record.GetAudit().GetTime().AsTime()
	if a.After(m) {
		return a
	}
	return m
}

// isWrittenLater reports whether the audit log has content that is newer than the tombstone: then the manifest is
// wrong.
func (s returned) isWrittenLater() bool {
	a := s.record.GetAudit()
	return a.GetState() == pb.RecordState_RECORD_STATE_LIVE &&
		a.GetTime().AsTime().After(s.record.GetManifest().GetTime().AsTime())
}

// sameTime reports whether the object was written when the one that was seen was: where the version is a function of
// the bytes, a client can have put the same ones again.
func (s returned) sameTime() bool {
	seen := s.order.GetDestination()
	return seen.GetModified() == nil ||
		seen.GetModified().AsTime().Equal(record.Identity(s.copy.Object).GetModified().AsTime()) &&
			seen.GetSize() == s.copy.Object.Size
}

// deleteReturned executes an operator's order to delete a copy that is present under its tombstone.
func (e *Deleter) deleteReturned(ctx context.Context, c *pb.DeletionCommand, attempt int) ([]schemas.Message, error) {
	w := &execution{cfg: e.cfg, command: c, attempt: attempt, started: time.Now()}
	both := w.observeCommand()
	both.SourceStore = both.GetDestinationStore() // there is no source
	var err error
	if w.sides, err = e.observer.Sides(both); err != nil {
		return nil, err
	}
	if w.sides.Store == nil {
		return nil, retry.Permanent(fmt.Errorf("delete %s: the account has no such store", w.sides.Copy))
	}
	return w.repeat(func() ([]schemas.Message, error) { return w.iterateReturned(ctx, e.records) })
}

// iterateReturned reads the record, observes the copy, decides and acts once.
func (w *execution) iterateReturned(ctx context.Context, records duplicate.Records) ([]schemas.Message, error) {
	at := w.sides.Copy
	known, err := duplicate.FreshRecords(ctx, records, at, at)
	if err != nil {
		return nil, err
	}
	if known[0].GetManifest().GetState() == 0 || known[0].GetAudit().GetState() == 0 {
		return nil, retry.Unavailable(fmt.Errorf("the records of %s are unknown", at))
	}
	s := w.sides.Observe(ctx)
	if s.Destination.Presence == duplicate.Unknown {
		return nil, s.Destination.Err
	}
	e, ok := returned{order: w.command, copy: s.Destination, record: known[0], hold: s.Hold,
		readOnly: w.sides.Store.Capabilities().ReadOnly}.decide()
	if !ok {
		return w.messages(e), nil
	}
	return w.deleteCopy(ctx, s.Destination.Object, e)
}

// deleteCopy deletes the version seen of a copy that came back, if the brake allows it. The store keeps the bytes if it
// can. The delete is one of the deletes that the brake counts, but is put on no list: e has the result instead.
func (w *execution) deleteCopy(ctx context.Context, seen storage.Object, e ending) ([]schemas.Message, error) {
	c, at := w.command, w.sides.Copy
	_, wait, err := w.ask(ctx, duplicate.DeleteEffect(at, c.GetDeleted().AsTime(), seen))
	if err != nil {
		return nil, err
	}
	p, reached := (*brake.Permit)(nil), held.EarlierWaits
	if !wait {
		p, reached, err = w.take(ctx)
	}
	switch {
	case err != nil:
		return nil, err
	case reached != "":
		return w.messages(ending{row: e.row, result: resultRefused, detail: "the brake: " + reached,
			outcome: pb.Outcome_OUTCOME_NOTHING}), nil
	}
	if w.sides.Hold() != nil {
		p.GiveBack()
		return nil, fmt.Errorf("%w: a hold of %s is in force", storage.ErrChanged, at)
	}
	evidence := map[string]string{"incident": c.GetIncident()}
	if c.GetWhy() != "" {
		evidence["why"] = c.GetWhy()
	}
	if err := w.deleteSeen(ctx, seen, &e, evidence); err != nil {
		if deletedNothing(err) {
			p.GiveBack()
		}
		return nil, err
	}
	return w.messages(e), nil
}

// deleteSeen deletes the version seen of a copy that an operator wants to be deleted, and adds its Change to e.
func (w *execution) deleteSeen(
	ctx context.Context, seen storage.Object, e *ending, evidence map[string]string,
) error {
	at, store := w.sides.Copy, w.sides.Store
	deleted, err := store.Delete(ctx, at.Space, at.Item, storage.DeleteOptions{
		Condition: storage.Condition{Version: seen.Version}, KeepDeleted: store.Capabilities().KeepsReplaced,
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", at, err)
	}
	change := record.Delete(at, deleted)
	change.Origin, change.Cause, change.Agent = pb.Origin_ORIGIN_REPAIR, w.command.GetId(), agent
	change.Approved, change.Evidence = w.command.GetApproved(), evidence
	e.change, e.digests = record.Seal(change), deleted.Object.Digests
	return nil
}
