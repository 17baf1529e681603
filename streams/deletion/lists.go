package deletion

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/retry"
)

// A Listed is an item whose delete, or rewrite, is on a list, or the space itself: then Item is empty.
type Listed struct {
	Item, SourceStore string
	// Deleted is when the source was deleted, as was known of the delete that is approved.
	Deleted time.Time
	// Approved reports whether it was on the list when the operator saw it.
	Approved bool
	Reason   pb.DuplicationReason
	// Changed, Version and Digests are those of the source's content, for a rewrite.
	Changed time.Time
	Version string
	Digests digest.Set
}

// A ListPage selects items of a list.
type ListPage struct {
	Space schemas.Copy
	List  string
	Until time.Time // when the operator saw the list
	After string    // the last item of the page before
}

// Lists has the deletes and rewrites that wait for approval.
type Lists interface {
	// Waiting returns items of a list that have no result since it was approved or refused, in the order of items; none
	// if there are no more. The first page includes everything that was published before the call.
	Waiting(ctx context.Context, p ListPage) ([]Listed, error)
	// Decide records the decision about a list before it is carried out. It reports whether the decision counts: if
	// there was another one before, it does not.
	Decide(ctx context.Context, space schemas.Copy, list string, by Decision) (bool, error)
	// Ordered reports that all that follows from the decision about a list was ordered.
	Ordered(ctx context.Context, space schemas.Copy, list, detail string) error
}

// A Decision is that of an operator about a list.
type Decision struct {
	Who, Action, Why string
	Refused          bool // otherwise approved
}

// order orders the deletes, or the rewrites, of an approved list, and closes the list before. Those that were put on it
// after the operator saw it are ordered without approval, and so come to the next list or are done. A repeated
// execution orders only those without a result, under the same ids.
func (e *Deleter) order(ctx context.Context, c *pb.DeletionCommand, attempt int) ([]schemas.Message, error) {
	w := &execution{cfg: e.cfg, command: c, attempt: attempt, started: time.Now()}
	_, list := listOf(c)
	end := ending{row: duplicate.RowDeleteHeld, result: "deletes-ordered", list: list,
		outcome: pb.Outcome_OUTCOME_HANDED_ON, detail: orderedBefore}
	if kindOf(list) == brake.Rewrites {
		end.row, end.result = duplicate.RowContentDiffers, "rewrites-ordered"
	}
	approved, later := 0, 0
	lost, err := e.workOff(ctx, c, func(_ context.Context, page []Listed) ([]schemas.Message, error) {
		messages := make([]schemas.Message, len(page))
		for i, l := range page {
			if messages[i] = listedMessage(c, l); l.Approved {
				approved++
			} else {
				later++
			}
		}
		return messages, nil
	}, func() string {
		end.detail = describeOrders(approved, kindOf(list).String(), later)
		return end.detail
	})
	if err != nil {
		return nil, err
	}
	if lost != "" {
		end.result, end.detail, end.outcome = "not-ordered", lost, pb.Outcome_OUTCOME_NOTHING
	}
	return w.messages(end), nil
}

// orderedBefore is the detail of a decision that an interrupted attempt has carried out.
const orderedBefore = "an earlier attempt ordered all of it"

// workOff carries out the decision about a list: it records it, closes the list, and publishes what work returns for
// each page of the list. detail says at the end what was ordered. lost says why another decision counts; empty if this
// one does.
func (e *Deleter) workOff(
	ctx context.Context, c *pb.DeletionCommand,
	work func(context.Context, []Listed) ([]schemas.Message, error), detail func() string,
) (lost string, err error) {
	space, list := listOf(c)
	b := e.cfg.Brake
	if kindOf(list) == brake.Rewrites {
		b = e.cfg.Rewrites
	}
	if b == nil {
		return "", retry.Permanent(fmt.Errorf("work off list %s of %s: there is no brake on rewrites", list, space))
	}
	by := Decision{Who: c.GetApproved(), Action: c.GetCause(), Why: c.GetWhy(), Refused: c.GetRefuseList() != ""}
	counts, err := e.cfg.Lists.Decide(ctx, space, list, by)
	switch {
	case err != nil:
		return "", fmt.Errorf("record the decision about list %s of %s: %w", list, space, err)
	case !counts && b.Closed(space, list):
		return "the list was closed before", nil
	case !counts:
		return "another operator decided before", nil
	case b.Closed(space, list): // an attempt that was interrupted has carried it out
		return "", nil
	}
	if err := b.Close(ctx, space, list); err != nil {
		return "", fmt.Errorf("close list %s of %s: %w", list, space, err)
	}
	for p := (ListPage{Space: space, List: list, Until: c.GetTime().AsTime()}); ; {
		page, err := e.cfg.Lists.Waiting(ctx, p)
		if err != nil {
			return "", retry.Unavailable(fmt.Errorf("read list %s of %s: %w", list, space, err))
		}
		if len(page) == 0 {
			break
		}
		messages, err := work(ctx, page)
		if err == nil {
			err = b.Publish(ctx, messages...)
		}
		if err != nil {
			return "", fmt.Errorf("order the work of list %s of %s: %w", list, space, err)
		}
		last := page[len(page)-1].Item
		if last == p.After { // the list has only the delete of the space, whose item is empty
			break
		}
		p.After = last
		retry.Alive(ctx)
	}
	if err := e.cfg.Lists.Ordered(ctx, space, list, detail()); err != nil {
		return "", fmt.Errorf("report that the work of list %s of %s is ordered: %w", list, space, err)
	}
	return "", nil
}

