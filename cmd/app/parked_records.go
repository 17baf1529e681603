package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// deleteAge is how old the records may be from which a delete is decided. Its task may have waited for long for a worker
	// and its slots, and a record that came meanwhile may say that the source was written again. What a copier does is
	// conditional on what it saw after its records, and a checker compares them with what it saw before.
	maxDeleteAge = 10 * time.Second
	// freshReads bounds how often one task reads them.
	maxFreshReads = 4
)

// parked reads records afresh for the tasks of Pools: a task holds no worker while it waits for them.
type parkedRecords struct {
	records duplicate.Records
	maxAge  time.Duration // of the records when the task goes on, at most; 0: any
}

var _ duplicate.Records = parkedRecords{}

// Fresh implements duplicate.Records. Records that are too old when the task goes on are read again.
func (p parkedRecords) Fresh(ctx context.Context, copies []schemas.Copy) (records []*pb.CopyRecord, err error) {
	for range maxFreshReads {
		var read time.Time
		err = kafka.Park(ctx, func(ctx context.Context) (err error) {
			records, err = p.records.Fresh(ctx, copies)
			read = time.Now()
			return err
		})
		if err != nil || p.maxAge == 0 || time.Since(read) <= p.maxAge {
			return records, err
		}
	}
	return nil, retry.Unavailable(fmt.Errorf("records were older than %s each of %d times that the task went on", p.maxAge, maxFreshReads))
}
