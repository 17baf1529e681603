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
	// maxDeleteAge is the maximum age of the records from which a delete is decided. A task may wait
	// long for a worker and its slots, and a newer record may say that the source was written again.
	// Copiers need no such limit, since their writes are conditional on a state read after the
	// records; checkers compare the records with a state read before them.
	maxDeleteAge = 10 * time.Second
	// maxFreshReads is the number of attempts of one task to get records that are new enough.
	maxFreshReads = 4
)

// parkedRecords reads fresh records for the tasks of Pools. A task is parked meanwhile: it occupies
// no worker.
type parkedRecords struct {
	records duplicate.Records
	maxAge  time.Duration // of the records when the task resumes; 0: any
}

var _ duplicate.Records = parkedRecords{}

// Fresh implements duplicate.Records. It repeats the read if the records are older than maxAge when
// the task resumes.
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
	return nil, retry.Unavailable(fmt.Errorf(
		"read records %d times: each time they were older than %s when the task resumed", maxFreshReads, p.maxAge))
}
