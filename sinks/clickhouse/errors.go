package clickhouse

import (
	"context"
	"errors"
	"fmt"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// Codes of the server that this package branches on.
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

// translate classes what a call of ClickHouse returned. No row is at fault here: rows
// are checked before they are sent, so whatever the engine answers, or fails to
// answer, is about the engine, and the work waits for it.
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

// A RowError says which record cannot become a row, and why. It is permanent: no retry
// cures it. Nothing of its batch has been stored.
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

// Unwrap returns the reason.
func (e *RowError) Unwrap() error { return e.Err }

// Record returns where the record stands.
func (e *RowError) Record() (topic schemas.Topic, partition int32, offset int64) {
	return e.Topic, e.Partition, e.Offset
}

func rowError(d *schemas.Delivery, field string, err error) error {
	return retry.Permanent(&RowError{d.From, d.Partition, d.Offset, field, err})
}
