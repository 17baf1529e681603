// Package clickhousebench has helpers for benchmarks of the sink: the peer that it is compared with, large tables
// filled by the server itself, and measurements of the server.
//
// The filled tables have the same rows in the same order each time.
package clickhousebench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A Bench is a connection to one database, as the user default.
type Bench struct {
	conn     driver.Conn
	database string
}

// Open connects to the server at addr.
func Open(addr, database string) (*Bench, error) {
	conn, err := ch.Open(&ch.Options{Addr: []string{addr}, ReadTimeout: 10 * time.Minute})
	if err != nil {
		return nil, fmt.Errorf("connect to ClickHouse: %w", err)
	}
	return &Bench{conn, database}, nil
}

// Close closes the connection.
func (b *Bench) Close() error { return b.conn.Close() }

func (b *Bench) name(statement string) string {
	return strings.ReplaceAll(statement, "{db}", b.database)
}

// Exec runs statements. {db} is replaced by the database.
func (b *Bench) Exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if err := b.conn.Exec(ctx, b.name(s)); err != nil {
			return fmt.Errorf("%.60s: %w", s, err)
		}
	}
	return nil
}

// Number runs a query with one number as its result.
func (b *Bench) Number(ctx context.Context, query string) (n float64, err error) {
	if err := b.conn.QueryRow(ctx, b.name(query)).Scan(&n); err != nil {
		return 0, fmt.Errorf("%.60s: %w", query, err)
	}
	return n, nil
}

