package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
)

// testClickHouse is an embedded ClickHouse server with its own directory.
type testClickHouse struct {
	dir       string
	engine    *embedded.Server
	databases []*database
}

// database is a database with all tables.
type database struct {
	*clickhouse.DB
	addr, name string
	conn       driver.Conn // as the user default
}

// newDatabase creates a database. The first call starts the server.
func (r *runner) newDatabase(ctx context.Context, name string) (b *database, err error) {
	s := r.clickHouse
	if s == nil {
		s = &testClickHouse{}
		r.clickHouse = s
		if s.dir, err = os.MkdirTemp("", "millrace-bench-"); err != nil {
			return nil, fmt.Errorf("make a directory for the engine: %w", err)
		}
		if s.engine, err = embedded.Start(ctx, embedded.Config{Dir: s.dir, Progress: r.cfg.Progress}); err != nil {
			return nil, err
		}
	}
	b, err = openDatabase(s.engine.Addr(), name)
	if err != nil {
		return nil, err
	}
	s.databases = append(s.databases, b)
	_, err = migrate.Run(ctx, b.DB, false)
	return b, err
}

func openDatabase(addr, name string) (*database, error) {
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{addr}, Database: name}, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}, ReadTimeout: 10 * time.Minute})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to ClickHouse: %w", err), db.Close())
	}
	return &database{db, addr, name, conn}, nil
}

func (b *database) close() error { return errors.Join(b.conn.Close(), b.Close()) }

