package clickhouse

import (
	"context"
	"fmt"
	"net"
	"time"

	chgo "github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
)

// A blockConn is a connection that inserts and selects whole blocks. Its client sends and receives columns as they are
// in memory; the columns of clickhouse-go use reflection for each value.
type blockConn struct {
	*chgo.Client
	conn net.Conn
	buf  *proto.Buffer // the client's
}

// do runs one query. After an error, and once ctx is done, the connection is closed.
func (w *blockConn) do(ctx context.Context, q chgo.Query) error {
	q.QueryID += schemas.NewID()
	// The client itself notices only between packets that ctx is done.
	stop := context.AfterFunc(ctx, func() { w.conn.SetDeadline(time.Unix(1, 0)) })
	err := w.Do(ctx, q)
	if !stop() || err != nil {
		w.Close()
	}
	return cause(ctx, err)
}

// cause wraps err in the cause of ctx, if ctx is done: then the connection timed out because of it.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return err
}

// An Insertion is one INSERT statement with one block.
type Insertion struct {
	Name     string // begins the query ids of its attempts
	Into     string // INSERT INTO t (a, b) VALUES
	Settings []chgo.Setting
	Columns  proto.Input
}

// Insert runs one insertion on a connection that no other insertion uses. At most connections of them run at once.
// After an error it is unknown whether the rows were stored.
func (db *DB) Insert(ctx context.Context, q Insertion) error {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	select {
	case db.slots <- struct{}{}:
		defer func() { <-db.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		w, reused, err := db.getConn(ctx)
		if err != nil {
			return err
		}
		// Each attempt has its own query id: an earlier attempt may still run, and the server refuses a second query with
		// the same id. The earlier attempt is harmless: its rows have the same ids, and the views show one row for each id.
		err = w.do(ctx, chgo.Query{Body: q.Into, QueryID: q.Name + "/", Settings: q.Settings, Input: q.Columns})
		if err == nil {
			db.putConn(w)
			return nil
		}
		// A reused connection is dead if its server was restarted.
		if !reused || codeOf(err) != 0 || ctx.Err() != nil {
			return err
		}
	}
}

// getConn returns an idle connection, or dials a new one.
func (db *DB) getConn(ctx context.Context) (_ *blockConn, reused bool, err error) {
	select {
	case w := <-db.idle:
		return w, true, nil
	default:
		w, err := db.dial(ctx, db.cfg.WriterLogin())
		return w, false, err
	}
}

func (db *DB) putConn(w *blockConn) {
	if cap(w.buf.Buf) > 8*maxKeptBytes { // it is empty
		w.buf.Buf = nil
	}
	select {
	case db.idle <- w:
	default:
		w.Close()
	}
}

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
	defer w.Close()
	settings := []chgo.Setting{chgo.SettingInt("send_timeout", int(ScanTimeout.Seconds()))}
	for name, value := range querySettings() {
		settings = append(settings, chgo.Setting{Key: name, Value: fmt.Sprint(value), Important: true})
	}
	silent := time.AfterFunc(QueryTimeout, func() { cancel(fmt.Errorf("the server is silent for %s", QueryTimeout)) })
	defer silent.Stop()
	var failed error
	err = w.do(ctx, chgo.Query{
		Body: db.Name(q.Statement), Settings: settings, ExternalTable: "copies", ExternalData: q.Copies, Result: q.Columns,
		OnProgress: func(context.Context, proto.Progress) error {
			silent.Reset(QueryTimeout)
			return nil
		},
		OnResult: func(_ context.Context, b proto.Block) error {
			silent.Stop()
			defer silent.Reset(QueryTimeout)
			if b.Rows > 0 {
				failed = each(b.Rows)
			}
			return failed
		},
	})
	if failed != nil {
		return failed
	}
	return err
}
