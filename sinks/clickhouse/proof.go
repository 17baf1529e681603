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
type Proof struct {
	db     *DB
	topic  schemas.Topic
	tables []*tableProof
	held   match.Places // the records of a compacted topic
	dead   func(*schemas.Delivery) bool
}

// tableProof is the comparison with one table.
type tableProof struct {
	claim
	book    *match.Book
	records int64
}

// NewProof returns a Proof of one of the topics that a Sink stores; dead says of which records the
// sink made dead letters. The caller closes it.
func (db *DB) NewProof(topic schemas.Topic, dead func(*schemas.Delivery) bool) (*Proof, error) {
	p := &Proof{db: db, topic: topic, dead: dead}
	for _, c := range claims()[topic] {
		p.tables = append(p.tables, &tableProof{claim: c, book: match.New()})
	}
	if len(p.tables) == 0 {
		return nil, fmt.Errorf("no table is fed by topic %s", topic)
	}
	return p, nil
}

// Close lets go of the temporary files.
func (p *Proof) Close() error {
	var errs []error
	for _, t := range p.tables {
		errs = append(errs, t.book.Close())
	}
	return errors.Join(errs...)
}

// What a Proof notes of an entry, in two bits of a meaning for each side, and the month in the twelve bits behind them.
const (
	markDead = 1 << 0 // of a record: it is a dead letter
	markNoID = 1 << 1 // of a record: it has no id of its own, and its key says where it stands

	markForeign = 1 << 0 // of a row of the view: it names a topic that does not feed the table

	markAltered  = 1 << 0 // of a row of the table: its sum is not that of its columns
	markUnhashed = 1 << 1 // of a row of the table: it has no hashes

	monthAt = 1 << 2
)

// monthMark is the month of a time as an entry notes it.
func monthMark(year, month int) uint16 { return uint16((year*12+month)&0xfff) * monthAt }

// Add takes one record of the topic; unreadable says why it has no Body.
func (p *Proof) Add(d *schemas.Delivery, unreadable error) error {
	at := match.At{Incarnation: d.Incarnation, Partition: uint16(d.Partition), Offset: uint64(d.Offset)}
	e := match.Entry{At: at, Hash: d.Hash}
	if d.Partition < 0 || d.Partition > math.MaxUint16 || d.Offset < 0 {
		return fmt.Errorf("prove %s/%d@%d: the place is out of range", p.topic, d.Partition, d.Offset)
	}
	if entry, ok := schemas.Lookup(p.topic); ok && entry.Cleanup == schemas.Compact {
		p.held.Add(e.At)
	}
	if p.dead(d) {
		e.Mark |= markDead
	}
	for _, t := range p.tables {
		e := e
		known, concerned, err := known{}, true, unreadable
		if err == nil {
			known, concerned, err = t.known(d)
		}
		if e.Key, e.Mark = known.key, e.Mark|known.month; err != nil {
			e.Key, e.Mark = placeKey(d), e.Mark|markNoID
		}
		if !concerned {
			continue
		}
		t.records++
		if err := t.book.Add(match.Topic, e); err != nil {
			return fmt.Errorf("note what %s holds: %w", p.topic, err)
		}
	}
	return nil
}

// placeKey stands for the id of a record that has none.
func placeKey(d *schemas.Delivery) (k match.Key) {
	binary.BigEndian.PutUint32(k[:], d.Incarnation)
	binary.BigEndian.PutUint32(k[4:], uint32(d.Partition))
	binary.BigEndian.PutUint64(k[8:], uint64(d.Offset))
	return k
}

// known is by what the one row of a message is known.
type known struct {
	key   match.Key
	month uint16 // see monthMark
}

// A claim says how a topic's records are found again in one table.
type claim struct {
	table string
	// known says by what; concerned is false for a record that makes no row in the table. An error says
	// that the record cannot be a row.
	known func(*schemas.Delivery) (k known, concerned bool, err error)
	// also is SQL for what tells rows of one id apart; empty where the id is all.
	also   string
	sums   string   // SQL for what of a row its sum is of
	topics []string // all that feed the table
}

// knownIn returns by what a row is known in a table.
func knownIn[T any](t *table[T], r row[T]) (k known, err error) {
	if k.key, err = parseID(t.id(r)); err != nil {
		return k, err
	}
	ts := t.ts(r)
	if _, err := toMillis(ts); err != nil {
		return k, err
	}
	k.month = monthMark(ts.AsTime().Year(), int(ts.AsTime().Month()))
	return k, nil
}

func claimOf[T schemas.Body](t *table[T]) claim {
	return claim{table: t.name, sums: t.rowBinary(), known: func(d *schemas.Delivery) (known, bool, error) {
		m, ok := d.Body.(T)
		if !ok {
			return known{}, true, fmt.Errorf("is a %T", d.Body)
		}
		k, err := knownIn(t, row[T]{d, m})
		return k, true, err
	}}
}

