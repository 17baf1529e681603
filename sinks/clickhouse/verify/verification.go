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

// spillToDisk bounds the memory that the server uses for a GROUP BY with very many groups.
func spillToDisk(ctx context.Context) context.Context {
	return ch.Context(ctx, ch.WithSettings(ch.Settings{"max_bytes_before_external_group_by": 512 << 20}))
}

// readView reads the view once, year by year. It returns the number of rows that name the topic, or a topic that
// the table does not store.
func (t *tableVerification) readView(
	ctx context.Context, p *Topic, progress func(done int64),
) (n int64, err error) {
	ctx, cancel := context.WithTimeout(spillToDisk(ctx), clickhouse.ScanTimeout)
	defer cancel()
	type year struct {
		Year uint16 `ch:"year"`
	}
	years, err := clickhouse.QueryOn[year](ctx, p.db.Writer(), "list the years",
		p.db.Name("SELECT DISTINCT toYear(ts) AS year FROM {db}."+t.Table+" ORDER BY year"))
	if err != nil {
		return 0, err
	}
	for _, y := range years {
		more, err := t.readViewYear(ctx, p, y.Year, func(done int64) { progress(n + done) })
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

// readViewYear reads one year of the view.
func (t *tableVerification) readViewYear(
	ctx context.Context, p *Topic, year uint16, progress func(int64),
) (n int64, err error) {
	statement := "SELECT id, " + t.SuffixOrEmpty() + ", inc, part, off, topic = ? FROM {db}." + t.Table + "_v" +
		" WHERE toYear(ts) = ? AND (topic = ? OR NOT has(?, topic))"
	rows, stop, err := clickhouse.Stream(ctx, p.db.Writer(), p.db.Name(statement), string(p.topic), year,
		string(p.topic), t.Topics)
	if err != nil {
		return 0, err
	}
	defer stop()
	for rows.Next() {
		var (
			id, suffix string
			ours       uint8
			e          = match.Entry{}
		)
		at := &e.Location
		if err := rows.Scan(&id, &suffix, &at.Incarnation, &at.Partition, &at.Offset, &ours); err != nil {
			return n, err
		}
		if e.Key, err = t.KeyOf(id, suffix); err != nil {
			return n, err
		}
		if ours == 0 {
			e.Tag |= tagForeign
		}
		if err := t.entries.Add(match.View, e); err != nil {
			return n, err
		}
		if n++; n%10_000 == 0 {
			progress(n)
		}
	}
	return n, rows.Err()
}

// readTable reads the rows of the table that name the topic, or a topic that the table does not store, including
// rows that the view leaves out, and computes their sums.
func (t *tableVerification) readTable(ctx context.Context, p *Topic, progress func(done int64)) error {
	ctx, cancel := context.WithTimeout(ctx, clickhouse.ScanTimeout)
	defer cancel()
	statement := "SELECT lower(hex(id)), " + t.SuffixOrEmpty() + ", inc, part, off, topic = ?, sum, " + t.RowBinary +
		" FROM {db}." + t.Table + " WHERE (topic = ? OR NOT has(?, topic))" + t.WithoutPositions()
	rows, stop, err := clickhouse.Stream(ctx, p.db.Writer(), p.db.Name(statement), string(p.topic), string(p.topic),
		t.Topics)
	if err != nil {
		return err
	}
	defer stop()
	for n := int64(1); rows.Next(); n++ {
		var (
			id, suffix string
			columns    []byte
			ours       uint8
			e          match.Entry
		)
		at := &e.Location
		err := rows.Scan(&id, &suffix, &at.Incarnation, &at.Partition, &at.Offset, &ours, &e.Hash, &columns)
		if err != nil {
			return err
		}
		if e.Key, err = t.KeyOf(id, suffix); err != nil {
			return err
		}
		if e.Hash != schemas.Hash(columns) {
			e.Tag |= tagAltered
		}
		if ours == 0 {
			e.Tag |= tagForeign
		}
		if err := t.entries.Add(match.Table, e); err != nil {
			return err
		}
		if n%10_000 == 0 {
			progress(n)
		}
	}
	return rows.Err()
}
