package verify

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/match"
)

// An Offsets holds the offsets that Compare needs to judge missing and extra rows.
type Offsets struct {
	// Compared is the range of offsets of the records that were added.
	Compared schemas.OffsetRange
	// Committed are the committed offsets of the sink's group, read before the records.
	Committed map[int32]int64
	// Now returns the current range of offsets of the topic. Compare calls it after it has read the rows.
	Now func(context.Context) (schemas.OffsetRange, error)
	// Progress is called with the progress of each step.
	Progress func(step string, done, total int64)
}

// ErrRecreated means that the topic was deleted and created again while it was read.
var ErrRecreated = errors.New("the topic was recreated while it was read")

// A TableReport is the result of comparing a topic with one table. Missing, Doubled, Extra, Altered and
// the Unread offsets of Trimmed are findings. The other fields count what could not be compared.
type TableReport struct {
	Topic       schemas.Topic `json:"topic"`
	Table       string        `json:"table"`
	Incarnation uint32        `json:"incarnation"`
	Records     int64         `json:"records"`  // records in Kafka that must have a row
	Messages    int64         `json:"messages"` // distinct ids of these records
	Rows        int64         `json:"rows"`     // rows in the view
	Missing     Discrepancy   `json:"missing"`  // messages, or reports of Changes, without a row
	Doubled     Discrepancy   `json:"doubled"`  // messages with several rows in the view
	Extra       Discrepancy   `json:"extra"`    // rows without a message or report, though Kafka should still have it
	Altered     Discrepancy   `json:"altered"`  // rows that were changed, or that differ from their records
	Dead        Discrepancy   `json:"dead"`     // messages without a row that the sink made dead letters
	// Pending are messages without a row at offsets that the sink's group has not committed.
	Pending Discrepancy `json:"pending"`
	// Uncompared counts rows with records that are not in the compared range of Kafka.
	Uncompared Uncompared `json:"uncompared"`
	// Trimmed are the partitions with records that were removed from their start.
	Trimmed []Trimmed `json:"trimmed,omitempty"`
}

// Findings returns the number of findings.
func (p *TableReport) Findings() int64 {
	n := p.Missing.Messages + p.Doubled.Messages + p.Extra.Messages + p.Altered.Messages
	for _, t := range p.Trimmed {
		n += t.Unread
	}
	return n
}

// A Discrepancy lists messages of one finding by their locations in Kafka.
type Discrepancy struct {
	Messages int64 `json:"messages"` // or rows, if there is no message
	// Ranges are runs of offsets. A missing message counts at its first location; doubled, extra and altered ones count at
	// the locations that their rows name.
	Ranges     []match.Range `json:"ranges,omitempty"`
	MoreRanges int           `json:"more_ranges,omitempty"`
	Examples   []Example     `json:"examples,omitempty"`

	locations match.LocationSet
}

// An Example is one message of a finding.
type Example struct {
	ID          string `json:"id,omitempty"` // empty if the message has no readable id
	Incarnation uint32 `json:"incarnation"`
	Partition   uint16 `json:"partition"`
	Offset      uint64 `json:"offset"`
}

// Uncompared counts rows by the reason why their records were not compared.
type Uncompared struct {
	Retention    int64 `json:"retention"`    // below the start of the log
	Compaction   int64 `json:"compaction"`   // replaced by newer records with the same keys
	Incarnations int64 `json:"incarnations"` // of an earlier incarnation of the topic
	Later        int64 `json:"later"`        // published after the end of the compared range
}

// Trimmed describes what retention removed from one partition.
type Trimmed struct {
	Partition int32 `json:"partition"`
	Before    int64 `json:"before"` // the first offset that still exists
	Rows      int64 `json:"rows"`   // rows of removed records
	// Unread counts removed offsets that the sink had not handled and that have no row: their records are lost.
	Unread int64 `json:"unread,omitempty"`
}

// Limits of the lists of a finding.
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

// Compare reads the views and tables, and compares them with the added records. Call it once.
func (p *Topic) Compare(ctx context.Context, r Offsets) ([]*TableReport, error) {
	counted := make([]int64, len(p.tables))
	// Read the positions before the rows: then the table must have every row below its position.
	before, err := clickhouse.ReadPositions(ctx, p.db, p.db.Writer(), clickhouse.PositionTables())
	if err != nil {
		return nil, err
	}
	for i, t := range p.tables {
		total, err := p.db.Count(ctx, "count "+t.Table,
			"SELECT count() AS n FROM {db}."+t.Table+" WHERE topic = ?", string(p.topic))
		if err != nil {
			return nil, err
		}
		step := "read " + t.Table
		progress := func(done int64) { r.Progress(step, min(done, total-1), total) }
		if counted[i], err = t.readView(ctx, p, progress); err != nil {
			return nil, clickhouse.Classify(fmt.Errorf("read the view of %s: %w", t.Table, err))
		}
		r.Progress(step, total, total)
		step = "sum " + t.Table
		if err := t.readTable(ctx, p, progress); err != nil {
			return nil, clickhouse.Classify(fmt.Errorf("sum the rows of %s: %w", t.Table, err))
		}
		r.Progress(step, total, total)
	}
	now, err := r.Now(ctx)
	if err != nil {
		return nil, err
	}
	if now.Incarnation != r.Compared.Incarnation {
		return nil, fmt.Errorf("verify %s: %w", p.topic, ErrRecreated)
	}
	at, err := clickhouse.ReadPositions(ctx, p.db, p.db.Writer(), clickhouse.PositionTables())
	if err != nil {
		return nil, err
	}
	var proofs []*TableReport
	for i, t := range p.tables {
		j := classifier{p: p, t: t, r: r, now: now,
			handledBefore: map[int32]int64{}, handledAfter: map[int32]int64{},
			trimmed: map[int32]int64{}, unhandled: map[int32]int64{},
			out: &TableReport{
				Topic: p.topic, Table: t.Table, Incarnation: now.Incarnation, Records: t.records, Rows: counted[i],
			}}
		for part := range now.Starts {
			of := clickhouse.PositionKey{Table: t.Table, Topic: p.topic, Incarnation: now.Incarnation, Partition: part}
			j.handledBefore[part], j.handledAfter[part] = max(r.Committed[part], before[of]), max(r.Committed[part], at[of])
		}
		step := "compare " + t.Table
		err := t.entries.Each(ctx, j.classify, func(part, parts int) { r.Progress(step, int64(part), int64(parts)) })
		if err != nil {
			return nil, fmt.Errorf("compare %s with %s: %w", p.topic, t.Table, err)
		}
		proofs = append(proofs, j.result())
	}
	return proofs, nil
}

