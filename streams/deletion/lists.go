package deletion

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
)

// A Listed is an item whose delete, or rewrite, is on a list, or the space itself: then Item is empty. Of several
// effects on one item it is the newest.
type Listed struct {
	Item, SourceStore string
	Effect            string
	Incident          string // that ordered a repair
	// Deleted is when the source was deleted, as was known when the delete was held.
	Deleted time.Time
	Reason  pb.DuplicationReason
	// Changed, Version and Digests are those of the source's content, for a rewrite.
	Changed time.Time
	Version string
	Digests digest.Set
}

// Lists holds deletes, and has what waits.
type Lists interface {
	held.Lists
	// Decide records that the decision with an id about a list is carried out. It returns why it is not, if another
	// decision was made before; else "".
	Decide(ctx context.Context, l held.List, id string) (lost string, err error)
	// Waiting returns items of a list that was decided about and that have no result since, in their order, after one;
	// none if there are no more. The first page includes everything that was published before the call.
	Waiting(ctx context.Context, l held.List, after string) ([]Listed, error)
	// Ordered reports that all that follows from the decision about a list was ordered.
	Ordered(ctx context.Context, l held.List, detail string) error
}

// decideList carries out the decision about a list: it orders the deletes, the rewrites or the repairs of an approved
// one, and for a refused one that the sources get their content back. A repeated execution orders only what has no
// result, under the same ids.
func (e *Deleter) decideList(ctx context.Context, c *pb.DeletionCommand, attempt int) ([]schemas.Message, error) {
	w := &execution{cfg: e.cfg, command: c, attempt: attempt, started: time.Now()}
	l, err := listOf(c)
	if err != nil {
		return nil, err
	}
	end := ending{row: duplicate.RowDeleteHeld, list: l.Name(), outcome: pb.Outcome_OUTCOME_HANDED_ON}
	what, not := string(l.Kind.Act()), "not-ordered"
	work := func(_ context.Context, page []Listed) ([]schemas.Message, error) {
		messages := make([]schemas.Message, len(page))
		for i, one := range page {
			messages[i] = listedMessage(c, l, one)
		}
		return messages, nil
	}
	switch {
	case c.GetApproveList() == "":
		what, not, work = "restores", "not-refused", (&refusal{e, c, attempt, w.started}).page
		end.row = duplicate.RowRestore
	case l.Kind.Act() == held.Rewrite:
		end.row = duplicate.RowContentDiffers
	case l.Kind.Act() == held.Repair:
		end.row = duplicate.RowRepair
	}
	n, lost, err := e.workOff(ctx, c, l, what, work)
	switch {
	case err != nil:
		return nil, err
	case lost != "":
		end.result, end.detail, end.outcome = not, lost, pb.Outcome_OUTCOME_NOTHING
	default:
		end.result, end.detail = what+"-ordered", fmt.Sprintf("%d %s", n, what)
	}
	return w.messages(end), nil
}

// workOff publishes what work returns for each page of a list, and how many items it had. what names the orders. lost
// says why another decision counts; empty if this one does.
func (e *Deleter) workOff(
	ctx context.Context, c *pb.DeletionCommand, l held.List, what string,
	work func(context.Context, []Listed) ([]schemas.Message, error),
) (ordered int, lost string, err error) {
	if lost, err = e.cfg.Lists.Decide(ctx, l, c.GetCause()); err != nil || lost != "" {
		if err != nil {
			err = fmt.Errorf("record the decision about list %s of %s: %w", l.Name(), l.Space, err)
		}
		return 0, lost, err
	}
	for after := ""; ; {
		page, err := e.cfg.Lists.Waiting(ctx, l, after)
		if err != nil {
			return 0, "", retry.Unavailable(fmt.Errorf("read list %s of %s: %w", l.Name(), l.Space, err))
		}
		if len(page) == 0 {
			break
		}
		messages, err := work(ctx, page)
		if err == nil {
			err = e.cfg.Publisher.Publish(ctx, messages...)
		}
		if err != nil {
			return 0, "", fmt.Errorf("order the work of list %s of %s: %w", l.Name(), l.Space, err)
		}
		ordered += len(page)
		last := page[len(page)-1].Item
		if last == after { // the list has only the delete of the space, whose item is empty
			break
		}
		after = last
		retry.Alive(ctx)
	}
	if err := e.cfg.Lists.Ordered(ctx, l, fmt.Sprintf("%d %s", ordered, what)); err != nil {
		return 0, "", fmt.Errorf("report that the work of list %s of %s is ordered: %w", l.Name(), l.Space, err)
	}
	return ordered, "", nil
}

// listOf returns the list that a command without an item is about.
func listOf(c *pb.DeletionCommand) (held.List, error) {
	space := schemas.Copy{Account: c.GetAccount(), Store: c.GetDestinationStore(), Space: c.GetSpace()}
	name := cmp.Or(c.GetApproveList(), c.GetRefuseList())
	l, ok := held.Named(space, name)
	if !ok {
		return l, retry.Permanent(fmt.Errorf("decide about list %q of %s: there is no such list", name, space))
	}
	return l, nil
}

// listedMessage returns the command for what is on an approved list.
func listedMessage(order *pb.DeletionCommand, l held.List, one Listed) schemas.Message {
	id := schemas.ID("listed", l.Name(), l.Space.Account, l.Space.Store, l.Space.Space, one.Item, one.Effect)
	if l.Kind.Act() != held.Delete { // of class low, so that a long list delays no change
		c := &pb.DuplicationCommand{
			Id: id, Account: l.Space.Account, Space: l.Space.Space, Item: one.Item,
			SourceStore: one.SourceStore, DestinationStore: l.Space.Store, Cause: l.Name(),
			ChangeTime: timestamppb.New(one.Changed), ChangeVersion: one.Version, Digests: one.Digests, SizeUnknown: true,
			Reason: one.Reason, Priority: pb.Priority_PRIORITY_LOW, Time: order.GetTime(),
			Approved: order.GetApproved(), List: l.Name(), Effect: one.Effect,
		}
		if l.Kind.Act() == held.Repair {
			c.Repair = &pb.RepairOrder{Incident: one.Incident, Digests: one.Digests}
		}
		return schemas.Message{Topic: schemas.DuplicationLow, Body: c}
	}
	return schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
		Id: id, Account: l.Space.Account, Space: l.Space.Space, Item: one.Item,
		SourceStore: one.SourceStore, DestinationStore: l.Space.Store, Command: l.Name(), Cause: l.Name(),
		Deleted: timestamppb.New(one.Deleted), Reason: one.Reason, Time: order.GetTime(),
		Approved: order.GetApproved(), List: l.Name(), Effect: one.Effect,
	}}
}