// Strings runs a query with one column of strings as its result.
func (b *Bench) Strings(ctx context.Context, query string) (all []string, err error) {
	rows, err := b.conn.Query(ctx, b.name(query))
	if err != nil {
		return nil, fmt.Errorf("%.60s: %w", query, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, fmt.Errorf("%.60s: %w", query, err)
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// BytesPerRow merges a table completely. It returns the bytes on disk per row, including indexes and projections.
func (b *Bench) BytesPerRow(ctx context.Context, table string) (float64, error) {
	if err := b.Exec(ctx, "OPTIMIZE TABLE {db}."+table+" FINAL"); err != nil {
		return 0, err
	}
	return b.Number(ctx, "SELECT sum(bytes_on_disk) / sum(rows) FROM system.parts"+
		" WHERE active AND database = '{db}' AND table = '"+table+"'")
}

// InsertByRows inserts changes into audit_log with the row interface of clickhouse-go, as most sinks do: the peer of
// the sink, with the same columns and equally durable settings. The rows are of one partition of topic changes;
// first is the offset of the first row.
func (b *Bench) InsertByRows(ctx context.Context, changes []*pb.Change, first uint64) error {
	ctx = ch.Context(ctx, ch.WithSettings(ch.Settings{
		"async_insert": 0, "insert_deduplicate": 0, "optimize_on_insert": 0,
	}))
	rows, err := b.conn.PrepareBatch(ctx, b.name("INSERT INTO {db}.audit_log ("+auditColumns+")"))
	if err != nil {
		return fmt.Errorf("insert by rows: %w", err)
	}
	defer func() { _ = rows.Abort() }() // after Send it does nothing
	now := time.Now()
	for i, c := range changes {
		id, err := hex.DecodeString(c.GetId())
		if err != nil {
			return fmt.Errorf("insert by rows: %w", err)
		}
		digests := make(map[string]string, len(c.GetDigests()))
		for k, v := range c.GetDigests() {
			raw, err := hex.DecodeString(v)
			if err != nil {
				return fmt.Errorf("insert by rows: %w", err)
			}
			digests[k] = string(raw)
		}
		t := c.GetTime().AsTime()
		off := first + uint64(i)           //nolint:gosec // it counts up
		ns := uint32(t.Nanosecond() % 1e6) //nolint:gosec // below 1e6
		if err := rows.Append(string(id), t, ns, "changes", uint32(7), uint16(0), off,
			now, "add", c.GetAccount(), c.GetStore(), c.GetSpace(), c.GetItem(), c.GetSourceSpace(), c.GetSourceItem(),
			c.GetVersion(), c.GetEtag(), c.GetSize(), digests, "verified", c.GetMediaType(), c.GetProperties(), c.GetAcl(),
			c.GetSequence(), c.GetUser(), c.GetAgent(), "client", c.GetCause(), nil, uint32(0), c.GetSourceVersion(),
			c.GetApproved(), c.GetEvidence(), uint16(258),
			off, schemas.Hash(id), c.GetPropertiesUnknown(), schemas.Hash([]byte(c.GetId()))); err != nil {
			return fmt.Errorf("insert by rows: %w", err)
		}
	}
	if err := rows.Send(); err != nil {
		return fmt.Errorf("insert by rows: %w", err)
	}
	return nil
}

const auditColumns = `id, ts, ns, topic, inc, part, off, ingested, op, account, store, space, item,
  source_space, source_item, version,
  etag, size, digests, provenance, media_type, properties, acl, sequence, user, agent, origin, cause,
  source_time, source_ns, source_version, approved, evidence, richness, report, hash, properties_unknown, sum`

// A Fill describes rows that the server generates. They are in 50 spaces of each of 2 stores of one account, in the
// order of the tables, so that the server need not sort them.
type Fill struct {
	Table     string
	statement string // with {rows} for the number of rows
}

const (
	fillSettings = ` SETTINGS max_insert_threads = 2, max_threads = 2, max_block_size = 1000000,
  min_insert_block_size_rows = 1000000,
  min_insert_block_size_bytes = 0, async_insert = 0, optimize_on_insert = 0`

	// Audit log and state must agree on each copy, otherwise fresh reads would read twice. So id, digest and time are
	// functions of the copy.
	contentOf = `sipHash128(copy)::FixedString(16) AS id, unhex(hex(sipHash128(copy, 1))) AS md5,
  addMonths(toDateTime64('2025-01-01 00:00:00', 3, 'UTC'), place % 10) + cityHash64(copy) % 2419200 AS happened`

	itemOf = "concat('space-', leftPad(toString(intDiv(place, {rows} / 100)), 2, '0'))," +
		" concat('img-', leftPad(toString(place), 9, '0'), '.tif')"
)

// AuditRows fills audit_log with one change for each copy, spread over ten months.
func AuditRows() Fill {
	return Fill{"audit_log", `INSERT INTO {db}.audit_log
  (id, ts, topic, inc, part, off, ingested, op, account, store, space, item,
   size, digests, provenance, user, origin)
WITH intDiv(number * 10, {rows}) AS month, number % intDiv({rows}, 10) AS j, intDiv(j, 2) * 10 + month AS place,
  place * 2 + j % 2 AS copy,
  ` + contentOf + `
SELECT id, happened, 'filled', 7, number % 12, intDiv(number, 12), happened + 60, 'add',
  'acme', toString(1 + j % 2), ` + itemOf + `,
  1000, map('md5', md5), 'verified', concat('user-', toString(cityHash64(number, 1) % 20)), 'client'
FROM numbers({rows})`}
}

// StateRows fills copy_state with one row for each copy. Nine of ten copies have passed a check.
func StateRows() Fill {
	return Fill{"copy_state", `INSERT INTO {db}.copy_state (account, store, space, item, content, digests, pass, attempt)
WITH intDiv(number * 2, {rows}) AS s, number % intDiv({rows}, 2) AS place, place * 2 + s AS copy, ` + contentOf + `,
  bitShiftLeft(toUInt128(toUnixTimestamp64Milli(happened) + 17592186044416), 83) AS ver, number % 10 != 3 AS passed,
  if(passed, bitShiftLeft(toUInt128(1740000000000 + 17592186044416 + cityHash64(number) % 7776000000), 83),
    0::UInt128) AS passed_ver
SELECT 'acme', toString(1 + s), ` + itemOf + `,
  (ver, 0, id, 1000, concat('v', toString(number)), '', 'image/tiff', 'client', 'ann', NULL, 0, ''),
  map('md5', concat(unhex('0000000000000000010000000000000000'), unhex(hex(id)), md5)),
  if(passed, (passed_ver, map('md5', md5)), (passed_ver, map()::Map(String, String))),
  (passed_ver, if(passed, 'pass', ''), if(passed, 1, 0))
FROM numbers({rows})`}
}

// PairRows fills copy_state as StateRows does, with the same items and contents in both stores.
func PairRows() Fill {
	f := StateRows()
	f.statement = strings.Replace(f.statement, "place * 2 + s AS copy", "place * 2 AS copy", 1)
	return f
}

// SpaceRows fills copy_state as StateRows does, with all copies in the first store, in the space "space-00".
func SpaceRows() Fill {
	f := StateRows()
	f.statement = strings.NewReplacer("intDiv(number * 2, {rows}) AS s, number % intDiv({rows}, 2) AS place",
		"0 AS s, number AS place", "intDiv(place, {rows} / 100)", "0").Replace(f.statement)
	return f
}

// ChecksOfACopy is the number of checks that CheckRows makes of each copy.
const ChecksOfACopy = 10

// CheckRows fills bit_log with ten checks of each copy in the first store, one a month. Item has the copies, a tenth of
// the rows.
func CheckRows() Fill {
	return Fill{"bit_log", `INSERT INTO {db}.bit_log
  (id, ts, topic, inc, part, off, account, store, space, item, store_kind, reason, verdict, row, finding, final, level,
   content_state, stored_state, manifest_state, audit_state, digest.algorithm, digest.value, digest.places, bytes_read,
   worker, host, software, finished)
WITH intDiv(number * 10, {rows}) AS month, number % intDiv({rows}, 10) AS place,
  addMonths(toDateTime64('2025-01-01 00:00:00', 3, 'UTC'), month) + cityHash64(number) % 2419200 AS began,
  unhex(hex(sipHash128(place, 1))) AS md5
SELECT sipHash128(number)::FixedString(16), began, 'filled', 7, number % 12, intDiv(number, 12), 'acme', '1',
  concat('space-', leftPad(toString(intDiv(place, {rows} / 1000)), 2, '0')),
  concat('img-', leftPad(toString(place), 9, '0'), '.tif'), 'file', 'sweep', 'pass', 1, 'pass', true, 4,
  'digests', 'digests', 'digests', 'digests', ['md5'], [md5], [15], 1000, 'bench', 'bench', 'bench', began + 1
FROM numbers({rows})`}
}

// Item returns the space and the name of the nth item of a Fill of rows.
func Item(n, rows int) (space, item string) {
	return fmt.Sprintf("space-%02d", n/(rows/100)), fmt.Sprintf("img-%09d.tif", n)
}

// Fill inserts the rows of f. rows must be a multiple of 1,000.
func (b *Bench) Fill(ctx context.Context, f Fill, rows int) error {
	return b.Exec(ctx, strings.ReplaceAll(f.statement, "{rows}", fmt.Sprint(rows))+fillSettings)
}

// Parts returns the number of active parts of a table.
func (b *Bench) Parts(ctx context.Context, table string) (float64, error) {
	return b.Number(ctx, "SELECT toFloat64(count()) FROM system.parts"+
		" WHERE active AND database = '{db}' AND table = '"+table+"'")
}

// Measured returns a context that measures its queries. most returns the number of granules that the largest one has
// read.
func Measured(ctx context.Context) (_ context.Context, most func() int64) {
	var (
		mu    sync.Mutex
		marks []int64
	)
	ctx = ch.Context(ctx, ch.WithProfileEvents(func(events []ch.ProfileEvent) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range events {
			switch e.Name {
			case "Query":
				marks = append(marks, 0)
			case "SelectedMarks":
				if len(marks) > 0 {
					marks[len(marks)-1] += e.Value
				}
			}
		}
	}))
	return ctx, func() (n int64) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range marks {
			n = max(n, m)
		}
		return n
	}
}
