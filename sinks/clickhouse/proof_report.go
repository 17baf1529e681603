package clickhouse

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/match"
)

// A Reading is what is known of a topic beside its records.
type Reading struct {
	// Noted is the extent whose records were added.
	Noted schemas.Extent
	// Committed is what the sink's group had committed before anything was read.
	Committed map[int32]int64
	// Now tells the extent as it is when the rows have been read.
	Now func(context.Context) (schemas.Extent, error)
	// Told is told how far a step is.
	Told func(step string, done, total int64)
}

// ErrAnew means that a topic was deleted and made again while it was read.
var ErrAnew = errors.New("the topic was made anew while it was read")

// A TableProof is what the comparison of a topic with one table came to. Missing, Doubled,
// Extra, Displaced, Altered and what Trimmed has Unread are findings; the rest says what was not compared.
type TableProof struct {
	Topic       schemas.Topic `json:"topic"`
	Table       string        `json:"table"`
	Incarnation uint32        `json:"incarnation"`
	Records     int64         `json:"records"`   // in Kafka, of those that make a row
	Messages    int64         `json:"messages"`  // distinct
	Rows        int64         `json:"rows"`      // in the view
	Missing     Discrepancy   `json:"missing"`   // a message has no row
	Doubled     Discrepancy   `json:"doubled"`   // a message has several rows in the view
	Extra       Discrepancy   `json:"extra"`     // a row has no message, though Kafka should have it
	Displaced   Discrepancy   `json:"displaced"` // a message's row stands in another month than its time says
	Altered     Discrepancy   `json:"altered"`   // a row is not what was stored, or not of the bytes in Kafka
	Dead        Discrepancy   `json:"dead"`      // no row: the sink made it a dead letter
	// Pending messages have no row yet: they stand where the sink's group has not committed.
	Pending Discrepancy `json:"pending"`
	// Unhashed are rows of the table that were stored before rows had hashes: what they say was not compared.
	Unhashed int64 `json:"unhashed,omitempty"`
	// Gone are rows whose records are no longer, or not yet, to be compared with.
	Gone Gone `json:"gone"`
	// Trimmed are the partitions from whose start records were removed.
	Trimmed []Trimmed `json:"trimmed,omitempty"`
}

// Findings counts what is wrong.
func (p *TableProof) Findings() int64 {
	n := p.Missing.Messages + p.Doubled.Messages + p.Extra.Messages + p.Displaced.Messages + p.Altered.Messages
	for _, t := range p.Trimmed {
		n += t.Unread
	}
	return n
}

// A Discrepancy names messages, by their places.
type Discrepancy struct {
	Messages int64 `json:"messages"` // rows, where there is no message
	// Ranges are the runs of offsets; those of missing messages tell the first place of each,
	// those of doubled, extra and altered ones where their rows say that they stood.
	Ranges     []match.Range `json:"ranges,omitempty"`
	MoreRanges int           `json:"more_ranges,omitempty"`
	Examples   []Example     `json:"examples,omitempty"`

	places match.Places
}

// An Example is one message of a finding.
type Example struct {
	ID          string `json:"id,omitempty"` // empty where it has none that can be read
	Incarnation uint32 `json:"incarnation"`
	Partition   uint16 `json:"partition"`
	Offset      uint64 `json:"offset"`
}

// Gone counts rows by why Kafka does not have their records.
type Gone struct {
	Retention    int64 `json:"retention"`    // they lay below the start of the log
	Compaction   int64 `json:"compaction"`   // newer ones of their keys are there
	Incarnations int64 `json:"incarnations"` // the topic was made anew since
	Later        int64 `json:"later"`        // they came after the end was noted
}

// Trimmed says what retention removed of one partition.
type Trimmed struct {
	Partition int32 `json:"partition"`
	Before    int64 `json:"before"` // the first offset that is there
	Rows      int64 `json:"rows"`   // of records that were removed
	// Unread are offsets that the sink had not handled, and of which there is no row: their records are lost.
	Unread int64 `json:"unread,omitempty"`
}

