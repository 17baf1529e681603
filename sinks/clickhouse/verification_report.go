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

	locations match.LocationSet
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
	maxRanges   = 1000
	maxExamples = 10
)

func (f *Discrepancy) add(e match.Entry, hasID bool) {
	f.locations.Add(e.Location)
	if len(f.Examples) < maxExamples {
		x := Example{Incarnation: e.Location.Incarnation, Partition: e.Location.Partition, Offset: e.Location.Offset}
		if hasID && e.Tag&tagNoID == 0 {
			x.ID = hex.EncodeToString(e.Key[:])
		}
		f.Examples = append(f.Examples, x)
	}
}

// Compare reads the views and says what they make of the records that were added. It is called once.
func (p *Verification) Compare(ctx context.Context, r Reading) ([]*TableProof, error) {
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
		if counted[i], err = t.readView(ctx, p, told); err != nil {
			return nil, translate(fmt.Errorf("read the view of %s: %w", t.table, err))
		}
		r.Told(step, total, total)
		step = "sum " + t.table
		if err := t.readTable(ctx, p, told); err != nil {
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
		j := classifier{p: p, t: t, r: r, now: now, handledBefore: map[int32]int64{}, handledAfter: map[int32]int64{}, trimmed: map[int32]int64{}, unhandled: map[int32]int64{},
			out: &TableProof{Topic: p.topic, Table: t.table, Incarnation: now.Incarnation, Records: t.records, Rows: counted[i]}}
		for part := range now.Starts {
			of := positionKey{t.table, p.topic, now.Incarnation, part}
			j.handledBefore[part], j.handledAfter[part] = max(r.Committed[part], before[of]), max(r.Committed[part], at[of])
		}
		step := "compare " + t.table
		err := t.entries.Each(ctx, j.classify, func(part, parts int) { r.Told(step, int64(part), int64(parts)) })
		if err != nil {
			return nil, fmt.Errorf("compare %s with %s: %w", p.topic, t.table, err)
		}
		proofs = append(proofs, j.result())
	}
	return proofs, nil
}

// A judge looks at one message after the other.
type classifier struct {
	p             *Verification
	t             *tableVerification
	r             Reading
	now           schemas.Extent
	out           *TableProof
	handledBefore map[int32]int64 // the first offset that the sink may not have handled before the rows were read
	handledAfter  map[int32]int64 // and after
	trimmed       map[int32]int64 // rows of records that were removed
	unhandled     map[int32]int64 // those of them that the sink may not have handled
}

// message judges what there is of one key.
func (j *classifier) classify(topic, view, table []match.Entry) error {
	hasID := j.t.keySuffix == ""
	if len(view) > 1 {
		j.out.Doubled.Messages++
		for _, e := range view {
			j.out.Doubled.add(e, hasID)
		}
	}
	if len(topic) == 0 {
		known := true
		for _, e := range view {
			if j.isExtra(e) {
				known = false
				j.out.Extra.Messages++
				j.out.Extra.add(e, hasID)
			}
		}
		if known {
			j.checkHashes(nil, table, hasID)
		}
		return nil
	}
	j.out.Messages++
	j.checkHashes(topic, table, hasID)
	if len(view) > 0 {
		if !sharesMonth(topic, view) {
			j.out.Displaced.Messages++
			j.out.Displaced.add(view[0], hasID)
		}
		return nil
	}
	f, place := j.classifyMissing(topic)
	f.Messages++
	f.add(place, hasID)
	return nil
}

// without says what a message without a row is, and by which of its places. A dead letter that was sent again stands at two
// places, of which only the first is that of the dead letter.
func (j *classifier) classifyMissing(topic []match.Entry) (*Discrepancy, match.Entry) {
	f, place := &j.out.Dead, topic[0]
	for _, e := range topic {
		switch {
		case e.Tag&tagDead != 0:
		case e.Location.Offset < uint64(j.handledBefore[int32(e.Location.Partition)]):
			return &j.out.Missing, e
		case f == &j.out.Dead:
			f, place = &j.out.Pending, e
		}
	}
	return f, place
}

// altered judges what the rows of a message say. A row is compared with the record of its place alone: another report
// of the message may say something else.
func (j *classifier) checkHashes(topic, table []match.Entry, hasID bool) {
	found := false
	for _, row := range table {
		if row.Tag&tagUnhashed != 0 {
			j.out.Unhashed++
			continue
		}
		other := func(record match.Entry) bool { return record.Location == row.Location && record.Hash != row.Hash }
		if row.Tag&tagAltered != 0 || slices.ContainsFunc(topic, other) {
			found = true
			j.out.Altered.add(row, hasID)
		}
	}
	if found {
		j.out.Altered.Messages++
	}
}

// sharesMonth says whether a row stands in the month of a record.
func sharesMonth(topic, view []match.Entry) bool {
	for _, a := range topic {
		for _, b := range view {
			if a.Tag/monthUnit == b.Tag/monthUnit {
				return true
			}
		}
	}
	return false
}

// extra says whether Kafka should have the message of a row, and counts the row where not.
func (j *classifier) isExtra(e match.Entry) bool {
	part := int32(e.Location.Partition)
	end, known := j.r.Noted.Ends[part]
	switch {
	case e.Tag&tagForeign != 0:
		return true
	case e.Location.Incarnation != j.now.Incarnation:
		j.out.Gone.Incarnations++
	case e.Location.Offset < uint64(j.now.Starts[part]):
		j.out.Gone.Retention++
		j.trimmed[part]++
		if e.Location.Offset >= uint64(j.handledAfter[part]) {
			j.unhandled[part]++
		}
	case !known || e.Location.Offset >= uint64(end):
		if later, ok := j.now.Ends[part]; !ok || e.Location.Offset >= uint64(later) {
			return true // the log has never come so far, or has lost its end
		}
		j.out.Gone.Later++
	default:
		if entry, ok := schemas.Lookup(j.p.topic); !ok || entry.Cleanup != schemas.Compact || j.p.locations.Has(e.Location) {
			return true
		}
		j.out.Gone.Compaction++
	}
	return false
}

func (j *classifier) result() *TableProof {
	p := j.out
	for _, f := range []*Discrepancy{&p.Missing, &p.Doubled, &p.Extra, &p.Displaced, &p.Altered, &p.Dead, &p.Pending} {
		f.Ranges, f.MoreRanges = f.locations.Ranges(maxRanges)
		slices.SortFunc(f.Examples, func(a, b Example) int { return exampleLocation(a).Compare(exampleLocation(b)) })
	}
	for _, part := range slices.Sorted(maps.Keys(j.now.Starts)) {
		before := j.now.Starts[part]
		if before == 0 {
			continue
		}
		j.out.Trimmed = append(j.out.Trimmed, Trimmed{Partition: part, Before: before, Rows: j.trimmed[part],
			Unread: max(0, before-j.handledAfter[part]-j.unhandled[part])})
	}
	return j.out
}

func exampleLocation(e Example) match.Location {
	return match.Location{Incarnation: e.Incarnation, Partition: e.Partition, Offset: e.Offset}
}
