package read

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// recordRows selects the rows of the state of copies of one space, unmerged: aggregates over whole tuples would take
// more than two thirds of the engine's time.
const recordRows = `SELECT item,
  content.ver AS written, content.ns AS written_ns, content.change AS written_by, content.origin AS written_origin,
  content.size AS size, content.version AS version, content.etag AS etag, content.media_type AS media_type,
  ifNull(toUnixTimestamp64Milli(content.source_time), toInt64(%d)) AS source_time, content.source_ns AS source_ns,
  content.source_version AS source_version, digests::Map(String, String) AS all_digests,
  deleted.ver AS gone, deleted.ns AS gone_ns, deleted.change AS gone_by, deleted.version AS gone_version,
  deleted.origin AS gone_origin,
  properties.ver AS described, properties.media_type AS new_type, properties.user AS user_properties,
  attempt.ver AS attempted, pass.ver AS passed, pass.digests AS pass_digests
FROM {db}.copy_state
WHERE account = %s AND store = %s AND space = %s AND item IN (SELECT item FROM copies)` + onePass

func recordsStatement(space schemas.Copy) string {
	text := clickhouse.QuoteText
	return fmt.Sprintf(recordRows, int64(never), text(space.Account), text(space.Store), text(space.Space))
}

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

// recordColumns are the columns of a block of recordRows.
type recordColumns struct {
	item                                         proto.ColStr
	written, gone, described, attempted, passed  proto.ColUInt128
	writtenNanos, goneNanos, sourceNanos         proto.ColUInt64
	writtenBy, goneBy                            proto.ColFixedStr16
	writtenOrigin, goneVersion, goneOrigin       proto.ColStr
	version, etag, mediaType, newType, sourceVer proto.ColStr
	size, sourceTime                             proto.ColInt64
	digests, properties, passDigests             mapColumn
}

// results returns the columns in the order of the query.
func (c *recordColumns) results() (all proto.Results) {
	for _, data := range []proto.ColResult{&c.item,
		&c.written, &c.writtenNanos, &c.writtenBy, &c.writtenOrigin, &c.size, &c.version, &c.etag, &c.mediaType,
		&c.sourceTime, &c.sourceNanos, &c.sourceVer, c.digests.data(),
		&c.gone, &c.goneNanos, &c.goneBy, &c.goneVersion, &c.goneOrigin,
		&c.described, &c.newType, c.properties.data(),
		&c.attempted, &c.passed, c.passDigests.data()} {
		all = append(all, proto.ResultColumn{Data: data})
	}
	return all
}

// A mergedRecord merges the rows of one copy.
type mergedRecord struct {
	stateRecord
	written, gone, described, attempted, passed proto.UInt128 // the newest versions; zero: none
}

// add adds a row. As in the table, the newest group of each kind counts, and the greatest value of each digest.
func (m *mergedRecord) add(c *recordColumns, row int) {
	if newer(c.written[row], m.written) {
		m.written = c.written[row]
		m.WrittenNanos, m.WrittenBy = c.writtenNanos[row], string(c.writtenBy[row][:])
		m.WrittenOrigin, m.Size = c.writtenOrigin.Row(row), c.size[row]
		m.Version, m.ETag, m.MediaType = c.version.Row(row), c.etag.Row(row), c.mediaType.Row(row)
		m.SourceTime, m.SourceNanos, m.SourceVersion = nil, c.sourceNanos[row], c.sourceVer.Row(row)
		if ms := c.sourceTime[row]; ms != never {
			t := time.UnixMilli(ms)
			m.SourceTime = &t
		}
	}
	if newer(c.gone[row], m.gone) {
		m.gone, m.DeletedNanos = c.gone[row], c.goneNanos[row]
		m.DeletedBy, m.DeletedVersion = string(c.goneBy[row][:]), c.goneVersion.Row(row)
		m.DeletedOrigin = c.goneOrigin.Row(row)
	}
	c.digests.each(row, func(algorithm string, value []byte) {
		if m.Digests == nil {
			m.Digests = map[string]string{}
		}
		if string(value) > m.Digests[algorithm] {
			m.Digests[algorithm] = string(value)
		}
	})
	if newer(c.described[row], m.described) {
		m.described, m.NewType, m.UserProperties = c.described[row], c.newType.Row(row), c.properties.of(row)
	}
	if newer(c.attempted[row], m.attempted) {
		m.attempted = c.attempted[row]
	}
	if newer(c.passed[row], m.passed) {
		m.passed, m.PassDigests = c.passed[row], c.passDigests.of(row)
	}
}

// fill sets the manifest, and the times of the last attempt and the last pass. It computes the fields that stateFields
// computes.
func (m *mergedRecord) fill(r *pb.CopyRecord) {
	s := &m.stateRecord
	s.Written, s.Deleted = millisOf(m.written), millisOf(m.gone)
	s.Attempted, s.Passed = millisOf(m.attempted), millisOf(m.passed)
	if newer(m.written, m.gone) {
		s.Live = 1
	}
	counts := newer(m.described, m.gone) || newer(m.gone, m.written)
	if !counts { // they belong to a deleted content
		s.NewType, s.UserProperties = "", nil
	}
	if counts && newer(m.described, m.written) || s.NewType != "" && s.MediaType == "" {
		s.TypeReplaced = 1
	}
	s.fill(r)
}

// millisOf returns the shifted milliseconds of a version.
func millisOf(ver proto.UInt128) int64 { return int64(ver.High >> 19) }

// recordsInSpace returns what Records returns, for copies of one space in one store.
func recordsInSpace(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	records := make([]*pb.CopyRecord, 0, len(copies))
	for part := range slices.Chunk(copies, recordsAtOnce) {
		g, ctx := errgroup.WithContext(ctx)
		var audit map[schemas.Copy]*pb.Record
		g.Go(func() (err error) {
			audit, err = auditRecords(ctx, db, part)
			return err
		})
		var states []mergedRecord
		g.Go(func() (err error) {
			states, err = mergedRecords(ctx, db, part)
			return err
		})
		if err := g.Wait(); err != nil {
			return nil, err
		}
		for i, c := range part {
			r := &pb.CopyRecord{Manifest: noRecord(), Audit: recordOrNone(audit[c])}
			states[i].fill(r)
			records = append(records, r)
		}
	}
	return records, nil
}

// mergedRecords returns the state of copies of one space, in their order.
func mergedRecords(ctx context.Context, db *clickhouse.DB, copies []schemas.Copy) ([]mergedRecord, error) {
	merged := make([]mergedRecord, len(copies))
	var items proto.ColStr
	at := make(map[string]int, len(copies))
	for i, c := range copies {
		items.Append(c.Item)
		at[c.Item] = i
	}
	var columns recordColumns
	q := clickhouse.Selection{
		Statement: recordsStatement(copies[0]), Copies: proto.Input{{Name: "item", Data: &items}},
		Columns: columns.results(),
	}
	err := db.SelectColumns(ctx, q, func(rows int) error {
		for row := range rows {
			i, ok := at[string(columns.item.RowBytes(row))]
			if !ok {
				return fmt.Errorf("got a row of %q, which was not requested", columns.item.Row(row))
			}
			merged[i].add(&columns, row)
		}
		return nil
	})
	if err != nil {
		return nil, clickhouse.Classify(fmt.Errorf("read the manifest: %w", err))
	}
	return merged, nil
}
