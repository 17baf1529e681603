// Package verify compares the records of Kafka with the rows of the tables, and the state of every copy with a state
// made from the logs. It also makes rows of the state from those of the logs, for a table that has lost rows.
package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/match"
)

// A Topic compares the records of a topic with the rows in the views and tables that store it: every message
// must have exactly one row in a view, and every row must have a message. Every report of a Change must also have a row
// of its own in the table. It compares the sum of each row of a table with that of the row as it is read, and with that
// of the row that the record makes.
//
// Call Add once for each record, then Compare, which reads each view and each table once. What was read is kept in a
// temporary file, so that memory does not grow with the number of records.
type Topic struct {
	db        *clickhouse.DB
	topic     schemas.Topic
	tables    []*tableVerification
	locations match.LocationSet // of the records of a compacted topic
	dead      func(*schemas.Delivery) bool
}

// A tableVerification is the comparison with one table.
type tableVerification struct {
	clickhouse.Matcher
	entries *match.Comparison
	records int64
}

// NewTopic returns the comparison of a topic that a Sink stores. dead reports whether the sink made a record a
// dead letter. The caller closes it.
func NewTopic(db *clickhouse.DB, topic schemas.Topic, dead func(*schemas.Delivery) bool) (*Topic, error) {
	p := &Topic{db: db, topic: topic, dead: dead}
	for _, c := range clickhouse.Matchers()[topic] {
		p.tables = append(p.tables, &tableVerification{Matcher: c, entries: match.New()})
	}
	if len(p.tables) == 0 {
		return nil, fmt.Errorf("no table stores topic %s", topic)
	}
	return p, nil
}

// Close removes the temporary files.
func (p *Topic) Close() error {
	var errs []error
	for _, t := range p.tables {
		errs = append(errs, t.entries.Close())
	}
	return errors.Join(errs...)
}

// The tag of an entry. Its meaning depends on the side.
const (
	tagDead = 1 << 0 // record: it is a dead letter
	tagNoID = 1 << 1 // record: it has no id, and its key is its location

	tagForeign = 1 << 0 // row: its topic is not stored in the table
	tagAltered = 1 << 1 // row of the table: its sum is not that of its columns
)

// Add adds one record of the topic. unreadable is the reason why it has no Body, or nil.
func (p *Topic) Add(d *schemas.Delivery, unreadable error) error {
	at := match.Location{Incarnation: d.Incarnation, Partition: uint16(d.Partition), Offset: uint64(d.Offset)}
	e := match.Entry{Location: at}
	if d.Partition < 0 || d.Partition > math.MaxUint16 || d.Offset < 0 {
		return fmt.Errorf("verify %s/%d@%d: the location is out of range", p.topic, d.Partition, d.Offset)
	}
	if entry, ok := schemas.Lookup(p.topic); ok && entry.Cleanup == schemas.Compact {
		p.locations.Add(e.Location)
	}
	if p.dead(d) {
		e.Tag |= tagDead
	}
	for _, t := range p.tables {
		e := e
		hasRow, err := true, unreadable
		if err == nil {
			e.Key, e.Hash, hasRow, err = t.Identify(d)
		}
		if err != nil {
			e.Key, e.Tag = locationKey(d), e.Tag|tagNoID
		}
		if !hasRow {
			continue
		}
		t.records++
		if err := t.entries.Add(match.Topic, e); err != nil {
			return fmt.Errorf("add a record of %s: %w", p.topic, err)
		}
	}
	return nil
}

// locationKey replaces the id of a record that has none.
func locationKey(d *schemas.Delivery) (k match.Key) {
	binary.BigEndian.PutUint32(k[:], d.Incarnation)
	binary.BigEndian.PutUint32(k[4:], uint32(d.Partition))
	binary.BigEndian.PutUint64(k[8:], uint64(d.Offset))
	return k
}

// groupMemory bounds the memory, in bytes, that the server uses for a GROUP BY with very many groups; the rest is on
// disk.
const groupMemory = 512 << 20

// readView reads the view once. It returns the number of rows that name the topic, or a topic that the table does not
// store.
func (t *tableVerification) readView(ctx context.Context, p *Topic, progress func(done int64)) (n int64, err error) {
	return t.readRows(ctx, p, match.View, "SELECT id, "+t.SuffixOrEmpty()+
		", inc, part, off, topic = ?, 0::UInt64, '' FROM {db}."+t.Table+"_v", progress)
}

// readTable reads the rows of the table that name the topic, or a topic that the table does not store, including
// rows that the view leaves out, and computes their sums.
func (t *tableVerification) readTable(ctx context.Context, p *Topic, progress func(done int64)) error {
	_, err := t.readRows(ctx, p, match.Table, "SELECT lower(hex(id)), "+t.SuffixOrEmpty()+
		", inc, part, off, topic = ?, sum, "+t.RowBinary+" FROM {db}."+t.Table, progress)
	return err
}

// readRows adds the rows of one side. The query selects the id, the suffix of the key, the location, whether the topic
// is that of p, the sum, and the bytes that it covers.
func (t *tableVerification) readRows(
	ctx context.Context, p *Topic, side match.Side, query string, progress func(done int64),
) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, clickhouse.ScanTimeout)
	defer cancel()
	ctx = ch.Context(ctx, ch.WithSettings(ch.Settings{"max_bytes_before_external_group_by": groupMemory}))
	rows, stop, err := clickhouse.Stream(ctx, p.db.Writer(), p.db.Name(query+
		" WHERE (topic = ? OR NOT has(?, topic))"+t.WithoutPositions()), string(p.topic), string(p.topic), t.Topics)
	if err != nil {
		return 0, err
	}
	defer stop()
	for rows.Next() {
		var (
			id, suffix string
			summed     []byte
			ours       uint8
			e          match.Entry
		)
		at := &e.Location
		err := rows.Scan(&id, &suffix, &at.Incarnation, &at.Partition, &at.Offset, &ours, &e.Hash, &summed)
		if err != nil {
			return n, err
		}
		if e.Key, err = t.KeyOf(id, suffix); err != nil {
			return n, err
		}
		if side == match.Table && e.Hash != schemas.Hash(summed) {
			e.Tag |= tagAltered
		}
		if ours == 0 {
			e.Tag |= tagForeign
		}
		if err := t.entries.Add(side, e); err != nil {
			return n, err
		}
		if n++; n%10_000 == 0 {
			progress(n)
		}
	}
	return n, rows.Err()
}
