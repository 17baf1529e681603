package app

import (
	"context"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/kafka"
)

// recordsAge is how old records may be when a task that was parked goes on. It may have waited for long for a worker and
// its slots by then, and decides from the records and a look of now.
const recordsAge = time.Second

// parked reads records afresh for the tasks of Pools: a task holds no worker while it waits for them.
type parked struct{ records duplicate.Records }

var _ duplicate.Records = parked{}

// Fresh implements duplicate.Records. Records that are too old when the task goes on are read again, by a task that has
// its worker and slots: it need not wait for these once more.
func (p parked) Fresh(ctx context.Context, copies []schemas.Copy) (records []*pb.CopyRecord, err error) {
	var read time.Time
	err = kafka.Park(ctx, func(ctx context.Context) (err error) {
		records, err = p.records.Fresh(ctx, copies)
		read = time.Now()
		return err
	})
	if err == nil && time.Since(read) > recordsAge {
		return p.records.Fresh(ctx, copies)
	}
	return records, err
}