// Most that a finding lists.
const (
	mostRanges   = 1000
	mostExamples = 10
)

func (f *Discrepancy) add(e match.Entry, hasID bool) {
	f.places.Add(e.At)
	if len(f.Examples) < mostExamples {
		x := Example{Incarnation: e.At.Incarnation, Partition: e.At.Partition, Offset: e.At.Offset}
		if hasID && e.Mark&markNoID == 0 {
			x.ID = hex.EncodeToString(e.Key[:])
		}
		f.Examples = append(f.Examples, x)
	}
}

// Compare reads the views and says what they make of the records that were added. It is called once.
func (p *Proof) Compare(ctx context.Context, r Reading) ([]*TableProof, error) {
	counted := make([]int64, len(p.tables))
	// The table has what lies before its position if the position was read before the rows.
	before, err := p.db.positions(ctx, p.db.conn, positionTables())
	if err != nil {
		return nil, err
	}
	for i, t := range p.tables {
		total, err := p.db.count(ctx, "count "+t.table, "SELECT count() AS n FROM {db}."+t.table+" WHERE topic = ?", string(p.topic))
		if err != nil {
			return nil, err
		}
		step := "read " + t.table
		told := func(done int64) { r.Told(step, min(done, total-1), total) }
		if counted[i], err = t.viewRows(ctx, p, told); err != nil {
			return nil, translate(fmt.Errorf("read the view of %s: %w", t.table, err))
		}
		r.Told(step, total, total)
		step = "sum " + t.table
		if err := t.tableRows(ctx, p, told); err != nil {
			return nil, translate(fmt.Errorf("sum the rows of %s: %w", t.table, err))
		}
		r.Told(step, total, total)
	}
	now, err := r.Now(ctx)
	if err != nil {
		return nil, err
	}
	if now.Incarnation != r.Noted.Incarnation {
		return nil, fmt.Errorf("prove %s: %w", p.topic, ErrAnew)
	}
	at, err := p.db.positions(ctx, p.db.conn, positionTables())
	if err != nil {
		return nil, err
	}
	var proofs []*TableProof
	for i, t := range p.tables {
		j := judge{p: p, t: t, r: r, now: now, sure: map[int32]int64{}, handled: map[int32]int64{}, trimmed: map[int32]int64{}, late: map[int32]int64{},
			of: &TableProof{Topic: p.topic, Table: t.table, Incarnation: now.Incarnation, Records: t.records, Rows: counted[i]}}
		for part := range now.Starts {
			of := partitionOf{t.table, p.topic, now.Incarnation, part}
			j.sure[part], j.handled[part] = max(r.Committed[part], before[of]), max(r.Committed[part], at[of])
		}
		step := "compare " + t.table
		err := t.book.Each(ctx, j.message, func(part, parts int) { r.Told(step, int64(part), int64(parts)) })
		if err != nil {
			return nil, fmt.Errorf("compare %s with %s: %w", p.topic, t.table, err)
		}
		proofs = append(proofs, j.result())
	}
	return proofs, nil
}

// A judge looks at one message after the other.
type judge struct {
	p       *Proof
	t       *tableProof
	r       Reading
	now     schemas.Extent
	of      *TableProof
	sure    map[int32]int64 // the first offset that the sink may not have handled before the rows were read
	handled map[int32]int64 // and after
	trimmed map[int32]int64 // rows of records that were removed
	late    map[int32]int64 // those of them that the sink may not have handled
}

// message judges what there is of one key.
func (j *judge) message(topic, view, table []match.Entry) error {
	hasID := j.t.also == ""
	if len(view) > 1 {
		j.of.Doubled.Messages++
		for _, e := range view {
			j.of.Doubled.add(e, hasID)
		}
	}
	if len(topic) == 0 {
		known := true
		for _, e := range view {
			if j.extra(e) {
				known = false
				j.of.Extra.Messages++
				j.of.Extra.add(e, hasID)
			}
		}
		if known {
			j.altered(nil, table, hasID)
		}
		return nil
	}
	j.of.Messages++
	j.altered(topic, table, hasID)
	if len(view) > 0 {
		if !sharesMonth(topic, view) {
			j.of.Displaced.Messages++
			j.of.Displaced.add(view[0], hasID)
		}
		return nil
	}
	f, place := j.without(topic)
	f.Messages++
	f.add(place, hasID)
	return nil
}

