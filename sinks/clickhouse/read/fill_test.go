package read_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

// A fillSize is the size of the tables in the tests of queries: as many copies of one account as rows, a hundredth
// of them in each of 50 spaces in each of 2 stores. The logs have every tenth item, once a month in each store, for
// 10 months: as many rows, with one part for each month. The engine generates the rows in the order of the tables,
// so that nothing is sorted.
type fillSize struct{ rows int }

func (f fillSize) month() int { return f.rows / bigParts }
func (f fillSize) space() int { return f.rows / 100 } // items

const (
	bigParts = 10
	// The month and the copy of the nth row of a log.
	logRow = `WITH intDiv(number, {month}) AS month, number % {month} AS j, intDiv(j, 2) * 10 AS place,
  toString(1 + j % 2) AS in_store,
  concat('space-', leftPad(toString(intDiv(place, {space})), 2, '0')) AS in_space,
  concat('img-', leftPad(toString(place % {space}), 8, '0'), '.tif') AS of_item,
  addMonths(toDateTime64('2025-01-01 00:00:00', 3, 'UTC'), month) + cityHash64(number) % 2419200 AS happened
`
	fillSettings = ` SETTINGS max_insert_threads = 2, max_threads = 2, max_block_size = {month},
  min_insert_block_size_rows = {month},
  min_insert_block_size_bytes = 0, async_insert = 0, optimize_on_insert = 0`

	fillAudit = `INSERT INTO {db}.audit_log
  (id, ts, topic, inc, part, off, ingested, op, account, store, space, item, size, provenance, user, origin)
` + logRow + `SELECT sipHash128(number)::FixedString(16), happened,
  'changes', 7, number % 12, intDiv(number, 12), happened + 60,
  if(month = 0, 'add', 'update'), 'acme', in_store, in_space, of_item, 1000, 'verified',
  concat('user-', toString(cityHash64(number, 1) % 20)), 'client'
FROM numbers({rows})`

	// Four copies fail in each month.
	fillChecks = `INSERT INTO {db}.bit_log
  (id, ts, topic, inc, part, off, account, store, space, item, verdict, row, final, level, finished)
` + logRow + `SELECT sipHash128(number)::FixedString(16), happened,
  'fixity.results', 7, number % 12, intDiv(number, 12), 'acme', in_store, in_space, of_item,
  if(j % intDiv({month}, 4) = 234, 'fail', 'pass'), if(j % intDiv({month}, 4) = 234, 2, 1), true, 4, happened + 1
FROM numbers({rows})`

	fillResults = `INSERT INTO {db}.duplication_log
  (id, ts, topic, inc, part, off, account, space, item, source_store, destination_store, decision, result, outcome)
` + logRow + `SELECT sipHash128(number)::FixedString(16), happened,
  'duplication.results', 7, number % 12, intDiv(number, 12), 'acme', in_space, of_item,
  '1', in_store, 'C5', 'copied', 'done'
FROM numbers({rows})`

	// One of ten copies never passed; the others passed within 90 days.
	fillState = `INSERT INTO {db}.copy_state (account, store, space, item, content, digests, pass, attempt)
WITH intDiv(number, 50 * {space}) AS s, number % (50 * {space}) AS place,
  sipHash128(number)::FixedString(16) AS id, unhex(hex(sipHash128(number, 1))) AS md5,
  bitShiftLeft(toUInt128(1735689600000 + 17592186044416), 83) AS ver, number % 10 != 3 AS passed,
  if(passed, bitShiftLeft(toUInt128(1740000000000 + 17592186044416 + cityHash64(number) % 7776000000), 83),
    0::UInt128) AS passed_ver
SELECT 'acme', toString(1 + s),
  concat('space-', leftPad(toString(intDiv(place, {space})), 2, '0')),
  concat('img-', leftPad(toString(place % {space}), 8, '0'), '.tif'),
  (ver, 0, id, 1000, concat('v', toString(number)), '', 'image/tiff', 'client', 'ann', NULL, 0, ''),
  map('md5', concat(unhex('0000000000000000010000000000000000'), unhex(hex(id)), md5)),
  if(passed, (passed_ver, map('md5', md5)), (passed_ver, map()::Map(String, String))),
  (passed_ver, if(passed, 'pass', ''), if(passed, 1, 0))
FROM numbers({rows})`
)

// into fills tables. Their parts are not merged.
func (f fillSize) into(t testing.TB, db *clickhouse.DB, tables map[string]string) {
	t.Helper()
	numbers := strings.NewReplacer("{rows}", strconv.Itoa(f.rows),
		"{month}", strconv.Itoa(f.month()), "{space}", strconv.Itoa(f.space()))
	for table, statement := range tables {
		for _, s := range []string{"SYSTEM STOP MERGES {db}." + table, numbers.Replace(statement + fillSettings)} {
			if err := db.Exec(t.Context(), s); err != nil {
				t.Fatalf("filling %s: %v", table, err)
			}
		}
		if got := clickhousetest.Count(t, db, table); got != strconv.Itoa(f.rows) {
			t.Fatalf("%s has %s rows, want %d", table, got, f.rows)
		}
	}
}
