// Package clickhouse stores logs and the state of every copy in ClickHouse. A DB is the connection to one database,
// with the statements and inserts of this package and of those below it: migrate creates the tables, read queries
// them, and verify compares them with Kafka.
//
// Every record that Sink.Store or State.Store accepts becomes a row, at least once. The views show each log row
// once, however often it was stored and whichever process crashed meanwhile: the sink reads from the table which
// rows it has, and the ids of rows are functions of their messages. Rows of the state may be stored in any order,
// any number of times. A query that cannot be answered returns an error, never an empty result.
package clickhouse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Config holds the addresses, the credentials and the options of a ClickHouse server.
type Config struct {
	// Addresses are host:port of the native protocol. The first one that answers is used for as long as it answers.
	Addresses []string
	Database  string // default: millrace
	User      string // default: default
	Password  string
	// Reader is the login for queries; default: User and Password. Its profile must allow it to set limits
	// (readonly 0 or 2).
	Reader Login
	TLS    *tls.Config // nil: none
	// AllowOlder accepts servers that are older than the oldest tested release.
	AllowOlder bool

	dialTimeout time.Duration // bounds one attempt to connect
}

const (
	dialTimeout = 5 * time.Second
	connections = 8 // for queries, and as many for inserts
)

// Timeouts of statements.
const (
	QueryTimeout = 5 * time.Minute // of one query or insert without a deadline in its context
	ScanTimeout  = 24 * time.Hour  // of queries that read whole tables
)

// The range of times that DateTime64 can hold and its drivers, which count nanoseconds, can read. In milliseconds.
var (
	MinMillis = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	MaxMillis = time.Date(2261, 12, 31, 23, 59, 59, 999e6, time.UTC).UnixMilli()
)

// A Login is a user and a password.
type Login struct{ User, Password string }

// WriterLogin returns the login for inserts and changes of the schema.
func (c Config) WriterLogin() Login { return Login{c.User, c.Password} }

// ReaderLogin returns the login for queries.
func (c Config) ReaderLogin() Login {
	if c.Reader.User == "" {
		return c.WriterLogin()
	}
	return c.Reader
}

// String returns user, addresses and database, without the password.
func (c Config) String() string { return fmt.Sprintf("%s@%v/%s", c.User, c.Addresses, c.Database) }

func (c Config) withDefaults() (Config, error) {
	if len(c.Addresses) == 0 {
		return c, errors.New("configure ClickHouse: no address given")
	}
	for _, a := range c.Addresses {
		if a == "" {
			return c, errors.New("configure ClickHouse: an address is empty")
		}
	}
	if c.Database == "" {
		c.Database = "millrace"
	}
	if c.User == "" {
		c.User = "default"
	}
	if c.dialTimeout == 0 {
		c.dialTimeout = dialTimeout
	}
	return c, nil
}

// A DB is one database of one ClickHouse. Its methods are safe for concurrent use.
type DB struct {
	cfg   Config
	log   *slog.Logger
	conn  driver.Conn     // of the User
	reads driver.Conn     // of the Reader; the same as conn if there is none
	idle  chan *blockConn // of inserts
	slots chan struct{}
	// answered is the index of the address that answered last.
	lastAnswered atomic.Int32
}

// Open returns the DB; it connects when it is first used. The caller closes it.
func Open(cfg Config, log *slog.Logger) (*DB, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	db := &DB{
		cfg: cfg, log: log,
		idle: make(chan *blockConn, connections), slots: make(chan struct{}, connections),
	}
	if db.conn, err = ch.Open(db.options(cfg.WriterLogin())); err != nil {
		return nil, fmt.Errorf("configure ClickHouse: %w", err)
	}
	db.reads = db.conn
	if cfg.Reader.User != "" {
		if db.reads, err = ch.Open(db.options(cfg.Reader)); err != nil {
			return nil, errors.Join(fmt.Errorf("configure ClickHouse: %w", err), db.conn.Close())
		}
	}
	return db, nil
}

// options returns the driver's options for a login. They name no database, because statements do: a connection to a
// database that does not exist yet is an error, and that error kills libchdb.
func (db *DB) options(as Login) *ch.Options {
	c := db.cfg
	settings := querySettings()
	if as == c.WriterLogin() {
		settings["async_insert"] = 0
	}
	return &ch.Options{
		Addr: c.Addresses, Auth: ch.Auth{Username: as.User, Password: as.Password},
		// Enough time to try every address.
		DialTimeout:  time.Duration(len(c.Addresses)+1) * c.dialTimeout,
		DialStrategy: db.dialStrategy, DialContext: c.connect, ReadTimeout: QueryTimeout,
		MaxOpenConns: connections, MaxIdleConns: connections,
		ClientInfo: ch.ClientInfo{Products: []struct{ Name, Version string }{{"millrace", "1"}}},
		Settings:   settings,
	}
}