// close closes the databases, stops the server and removes its directory.
func (s *testClickHouse) close(ctx context.Context) (err error) {
	if s == nil {
		return nil
	}
	for _, b := range s.databases {
		err = errors.Join(err, b.close())
	}
	if s.engine != nil {
		err = errors.Join(err, s.engine.Close(context.WithoutCancel(ctx)))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// exec runs a statement. {db} is replaced by the database.
func (b *database) exec(ctx context.Context, statement string) error {
	if err := b.conn.Exec(ctx, strings.ReplaceAll(statement, "{db}", b.name)); err != nil {
		return fmt.Errorf("%.60s: %w", statement, err)
	}
	return nil
}

// number runs a query with one number as its result.
func (b *database) number(ctx context.Context, query string) (n float64, err error) {
	if err := b.conn.QueryRow(ctx, strings.ReplaceAll(query, "{db}", b.name)).Scan(&n); err != nil {
		return 0, fmt.Errorf("%.60s: %w", query, err)
	}
	return n, nil
}

// waitMerges returns when no merge has run for a second. Merges of earlier inserts would compete for the processors.
func (b *database) waitMerges(ctx context.Context) error {
	last := time.Now()
	return pollUntil(ctx, func() (bool, error) {
		n, err := b.number(ctx, "SELECT toFloat64(count()) FROM system.merges WHERE database = '{db}'")
		if n > 0 {
			last = time.Now()
		}
		return time.Since(last) >= time.Second, err
	})
}

// Statements that fill a table with {rows} generated rows, in 50 spaces of each of 2 stores of one account, in the
// order of the table, so that the server need not sort them. Audit log and state must agree on each copy, otherwise
// fresh reads would read twice: id, digest and time are functions of the item and the store, hashed as UInt64,
// since the types of place differ.
const (
	fillSettings = ` SETTINGS max_insert_threads = 2, max_threads = 2, max_block_size = 1000000,
  min_insert_block_size_rows = 1000000,
  min_insert_block_size_bytes = 0, async_insert = 0, optimize_on_insert = 0`

	contentOf = `sipHash128(toUInt64(place * 2 + s))::FixedString(16) AS id,
  unhex(hex(sipHash128(toUInt64(place), 1))) AS md5,
  addMonths(toDateTime64('2025-01-01 00:00:00', 3, 'UTC'), place % 10)
    + cityHash64(toUInt64(place * 2 + s)) % 2419200 AS happened`

	itemOf = "concat('space-', leftPad(toString(intDiv(place, {rows} / 100)), 2, '0'))," +
		" concat('img-', leftPad(toString(place), 9, '0'), '.tif')"

	// auditRows are one change for each copy, spread over ten months.
	auditRows = `INSERT INTO {db}.audit_log
  (id, ts, topic, inc, part, off, ingested, op, account, store, space, item,
   size, digests, provenance, user, origin)
WITH intDiv(number * 10, {rows}) AS month, number % intDiv({rows}, 10) AS j, intDiv(j, 2) * 10 + month AS place,
  j % 2 AS s,
  ` + contentOf + `
SELECT id, happened, 'filled', 7, number % 12, intDiv(number, 12), happened + 60, 'add',
  'acme', toString(1 + s), ` + itemOf + `,
  1000, map('md5', md5), 'verified', concat('user-', toString(cityHash64(number, 1) % 20)), 'client'
FROM numbers({rows})`

	// stateRows are the state of each copy, with the same content in both stores. Nine of ten have passed a check.
	stateRows = `INSERT INTO {db}.copy_state (account, store, space, item, content, digests, pass, attempt)
WITH intDiv(number * 2, {rows}) AS s, number % intDiv({rows}, 2) AS place, ` + contentOf + `,
  bitShiftLeft(toUInt128(toUnixTimestamp64Milli(happened) + 17592186044416), 83) AS ver, number % 10 != 3 AS passed,
  if(passed, bitShiftLeft(toUInt128(1740000000000 + 17592186044416 + cityHash64(number) % 7776000000), 83),
    0::UInt128) AS passed_ver
SELECT 'acme', toString(1 + s), ` + itemOf + `,
  (ver, 0::UInt64, id, 1000, concat('v', toString(number)), '', 'image/tiff', 'client', 'ann', NULL, 0::UInt64, ''),
  map('md5', concat(unhex('0000000000000000010000000000000000'), unhex(hex(id)), md5)),
  if(passed, (passed_ver, map('md5', md5)), (passed_ver, map()::Map(String, String))),
  (passed_ver, if(passed, 'pass', ''), if(passed, 1, 0))
FROM numbers({rows})`
)

// spaceRows is stateRows with all copies in the first store, in the space "space-00".
func spaceRows() string {
	return strings.NewReplacer("intDiv(number * 2, {rows}) AS s, number % intDiv({rows}, 2) AS place",
		"0 AS s, number AS place", "intDiv(place, {rows} / 100)", "0").Replace(stateRows)
}

// filledItem returns the space and the name of the nth item of a table of rows.
func filledItem(n, rows int) (space, item string) {
	return fmt.Sprintf("space-%02d", n/(rows/100)), fmt.Sprintf("img-%09d.tif", n)
}

// fill inserts generated rows. rows must be a multiple of 1,000.
func (b *database) fill(ctx context.Context, statement string, rows int) error {
	return b.exec(ctx, strings.ReplaceAll(statement, "{rows}", fmt.Sprint(rows))+fillSettings)
}

// filledDatabase returns a database with amounts.prefilled audit rows and copies. The first call fills it and waits for
// the merges.
func (r *runner) filledDatabase(ctx context.Context) (*database, error) {
	if r.filled != nil {
		return r.filled, nil
	}
	b, err := r.newDatabase(ctx, "filled")
	if err != nil {
		return nil, err
	}
	n := r.amounts.prefilled
	fmt.Fprintf(r.cfg.Progress, "    filling copy_state and audit_log with %s rows\n", count(n))
	if err := b.fill(ctx, stateRows, n); err != nil {
		return nil, err
	}
	if err := b.exec(ctx, "OPTIMIZE TABLE {db}.copy_state FINAL"); err != nil {
		return nil, err
	}
	if err := b.fill(ctx, auditRows, n); err != nil {
		return nil, err
	}
	if err := b.waitMerges(ctx); err != nil {
		return nil, err
	}
	r.filled = b
	return b, nil
}
