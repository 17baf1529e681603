package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
)

// A Selection is a query whose result is read by columns.
type Selection struct {
	Statement string // {db} is replaced by the name of the database
	// Copies are the columns of the external table copies; nil: the statement has none.
	Copies  proto.Input
	Columns proto.Results // of the result
}

// SelectColumns runs a query as the reader, on a connection of its own. It reads one block of the result after the
// other into the columns, and calls each for the rows of each block. Meanwhile the server waits, for up to ScanTimeout.
func (db *DB) SelectColumns(ctx context.Context, q Selection, each func(rows int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, err := db.dial(ctx, db.cfg.ReaderLogin())
	if err != nil {
		return err
	}
	defer w.close()
	defer w.bindContext(ctx)()
	var settings []proto.Setting
	query := querySettings()
	query["send_timeout"] = int(ScanTimeout.Seconds())
	for name, value := range query {
		settings = append(settings, proto.Setting{Key: name, Value: fmt.Sprint(value), Important: true})
	}
	silent := time.AfterFunc(QueryTimeout, func() { cancel(fmt.Errorf("the server is silent for %s", QueryTimeout)) })
	defer silent.Stop()
	if err := w.query(db.Name(q.Statement), schemas.NewID(), settings, q.Copies); err != nil {
		return cause(ctx, err)
	}
	for {
		code, err := w.readPacket(func() error {
			n, err := w.readBlock(q.Columns)
			if err != nil || n == 0 {
				return err
			}
			silent.Stop()
			return each(n)
		})
		if err != nil {
			return cause(ctx, err)
		}
		if code == proto.ServerCodeEndOfStream {
			return nil
		}
		silent.Reset(QueryTimeout)
	}
}
