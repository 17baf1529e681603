package clickhouse

import (
	"context"
	"errors"
	"fmt"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// Error codes of the server that this package branches on.
const (
	codeUnknownTable    = 60
	codeUnknownDatabase = 81
	codeReadOnly        = 164
	codeUnknownUser     = 192
	codeWrongPassword   = 193
	codeNoPassword      = 194
	codeAddressRefused  = 195
	codeTableReadOnly   = 242
	codeAccessDenied    = 497
	codeAuthentication  = 516
)

// translate classifies an error of a call to ClickHouse as unavailable. A row cannot be the cause: rows are checked
// before they are sent. So every error is about the server, and the work waits until the server is available.
func translate(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return retry.Unavailable(err)
}

func hasCode(err error, code int32) bool {
	var e *ch.Exception
	return errors.As(err, &e) && e.Code == code
}

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