// listOf returns the space and the list that a command without an item is about.
func listOf(c *pb.DeletionCommand) (space schemas.Copy, list string) {
	space = schemas.Copy{Account: c.GetAccount(), Store: c.GetDestinationStore(), Space: c.GetSpace()}
	return space, cmp.Or(c.GetApproveList(), c.GetRefuseList())
}

// kindOf returns what is on a list.
func kindOf(list string) brake.Kind {
	if brake.ReasonOf(list) == brake.ReasonRewrites {
		return brake.Rewrites
	}
	return brake.Deletes
}

// describeOrders says what was ordered.
func describeOrders(n int, what string, later int) string {
	detail := fmt.Sprintf("%d %s", n, what)
	if later > 0 {
		detail += fmt.Sprintf("; %d that were put on the list after the decision are ordered without approval", later)
	}
	return detail
}

// listedMessage returns the command for what is on a list, with the approval if it has one.
func listedMessage(order *pb.DeletionCommand, l Listed) schemas.Message {
	if _, list := listOf(order); kindOf(list) == brake.Rewrites {
		return schemas.Message{Topic: schemas.DuplicationLow, Body: listedRewrite(order, l)}
	}
	return schemas.Message{Topic: schemas.Deletions, Body: listedCommand(order, l)}
}

// listedCommand returns the command for a delete on a list, with the approval if it has one. Its result has the list as
// its cause.
func listedCommand(order *pb.DeletionCommand, l Listed) *pb.DeletionCommand {
	_, list := listOf(order)
	account, destination := order.GetAccount(), order.GetDestinationStore()
	c := &pb.DeletionCommand{
		Id:      schemas.ID("listed", list, account, destination, order.GetSpace(), l.Item),
		Account: account, Space: order.GetSpace(), Item: l.Item,
		SourceStore: l.SourceStore, DestinationStore: destination, Command: list, Cause: list,
		Deleted: timestamppb.New(l.Deleted), Reason: l.Reason, Time: order.GetTime(),
		Approved: order.GetApproved(), List: list,
	}
	if !l.Approved {
		c.Id, c.List, c.Approved = schemas.ID("later", c.GetId()), "", ""
		c.NeedsApproval = brake.ReasonOf(list) == brake.ReasonApproval
	}
	return c
}

// listedRewrite is listedCommand for a rewrite. The approval is one of the source's content that was on the list. The
// command has the class low, so that a long list delays no change.
func listedRewrite(order *pb.DeletionCommand, l Listed) *pb.DuplicationCommand {
	_, list := listOf(order)
	account, destination := order.GetAccount(), order.GetDestinationStore()
	c := &pb.DuplicationCommand{
		Id:      schemas.ID("listed", list, account, destination, order.GetSpace(), l.Item),
		Account: account, Space: order.GetSpace(), Item: l.Item,
		SourceStore: l.SourceStore, DestinationStore: destination, Cause: list,
		ChangeTime: timestamppb.New(l.Changed), ChangeVersion: l.Version, Digests: l.Digests, SizeUnknown: true,
		Reason: l.Reason, Priority: pb.Priority_PRIORITY_LOW, Time: order.GetTime(),
		Approved: order.GetApproved(), List: list,
	}
	if !l.Approved {
		c.Id, c.List, c.Approved = schemas.ID("later", c.GetId()), "", ""
	}
	return c
}
