package clickhouse

import (
	"fmt"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A RowError names a record that cannot become a row, and why. It is permanent: no retry helps. No record of its
// batch was stored.
type RowError struct {
	Topic     schemas.Topic
	Partition int32
	Offset    int64
	Field     string
	Err       error
}

func (e *RowError) Error() string {
	return fmt.Sprintf("make a row of %s/%d@%d: field %s: %v", e.Topic, e.Partition, e.Offset, e.Field, e.Err)
}

// Unwrap returns the cause.
func (e *RowError) Unwrap() error { return e.Err }

// Record returns the topic, partition and offset of the record.
func (e *RowError) Record() (topic schemas.Topic, partition int32, offset int64) {
	return e.Topic, e.Partition, e.Offset
}

func rowError(d *schemas.Delivery, field string, err error) error {
	return retry.Permanent(&RowError{d.From, d.Partition, d.Offset, field, err})
}
