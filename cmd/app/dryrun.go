package app

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// DryRun publishes a command about an item that changes nothing: copier and deleter observe both stores, decide, and
// report the decision. It returns the id of the command.
func (a *App) DryRun(ctx context.Context, source schemas.Copy, destination string) (string, error) {
	for _, store := range []string{source.Store, destination} {
		if _, err := a.stores.configured(StoreName{Account: source.Account, Store: store}); err != nil {
			return "", err
		}
	}
	c := &pb.DuplicationCommand{
		Id: schemas.NewID(), Account: source.Account, Space: source.Space, Item: source.Item,
		SourceStore: source.Store, DestinationStore: destination,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_MANUAL, Priority: pb.Priority_PRIORITY_HIGH,
		Time: timestamppb.Now(), DryRun: true,
	}
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.DuplicationHigh, Body: c}); err != nil {
		return "", fmt.Errorf("publish a dry run: %w", err)
	}
	return c.GetId(), nil
}
