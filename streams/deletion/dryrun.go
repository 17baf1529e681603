package deletion

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// dryRun observes and decides once, and changes nothing: both stores are read-only here, the brake counts nothing, no
// list gets the delete, and the only message is the result.
func (w *execution) dryRun(ctx context.Context) ([]schemas.Message, error) {
	if c := w.command; c.GetItem() == "" || c.GetApproveList() != "" || c.GetRefuseList() != "" {
		return nil, retry.Permanent(errors.New("a dry run needs an item, and decides about no list"))
	}
	if w.sides.Store != nil {
		w.sides.Store = storage.ReadOnly(w.sides.Store)
	}
	s := w.sides.Observe(ctx)
	var d duplicate.Decision
	if s.Source.Presence != duplicate.Present {
		var err error
		if d, err = w.sides.Decide(ctx, &s); err != nil {
			return nil, fmt.Errorf("decide dry run %s: %w", w.command.GetId(), err)
		}
	}
	e, ok := withoutDelete(d)
	switch {
	case s.Source.Presence == duplicate.Present:
		e = ending{row: duplicate.RowSourceDeleted, result: "not-deleted", detail: "the source is present"}
	case ok:
	default:
		standing, wait, err := w.ask(ctx, duplicate.DeleteEffect(w.sides.Copy, d.Deleted, s.Destination.Object))
		if err != nil {
			return nil, err
		}
		k, cause := w.heldFor(d, s.Rules)
		e.result = "deleted"
		if standing.Approved != "" {
			break
		} else if standing.Kept != "" {
			e.result, e.detail = "kept", standing.Kept
		} else if k != "" {
			e.result, e.detail = "awaiting-approval", cause
		} else if wait {
			e.result, e.detail = "awaiting-approval", "the brake: "+held.EarlierWaits
		} else if reached := w.cfg.Brake.Reached(w.sides.Copy); reached != "" {
			e.result, e.detail = "awaiting-approval", "the brake: "+reached
		} else if due := w.command.GetDeleted().AsTime().Add(w.cfg.Delay); w.cfg.Now().Before(due) {
			e.detail = "not before " + due.UTC().Format(time.RFC3339)
		}
	}
	e.outcome = pb.Outcome_OUTCOME_NOTHING
	return w.messages(e), nil
}
