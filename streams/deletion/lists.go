package deletion

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/retry"
)

// A Listed is an item whose delete is on a list.
type Listed struct {
	Item, SourceStore string
	// Deleted is when the source was deleted, as was known of the delete that is approved.
	Deleted time.Time
	// Approved reports whether the delete was on the list when the operator saw it.
	Approved bool
	Reason   pb.DuplicationReason
}

// A ListPage selects items of a list.
type ListPage struct {
	Space schemas.Copy
	List  string
	Until time.Time // when the operator saw the list
	After string    // the last item of the page before
}

// Lists has the deletes that wait for approval.
type Lists interface {
	// Waiting returns items of a list whose deletes have no result since it was approved, in the order of items; none if
	// there are no more. The first page includes everything that was published before the call.
	Waiting(ctx context.Context, p ListPage) ([]Listed, error)
	// Ordered reports that the deletes of a list were ordered.
	Ordered(ctx context.Context, space schemas.Copy, list string, by Approval) error
}

// An Approval is an operator's approval of a list.
type Approval struct{ Who, Action string }

// order orders the deletes of an approved list, and closes the list before. Deletes that were put on it after the
// operator saw it are ordered without approval, and so come to the next list or are done. A repeated execution orders
// only those without a result, under the same ids.
func (e *Deleter) order(ctx context.Context, c *pb.DeletionCommand, attempt int) ([]schemas.Message, error) {
	w := &execution{cfg: e.cfg, command: c, attempt: attempt, started: time.Now()}
	space := schemas.Copy{Account: c.GetAccount(), Store: c.GetDestinationStore(), Space: c.GetSpace()}
	list := c.GetApproveList()
	b := e.cfg.Brake
	end := ending{row: duplicate.RowDeleteHeld, result: "deletes-ordered", list: list,
		outcome: pb.Outcome_OUTCOME_HANDED_ON}
	if b.deps.Closed(space, list) {
		end.result, end.detail, end.outcome = "not-ordered", "the list was closed before", pb.Outcome_OUTCOME_NOTHING
		return w.messages(end), nil
	}
	if err := b.close(ctx, space, list); err != nil {
		return nil, fmt.Errorf("close list %s of %s: %w", list, space, err)
	}
	approved, later := 0, 0
	for p := (ListPage{Space: space, List: list, Until: c.GetTime().AsTime()}); ; {
		page, err := e.cfg.Lists.Waiting(ctx, p)
		if err != nil {
			return nil, retry.Unavailable(fmt.Errorf("read list %s of %s: %w", list, space, err))
		}
		if len(page) == 0 {
			break
		}
		messages := make([]schemas.Message, len(page))
		for i, l := range page {
			m := listedCommand(c, l)
			if !l.Approved {
				m.Id, m.List, m.Approved = schemas.ID("later", m.GetId()), "", ""
				m.NeedsApproval = ReasonOf(list) == ReasonApproval
				later++
			} else {
				approved++
			}
			messages[i] = schemas.Message{Topic: schemas.Deletions, Body: m}
		}
		if err := b.deps.Publisher.Publish(ctx, messages...); err != nil {
			return nil, fmt.Errorf("order the deletes of list %s of %s: %w", list, space, err)
		}
		p.After = page[len(page)-1].Item
		retry.Alive(ctx)
	}
	if err := e.cfg.Lists.Ordered(ctx, space, list, Approval{c.GetApproved(), c.GetCause()}); err != nil {
		return nil, fmt.Errorf("report that the deletes of list %s of %s are ordered: %w", list, space, err)
	}
	end.detail = fmt.Sprintf("%d deletes", approved)
	if later > 0 {
		end.detail += fmt.Sprintf("; %d that were put on the list after the decision are ordered without approval",
			later)
	}
	return w.messages(end), nil
}

// listedCommand returns the command for an approved delete. Its result has the list as its cause.
func listedCommand(order *pb.DeletionCommand, l Listed) *pb.DeletionCommand {
	list, account, destination := order.GetApproveList(), order.GetAccount(), order.GetDestinationStore()
	return &pb.DeletionCommand{
		Id:      schemas.ID("listed", list, account, destination, order.GetSpace(), l.Item),
		Account: account, Space: order.GetSpace(), Item: l.Item,
		SourceStore: l.SourceStore, DestinationStore: destination, Command: list, Cause: list,
		Deleted: timestamppb.New(l.Deleted), Reason: l.Reason, Time: order.GetTime(),
		Approved: order.GetApproved(), List: list,
	}
}
