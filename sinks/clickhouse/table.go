package clickhouse

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ClickHouse/ch-go/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A row is one record on its way into one table.
type row[T any] struct {
	*schemas.Delivery
	m T
}

// A table knows its columns once: INSERT, append and the comparison with
// system.columns come from the one list.
type table[T any] struct {
	name       string
	id         func(row[T]) string
	ts         func(row[T]) *timestamppb.Timestamp // decides the month
	columns    []column[row[T]]
	addedCount int                          // how many columns before sum were added when rows had sums
	free       freeList[[]appender[row[T]]] // emptied
}

// newTable returns the table with the columns that all logs have, in front and behind.
func newTable[T any](name string, id func(row[T]) string, ts func(row[T]) *timestamppb.Timestamp, columns ...column[row[T]]) *table[T] {
	type r = row[T]
	return &table[T]{name: name, id: id, ts: ts, columns: withHashes(append([]column[r]{
		id16("id", id),
		timestamp("ts", ts),
		uint32s("ns", func(x r) uint32 { return belowMillis(ts(x)) }),
		lowCard("topic", func(x r) string { return string(x.From) }),
		uint32s("inc", func(x r) uint32 { return x.Incarnation }),
		uint16s("part", func(x r) uint16 { return uint16(x.Partition) }),
		uint64s("off", func(x r) uint64 { return uint64(x.Offset) }),
	}, columns...))}
}

func (t *table[T]) into() string {
	return insertInto(t.name, t.columns)
}

// block returns the rows as columns, which are used again after release.
func (t *table[T]) block(rows []row[T]) (proto.Input, func(), error) {
	large := slices.ContainsFunc(rows, func(r row[T]) bool { return len(r.Value) > maxKeptBytes })
	wrong := func(r row[T], column string, err error) error { return rowError(r.Delivery, column, err) }
	input, release, err := fill(t.columns, &t.free, rows, large, wrong)
	if err != nil {
		return nil, nil, err
	}
	if err := fillSums(input, t.addedCount); err != nil {
		release()
		return nil, nil, retry.Permanent(fmt.Errorf("sum the rows of %s: %w", t.name, err))
	}
	return input, release, nil
}

// fill appends rows to columns, to spare ones where there are some. After release, which holds nothing of rows, they
// are spare; not if they are large.
func fill[R any](columns []column[R], spare *freeList[[]appender[R]], rows []R, large bool, wrong func(r R, column string, err error) error) (
	_ proto.Input, release func(), err error,
) {
	as, ok := spare.take()
	if !ok {
		for _, c := range columns {
			as = append(as, c.make())
		}
	}
	release = func() {
		for _, a := range as {
			data, ok := a.data.(proto.Resettable)
			if !ok {
				return
			}
			data.Reset()
		}
		if !large {
			spare.put(as)
		}
	}
	for tile := range slices.Chunk(rows, tileRows) {
		for i, a := range as {
			for _, r := range tile {
				if err := a.append(r); err != nil {
					release()
					return nil, nil, wrong(r, columns[i].name, err)
				}
			}
		}
	}
	input := make(proto.Input, len(as))
	for i, a := range as {
		input[i] = proto.InputColumn{Name: columns[i].name, Data: a.data}
	}
	return input, release, nil
}

// tileRows are so few that their messages stay in the processor's cache from column to column.
const tileRows = 128

// A chunk is what one INSERT takes: rows of one table and one month, in the order of their offsets.
type monthBatch struct {
	table string
	into  string
	block proto.Input
	rows  []offsetID // what lands with it
	min   int64      // bounds of ts, in milliseconds
	max   int64
	// only returns the block of some of the rows.
	only func(keep []bool) (_ proto.Input, release func(), err error)
	// release lets go of block.
	release func()
}

// landed says that a row is in its table.
type offsetID struct {
	off uint64
	id  [16]byte
}

