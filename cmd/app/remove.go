package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/policy"
)

// ActionDelete is the action of an operator who asks for the delete of copies.
const ActionDelete = "delete-copies"

// removalPage is the number of items whose records are read at once.
const removalPage = 250

// A RemovalRequest selects copies in one store that nobody needs any more.
type RemovalRequest struct {
	Account, Space, Store string
	Items                 []string
	// Prefix selects, in place of Items, all items whose ids begin so and whose copies may be removed; nil: Items.
	Prefix *string
	By     Actor
	DryRun bool
}

// A RemovalReport is the result of Remove.
type RemovalReport struct {
	Action  string          `json:"action"`  // its id, which is the cause of the orders
	Ordered int64           `json:"ordered"` // copies whose delete was ordered, or would be
	Stay    int64           `json:"stay"`    // of a prefix: items without a copy there, or whose copy is wanted
	Copies  []string        `json:"copies"`  // items of the first orders
	Outcome *RestoreOutcome `json:"outcome,omitempty"`
	query   read.RestorationQuery
}

// accountOf returns what a decision about the delete of a copy needs to know of an account.
func (a *App) accountOf(r *policy.Registry, account string) deletion.Account {
	faults := r.Faults(account)
	return deletion.Account{Stores: a.stores.IDs(account), Primary: a.primaryOf(account),
		Unsure: errors.Join(faults.Gap, faults.Unread)}
}

// Remove orders the delete of copies that the policies in force do not want, according to the records. The deleter
// decides again, and holds each delete until a person has approved the list. If one of Items may not be removed,
// nothing is ordered, and the error wraps precondition.Err.
func (a *App) Remove(ctx context.Context, r RemovalRequest) (report RemovalReport, err error) {
	if _, err := a.stores.configured(StoreName{r.Account, r.Store}); err != nil {
		return report, err
	}
	done := r.By.action(ActionDelete, schemas.Key(r.Account, r.Store, r.Space))
	done.Account, done.Store, done.Space = r.Account, r.Store, r.Space
	done.Time = timestamppb.New(time.Now().Truncate(time.Millisecond)) // with the precision of the tables
	report = RemovalReport{Action: done.GetId(), Copies: []string{}, query: read.RestorationQuery{Account: r.Account,
		Space: r.Space, Action: done.GetId(), Made: done.GetTime().AsTime(), Limit: maxProblems}}
	err = a.withPolicies(ctx, func(ctx context.Context, policies *policy.Registry) error {
		if err := a.freshTables(ctx); err != nil {
			return err
		}
		w := deletion.Removal{Account: a.accountOf(policies, r.Account)}
		w.Rules, _ = policies.Rules(r.Account, r.Space)
		var orders []schemas.Message
		page := func(items []string) error {
			more, err := a.removals(ctx, r, w, items, done)
			orders = append(orders, more...)
			report.Stay += int64(len(items) - len(more))
			return err
		}
		if r.Prefix == nil {
			for items := range slices.Chunk(r.Items, removalPage) {
				if err := page(items); err != nil {
					return err
				}
			}
			return a.orderRemovals(ctx, r, done, orders, &report)
		}
		q := read.ItemQuery{Account: r.Account, Space: r.Space, Prefix: *r.Prefix, Limit: removalPage}
		for {
			items, err := read.Items(ctx, a.db, q)
			if err != nil {
				return err
			}
			if err := page(items); err != nil {
				return err
			}
			if len(items) < q.Limit {
				return a.orderRemovals(ctx, r, done, orders, &report)
			}
			q.After = items[len(items)-1]
		}
	})
	return report, err
}

// removals returns the orders for items.
func (a *App) removals(
	ctx context.Context, r RemovalRequest, w deletion.Removal, items []string, done *pb.AdminAction,
) (orders []schemas.Message, err error) {
	var copies []schemas.Copy
	for _, item := range items {
		w.Copy = schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space, Item: item}
		copies = append(copies, w.Copies()...)
	}
	records, err := read.ManifestRecords(ctx, a.db, copies)
	if err != nil {
		return nil, err
	}
	n := len(w.Account.Stores)
	for i, item := range items {
		w.Copy.Item, w.Records = item, records[i*n:(i+1)*n]
		switch why := w.Refusal(); {
		case why == "":
		case r.Prefix == nil:
			return nil, fmt.Errorf("%w: nothing is ordered: the copy of %q in store %s is not deleted: %s", precondition.Err,
				item, r.Store, why)
		default:
			continue
		}
		orders = append(orders, schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
			Id: schemas.ID("removal", done.GetId(), item), Account: r.Account, Space: r.Space, Item: item,
			DestinationStore: r.Store, Reason: pb.DuplicationReason_DUPLICATION_REASON_MANUAL, Cause: done.GetId(),
			Command: done.GetId(), Deleted: done.GetTime(), Time: done.GetTime(), Why: r.By.Reason}})
	}
	return orders, nil
}

// Removed returns a ProgressFunc that counts the orders of a report that have a result.
func (a *App) Removed(report RemovalReport) ProgressFunc {
	return a.ended(report.query, report.Ordered)
}

// RemovalOutcome returns the results of the orders of a report. Those that wait for approval have not failed.
func (a *App) RemovalOutcome(ctx context.Context, report RemovalReport) (RestoreOutcome, error) {
	return a.outcome(ctx, report.query)
}

// orderRemovals publishes the action, and the orders.
func (a *App) orderRemovals(
	ctx context.Context, r RemovalRequest, done *pb.AdminAction, orders []schemas.Message, report *RemovalReport,
) error {
	report.Ordered = int64(len(orders))
	for _, m := range orders[:min(len(orders), maxProblems)] {
		report.Copies = append(report.Copies, m.Body.(*pb.DeletionCommand).GetItem())
	}
	if r.DryRun || len(orders) == 0 {
		return nil
	}
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: done}); err != nil {
		return fmt.Errorf("record the action: %w", err)
	}
	for part := range slices.Chunk(orders, ordersAtOnce) {
		if err := a.producer.Publish(ctx, part...); err != nil {
			return fmt.Errorf("publish orders to delete copies: %w", err)
		}
	}
	return nil
}
