package clickhouse_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/retry"
)

// checkUse returns an error if one of the kinds of connections fails: insert, look up, read.
func checkUse(t *testing.T, db *clickhouse.DB, from int64) error {
	t.Helper()
	c := clickhousetest.Change("works", time.Duration(from)*time.Second)
	if err := clickhouse.NewSink(db).Store(t.Context(), clickhousetest.Deliver(schemas.Changes, from, c)); err != nil {
		return err
	}
	if err := clickhouse.NewState(db).Store(t.Context(), clickhousetest.Deliver(schemas.Changes, from, c)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := read.Records(ctx, db, []schemas.Copy{schemas.CopyOf(c)})
	if err != nil {
		return err
	}
	clickhousetest.Compare(t, "what was just stored", got[0].GetManifest(), clickhousetest.RecordOf(c))
	return nil
}

// listen returns a listener on loopback. It is closed at the end of the test.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func passAll(string, func()) bool { return true }

// dead returns an address without a listener.
func dead(t *testing.T) string {
	l := listen(t)
	l.Close()
	return l.Addr().String()
}

// serve calls answer for every connection, and then closes the connection.
func serve(t *testing.T, answer func(net.Conn)) string {
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				answer(c)
			}()
		}
	}()
	return l.Addr().String()
}

// certificates returns an authority, and its certificate for a server with the name ch.test.
func certificates(t *testing.T) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	server := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"ch.test"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, &key.PublicKey, key)
	must(t, err)
	if authority, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	if der, err = x509.CreateCertificate(rand.Reader, server, authority, &key.PublicKey, key); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	return pool, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// The embedded engine does not support TLS, so the test puts a TLS proxy in front of it.
func TestTLS(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	pool, certificate := certificates(t)
	l := tls.NewListener(listen(t), &tls.Config{Certificates: []tls.Certificate{certificate}})
	go clickhousetest.Relay(l, clickhousetest.Addr(t), new(atomic.Bool), passAll)
	inClear := serve(t, func(c net.Conn) { // the response of ClickHouse to a greeting that it cannot parse
		_, _ = io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	})
	onlyTLS := serve(t, func(c net.Conn) { // the response of OpenSSL to a client without TLS: a fatal alert
		_, _ = c.Write([]byte{21, 3, 1, 0, 2, 2, 10})
	})
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	for name, tc := range map[string]struct {
		addr string
		tls  *tls.Config
		want func(error) bool
	}{
		"own authority": {l.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "ch.test"},
			func(err error) bool { return err == nil }},
		"unknown authority": {l.Addr().String(), &tls.Config{ServerName: "ch.test"},
			func(err error) bool { return errors.As(err, &unknown) }},
		"another server": {l.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "other.test"},
			func(err error) bool { return errors.As(err, &hostname) }},
		"the address's own name": {l.Addr().String(), &tls.Config{RootCAs: pool},
			func(err error) bool { return errors.As(err, &hostname) }},
		"in clear to TLS": {onlyTLS, nil, func(err error) bool {
			return strings.Contains(err.Error(), "this port speaks TLS, and this connection does not")
		}},
		"TLS to clear": {inClear, &tls.Config{RootCAs: pool, ServerName: "ch.test"},
			func(err error) bool { return strings.Contains(err.Error(), "this port does not speak TLS") }},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := db.Config()
			cfg.Addresses, cfg.TLS = []string{tc.addr}, tc.tls
			other := clickhousetest.Connect(t, cfg)
			err := migrate.Check(t.Context(), other)
			if err == nil {
				err = errors.Join(migrate.CheckWrites(t.Context(), other), other.Ping(t.Context()), checkUse(t, other, 0))
			}
			if !tc.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Dead or silent addresses cost their timeout once. The address that answered last is tried first.
func TestFailover(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var asked atomic.Int32
	silent := serve(t, func(c net.Conn) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, c)
	})
	cfg := db.Config()
	cfg.Addresses = []string{dead(t), silent, clickhousetest.Addr(t)}
	other := clickhousetest.Connect(t, cfg.WithDialTimeout(300*time.Millisecond))
	must(t, migrate.Check(t.Context(), other))
	before := asked.Load()
	if before == 0 {
		t.Error("the silent address was not tried before the one behind it")
	}
	for i := range int64(3) {
		must(t, checkUse(t, other, i))
	}
	if got := asked.Load(); got != before {
		t.Errorf("the silent address was tried %d times more, although another had answered", got-before)
	}
}

// If a server becomes unavailable, the next address replaces it.
func TestFailoverLater(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	first := newProxy(t, clickhousetest.Addr(t))
	cfg := db.Config()
	cfg.Addresses = []string{first.addr, clickhousetest.Addr(t)}
	other := clickhousetest.Connect(t, cfg)
	must(t, checkUse(t, other, 0))
	first.close()
	for i := range int64(3) {
		// Statements in flight on the old connections fail, and are repeated.
		err := checkUse(t, other, 1)
		if err == nil {
			break
		}
		if retry.ClassOf(err) != retry.ClassUnavailable || i == 2 {
			t.Fatalf("after the first server became unavailable: %v", err)
		}
	}
	if got := clickhousetest.Count(t, db, "audit_log_v"); got != "2" {
		t.Errorf("the view has %s rows, want 2", got)
	}
}