// chunks cuts the rows into months. Rows that a table cannot take are errors of class permanent.
func (t *table[T]) monthBatches(rows []row[T]) ([]monthBatch, error) {
	var order []int
	months := map[int][]row[T]{}
	for _, r := range rows {
		if r.Partition < 0 || r.Partition > 65535 || r.Offset < 0 {
			return nil, rowError(r.Delivery, "part, off", errors.New("out of range"))
		}
		ts := t.ts(r)
		if _, err := toMillis(ts); err != nil {
			return nil, rowError(r.Delivery, "ts", err)
		}
		at := ts.AsTime()
		month := at.Year()*12 + int(at.Month())
		if months[month] == nil {
			order = append(order, month)
		}
		months[month] = append(months[month], r)
	}
	var chunks []monthBatch
	for _, month := range order {
		c, err := t.monthBatch(months[month])
		if err != nil {
			return nil, err
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

func (t *table[T]) monthBatch(rows []row[T]) (monthBatch, error) {
	block, release, err := t.block(rows)
	if err != nil {
		return monthBatch{}, err
	}
	c := monthBatch{table: t.name, into: t.into(), block: block, release: release, rows: make([]offsetID, len(rows)), min: maxMillis, max: minMillis}
	for i, r := range rows {
		ms, err := toMillis(t.ts(r))
		if err != nil {
			return monthBatch{}, rowError(r.Delivery, "ts", err)
		}
		id, err := parseID(t.id(r))
		if err != nil {
			return monthBatch{}, rowError(r.Delivery, "id", err)
		}
		c.rows[i] = offsetID{uint64(r.Offset), id}
		c.min, c.max = min(c.min, ms), max(c.max, ms)
	}
	c.only = func(keep []bool) (proto.Input, func(), error) {
		var kept []row[T]
		for i, r := range rows {
			if keep[i] {
				kept = append(kept, r)
			}
		}
		return t.block(kept)
	}
	return c, nil
}

// rowsOf returns the rows of a batch whose bodies are of type T.
func rowsOf[T schemas.Body](batch []*schemas.Delivery) ([]row[T], error) {
	rows := make([]row[T], len(batch))
	for i, d := range batch {
		m, ok := d.Body.(T)
		if !ok {
			return nil, retry.Permanent(&RowError{d.From, d.Partition, d.Offset, "body", fmt.Errorf("is a %T", d.Body)})
		}
		rows[i] = row[T]{d, m}
	}
	return rows, nil
}

// columnTypes returns name and type of each column, for the comparison with system.columns.
func (t *table[T]) columnTypes() map[string]string {
	types := map[string]string{}
	for _, c := range t.columns {
		types[c.name] = c.typ
	}
	return types
}

// A feed turns a batch of one topic into the INSERTs of one table.
type topicTable struct {
	table   string
	types   map[string]string
	batches func(batch []*schemas.Delivery) ([]monthBatch, error)
}

// feedOf is the feed of a table whose rows are the messages of a topic.
func topicTableOf[T schemas.Body](t *table[T]) topicTable {
	return topicTable{t.name, t.columnTypes(), func(batch []*schemas.Delivery) ([]monthBatch, error) {
		rows, err := rowsOf[T](batch)
		if err != nil {
			return nil, err
		}
		return t.monthBatches(rows)
	}}
}

// feeds are the tables that each topic feeds.
func topicTables() map[schemas.Topic][]topicTable {
	return map[schemas.Topic][]topicTable{
		schemas.Changes:            {topicTableOf(auditLog())},
		schemas.DuplicationResults: {topicTableOf(duplicationLog())},
		schemas.FixityResults:      {topicTableOf(bitLog())},
		schemas.Incidents:          {topicTableOf(incidents())},
		schemas.Reports:            {topicTableOf(reports())},
		schemas.Jobs:               {topicTableOf(jobLog())},
		schemas.Policies:           {topicTableOf(policyHistory())},
		schemas.Admin:              {topicTableOf(adminLog())},
		schemas.Dead:               deadTopicTables(),
	}
}