// without says what a message without a row is, and by which of its places. A dead letter that was sent again stands at two
// places, of which only the first is that of the dead letter.
func (j *judge) without(topic []match.Entry) (*Discrepancy, match.Entry) {
	f, place := &j.of.Dead, topic[0]
	for _, e := range topic {
		switch {
		case e.Mark&markDead != 0:
		case e.At.Offset < uint64(j.sure[int32(e.At.Partition)]):
			return &j.of.Missing, e
		case f == &j.of.Dead:
			f, place = &j.of.Pending, e
		}
	}
	return f, place
}

// altered judges what the rows of a message say. A row is compared with the record of its place alone: another report
// of the message may say something else.
func (j *judge) altered(topic, table []match.Entry, hasID bool) {
	found := false
	for _, row := range table {
		if row.Mark&markUnhashed != 0 {
			j.of.Unhashed++
			continue
		}
		other := func(record match.Entry) bool { return record.At == row.At && record.Hash != row.Hash }
		if row.Mark&markAltered != 0 || slices.ContainsFunc(topic, other) {
			found = true
			j.of.Altered.add(row, hasID)
		}
	}
	if found {
		j.of.Altered.Messages++
	}
}

// sharesMonth says whether a row stands in the month of a record.
func sharesMonth(topic, view []match.Entry) bool {
	for _, a := range topic {
		for _, b := range view {
			if a.Mark/monthAt == b.Mark/monthAt {
				return true
			}
		}
	}
	return false
}

// extra says whether Kafka should have the message of a row, and counts the row where not.
func (j *judge) extra(e match.Entry) bool {
	part := int32(e.At.Partition)
	end, known := j.r.Noted.Ends[part]
	switch {
	case e.Mark&markForeign != 0:
		return true
	case e.At.Incarnation != j.now.Incarnation:
		j.of.Gone.Incarnations++
	case e.At.Offset < uint64(j.now.Starts[part]):
		j.of.Gone.Retention++
		j.trimmed[part]++
		if e.At.Offset >= uint64(j.handled[part]) {
			j.late[part]++
		}
	case !known || e.At.Offset >= uint64(end):
		if later, ok := j.now.Ends[part]; !ok || e.At.Offset >= uint64(later) {
			return true // the log has never come so far, or has lost its end
		}
		j.of.Gone.Later++
	default:
		if entry, ok := schemas.Lookup(j.p.topic); !ok || entry.Cleanup != schemas.Compact || j.p.held.Has(e.At) {
			return true
		}
		j.of.Gone.Compaction++
	}
	return false
}

func (j *judge) result() *TableProof {
	p := j.of
	for _, f := range []*Discrepancy{&p.Missing, &p.Doubled, &p.Extra, &p.Displaced, &p.Altered, &p.Dead, &p.Pending} {
		f.Ranges, f.MoreRanges = f.places.Ranges(mostRanges)
		slices.SortFunc(f.Examples, func(a, b Example) int { return exampleAt(a).Compare(exampleAt(b)) })
	}
	for _, part := range slices.Sorted(maps.Keys(j.now.Starts)) {
		before := j.now.Starts[part]
		if before == 0 {
			continue
		}
		j.of.Trimmed = append(j.of.Trimmed, Trimmed{Partition: part, Before: before, Rows: j.trimmed[part],
			Unread: max(0, before-j.handled[part]-j.late[part])})
	}
	return j.of
}

func exampleAt(e Example) match.At {
	return match.At{Incarnation: e.Incarnation, Partition: e.Partition, Offset: e.Offset}
}
