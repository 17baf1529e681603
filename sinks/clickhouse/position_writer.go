package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A positionRow is a row that moves the position of one partition.
type positionRow struct {
	id string
	schemas.Progress
}

// positionColumns returns the columns of a row of a position in a log or in copy_state. Other columns have their
// defaults.
func positionColumns(table string) []column[positionRow] {
	type r = positionRow
	nothing := func(r) string { return "" }
	at := uint64s("position", func(x r) uint64 { return uint64(x.Next) })
	if table == "copy_state" {
		at.typ = "SimpleAggregateFunction(max, UInt64)"
		return []column[r]{
			lowCard("account", nothing),
			lowCard("store", func(x r) string { return string(x.Topic) }),
			text("space", func(x r) string { return strconv.FormatUint(uint64(x.Incarnation), 10) }),
			text("item", func(x r) string { return strconv.Itoa(int(x.Partition)) }),
			at,
		}
	}
	return []column[r]{
		id16("id", func(x r) string { return x.id }),
		{"ts", millis, func() appender[r] {
			c := newTimestamps()
			return appender[r]{c, func(r) error { c.AppendRaw(proto.DateTime64(positionTime.UnixMilli())); return nil }}
		}},
		lowCard("topic", func(x r) string { return string(x.Topic) }),
		uint32s("inc", func(x r) uint32 { return x.Incarnation }),
		uint16s("part", func(x r) uint16 { return uint16(x.Partition) }),
		lowCard("account", nothing),
		at,
	}
}

// A positionWriter moves the positions in the tables of one role. It moves a position only if everything between the
// position and the handled offset was stored in the table as it is now. So rows that are stored after the table was
// emptied or restored never hide the gap before them.
type positionWriter struct {
	db     *DB
	tables map[schemas.Topic]string

	mu     sync.Mutex // held by advance; guards the fields below
	writer string
	known  map[topicPartition]knownPosition
}

func newPositionWriter(db *DB, role schemas.Role) *positionWriter {
	return &positionWriter{
		db: db, tables: Positions()[role], writer: schemas.NewID(), known: map[topicPartition]knownPosition{},
	}
}

// A knownPosition is the last known position of a partition.
type knownPosition struct {
	incarnation uint32
	from        int64 // Progress.From: every offset from here on was stored since
	position    int64 // as last read or written
}

// errPositionLower means that a position is lower than before: the table was emptied or restored. Rows that were
// stored since may be missing.
var errPositionLower = retry.Unavailable(errors.New("the position of the table is lower than before"))

// update returns s after a read of the position. at is the position, or the start of the log if there is none.
func (s knownPosition) update(p schemas.Progress, at int64) (knownPosition, error) {
	if s.incarnation != p.Incarnation || s.from != p.From {
		s = knownPosition{incarnation: p.Incarnation, from: p.From}
	}
	if at < s.position {
		return s, errPositionLower
	}
	s.position = at
	return s, nil
}

// forget drops the known position of a partition that was revoked.
func (m *positionWriter) forget(at topicPartition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, at)
}

// advance moves the positions of partitions to Next, unless there is a gap below From. It never lowers a position.
// After an error the caller calls Forget for the partitions, and stores their uncommitted records again.
func (m *positionWriter) advance(ctx context.Context, done []schemas.Progress) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	done = slices.DeleteFunc(slices.Clone(done), func(p schemas.Progress) bool { return m.tables[p.Topic] == "" })
	if len(done) == 0 {
		return nil
	}
	var tables []string
	for _, p := range done {
		tables = append(tables, m.tables[p.Topic])
	}
	slices.Sort(tables)
	tables = slices.Compact(tables)
	held, err := ReadPositions(ctx, m.db, m.db.Writer(), tables)
	if err != nil {
		return err
	}
	rows := map[string][]positionRow{}
	for _, p := range done {
		table := m.tables[p.Topic]
		at, there := held[PositionKey{table, p.Topic, p.Incarnation, p.Partition}]
		if !there {
			at = p.Start
		}
		now, err := m.known[topicPartition{p.Topic, p.Partition}].update(p, at)
		if err != nil {
			return fmt.Errorf("move the position of %s, partition %d, in %s: %w", p.Topic, p.Partition, table, err)
		}
		m.known[topicPartition{p.Topic, p.Partition}] = now
		if at >= p.From && p.Next > at { // else there is a gap, or nothing to move
			rows[table] = append(rows[table], positionRow{m.rowID(p), p})
		}
	}
	for _, table := range tables {
		if err := m.write(ctx, table, rows[table]); err != nil {
			return err
		}
	}
	return nil
}

// rowID returns the id of the rows of one partition that this writer inserts. Of rows with the same id, a log keeps
// the one that was inserted last. So each writer has its own id, and takes a new one after an error: a late insert
// must not replace a higher position.
func (m *positionWriter) rowID(p schemas.Progress) string {
	return schemas.ID("position", m.writer, string(p.Topic),
		strconv.FormatUint(uint64(p.Incarnation), 10), strconv.Itoa(int(p.Partition)))
}

func (m *positionWriter) write(ctx context.Context, table string, rows []positionRow) error {
	if len(rows) == 0 {
		return nil
	}
	if err := writePositions(ctx, m.db, table, rows); err != nil {
		m.writer = schemas.NewID() // the failed insert may still be stored
		return err
	}
	for _, r := range rows {
		at := topicPartition{r.Topic, r.Partition}
		s := m.known[at]
		s.position = r.Next
		m.known[at] = s
	}
	return nil
}

// writePositions inserts rows of positions into one table.
func writePositions(ctx context.Context, db *DB, table string, rows []positionRow) error {
	var spare freeList[[]appender[positionRow]]
	columns := positionColumns(table)
	block, release, err := fill(columns, &spare, rows, false, func(_ positionRow, column string, err error) error {
		return fmt.Errorf("column %s: %w", column, err)
	})
	if err != nil {
		return fmt.Errorf("make rows of positions: %w", err)
	}
	defer release()
	err = db.Insert(ctx, Insertion{
		Name: fmt.Sprintf("millrace/%s.%s/positions", db.Config().Database, table),
		Into: db.Name(insertInto(table, columns)), Columns: block, Settings: insertSettings(),
	})
	if err != nil {
		return Classify(fmt.Errorf("move positions in %s: %w", table, err))
	}
	return nil
}
