package clickhouse

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/match"
)

// A Proof compares what a topic holds with the rows that the views of its tables show: every
// message must be one row, wherever it stands, and every row a message. It compares what the tables have of each record
// with the record: the hash that the row has of it, and the row's own sum (sum.go).
//
// Add takes each record once; Compare then reads each view and each table once. What was read waits in a temporary
// file, so memory does not grow with the number of records.
type Verification struct {
	db        *DB
	topic     schemas.Topic
	tables    []*tableVerification
	locations match.LocationSet // the records of a compacted topic
	dead      func(*schemas.Delivery) bool
}

// tableProof is the comparison with one table.
type tableVerification struct {
	rowMatcher
	entries *match.Comparison
	records int64
}

// NewProof returns a Proof of one of the topics that a Sink stores; dead says of which records the
// sink made dead letters. The caller closes it.
func (db *DB) NewProof(topic schemas.Topic, dead func(*schemas.Delivery) bool) (*Verification, error) {
	p := &Verification{db: db, topic: topic, dead: dead}
	for _, c := range rowMatchers()[topic] {
		p.tables = append(p.tables, &tableVerification{rowMatcher: c, entries: match.New()})
	}
	if len(p.tables) == 0 {
		return nil, fmt.Errorf("no table is fed by topic %s", topic)
	}
	return p, nil
}

// Close lets go of the temporary files.
func (p *Verification) Close() error {
	var errs []error
	for _, t := range p.tables {
		errs = append(errs, t.entries.Close())
	}
	return errors.Join(errs...)
}

// What a Proof notes of an entry, in two bits of a meaning for each side, and the month in the twelve bits behind them.
const (
	tagDead = 1 << 0 // of a record: it is a dead letter
	tagNoID = 1 << 1 // of a record: it has no id of its own, and its key says where it stands

	tagForeign = 1 << 0 // of a row of the view: it names a topic that does not feed the table

	tagAltered  = 1 << 0 // of a row of the table: its sum is not that of its columns
	tagUnhashed = 1 << 1 // of a row of the table: it has no hashes

	monthUnit = 1 << 2
)

// monthMark is the month of a time as an entry notes it.
func monthTag(year, month int) uint16 { return uint16((year*12+month)&0xfff) * monthUnit }

// Add takes one record of the topic; unreadable says why it has no Body.
func (p *Verification) Add(d *schemas.Delivery, unreadable error) error {
	at := match.Location{Incarnation: d.Incarnation, Partition: uint16(d.Partition), Offset: uint64(d.Offset)}
	e := match.Entry{Location: at, Hash: d.Hash}
	if d.Partition < 0 || d.Partition > math.MaxUint16 || d.Offset < 0 {
		return fmt.Errorf("prove %s/%d@%d: the place is out of range", p.topic, d.Partition, d.Offset)
	}
	if entry, ok := schemas.Lookup(p.topic); ok && entry.Cleanup == schemas.Compact {
		p.locations.Add(e.Location)
	}
	if p.dead(d) {
		e.Tag |= tagDead
	}
	for _, t := range p.tables {
		e := e
		known, concerned, err := rowKey{}, true, unreadable
		if err == nil {
			known, concerned, err = t.identify(d)
		}
		if e.Key, e.Tag = known.key, e.Tag|known.month; err != nil {
			e.Key, e.Tag = locationKey(d), e.Tag|tagNoID
		}
		if !concerned {
			continue
		}
		t.records++
		if err := t.entries.Add(match.Topic, e); err != nil {
			return fmt.Errorf("note what %s holds: %w", p.topic, err)
		}
	}
	return nil
}

// placeKey stands for the id of a record that has none.
func locationKey(d *schemas.Delivery) (k match.Key) {
	binary.BigEndian.PutUint32(k[:], d.Incarnation)
	binary.BigEndian.PutUint32(k[4:], uint32(d.Partition))
	binary.BigEndian.PutUint64(k[8:], uint64(d.Offset))
	return k
}

// known is by what the one row of a message is known.
type rowKey struct {
	key   match.Key
	month uint16 // see monthMark
}

// A claim says how a topic's records are found again in one table.
type rowMatcher struct {
	table string
	// known says by what; concerned is false for a record that makes no row in the table. An error says
	// that the record cannot be a row.
	identify func(*schemas.Delivery) (k rowKey, concerned bool, err error)
	// also is SQL for what tells rows of one id apart; empty where the id is all.
	keySuffix string
	rowBinary string   // SQL for what of a row its sum is of
	topics    []string // all that feed the table
}

