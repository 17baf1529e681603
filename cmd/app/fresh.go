package app

import (
	"context"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/kafka"
)

// parked reads records afresh for the tasks of Pools: a task holds no worker while it waits for them.
type parked struct{ records duplicate.Records }

var _ duplicate.Records = parked{}

// Fresh implements duplicate.Records.
func (p parked) Fresh(ctx context.Context, copies []schemas.Copy) (records []*pb.CopyRecord, err error) {
	err = kafka.Park(ctx, func(ctx context.Context) (err error) {
		records, err = p.records.Fresh(ctx, copies)
		return err
	})
	return records, err
}
