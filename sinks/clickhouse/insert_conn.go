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

// revision is the protocol spoken for inserts: new enough for every type that the tables
// have, old enough to be spared most packets that are skipped here.
const revision = 54450

// A wire is one connection for inserts of whole blocks. The columns of the driver go
// through reflection value by value; those of ch-go/proto are written as they lie in memory.
type insertConn struct {
	conn net.Conn
	in   *proto.Reader
	out  *proto.Writer
	buf  *proto.Buffer // out's
	rev  int
}

func (w *insertConn) close() { w.conn.Close() }

// An insertion is one INSERT of one block.
type insertion struct {
	name     string // begins the query ids of its attempts
	into     string // INSERT INTO t (a, b) VALUES
	settings []proto.Setting
	columns  proto.Input
}

// insert sends one block and waits for the server's answer. After an error the
// connection is of no further use; if rows were sent, it is not known whether they have landed.
func (w *insertConn) insert(ctx context.Context, q insertion) (sent bool, err error) {
	defer w.bindContext(ctx)()
	// An earlier attempt may still run, and two queries cannot have one id. It does no harm: its rows have the same
	// ids, of which the views show one.
	w.writeQuery(q, q.name+"/"+schemas.NewID())
	if err := w.writeBlock(nil); err != nil {
		return false, err
	}
	if _, err := w.out.Flush(); err != nil {
		return false, cause(ctx, err)
	}
	if err := w.readUntil(proto.ServerCodeData); err != nil { // the server's empty block
		return false, cause(ctx, err)
	}
	if err := w.writeBlock(q.columns); err != nil {
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

func (w *insertConn) writeQuery(q insertion, id string) {
	w.out.ChainBuffer(func(b *proto.Buffer) {
		proto.Query{
			ID: id, Body: q.into, Stage: proto.StageComplete, Compression: proto.CompressionDisabled, Settings: q.settings,
			Info: proto.ClientInfo{
				ProtocolVersion: w.rev, Major: 1, Interface: proto.InterfaceTCP, Query: proto.ClientQueryInitial,
				InitialQueryID: id, InitialAddress: w.conn.LocalAddr().String(), ClientName: "millrace",
			},
		}.EncodeAware(b, w.rev)
	})
}

// block writes a data packet; one without columns says that no more will come.
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

// until reads packets up to one of the wanted kind.
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

// skip reads a block into rows, which are dropped; nil: a block without rows.
func (w *insertConn) skipBlock(rows proto.Result) error {
	if _, err := w.in.Str(); err != nil { // the name of a temporary table: none
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

// cause prefers the end of ctx to the time-out of the connection that it brought about.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return err
}

// write runs one insertion on a connection of its own, out of a bounded number.
func (db *DB) write(ctx context.Context, q insertion) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	select {
	case db.slots <- struct{}{}:
		defer func() { <-db.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	more, err := db.insertsOnCluster(ctx)
	if err != nil {
		return err
	}
	q.settings = append(q.settings, more...)
	for {
		w, kept, err := db.getConn(ctx)
		if err != nil {
			return err
		}
		sent, err := w.insert(ctx, q)
		if err == nil {
			db.putConn(w)
			return nil
		}
		w.close()
		// A kept connection may have died with the server it was made to.
		var said *ch.Exception
		if sent || !kept || errors.As(err, &said) || ctx.Err() != nil {
			return err
		}
	}
}

// writer returns a connection that was kept, or a new one.
func (db *DB) getConn(ctx context.Context) (_ *insertConn, kept bool, err error) {
	select {
	case w := <-db.idle:
		return w, true, nil
	default:
		w, err := db.dial(ctx, db.cfg.writerLogin())
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
