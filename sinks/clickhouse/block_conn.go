package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/ClickHouse/ch-go/proto"
	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
)

// revision is the version of the native protocol for blocks. It is new enough for every column type of the tables,
// and old enough that the server sends few packets that this code must skip.
const revision = 54450

// A blockConn is a connection that inserts and selects whole blocks. It encodes and decodes columns with ch-go/proto,
// which sends and receives them as they are in memory; the columns of clickhouse-go use reflection for each value.
type blockConn struct {
	conn net.Conn
	in   *proto.Reader
	out  *proto.Writer
	buf  *proto.Buffer // out's
	rev  int
}

func (w *blockConn) close() { w.conn.Close() }

// An Insertion is one INSERT statement with one block.
type Insertion struct {
	Name     string // begins the query ids of its attempts
	Into     string // INSERT INTO t (a, b) VALUES
	Settings []proto.Setting
	Columns  proto.Input
}

// insert sends one block and waits for the server's response. After an error the connection must be closed. If sent
// is true, it is unknown whether the rows were stored.
func (w *blockConn) insert(ctx context.Context, q Insertion) (sent bool, err error) {
	defer w.bindContext(ctx)()
	// Each attempt has its own query id: an earlier attempt may still run, and the server refuses a second query with
	// the same id. The earlier attempt is harmless: its rows have the same ids, and the views show one row for each id.
	if err := w.query(q.Into, q.Name+"/"+schemas.NewID(), q.Settings, nil); err != nil {
		return false, cause(ctx, err)
	}
	if err := w.readUntil(proto.ServerCodeData); err != nil { // the server's empty block
		return false, cause(ctx, err)
	}
	if err := w.writeBlock("", q.Columns); err != nil {
		return false, err
	}
	if err := w.writeBlock("", nil); err != nil {
		return false, err
	}
	if _, err := w.out.Flush(); err != nil {
		return true, cause(ctx, err)
	}
	return true, cause(ctx, w.readUntil(proto.ServerCodeEndOfStream))
}

// query sends a statement with the columns of the external table copies; nil: it has none.
func (w *blockConn) query(statement, id string, settings []proto.Setting, copies proto.Input) error {
	w.out.ChainBuffer(func(b *proto.Buffer) {
		proto.Query{
			ID: id, Body: statement, Stage: proto.StageComplete, Compression: proto.CompressionDisabled, Settings: settings,
			Info: proto.ClientInfo{
				ProtocolVersion: w.rev, Major: 1, Interface: proto.InterfaceTCP, Query: proto.ClientQueryInitial,
				InitialQueryID: id, InitialAddress: w.conn.LocalAddr().String(), ClientName: "millrace",
			},
		}.EncodeAware(b, w.rev)
	})
	if copies != nil {
		if err := w.writeBlock("copies", copies); err != nil {
			return err
		}
	}
	if err := w.writeBlock("", nil); err != nil {
		return err
	}
	_, err := w.out.Flush()
	return err
}

// writeBlock writes a data packet, for an external table if it has a name. One without columns ends the data.
func (w *blockConn) writeBlock(table string, columns proto.Input) error {
	w.out.ChainBuffer(func(b *proto.Buffer) {
		proto.ClientCodeData.Encode(b)
		proto.ClientData{TableName: table}.EncodeAware(b, w.rev)
	})
	b := proto.Block{Columns: len(columns), Info: proto.BlockInfo{BucketNum: -1}}
	if len(columns) > 0 {
		b.Rows = columns[0].Data.Rows()
	}
	if err := b.WriteBlock(w.out, w.rev, columns); err != nil {
		return fmt.Errorf("encode a block: %w", err)
	}
	return nil
}

// readUntil reads packets up to and including one with the wanted code. Blocks of data have no rows.
func (w *blockConn) readUntil(want proto.ServerCode) error {
	for {
		code, err := w.readPacket(func() error { _, err := w.readBlock(nil); return err })
		switch {
		case err != nil:
			return err
		case code == want:
			return nil
		case code == proto.ServerCodeEndOfStream:
			return errors.New("the server ended the insert before it began")
		}
	}
}

// readPacket reads one packet. It calls data for a block of data. The server's exception is an error.
func (w *blockConn) readPacket(data func() error) (proto.ServerCode, error) {
	n, err := w.in.UVarInt()
	if err != nil {
		return 0, fmt.Errorf("read the server's answer: %w", err)
	}
	code := proto.ServerCode(n)
	switch code {
	case proto.ServerCodeException:
		return code, w.readException()
	case proto.ServerCodeEndOfStream:
	case proto.ServerCodeProgress:
		err = new(proto.Progress).DecodeAware(w.in, w.rev)
	case proto.ServerCodeProfile:
		err = new(proto.Profile).DecodeAware(w.in, w.rev)
	case proto.ServerCodeTableColumns:
		err = new(proto.TableColumns).DecodeAware(w.in, w.rev)
	case proto.ServerCodeLog, proto.ServerProfileEvents:
		_, err = w.readBlock(new(proto.Results).Auto())
	case proto.ServerCodeData:
		err = data()
	default:
		return code, fmt.Errorf("unexpected packet %d from the server", n)
	}
	if err != nil {
		return code, fmt.Errorf("read the server's answer: %w", err)
	}
	return code, nil
}

// readBlock reads a block into rows, and returns their number; nil rows: a block without rows.
func (w *blockConn) readBlock(rows proto.Result) (int, error) {
	if _, err := w.in.Str(); err != nil { // the name of a temporary table, always empty
		return 0, err
	}
	var b proto.Block
	err := b.DecodeBlock(w.in, w.rev, rows)
	return b.Rows, err
}

func (w *blockConn) readException() error {
	var e proto.Exception
	if err := e.DecodeAware(w.in, w.rev); err != nil {
		return fmt.Errorf("read the server's error: %w", err)
	}
	return &ch.Exception{Code: int32(e.Code), Name: e.Name, Message: e.Message, StackTrace: e.Stack}
}

// cause wraps err in the cause of ctx, if ctx is done: then the connection timed out because of it.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return err
}

// Insert runs one insertion on a connection that no other insertion uses. At most connections of them run at once.
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
		sent, err := w.insert(ctx, q)
		if err == nil {
			db.putConn(w)
			return nil
		}
		w.close()
		// A reused connection is dead if its server was restarted.
		var exception *ch.Exception
		if sent || !reused || errors.As(err, &exception) || ctx.Err() != nil {
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
		w.close()
	}
}
