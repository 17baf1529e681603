package read

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// A RecordedCopy is what the manifest has of a copy, with what identifies its content in the store.
type RecordedCopy struct {
	Item string
	StoredCopy
	Version, ETag string    // of the newest content, also if it is deleted; empty: unknown
	Passed        time.Time // the start of the last check that passed, if its digests agree with Digests; zero: none
}

// spaceRows selects the rows of the state of a part of a space in the order of the table.
const spaceRows = "SELECT item, content.ver AS written, deleted.ver AS gone, content.change AS written_by," +
	" content.size AS size, toUInt8(deleted.origin IN ('sweep', 'fixity')) AS inferred," +
	" digests::Map(String, String) AS all_digests, content.version AS version, content.etag AS etag, pass.ver AS passed," +
	" pass.digests AS pass_digests" +
	" FROM {db}.copy_state WHERE account = %s AND store = %s AND space = %s AND item > %s%s" +
	" AND (content.ver > 0 OR deleted.ver > 0 OR pass.ver > 0)" +
	" ORDER BY account, store, space, item" + onePass + ", optimize_read_in_order = 1, max_block_size = %d"

// A mapColumn is a column of maps.
type mapColumn struct {
	keys, values proto.ColStr
	whole        proto.ColMap[string, string] // of keys and values
}

func (c *mapColumn) data() proto.ColResult {
	c.whole.Keys, c.whole.Values = &c.keys, &c.values
	return &c.whole
}

// each calls f for the entries of a row. It must not keep the value.
func (c *mapColumn) each(row int, f func(key string, value []byte)) {
	first := 0
	if row > 0 {
		first = int(c.whole.Offsets[row-1])
	}
	for i := first; i < int(c.whole.Offsets[row]); i++ {
		f(c.keys.Row(i), c.values.RowBytes(i))
	}
}

// of returns the map of a row.
func (c *mapColumn) of(row int) map[string]string {
	var m map[string]string
	c.each(row, func(key string, value []byte) {
		if m == nil {
			m = map[string]string{}
		}
		m[key] = string(value)
	})
	return m
}

// spaceColumns are the columns of a block of spaceRows.
type spaceColumns struct {
	stateColumns
	version, etag proto.ColStr
	passed        proto.ColUInt128
	passDigests   mapColumn
}

func (c *spaceColumns) results() proto.Results {
	c.digests.Keys, c.digests.Values = &c.algorithms, &c.values
	return proto.Results{{Data: &c.item}, {Data: &c.written}, {Data: &c.gone}, {Data: &c.writtenBy},
		{Data: &c.size}, {Data: &c.inferred}, {Data: &c.digests}, {Data: &c.version}, {Data: &c.etag}, {Data: &c.passed},
		{Data: c.passDigests.data()}}
}

// A recordedCopy merges the rows of one copy.
type recordedCopy struct {
	mergedCopy
	version, etag string
	passed        proto.UInt128
	passDigests   map[string]string
}

// EachInSpace calls each for the copies on record, live or deleted, of a space in a store whose items are after
// of.Item and, unless last is empty, not after last, in the order of the bytes of the items. It stops at the first
// error of each, and returns it. The memory that it takes does not depend on the number of copies.
func EachInSpace(
	ctx context.Context, db *clickhouse.DB, of schemas.Copy, last string, each func(RecordedCopy) error,
) error {
	bound := ""
	if last != "" {
		bound = " AND item <= " + clickhouse.QuoteText(last)
	}
	return eachInSpace(ctx, db, of, bound, each)
}

// EachLike is EachInSpace for the items that match one of the patterns, which are those of LIKE.
func EachLike(
	ctx context.Context, db *clickhouse.DB, of schemas.Copy, patterns []string, each func(RecordedCopy) error,
) error {
	var like []string
	for _, p := range patterns {
		like = append(like, "item LIKE "+clickhouse.QuoteText(p))
	}
	return eachInSpace(ctx, db, of, " AND ("+strings.Join(like, " OR ")+")", each)
}

// eachInSpace adds a condition to spaceRows.
func eachInSpace(
	ctx context.Context, db *clickhouse.DB, of schemas.Copy, condition string, each func(RecordedCopy) error,
) error {
	text := clickhouse.QuoteText
	const rows = blockRows / 8
	statement := fmt.Sprintf(spaceRows, text(of.Account), text(of.Store), text(of.Space), text(of.Item), condition, rows)
	var c spaceColumns
	var m recordedCopy
	end := func() error {
		if m.rows == 0 || m.written == (proto.UInt128{}) && m.gone == (proto.UInt128{}) { // only checks have reported it
			return nil
		}
		return each(m.result(of.Store))
	}
	q := clickhouse.Selection{Statement: statement, Columns: c.results()}
	err := db.SelectColumns(ctx, q, func(rows int) error {
		c.items = string(c.item.Buf) // once, and not for each row
		for i := range rows {
			if m.rows == 0 || string(c.item.RowBytes(i)) != m.item {
				if err := end(); err != nil {
					return err
				}
				m.begin(&c, i)
			}
			m.add(&c, i)
		}
		return nil
	})
	if err == nil {
		err = end()
	}
	if err != nil {
		return clickhouse.Classify(fmt.Errorf("read the state of space %s: %w", of.WithoutItem(), err))
	}
	return nil
}

func (m *recordedCopy) begin(c *spaceColumns, row int) {
	m.mergedCopy.begin(&c.stateColumns, row)
	m.version, m.etag, m.passed, m.passDigests = "", "", proto.UInt128{}, nil
}

func (m *recordedCopy) add(c *spaceColumns, row int) {
	if newer(c.written[row], m.written) {
		m.version, m.etag = c.version.Row(row), c.etag.Row(row)
	}
	if newer(c.passed[row], m.passed) {
		m.passed, m.passDigests = c.passed[row], c.passDigests.of(row)
	}
	m.mergedCopy.add(&c.stateColumns, row)
}

func (m *recordedCopy) result(store string) RecordedCopy {
	r := RecordedCopy{Item: m.item, StoredCopy: m.mergedCopy.result(store).copy, Version: m.version, ETag: m.etag}
	if m.passCounts(r.Digests) {
		r.Passed = timeOf(m.passed)
	}
	return r
}

// passCounts reports whether the newest pass was of the current content, with these digests, as stateRecord.passCounts.
func (m *recordedCopy) passCounts(current string) (shared bool) {
	for one := range strings.FieldsSeq(current) {
		alg, d, _ := strings.Cut(one, ":")
		if raw, ok := m.passDigests[alg]; ok {
			if shared = hex.EncodeToString([]byte(raw)) == d; !shared {
				return false
			}
		}
	}
	return shared
}

// SpacesOnRecord returns the spaces of a store that have copies on record, live or deleted, in no particular order.
func SpacesOnRecord(ctx context.Context, db *clickhouse.DB, account, store string) (spaces []string, err error) {
	type row struct {
		Space string `ch:"space"`
	}
	rows, err := clickhouse.Query[row](ctx, db, "list the spaces on record",
		"SELECT DISTINCT space FROM {db}.copy_state WHERE account = ? AND store = ?", account, store)
	for _, r := range rows {
		spaces = append(spaces, r.Space)
	}
	return spaces, err
}
