package app

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A CheckRequest requests the check of one copy, ahead of the scheduled checks.
type CheckRequest struct {
	Copy   schemas.Copy
	Reason pb.FixityReason
	Cause  string // the id of what asks for it; it asks for one check of a copy
	Size   int64  // in bytes; 0: unknown
	Time   time.Time
}

// task returns the task of the check. Its id is a function of cause and copy. The checker reads the records itself.
func (r CheckRequest) task(large int64) schemas.Message {
	topic, priority := schemas.FixityHigh, pb.Priority_PRIORITY_HIGH
	if large > 0 && r.Size >= large {
		topic, priority = schemas.FixityLarge, pb.Priority_PRIORITY_LARGE
	}
	return schemas.Message{Topic: topic, Body: &pb.FixityTask{
		Id:      schemas.ID("requested", r.Cause, r.Copy.String()),
		Account: r.Copy.Account, Store: r.Copy.Store, Space: r.Copy.Space, Item: r.Copy.Item,
		Reason: r.Reason, Priority: priority, Cause: r.Cause, Size: r.Size, Time: timestamppb.New(r.Time),
	}}
}

// CheckIncident requests a check of the copy of an incident. cause is the id of the request.
func (a *App) CheckIncident(ctx context.Context, i *pb.Incident, cause string) error {
	if i.GetItem() == "" {
		return fmt.Errorf("%w: incident %s: it is about no copy that could be checked",
			precondition.Err, schemas.IncidentKey(i))
	}
	if _, err := a.stores.configured(StoreName{i.GetAccount(), i.GetStore()}); err != nil {
		return fmt.Errorf("incident %s: %w", schemas.IncidentKey(i), err)
	}
	r := CheckRequest{Copy: schemas.CopyOf(i), Reason: pb.FixityReason_FIXITY_REASON_DEMAND, Cause: cause,
		Size: i.GetObject().GetSize(), Time: time.Now()}
	if err := a.producer.Publish(ctx, r.task(int64(a.cfg.Duplication.LargeThreshold))); err != nil {
		return fmt.Errorf("request the check of %s: %w", r.Copy, err)
	}
	return nil
}
