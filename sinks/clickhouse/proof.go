package clickhouse

import (
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
	"github.com/millrace/millrace/sinks/clickhouse/ledger"
)

// A Proof compares what a topic holds with the rows that the views of its tables show: every
// message must be one row, wherever it stands, and every row a message.
//
// It is told each record once, with Add, and then reads the views once, with Compare. What
// it is told waits in a temporary file, so memory does not grow with the number of records.
type Proof struct {
	db     *DB
	topic  schemas.Topic
	tables []*tableProof
	held   ledger.Places // the records of a compacted topic
	dead   func(*schemas.Delivery) bool
}

// tableProof is the comparison with one table.
type tableProof struct {
	claim
	book    *ledger.Book
	records int64
}

// NewProof returns a Proof of one of the topics that a Sink stores; dead says of which records the
// sink made dead letters. The caller closes it.
func (db *DB) NewProof(topic schemas.Topic, dead func(*schemas.Delivery) bool) (*Proof, error) {
	p := &Proof{db: db, topic: topic, dead: dead}
	for _, c := range claims()[topic] {
		p.tables = append(p.tables, &tableProof{claim: c, book: ledger.New()})
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

// What a Proof notes of an entry.
const (
	markDead    = 1 << iota // the record is a dead letter
	markForeign             // the row names a topic that does not feed the table
	markNoID                // the record has no id of its own: its key says where it stands
)

// Add takes one record of the topic; unreadable says why it has no Body.
func (p *Proof) Add(d *schemas.Delivery, unreadable error) error {
	e := ledger.Entry{At: ledger.At{Incarnation: d.Incarnation, Partition: uint16(d.Partition), Offset: uint64(d.Offset)}}
	if d.Partition < 0 || d.Partition > math.MaxUint16 || d.Offset < 0 {
		return fmt.Errorf("proving %s/%d@%d: the place is out of range", p.topic, d.Partition, d.Offset)
	}
	if entry, ok := schemas.Lookup(p.topic); ok && entry.Cleanup == schemas.Compact {
		p.held.Add(e.At)
	}
	if p.dead(d) {
		e.Mark |= markDead
	}
	for _, t := range p.tables {
		key, concerned, err := placeKey(d), true, unreadable
		mark := e.Mark | markNoID
		if err == nil {
			var id ledger.Key
			if id, concerned, err = t.key(d); err == nil {
				key, mark = id, e.Mark
			}
		}
		if !concerned {
			continue
		}
		t.records++
		if err := t.book.Add(ledger.Topic, ledger.Entry{Key: key, At: e.At, Mark: mark}); err != nil {
			return fmt.Errorf("noting what %s holds: %w", p.topic, err)
		}
	}
	return nil
}

// placeKey stands for the id of a record that has none.
func placeKey(d *schemas.Delivery) (k ledger.Key) {
	binary.BigEndian.PutUint32(k[:], d.Incarnation)
	binary.BigEndian.PutUint32(k[4:], uint32(d.Partition))
	binary.BigEndian.PutUint64(k[8:], uint64(d.Offset))
	return k
}

// A claim says how a topic's records are found again in one table.
type claim struct {
	table string
	// key is what the one row of a message is known by; concerned is false for a record that
	// makes no row in the table. An error says that the record cannot be a row.
	key func(*schemas.Delivery) (key ledger.Key, concerned bool, err error)
	// also is SQL for what tells rows of one id apart; empty where the id is all.
	also   string
	topics []string // all that feed the table
}

func claimOf[T schemas.Body](t *table[T]) claim {
	return claim{table: t.name, key: func(d *schemas.Delivery) (ledger.Key, bool, error) {
		m, ok := d.Body.(T)
		if !ok {
			return ledger.Key{}, true, fmt.Errorf("is a %T", d.Body)
		}
		id, err := parseID(t.id(row[T]{d, m}))
		return id, true, err
	}}
}

// claims are those of every topic. A table whose rows are known by more than their id says so here.
func claims() map[schemas.Topic][]claim {
	all := map[schemas.Topic][]claim{
		schemas.Changes:            {claimOf(auditLog())},
		schemas.DuplicationResults: {claimOf(duplicationLog())},
		schemas.FixityResults:      {claimOf(bitLog())},
		schemas.Incidents:          {claimOfIncidents()},
		schemas.Reports:            {claimOf(reports())},
		schemas.Jobs:               {claimOf(jobLog())},
		schemas.Policies:           {claimOf(policyHistory())},
		schemas.Admin:              {claimOf(adminLog())},
		schemas.Dead: {
			{table: "dead_letters", key: func(d *schemas.Delivery) (ledger.Key, bool, error) {
				id, err := parseID(readDead(d).id)
				return id, true, err
			}},
			{table: "duplication_log", key: func(d *schemas.Delivery) (ledger.Key, bool, error) {
				l := readDead(d)
				id, err := parseID(l.duplication)
				return id, l.ofCommand(), err
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
	id := c.key
	c.also = "concat(toString(step_count), '/', toString(revision))"
	c.key = func(d *schemas.Delivery) (ledger.Key, bool, error) {
		key, concerned, err := id(d)
		if i, ok := d.Body.(*pb.Incident); ok && err == nil {
			key, err = alsoKey(key, strconv.Itoa(int(i.GetStepCount()))+"/"+strconv.FormatInt(i.GetUpdated().AsTime().UnixMilli(), 10))
		}
		return key, concerned, err
	}
	return c
}

// alsoKey is the key of a row that is known by more than its id.
func alsoKey(id ledger.Key, also string) (ledger.Key, error) {
	return parseID(schemas.ID(hex.EncodeToString(id[:]), also))
}

// longQuery bounds reads of whole tables, and whatever else takes as long as there are rows.
const longQuery = 24 * time.Hour

// rows reads the view once, and returns how many rows of the topic, or of none that feeds the
// table, it shows.
func (t *tableProof) rows(ctx context.Context, p *Proof, told func(done int64)) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, longQuery)
	defer cancel()
	also := t.also
	if also == "" {
		also = "''"
	}
	rows, err := p.db.conn.Query(ctx, p.db.name("SELECT id, "+also+", inc, part, off, topic = ? FROM {db}."+t.table+"_v")+
		" WHERE topic = ? OR NOT has(?, topic)", string(p.topic), string(p.topic), t.topics)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id, more string
			ours     uint8
			e        ledger.Entry
		)
		if err := rows.Scan(&id, &more, &e.At.Incarnation, &e.At.Partition, &e.At.Offset, &ours); err != nil {
			return n, err
		}
		if e.Key, err = parseID(id); err == nil && t.also != "" {
			e.Key, err = alsoKey(e.Key, more)
		}
		if err != nil {
			return n, err
		}
		if ours == 0 {
			e.Mark = markForeign
		}
		if err := t.book.Add(ledger.Table, e); err != nil {
			return n, err
		}
		if n++; n%10_000 == 0 {
			told(n)
		}
	}
	return n, rows.Err()
}
