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
	"log/slog"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Config says where ClickHouse is.
type Config struct {
	// Addresses are host:port of the native protocol; the first that answers is used.
	Addresses []string
	Database  string // default: millrace
	User      string // default: default
	Password  string
	TLS       *tls.Config // nil: none
	// DialTimeout bounds one attempt to connect; default 5 s.
	DialTimeout time.Duration
	// QueryTimeout bounds one read or insert whose context has no deadline; default 5 min.
	QueryTimeout time.Duration
	// Connections bounds those of reads, and those of inserts; default 8 each.
	Connections int
}

// String tells where, without the password.
func (c Config) String() string { return fmt.Sprintf("%s@%v/%s", c.User, c.Addresses, c.Database) }

func (c Config) withDefaults() (Config, error) {
	if len(c.Addresses) == 0 {
		return c, errors.New("configuring ClickHouse: no address given")
	}
	for _, a := range c.Addresses {
		if a == "" {
			return c, errors.New("configuring ClickHouse: an address is empty")
		}
	}
	if c.Database == "" {
		c.Database = "millrace"
	}
	if c.User == "" {
		c.User = "default"
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.QueryTimeout <= 0 {
		c.QueryTimeout = 5 * time.Minute
	}
	if c.Connections <= 0 {
		c.Connections = 8
	}
	return c, nil
}

// A DB is one database of one ClickHouse. Its methods are safe for concurrent use.
type DB struct {
	cfg     Config
	log     *slog.Logger
	conn    driver.Conn
	writers chan *wire // idle connections of inserts
	slots   chan struct{}
}

// Open returns the DB; it connects when it is first used. The caller closes it.
func Open(cfg Config, log *slog.Logger) (*DB, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	conn, err := ch.Open(cfg.options())
	if err != nil {
		return nil, fmt.Errorf("configuring ClickHouse: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &DB{
		cfg: cfg, log: log, conn: conn,
		writers: make(chan *wire, cfg.Connections), slots: make(chan struct{}, cfg.Connections),
	}, nil
}

// options name no database: statements do. One that does not exist yet is no error of
// the connection then, which libchdb would not survive.
func (c Config) options() *ch.Options {
	return &ch.Options{
		Addr: c.Addresses, TLS: c.TLS,
		Auth:        ch.Auth{Username: c.User, Password: c.Password},
		DialTimeout: c.DialTimeout, ReadTimeout: c.QueryTimeout,
		MaxOpenConns: c.Connections, MaxIdleConns: c.Connections,
		ClientInfo: ch.ClientInfo{Products: []struct{ Name, Version string }{{"millrace", "1"}}},
		Settings:   ch.Settings{"async_insert": 0},
	}
}

// Close closes the connections. What is still running on them fails.
func (db *DB) Close() error {
	for {
		select {
		case w := <-db.writers:
			w.close()
		default:
			return db.conn.Close()
		}
	}
}

// Ping asks the server for a sign of life.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.conn.Ping(ctx); err != nil {
		return translate(fmt.Errorf("asking ClickHouse at %v for a sign of life: %w", db.cfg.Addresses, err))
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

// query runs a statement whose rows scan into T by the names of its fields (tag ch).
func query[T any](ctx context.Context, db *DB, what, statement string, args ...any) ([]T, error) {
	var rows []T
	if err := db.conn.Select(ctx, &rows, db.name(statement), args...); err != nil {
		return nil, translate(fmt.Errorf("%s: %w", what, err))
	}
	return rows, nil
}