func TestAllAddressesDead(t *testing.T) {
	t.Parallel()
	one, two := dead(t), dead(t)
	db := clickhousetest.Connect(t, clickhouse.Config{Addresses: []string{one, two}, Password: "hunter2"})
	for name, err := range map[string]error{
		"Check": migrate.Check(t.Context(), db), "CheckWrites": migrate.CheckWrites(t.Context(), db),
		"Ping":  db.Ping(t.Context()),
		"Store": checkUse(t, db, 0),
	} {
		if retry.ClassOf(err) != retry.ClassUnavailable || errors.Is(err, migrate.ErrMissing) ||
			!strings.Contains(err.Error(), "at "+one+":") || !strings.Contains(err.Error(), "at "+two+":") ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s = %v, want class unavailable, and what is wrong with each address", name, err)
		}
	}
}

// A wrong password kills libchdb, so a server of the test refuses the greeting, as ClickHouse does.
func TestRefusedGreeting(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code proto.Error
		want string // a part of an access error; empty: another error
	}{
		"a wrong password":   {516, "wrong user or password for user ann"},
		"an unknown user":    {192, "wrong user or password for user ann"},
		"from elsewhere":     {195, "user ann may not connect from here"},
		"a database's grant": {497, "user ann lacks a grant"},
		"a server read-only": {164, "user ann may only read on this server"},
		"a disk read-only":   {242, "the table is read-only now"},
		"too many at a time": {202, ""},
		"no such database":   {81, ""},
	} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, func(c net.Conn) {
				if _, err := c.Read(make([]byte, 1024)); err != nil {
					return
				}
				var b proto.Buffer
				proto.ServerCodeException.Encode(&b)
				b.PutInt32(int32(tc.code))
				b.PutString("DB::Exception")
				b.PutString("what the server says")
				b.PutString("")
				b.PutBool(false)
				_, _ = io.Copy(c, bytes.NewReader(b.Buf))
			})
			db := clickhousetest.Connect(t, clickhouse.Config{Addresses: []string{addr}, User: "ann", Password: "hunter2"})
			_, migrated := migrate.Run(t.Context(), db, false)
			for what, err := range map[string]error{
				"Check": migrate.Check(t.Context(), db), "CheckWrites": migrate.CheckWrites(t.Context(), db), "Migrate": migrated,
			} {
				switch access := errors.Is(err, clickhouse.ErrAccess); {
				case err == nil || access != (tc.want != "") || !strings.Contains(err.Error(), tc.want):
					t.Errorf("%s = %v, want %s", what, err, tc.want)
				case !strings.Contains(err.Error(), "what the server says") || strings.Contains(err.Error(), "hunter2"):
					t.Errorf("%s = %v", what, err)
				case errors.Is(err, migrate.ErrMissing):
					t.Errorf("%s = %v: a refusal is read as a fact", what, err)
				}
			}
		})
	}
}

// A server that is older than the oldest tested release is refused with ErrOlder, unless AllowOlder is set.
func TestOlderServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		major, minor int
		allow        bool
		want         string // a part of the error; empty: none
	}{
		"years older":        {24, 8, false, "it is ClickHouse 24.8, and the oldest release that is tested is 26.7"},
		"a release older":    {26, 6, false, "it is ClickHouse 26.6, and the oldest release that is tested is 26.7"},
		"older, and allowed": {24, 8, true, ""},
		"the oldest":         {26, 7, false, ""},
		"a release newer":    {26, 8, false, ""},
		"a year newer":       {27, 1, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			addr := serve(t, func(c net.Conn) { // it only greets
				if _, err := c.Read(make([]byte, 1024)); err != nil {
					return
				}
				const revision = 54450
				var b proto.Buffer
				hello := proto.ServerHello{Name: "ClickHouse", Major: tc.major, Minor: tc.minor, Revision: revision}
				hello.EncodeAware(&b, revision)
				_, _ = c.Write(b.Buf)
			})
			db := clickhousetest.Connect(t, clickhouse.Config{Addresses: []string{addr}, AllowOlder: tc.allow})
			_, migrated := migrate.Run(t.Context(), db, false)
			for what, err := range map[string]error{
				"Check": migrate.Check(t.Context(), db), "CheckWrites": migrate.CheckWrites(t.Context(), db), "Migrate": migrated,
				"Ping": db.Ping(t.Context()),
			} {
				refused := errors.Is(err, clickhouse.ErrOlder)
				if err == nil || refused != (tc.want != "") || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s = %v, want %s", what, err, tc.want)
				}
			}
		})
	}
}

// A profile that makes the server send its log and profile events does not disturb inserts and queries.
func TestServerThatSendsLogs(t *testing.T) {
	t.Parallel()
	engine := clickhousetest.Start(t, embedded.Config{Users: `<clickhouse>
  <profiles><default>
    <send_logs_level>trace</send_logs_level><send_profile_events>1</send_profile_events>
  </default></profiles>
  <users><default>
    <password></password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
    <access_management>1</access_management></default></users>
  <quotas><default></default></quotas>
</clickhouse>`})
	db := clickhousetest.Connect(t, clickhouse.Config{Addresses: []string{engine.Addr()}})
	if _, err := migrate.Run(t.Context(), db, false); err != nil {
		t.Fatal(err)
	}
	for i := range int64(3) {
		must(t, checkUse(t, db, i))
	}
}

// A comparison that stops early does not read the rest of the tables.
func TestStopReading(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// an endless query
	if err := db.StopAfterRow(ctx, "SELECT number FROM system.numbers"); err != nil || ctx.Err() != nil {
		t.Errorf("leave an answer: %v, %v", err, ctx.Err())
	}
	if got, err := clickhousetest.Strings(t.Context(), db, "SELECT 'a'"); err != nil || len(got) != 1 {
		t.Errorf("the next question: %v, %v", got, err)
	}
}