// knownIn returns by what a row is known in a table.
func rowKeyIn[T any](t *table[T], r row[T]) (k rowKey, err error) {
	if k.key, err = parseID(t.id(r)); err != nil {
		return k, err
	}
	ts := t.ts(r)
	if _, err := toMillis(ts); err != nil {
		return k, err
	}
	k.month = monthTag(ts.AsTime().Year(), int(ts.AsTime().Month()))
	return k, nil
}

func rowMatcherOf[T schemas.Body](t *table[T]) rowMatcher {
	return rowMatcher{table: t.name, rowBinary: t.rowBinary(), identify: func(d *schemas.Delivery) (rowKey, bool, error) {
		m, ok := d.Body.(T)
		if !ok {
			return rowKey{}, true, fmt.Errorf("is a %T", d.Body)
		}
		k, err := rowKeyIn(t, row[T]{d, m})
		return k, true, err
	}}
}

// claims are those of every topic. A table whose rows are known by more than their id says so here.
func rowMatchers() map[schemas.Topic][]rowMatcher {
	letters, results := deadLetters(), duplicationLog()
	all := map[schemas.Topic][]rowMatcher{
		schemas.Changes:            {rowMatcherOf(auditLog())},
		schemas.DuplicationResults: {rowMatcherOf(results)},
		schemas.FixityResults:      {rowMatcherOf(bitLog())},
		schemas.Incidents:          {incidentMatcher()},
		schemas.Reports:            {rowMatcherOf(reports())},
		schemas.Jobs:               {rowMatcherOf(jobLog())},
		schemas.Policies:           {rowMatcherOf(policyHistory())},
		schemas.Admin:              {rowMatcherOf(adminLog())},
		schemas.Dead: {
			{table: letters.name, rowBinary: letters.rowBinary(), identify: func(d *schemas.Delivery) (rowKey, bool, error) {
				k, err := rowKeyIn(letters, row[deadLetter]{d, readDead(d)})
				return k, true, err
			}},
			{table: results.name, rowBinary: results.rowBinary(), identify: func(d *schemas.Delivery) (rowKey, bool, error) {
				l := readDead(d)
				k, err := rowKeyIn(results, row[*pb.DuplicationResult]{d, l.result(d)})
				return k, l.isCommand(), err
			}},
		},
	}
	feeding := map[string][]string{}
	for topic, cs := range all {
		for _, c := range cs {
			feeding[c.table] = append(feeding[c.table], string(topic))
		}
	}
	for _, cs := range all {
		for i := range cs {
			cs[i].topics = feeding[cs[i].table]
		}
	}
	return all
}

// claimOfIncidents knows a row by the id of its incident and by which of its records it is.
func incidentMatcher() rowMatcher {
	c := rowMatcherOf(incidents())
	byID := c.identify
	c.keySuffix = "concat(toString(step_count), '/', toString(revision))"
	c.identify = func(d *schemas.Delivery) (rowKey, bool, error) {
		k, concerned, err := byID(d)
		if i, ok := d.Body.(*pb.Incident); ok && err == nil {
			k.key, err = suffixedKey(k.key, strconv.Itoa(int(i.GetStepCount()))+"/"+strconv.FormatInt(i.GetUpdated().AsTime().UnixMilli(), 10))
		}
		return k, concerned, err
	}
	return c
}

// alsoKey is the key of a row that is known by more than its id.
func suffixedKey(id match.Key, also string) (match.Key, error) {
	return parseID(schemas.ID(hex.EncodeToString(id[:]), also))
}

// longQuery bounds reads of whole tables, and whatever else takes as long as there are rows.
const longQuery = 24 * time.Hour

// withAccount is SQL that leaves out the positions, which three of the tables hold.
func (c *rowMatcher) withoutPositions() string {
	switch c.table {
	case "audit_log", "duplication_log", "bit_log":
		return " AND account != ''"
	}
	return ""
}

// forged is SQL for whether a row says something that none is stored with: it has no sum although it is of a time when
// rows have one, as a hash or a value of a later column shows, or calls itself a position although it is of an account.
func (c *rowMatcher) inconsistent() string {
	switch c.table {
	case "audit_log":
		return "sum = 0 AND (hash != 0 OR report != 0) OR position != 0"
	case "duplication_log", "bit_log":
		return "sum = 0 AND hash != 0 OR position != 0"
	case "admin_log":
		return "sum = 0 AND (hash != 0 OR incident != '' OR seen != '')"
	case "policy_history":
		return "sum = 0 AND (hash != 0 OR file_sha256 != '')"
	}
	return "sum = 0 AND hash != 0"
}

