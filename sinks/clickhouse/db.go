// Package clickhouse puts what happened into ClickHouse, and reads it back: the logs, the
// state of every copy, and the questions asked of them.
//
// Every record that a Sink or State was handed and did not refuse ends in its rows, and
// each log row stands once in the views, however often it was stored and whoever died
// when: the table itself is asked what has landed, and rows carry ids that are
// functions of their message. State rows may come in any order, any number of times.
// A read that cannot be answered is an error, never an empty answer.
package clickhouse

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Config says where ClickHouse is.
type Config struct {
	// Addresses are host:port of the native protocol; the first that answers is used, and
	// used on while it answers.
	Addresses []string
	Database  string // default: millrace
	User      string // default: default
	Password  string
	// Reader is who reads; without it the User does. Its profile must allow it to set
	// limits (readonly 0 or 2).
	Reader Login
	TLS    *tls.Config // nil: none
	// Cluster is the cluster over which the tables are spread; empty: they are on one server.
	Cluster string
	// InsertQuorum is how many replicas of a shard must have a row before its insert is
	// answered: all, auto (more than half), or a number. Default: all.
	InsertQuorum string
	// AllowOlder is whether servers older than those that are tested may be used.
	AllowOlder bool

	dialTimeout time.Duration // bounds one attempt to connect
}

const (
	dialTimeout  = 5 * time.Second
	queryTimeout = 5 * time.Minute // of one read or insert whose context has no deadline
	connections  = 8               // of reads, and as many of inserts
)

// A Login is who connects.
type Login struct{ User, Password string }

func (c Config) writerLogin() Login { return Login{c.User, c.Password} }

func (c Config) readerLogin() Login {
	if c.Reader.User == "" {
		return c.writerLogin()
	}
	return c.Reader
}

// String tells where, without the password.
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
	if c.InsertQuorum == "" {
		c.InsertQuorum = "all"
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
	conn  driver.Conn      // of the User
	reads driver.Conn      // of the Reader; the same one where there is none
	idle  chan *insertConn // idle connections of inserts
	slots chan struct{}
	// answered is the index of the address that answered last.
	lastAnswered atomic.Int32
	// shape of the cluster; nil: not asked yet.
	cached atomic.Pointer[cachedLayout]
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
		idle: make(chan *insertConn, connections), slots: make(chan struct{}, connections),
	}
	if db.conn, err = ch.Open(db.options(cfg.writerLogin())); err != nil {
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

// options name no database: statements do. One that does not exist yet is no error of
// the connection then, which libchdb would not survive.
func (db *DB) options(as Login) *ch.Options {
	c := db.cfg
	settings := completeResults()
	settings["send_logs_level"] = "none"
	if as == c.writerLogin() {
		settings["async_insert"] = 0
	}
	maps.Copy(settings, c.onCluster())
	return &ch.Options{
		Addr: c.Addresses, Auth: ch.Auth{Username: as.User, Password: as.Password},
		// Bounds what getting a connection takes, whichever addresses are dead.
		DialTimeout:  time.Duration(len(c.Addresses)+1) * c.dialTimeout,
		DialStrategy: db.dialStrategy, DialContext: c.connect, ReadTimeout: queryTimeout,
		MaxOpenConns: connections, MaxIdleConns: connections,
		ClientInfo: ch.ClientInfo{Products: []struct{ Name, Version string }{{"millrace", "1"}}},
		Settings:   settings,
	}
}

// wholeAnswers are the settings of every statement. With another value of any of them in a profile, a server answers a
// question with a part of what there is, or with what there was, and reports no error.
func completeResults() ch.Settings {
	settings := ch.Settings{
		"skip_unavailable_shards": 0,
		"limit":                   0, "offset": 0,
		"additional_table_filters": "{}", "additional_result_filter": "",
		"extremes":        0, // the driver returns them as rows
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

// Close closes the connections. What is still running on them fails.
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
		return db.explain(db.cfg.writerLogin(), fmt.Errorf("ping ClickHouse: %w", err))
	}
	return nil
}

// name puts the database's name for {db} in a statement.
func (db *DB) name(statement string) string {
	return strings.ReplaceAll(statement, "{db}", quoteName(db.cfg.Database))
}

func (db *DB) exec(ctx context.Context, statement string, args ...any) error {
	return db.conn.Exec(ctx, db.name(statement), args...)
}

// query runs, as the reader, a statement whose rows scan into T by the names of its fields (tag ch).
func query[T any](ctx context.Context, db *DB, what, statement string, args ...any) ([]T, error) {
	return queryOn[T](ctx, db.reads, what, db.name(statement), args...)
}

func queryOn[T any](ctx context.Context, conn driver.Conn, what, statement string, args ...any) ([]T, error) {
	for tries := 0; ; tries++ {
		var rows []T
		err := conn.Select(ctx, &rows, statement, args...)
		if err == nil {
			return rows, nil
		}
		// Each connection of the pool may be to a server that has been started again since.
		if tries == connections || ctx.Err() != nil || !isConnError(err) {
			return nil, translate(fmt.Errorf("%s: %w", what, err))
		}
	}
}

// stream asks for rows that are read one by one. leave must be called; it ends the question if it has not been read to its
// end, which Close of the driver would read.
func stream(ctx context.Context, conn driver.Conn, statement string, args ...any) (rows driver.Rows, leave func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	rows, err = conn.Query(ctx, statement, args...)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return rows, func() {
		cancel()
		_ = rows.Close() // rows.Err has returned what went wrong
	}, nil
}

// broken reports whether an error is that of a connection, which says nothing of the server.
func isConnError(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
}