// A classifier assigns messages and rows to findings, one message at a time.
type classifier struct {
	p             *Topic
	t             *tableVerification
	r             Offsets
	now           schemas.OffsetRange
	out           *TableReport
	handledBefore map[int32]int64 // first offset that may be unhandled, before the rows were read
	handledAfter  map[int32]int64 // and after
	trimmed       map[int32]int64 // rows of removed records
	unhandled     map[int32]int64 // those of them at offsets that the sink may not have handled
}

// classify classifies the entries of one key.
func (j *classifier) classify(topic, view, table []match.Entry) error {
	hasID := j.t.KeySuffix == ""
	if len(view) > 1 {
		j.out.Doubled.Messages++
		for _, e := range view {
			j.out.Doubled.add(e, hasID)
		}
	}
	if j.t.EveryReport {
		j.classifyReports(topic, view, table, hasID)
		return nil
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
			j.checkSums(nil, table, hasID)
		}
		return nil
	}
	j.out.Messages++
	j.checkSums(topic, table, hasID)
	if len(view) > 0 {
		return nil
	}
	f, at := j.classifyMissing(topic)
	f.Messages++
	f.add(at, hasID)
	return nil
}

// classifyReports classifies the entries of one key by their locations: each record has a row of its own.
func (j *classifier) classifyReports(topic, view, table []match.Entry, hasID bool) {
	if len(topic) > 0 {
		j.out.Messages++
	}
	dead := 0
	for i, r := range topic {
		switch {
		case len(view) > 0 && hasLocation(table, r.Location):
		case r.Tag&tagDead != 0:
			dead++
		default:
			f, at := j.classifyMissing(topic[i : i+1])
			f.Messages++
			f.add(at, hasID)
		}
	}
	if dead > 0 && dead == len(topic) {
		j.out.Dead.Messages++
		j.out.Dead.add(topic[0], hasID)
	}
	var kept []match.Entry
	for i, row := range table {
		again := i > 0 && table[i-1].Location == row.Location // in two parts, or an altered row beside the true one
		if !again && !hasLocation(topic, row.Location) && j.isExtra(row) {
			j.out.Extra.Messages++
			j.out.Extra.add(row, hasID)
			continue
		}
		kept = append(kept, row)
	}
	j.checkSums(topic, kept, hasID)
}

// hasLocation reports whether one of the entries, which are in the order of their locations, has a location.
func hasLocation(entries []match.Entry, at match.Location) bool {
	_, found := slices.BinarySearchFunc(entries, at, func(e match.Entry, at match.Location) int {
		return e.Location.Compare(at)
	})
	return found
}

// classifyMissing returns the finding for a message without a row, and the location that decides it. A dead letter that
// was sent again has two locations, and only the first one is known as dead.
func (j *classifier) classifyMissing(topic []match.Entry) (*Discrepancy, match.Entry) {
	f, at := &j.out.Dead, topic[0]
	for _, e := range topic {
		switch {
		case e.Tag&tagDead != 0:
		case e.Location.Offset < uint64(j.handledBefore[int32(e.Location.Partition)]):
			return &j.out.Missing, e
		case f == &j.out.Dead:
			f, at = &j.out.Pending, e
		}
	}
	return f, at
}

// checkSums checks the rows of a message. A row is compared only with the record at its own location: another
// report of the message makes another row.
func (j *classifier) checkSums(topic, table []match.Entry, hasID bool) {
	found := false
	for _, row := range table {
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

// isExtra reports whether Kafka should have the message of a row. If not, it counts the row as gone.
func (j *classifier) isExtra(e match.Entry) bool {
	part := int32(e.Location.Partition)
	end, known := j.r.Compared.Ends[part]
	switch {
	case e.Tag&tagForeign != 0:
		return true
	case e.Location.Incarnation != j.now.Incarnation:
		j.out.Uncompared.Incarnations++
	case e.Location.Offset < uint64(j.now.Starts[part]):
		j.out.Uncompared.Retention++
		j.trimmed[part]++
		if e.Location.Offset >= uint64(j.handledAfter[part]) {
			j.unhandled[part]++
		}
	case !known || e.Location.Offset >= uint64(end):
		if later, ok := j.now.Ends[part]; !ok || e.Location.Offset >= uint64(later) {
			return true // the log has never reached this offset, or has lost its end
		}
		j.out.Uncompared.Later++
	default:
		if entry, ok := schemas.Lookup(j.p.topic); !ok || entry.Cleanup != schemas.Compact || j.p.locations.Has(e.Location) {
			return true
		}
		j.out.Uncompared.Compaction++
	}
	return false
}

func (j *classifier) result() *TableReport {
	p := j.out
	for _, f := range []*Discrepancy{&p.Missing, &p.Doubled, &p.Extra, &p.Altered, &p.Dead, &p.Pending} {
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
