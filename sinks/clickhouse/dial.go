package clickhouse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// tryAddresses calls try for each address until it succeeds, each time with the timeout of one attempt. It starts
// with the address that answered last, so that a dead address costs its timeout only once. The error names every
// address.
func (db *DB) tryAddresses(ctx context.Context, try func(ctx context.Context, addr string) error) error {
	var all error
	first := int(db.lastAnswered.Load())
	for i := range db.cfg.Addresses {
		n := (first + i) % len(db.cfg.Addresses)
		err := db.tryAddress(ctx, db.cfg.Addresses[n], try)
		if err == nil {
			db.lastAnswered.Store(int32(n))
			return nil
		}
		if all == nil {
			all = err
		} else {
			all = fmt.Errorf("%w; %w", all, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return all
}

func (db *DB) tryAddress(ctx context.Context, addr string, try func(ctx context.Context, addr string) error) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.dialTimeout)
	defer cancel()
	if err := try(ctx, addr); err != nil {
		return fmt.Errorf("connect to ClickHouse at %s: %w", addr, cause(ctx, err))
	}
	return nil
}

// connect opens one connection, with TLS if it is configured.
func (c Config) connect(ctx context.Context, addr string) (net.Conn, error) {
	tcp, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := &drainingConn{Conn: tcp}
	if c.TLS == nil {
		return conn, nil
	}
	settings := c.TLS
	if settings.ServerName == "" {
		settings = settings.Clone()
		settings.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(conn, settings)
	if err := secure.HandshakeContext(ctx); err != nil {
		tcp.Close()
		if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) {
			return nil, fmt.Errorf("%w: this port does not speak TLS", err)
		}
		return nil, err
	}
	return secure, nil
}

// A drainingConn drains the connection before it closes it. Closing it while a response is in flight resets the
// connection, and a reset between two queries kills the embedded engine (libchdb 26.7).
type drainingConn struct {
	net.Conn
	once sync.Once
}

// drainTimeout bounds how long Close waits for a response that is no longer needed.
const drainTimeout = 10 * time.Second

// Close closes the sending side, and drops incoming data until the server closes its side. It does not wait for that.
func (g *drainingConn) Close() error {
	err := net.ErrClosed
	g.once.Do(func() {
		half, ok := g.Conn.(interface{ CloseWrite() error })
		if !ok || half.CloseWrite() != nil || g.Conn.SetDeadline(time.Now().Add(drainTimeout)) != nil {
			err = g.Conn.Close()
			return
		}
		err = nil
		go func() { // bounded by the deadline
			_, _ = io.Copy(io.Discard, g.Conn)
			g.Conn.Close()
		}()
	})
	return err
}

// dialStrategy makes the driver use tryAddresses.
func (db *DB) dialStrategy(ctx context.Context, _ int, o *ch.Options, dial ch.Dial) (r ch.DialResult, err error) {
	one := *o
	one.DialTimeout = db.cfg.dialTimeout
	err = db.tryAddresses(ctx, func(ctx context.Context, addr string) error {
		if !db.cfg.AllowOlder { // the driver does not report the release, so dialAddress checks it
			w, err := db.dialAddress(ctx, addr, Login{o.Auth.Username, o.Auth.Password})
			if err != nil {
				return err
			}
			w.close()
		}
		var err error
		r, err = dial(ctx, addr, &one)
		return err
	})
	return r, err
}

// dial connects to the first address that answers, for blocks.
func (db *DB) dial(ctx context.Context, as Login) (w *blockConn, err error) {
	err = db.tryAddresses(ctx, func(ctx context.Context, addr string) (err error) {
		w, err = db.dialAddress(ctx, addr, as)
		return err
	})
	return w, err
}

func (db *DB) dialAddress(ctx context.Context, addr string, as Login) (*blockConn, error) {
	conn, err := db.cfg.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	buf := new(proto.Buffer)
	w := &blockConn{conn: conn, in: proto.NewReader(conn), out: proto.NewWriter(conn, buf), buf: buf, rev: revision}
	defer w.bindContext(ctx)()
	server, err := w.hello(as)
	if err == nil && !db.cfg.AllowOlder {
		err = checkRelease(server)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return w, nil
}

// The oldest release of ClickHouse that the tests run with.
const oldestMajor, oldestMinor = 26, 7

// checkRelease returns ErrOlder if the server is older than the oldest tested release.
func checkRelease(server proto.ServerHello) error {
	if server.Major > oldestMajor || server.Major == oldestMajor && server.Minor >= oldestMinor {
		return nil
	}
	return fmt.Errorf("%w: it is ClickHouse %d.%d, and the oldest release that is tested is %d.%d: "+
		"upgrade it, or set clickhouse.allow_older and test with it",
		ErrOlder, server.Major, server.Minor, oldestMajor, oldestMinor)
}

// tlsAlert is the first byte of the response of a TLS server to a client that does not use TLS.
const tlsAlert = 21

func (w *blockConn) hello(as Login) (server proto.ServerHello, err error) {
	w.out.ChainBuffer(proto.ClientHello{
		Name: "millrace", Major: 1, ProtocolVersion: revision,
		User: as.User, Password: as.Password,
	}.Encode)
	if _, err := w.out.Flush(); err != nil {
		return server, err
	}
	code, err := w.in.UVarInt()
	if err != nil {
		return server, err
	}
	switch {
	case proto.ServerCode(code) == proto.ServerCodeHello:
		err := server.DecodeAware(w.in, revision)
		w.rev = min(revision, server.Revision)
		return server, err
	case proto.ServerCode(code) == proto.ServerCodeException:
		return server, w.readException()
	case code == tlsAlert:
		return server, errors.New("this port speaks TLS, and this connection does not")
	}
	return server, fmt.Errorf("unexpected packet %d instead of a greeting", code)
}

// bindContext makes reads and writes fail once ctx is done, until the caller calls stop.
func (w *blockConn) bindContext(ctx context.Context) (stop func()) {
	w.conn.SetDeadline(time.Time{})
	ended := make(chan struct{})
	off := context.AfterFunc(ctx, func() {
		w.conn.SetDeadline(time.Unix(1, 0))
		close(ended)
	})
	return func() {
		if !off() {
			<-ended // otherwise it could set the deadline during a later use of the connection
		}
	}
}

// CheckLogin connects as a user, so that a refused login is reported before any other error.
func (db *DB) CheckLogin(ctx context.Context, as Login) error {
	w, err := db.dial(ctx, as)
	if err != nil {
		return db.Explain(as, err)
	}
	w.close()
	return nil
}