// claims are those of every topic. A table whose rows are known by more than their id says so here.
func claims() map[schemas.Topic][]claim {
	letters, results := deadLetters(), duplicationLog()
	all := map[schemas.Topic][]claim{
		schemas.Changes:            {claimOf(auditLog())},
		schemas.DuplicationResults: {claimOf(results)},
		schemas.FixityResults:      {claimOf(bitLog())},
		schemas.Incidents:          {claimOfIncidents()},
		schemas.Reports:            {claimOf(reports())},
		schemas.Jobs:               {claimOf(jobLog())},
		schemas.Policies:           {claimOf(policyHistory())},
		schemas.Admin:              {claimOf(adminLog())},
		schemas.Dead: {
			{table: letters.name, sums: letters.rowBinary(), known: func(d *schemas.Delivery) (known, bool, error) {
				k, err := knownIn(letters, row[deadLetter]{d, readDead(d)})
				return k, true, err
			}},
			{table: results.name, sums: results.rowBinary(), known: func(d *schemas.Delivery) (known, bool, error) {
				l := readDead(d)
				k, err := knownIn(results, row[*pb.DuplicationResult]{d, l.result(d)})
				return k, l.ofCommand(), err
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
func claimOfIncidents() claim {
	c := claimOf(incidents())
	byID := c.known
	c.also = "concat(toString(step_count), '/', toString(revision))"
	c.known = func(d *schemas.Delivery) (known, bool, error) {
		k, concerned, err := byID(d)
		if i, ok := d.Body.(*pb.Incident); ok && err == nil {
			k.key, err = alsoKey(k.key, strconv.Itoa(int(i.GetStepCount()))+"/"+strconv.FormatInt(i.GetUpdated().AsTime().UnixMilli(), 10))
		}
		return k, concerned, err
	}
	return c
}

// alsoKey is the key of a row that is known by more than its id.
func alsoKey(id match.Key, also string) (match.Key, error) {
	return parseID(schemas.ID(hex.EncodeToString(id[:]), also))
}

// longQuery bounds reads of whole tables, and whatever else takes as long as there are rows.
const longQuery = 24 * time.Hour

// withAccount is SQL that leaves out the positions, which three of the tables hold.
func (c *claim) withAccount() string {
	switch c.table {
	case "audit_log", "duplication_log", "bit_log":
		return " AND account != ''"
	}
	return ""
}

// forged is SQL for whether a row says something that none is stored with: it has no sum although it is of a time when
// rows have one, as a hash or a value of a later column shows, or calls itself a position although it is of an account.
func (c *claim) forged() string {
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
func (c *claim) alsoOrNone() string { return cmp.Or(c.also, "''") }

// keyOf is the key of a row.
func (c *claim) keyOf(id, also string) (match.Key, error) {
	key, err := parseID(id)
	if err == nil && c.also != "" {
		key, err = alsoKey(key, also)
	}
	return key, err
}

// viewRows reads the view once, month by month, and returns how many rows of the topic, or of none that feeds the
// table, it shows.
func (t *tableProof) viewRows(ctx context.Context, p *Proof, told func(done int64)) (n int64, err error) {
	ctx, cancel := context.WithTimeout(spilling(ctx), longQuery)
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
		more, err := t.monthRows(ctx, p, m.Month, func(done int64) { told(n + done) })
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}

// monthRows reads one month of the view.
func (t *tableProof) monthRows(ctx context.Context, p *Proof, month uint32, told func(int64)) (n int64, err error) {
	statement := "SELECT id, " + t.alsoOrNone() + ", inc, part, off, topic = ? FROM {db}." + t.table + "_v" +
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
			e        = match.Entry{Mark: monthMark(int(month/100), int(month%100))}
		)
		if err := rows.Scan(&id, &more, &e.At.Incarnation, &e.At.Partition, &e.At.Offset, &ours); err != nil {
			return n, err
		}
		if e.Key, err = t.keyOf(id, more); err != nil {
			return n, err
		}
		if ours == 0 {
			e.Mark |= markForeign
		}
		if err := t.book.Add(match.View, e); err != nil {
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
func (t *tableProof) tableRows(ctx context.Context, p *Proof, told func(done int64)) error {
	ctx, cancel := context.WithTimeout(ctx, longQuery)
	defer cancel()
	statement := "SELECT lower(hex(id)), " + t.alsoOrNone() + ", inc, part, off, hash, sum, " + t.forged() + ", " + t.sums +
		" FROM {db}." + t.table + " WHERE (topic = ? OR NOT has(?, topic))" + t.withAccount()
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
		at := &e.At
		if err := rows.Scan(&id, &more, &at.Incarnation, &at.Partition, &at.Offset, &e.Hash, &sum, &forged, &columns); err != nil {
			return err
		}
		if e.Key, err = t.keyOf(id, more); err != nil {
			return err
		}
		switch {
		case !forged && sum == schemas.Hash(columns):
		case !forged && sum == 0:
			e.Mark = markUnhashed
		default:
			e.Mark = markAltered
		}
		if err := t.book.Add(match.Table, e); err != nil {
			return err
		}
		if n%10_000 == 0 {
			told(n)
		}
	}
	return rows.Err()
}