// querySettings returns the settings of every query.
func querySettings() ch.Settings {
	settings := completeResults()
	settings["send_logs_level"] = "none"
	return settings
}

// completeResults are settings of every statement. If a profile had other values, the server could return a part of
// the rows, or rows of an earlier time, without an error.
func completeResults() ch.Settings {
	settings := ch.Settings{
		"skip_unavailable_shards": 0,
		"limit":                   0, "offset": 0,
		"additional_table_filters": "{}", "additional_result_filter": "",
		"extremes":        0, // the driver would return them as rows
		"use_query_cache": 0, "prefer_column_name_to_alias": 0, "aggregate_functions_null_for_empty": 0,
	}
	for _, limit := range []string{
		"read", "group_by", "sort", "result", "timeout", "set", "distinct", "join", "transfer",
	} {
		settings[limit+"_overflow_mode"] = "throw"
	}
	settings["read_overflow_mode_leaf"], settings["timeout_overflow_mode_leaf"] = "throw", "throw"
	return settings
}

// Config returns the configuration, completed with the defaults.
func (db *DB) Config() Config { return db.cfg }

// Log returns the logger.
func (db *DB) Log() *slog.Logger { return db.log }

// Writer returns the connections of the User.
func (db *DB) Writer() driver.Conn { return db.conn }

// Reader returns the connections of the Reader.
func (db *DB) Reader() driver.Conn { return db.reads }

// Close closes the connections. Statements that still run fail.
func (db *DB) Close() error {
	for {
		select {
		case w := <-db.idle:
			w.close()
		default:
			err := db.conn.Close()
			if db.reads != db.conn {
				err = errors.Join(err, db.reads.Close())
			}
			return err
		}
	}
}

// Ping returns nil if the server answers.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.conn.Ping(ctx); err != nil {
		return db.Explain(db.cfg.WriterLogin(), fmt.Errorf("ping ClickHouse: %w", err))
	}
	return nil
}

// Drop drops the database with all its tables. It is for tests and temporary databases.
func (db *DB) Drop(ctx context.Context) error {
	if err := db.Exec(ctx, "DROP DATABASE IF EXISTS {db} SYNC"); err != nil {
		return Classify(fmt.Errorf("drop the database %s: %w", db.cfg.Database, err))
	}
	return nil
}

// Name replaces {db} in a statement by the quoted name of the database.
func (db *DB) Name(statement string) string {
	return strings.ReplaceAll(statement, "{db}", QuoteName(db.cfg.Database))
}

// Exec runs a statement as the User. {db} is replaced by the name of the database.
func (db *DB) Exec(ctx context.Context, statement string, args ...any) error {
	return db.conn.Exec(ctx, db.Name(statement), args...)
}

// Query runs a statement as the reader, and scans its rows into T by the ch tags of its fields. op begins the error.
func Query[T any](ctx context.Context, db *DB, op, statement string, args ...any) ([]T, error) {
	return QueryOn[T](ctx, db.reads, op, db.Name(statement), args...)
}

// QueryOn is Query on given connections, without replacing {db}.
func QueryOn[T any](ctx context.Context, conn driver.Conn, op, statement string, args ...any) ([]T, error) {
	for tries := 0; ; tries++ {
		var rows []T
		err := conn.Select(ctx, &rows, statement, args...)
		if err == nil {
			return rows, nil
		}
		// Each connection of the pool may be dead because the server was restarted.
		if tries == connections || ctx.Err() != nil || !isConnError(err) {
			return nil, Classify(fmt.Errorf("%s: %w", op, err))
		}
	}
}

// Stream runs a query whose rows are read one by one. The caller calls stop, which cancels the query; Close of the
// driver alone would read all the remaining rows.
func Stream(
	ctx context.Context, conn driver.Conn, statement string, args ...any,
) (rows driver.Rows, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	rows, err = conn.Query(ctx, statement, args...)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return rows, func() {
		cancel()
		_ = rows.Close() // rows.Err has returned the error
	}, nil
}

// isConnError reports whether a connection broke. The server may be available all the same.
func isConnError(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
}

// Count runs a query that returns one number, named n.
func (db *DB) Count(ctx context.Context, what, statement string, args ...any) (int64, error) {
	type counted struct {
		N uint64 `ch:"n"`
	}
	rows, err := Query[counted](ctx, db, what, statement, args...)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	return int64(rows[0].N), nil
}

// QuoteName quotes a name for a statement.
func QuoteName(s string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(s) + "`"
}

// QuoteText quotes a string for a statement.
func QuoteText(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
