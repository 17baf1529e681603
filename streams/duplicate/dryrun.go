package duplicate

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// ResultDryRun is the field result of dry runs. The field would_be has the result that the command would have ended
// with. So that no reader takes a dry run for a fact, result has none of the words of other commands.
const ResultDryRun = "dry-run"

// dryRun observes and decides once, and changes nothing: both stores are read-only here, and the only messages are the
// result and, if the decision is a delete, the dry run of the delete. What is found only while bytes are streamed is
// not found by a dry run.
func (w *execution) dryRun(ctx context.Context) error {
	if w.Command.GetItem() == "" || w.Command.GetRestore() != nil {
		return retry.Permanent(errors.New("a dry run needs an item, and no restore order"))
	}
	if w.Store != nil {
		w.Store = storage.ReadOnly(w.Store)
	}
	s := w.Observe(ctx)
	d, err := w.Decide(ctx, &s)
	if err != nil {
		return fmt.Errorf("decide dry run %s: %w", w.Command.GetId(), err)
	}
	switch w.detail = d.Detail; d.action {
	case actCopy:
		if d.Result, w.detail, err = w.dryRunResult(ctx, s, d); err != nil {
			return err
		}
	case actWait:
		w.detail = "after it has waited for the source"
	case actDelete:
		w.emit(schemas.Deletions, w.deletionCommand(s, d))
	}
	w.finish(d, pb.Outcome_OUTCOME_NOTHING)
	return nil
}
