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

// revision is the version of the native protocol for inserts. It is new enough for every column type of the tables,
// and old enough that the server sends few packets that this code must skip.
const revision = 54450

// An insertConn is a connection that inserts whole blocks. It encodes columns with ch-go/proto, which writes them as
// they are in memory; the columns of clickhouse-go use reflection for each value.
type insertConn struct {
	conn net.Conn
	in   *proto.Reader
	out  *proto.Writer
	buf  *proto.Buffer // out's
	rev  int
}

func (w *insertConn) close() { w.conn.Close() }

// An Insertion is one INSERT statement with one block.
type Insertion struct {
	Name     string // begins the query ids of its attempts
	Into     string // INSERT INTO t (a, b) VALUES
	Settings []proto.Setting
	Columns  proto.Input
}

// insert sends one block and waits for the server's response. After an error the connection must be closed. If sent
// is true, it is unknown whether the rows were stored.
func (w *insertConn) insert(ctx context.Context, q Insertion) (sent bool, err error) {
	defer w.bindContext(ctx)()
	// Each attempt has its own query id: an earlier attempt may still run, and the server refuses a second query with
	// the same id. The earlier attempt is harmless: its rows have the same ids, and the views show one row for each id.
	w.writeQuery(q, q.Name+"/"+schemas.NewID())
	if err := w.writeBlock(nil); err != nil {
		return false, err
	}
	if _, err := w.out.Flush(); err != nil {
		return false, cause(ctx, err)
	}
	if err := w.readUntil(proto.ServerCodeData); err != nil { // the server's empty block
		return false, cause(ctx, err)
	}
	if err := w.writeBlock(q.Columns); err != nil {
		return false, err
	}
	if err := w.writeBlock(nil); err != nil {
		return false, err
	}
	if _, err := w.out.Flush(); err != nil {
		return true, cause(ctx, err)
	}
	return true, cause(ctx, w.readUntil(proto.ServerCodeEndOfStream))
}

func (w *insertConn) writeQuery(q Insertion, id string) {
	w.out.ChainBuffer(func(b *proto.Buffer) {
		proto.Query{
			ID: id, Body: q.Into, Stage: proto.StageComplete, Compression: proto.CompressionDisabled, Settings: q.Settings,
			Info: proto.ClientInfo{
				ProtocolVersion: w.rev, Major: 1, Interface: proto.InterfaceTCP, Query: proto.ClientQueryInitial,
				InitialQueryID: id, InitialAddress: w.conn.LocalAddr().String(), ClientName: "millrace",
			},
		}.EncodeAware(b, w.rev)
	})
}

// writeBlock writes a data packet. One without columns ends the data.
func (w *insertConn) writeBlock(columns proto.Input) error {
	w.out.ChainBuffer(func(b *proto.Buffer) {
		proto.ClientCodeData.Encode(b)
		proto.ClientData{}.EncodeAware(b, w.rev)
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

// readUntil reads packets up to and including one with the wanted code.
func (w *insertConn) readUntil(want proto.ServerCode) error {
	for {
		n, err := w.in.UVarInt()
		if err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		code := proto.ServerCode(n)
		switch code {
		case proto.ServerCodeException:
			return w.readException()
		case proto.ServerCodeEndOfStream:
		case proto.ServerCodeProgress:
			err = new(proto.Progress).DecodeAware(w.in, w.rev)
		case proto.ServerCodeProfile:
			err = new(proto.Profile).DecodeAware(w.in, w.rev)
		case proto.ServerCodeTableColumns:
			err = new(proto.TableColumns).DecodeAware(w.in, w.rev)
		case proto.ServerCodeLog, proto.ServerProfileEvents:
			err = w.skipBlock(new(proto.Results).Auto())
		case proto.ServerCodeData:
			err = w.skipBlock(nil) // the table's columns, without rows
		default:
			return fmt.Errorf("unexpected packet %d from the server", n)
		}
		if err != nil {
			return fmt.Errorf("read the server's answer: %w", err)
		}
		if code == want {
			return nil
		}
		if code == proto.ServerCodeEndOfStream {
			return errors.New("the server ended the insert before it began")
		}
	}
}

// skipBlock reads a block into rows and drops it; nil rows: a block without rows.
func (w *insertConn) skipBlock(rows proto.Result) error {
	if _, err := w.in.Str(); err != nil { // the name of a temporary table, always empty
		return err
	}
	var b proto.Block
	return b.DecodeBlock(w.in, w.rev, rows)
}

func (w *insertConn) readException() error {
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
	more, err := db.ClusterSettings(ctx)
	if err != nil {
		return err
	}
	q.Settings = append(q.Settings, more...)
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
func (db *DB) getConn(ctx context.Context) (_ *insertConn, reused bool, err error) {
	select {
	case w := <-db.idle:
		return w, true, nil
	default:
		w, err := db.dial(ctx, db.cfg.WriterLogin())
		return w, false, err
	}
}

func (db *DB) putConn(w *insertConn) {
	if cap(w.buf.Buf) > 8*maxKeptBytes { // it is empty
		w.buf.Buf = nil
	}
	select {
	case db.idle <- w:
	default:
		w.close()
	}
}