// alsoOrNone is SQL for a text, whether the claim has one or not.
func (c *rowMatcher) suffixOrEmpty() string { return cmp.Or(c.keySuffix, "''") }

// keyOf is the key of a row.
func (c *rowMatcher) keyOf(id, also string) (match.Key, error) {
	key, err := parseID(id)
	if err == nil && c.keySuffix != "" {
		key, err = suffixedKey(key, also)
	}
	return key, err
}

// viewRows reads the view once, month by month, and returns how many rows of the topic, or of none that feeds the
// table, it shows.
func (t *tableVerification) readView(ctx context.Context, p *Verification, told func(done int64)) (n int64, err error) {
	ctx, cancel := context.WithTimeout(spillToDisk(ctx), longQuery)
	defer cancel()
	type month struct {
		Month uint32 `ch:"month"`
	}
	months, err := queryOn[month](ctx, p.db.conn, "list the months",
		p.db.name("SELECT DISTINCT toYYYYMM(ts) AS month FROM {db}."+t.table+" ORDER BY month"))
	if err != nil {
		return 0, err
	}
	for _, m := range months {
		more, err := t.readViewMonth(ctx, p, m.Month, func(done int64) { told(n + done) })
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

// monthRows reads one month of the view.
func (t *tableVerification) readViewMonth(ctx context.Context, p *Verification, month uint32, told func(int64)) (n int64, err error) {
	statement := "SELECT id, " + t.suffixOrEmpty() + ", inc, part, off, topic = ? FROM {db}." + t.table + "_v" +
		" WHERE toYYYYMM(ts) = ? AND (topic = ? OR NOT has(?, topic))"
	rows, leave, err := stream(ctx, p.db.conn, p.db.name(statement), string(p.topic), month, string(p.topic), t.topics)
	if err != nil {
		return 0, err
	}
	defer leave()
	for rows.Next() {
		var (
			id, more string
			ours     uint8
			e        = match.Entry{Tag: monthTag(int(month/100), int(month%100))}
		)
		if err := rows.Scan(&id, &more, &e.Location.Incarnation, &e.Location.Partition, &e.Location.Offset, &ours); err != nil {
			return n, err
		}
		if e.Key, err = t.keyOf(id, more); err != nil {
			return n, err
		}
		if ours == 0 {
			e.Tag |= tagForeign
		}
		if err := t.entries.Add(match.View, e); err != nil {
			return n, err
		}
		if n++; n%10_000 == 0 {
			told(n)
		}
	}
	return n, rows.Err()
}

// tableRows reads the rows of the topic, or of none that feeds the table, as they lie in the table, those that the view
// leaves out too, and sums each anew.
func (t *tableVerification) readTable(ctx context.Context, p *Verification, told func(done int64)) error {
	ctx, cancel := context.WithTimeout(ctx, longQuery)
	defer cancel()
	statement := "SELECT lower(hex(id)), " + t.suffixOrEmpty() + ", inc, part, off, hash, sum, " + t.inconsistent() + ", " + t.rowBinary +
		" FROM {db}." + t.table + " WHERE (topic = ? OR NOT has(?, topic))" + t.withoutPositions()
	rows, leave, err := stream(ctx, p.db.conn, p.db.name(statement), string(p.topic), t.topics)
	if err != nil {
		return err
	}
	defer leave()
	for n := int64(1); rows.Next(); n++ {
		var (
			id, more string
			sum      uint64
			forged   bool
			columns  []byte
			e        match.Entry
		)
		at := &e.Location
		if err := rows.Scan(&id, &more, &at.Incarnation, &at.Partition, &at.Offset, &e.Hash, &sum, &forged, &columns); err != nil {
			return err
		}
		if e.Key, err = t.keyOf(id, more); err != nil {
			return err
		}
		switch {
		case !forged && sum == schemas.Hash(columns):
		case !forged && sum == 0:
			e.Tag = tagUnhashed
		default:
			e.Tag = tagAltered
		}
		if err := t.entries.Add(match.Table, e); err != nil {
			return err
		}
		if n%10_000 == 0 {
			told(n)
		}
	}
	return rows.Err()
}
