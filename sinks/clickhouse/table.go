package clickhouse

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ClickHouse/ch-go/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A row is one record and its decoded message, to be stored in one table.
type row[T any] struct {
	*schemas.Delivery
	m T
}

// A table is a log table. It lists its columns once: the INSERT statement, the encoder and the comparison with
// system.columns all use that list.
type table[T any] struct {
	name    string
	id      func(row[T]) string
	ts      func(row[T]) *timestamppb.Timestamp // selects the year
	columns []column[row[T]]
	free    freeList[[]appender[row[T]]] // emptied
}

// newTable returns the table with the given columns, between the columns that all logs have in front and at the end.
func newTable[T any](
	name string, id func(row[T]) string, ts func(row[T]) *timestamppb.Timestamp, columns ...column[row[T]],
) *table[T] {
	type r = row[T]
	return &table[T]{name: name, id: id, ts: ts, columns: append(append([]column[r]{
		id16("id", id),
		timestamp("ts", ts),
		uint32s("ns", func(x r) uint32 { return belowMillis(ts(x)) }),
		lowCard("topic", func(x r) string { return string(x.From) }),
		uint32s("inc", func(x r) uint32 { return x.Incarnation }),
		uint16s("part", func(x r) uint16 { return uint16(x.Partition) }),
		uint64s("off", func(x r) uint64 { return uint64(x.Offset) }),
	}, columns...), uint64s("sum", func(r) uint64 { return 0 }))} // see fillSums
}

func (t *table[T]) into() string {
	return insertInto(t.name, t.columns)
}

// block encodes rows as columns. The columns are reused after release.
func (t *table[T]) block(rows []row[T]) (proto.Input, func(), error) {
	large := slices.ContainsFunc(rows, func(r row[T]) bool { return len(r.Value) > maxKeptBytes })
	wrong := func(r row[T], column string, err error) error { return rowError(r.Delivery, column, err) }
	input, release, err := fill(t.columns, &t.free, rows, large, wrong)
	if err != nil {
		return nil, nil, err
	}
	if err := fillSums(input); err != nil {
		release()
		return nil, nil, retry.Permanent(fmt.Errorf("sum the rows of %s: %w", t.name, err))
	}
	return input, release, nil
}

// fill appends rows to columns, reusing free columns if there are any. release keeps nothing of the rows, and puts
// the columns on the free list unless large is set.
func fill[R any](
	columns []column[R], free *freeList[[]appender[R]], rows []R, large bool,
	wrong func(r R, column string, err error) error,
) (_ proto.Input, release func(), err error) {
	as, ok := free.take()
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
			free.put(as)
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

// tileRows is small enough that the messages of a tile stay in the CPU cache while column after column is filled.
const tileRows = 128

// A batch is the content of one INSERT: rows of one table, in the order of their offsets.
type batch struct {
	table string
	into  string
	block proto.Input
	rows  []offsetID // one for each row of block
	min   int64      // bounds of ts, in milliseconds
	max   int64
	// release frees block for reuse.
	release func()
}

// An offsetID is the offset and the id of a row.
type offsetID struct {
	off uint64
	id  [16]byte
}

// batch encodes rows. A row that the table cannot hold is an error of class permanent.
func (t *table[T]) batch(rows []row[T]) (batch, error) {
	b := batch{table: t.name, into: t.into(), rows: make([]offsetID, len(rows)), min: MaxMillis, max: MinMillis}
	for i, r := range rows {
		if r.Partition < 0 || r.Partition > 65535 || r.Offset < 0 {
			return b, rowError(r.Delivery, "part, off", errors.New("out of range"))
		}
		ms, err := toMillis(t.ts(r))
		if err != nil {
			return b, rowError(r.Delivery, "ts", err)
		}
		id, err := parseID(t.id(r))
		if err != nil {
			return b, rowError(r.Delivery, "id", err)
		}
		b.rows[i] = offsetID{uint64(r.Offset), id}
		b.min, b.max = min(b.min, ms), max(b.max, ms)
	}
	var err error
	b.block, b.release, err = t.block(rows)
	return b, err
}

// rowsOf returns the rows of a batch. A body that is not a T is an error of class permanent.
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

// columnTypes returns the type of each column by its name, to be compared with system.columns.
func (t *table[T]) columnTypes() map[string]string {
	types := map[string]string{}
	for _, c := range t.columns {
		types[c.name] = c.typ
	}
	return types
}

// A topicTable converts records of one topic into the INSERT of one table.
type topicTable struct {
	table  string
	types  map[string]string
	encode func(records []*schemas.Delivery) (batch, error)
}

// topicTableOf returns the topicTable of a table that has one row for each message of a topic.
func topicTableOf[T schemas.Body](t *table[T]) topicTable {
	return topicTable{t.name, t.columnTypes(), func(records []*schemas.Delivery) (batch, error) {
		rows, err := rowsOf[T](records)
		if err != nil {
			return batch{}, err
		}
		return t.batch(rows)
	}}
}

// topicTables returns, for each topic, the tables that store it.
func topicTables() map[schemas.Topic][]topicTable {
	return map[schemas.Topic][]topicTable{
		schemas.Changes:            {topicTableOf(auditLog())},
		schemas.DuplicationResults: {topicTableOf(duplicationLog())},
		schemas.FixityResults:      {topicTableOf(bitLog())},
		schemas.Incidents:          {topicTableOf(incidents())},
		schemas.Reports:            {topicTableOf(reports())},
		schemas.Jobs:               {topicTableOf(jobLog())},
		schemas.Policies:           {topicTableOf(policyHistory())},
		schemas.Accounts:           {topicTableOf(accountHistory())},
		schemas.Admin:              {topicTableOf(adminLog())},
		schemas.Dead:               deadTopicTables(),
	}
}

// insertInto returns the INSERT statement for some columns of a table.
func insertInto[R any](table string, columns []column[R]) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = QuoteName(c.name)
	}
	return "INSERT INTO {db}." + table + " (" + strings.Join(names, ", ") + ") VALUES"
}
