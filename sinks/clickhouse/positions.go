package clickhouse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// Positions returns the tables that hold positions, by the role that writes them and by topic. A committed offset
// proves that a row was inserted. A position proves that the table still has it, because it is lost and restored
// together with the table.
func Positions() map[schemas.Role]map[schemas.Topic]string {
	return map[schemas.Role]map[schemas.Topic]string{
		schemas.RoleSink: {
			schemas.Changes: "audit_log", schemas.DuplicationResults: "duplication_log", schemas.Dead: "duplication_log",
			schemas.FixityResults: "bit_log",
		},
		schemas.RoleState: {schemas.Changes: "copy_state", schemas.FixityResults: "copy_state"},
	}
}

// positionTables returns the sorted names of the tables that hold positions.
func positionTables() []string {
	var tables []string
	for _, of := range Positions() {
		tables = slices.AppendSeq(tables, maps.Values(of))
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// A Gap is a range of offsets of one partition that was committed, but that a table has not handled or has lost.
type Gap struct {
	Table       string        `json:"table"`
	Topic       schemas.Topic `json:"topic"`
	Incarnation uint32        `json:"incarnation"`
	Partition   int32         `json:"partition"`
	From        int64         `json:"from"`
	To          int64         `json:"to"` // the first offset after the gap
	// Former means that the gap is in an earlier incarnation of the topic.
	Former bool `json:"former,omitempty"`
	// continued means that the table has a position in the next incarnation of the topic.
	continued bool
}

// MakesUnknown reports whether the results of fresh reads are unknown because of the gap. They are known if the table
// lacks only the end of an earlier incarnation, and has a position in the new one: the tables of one topic may be at
// different offsets when the topic is deleted. A table without any position in the old or the new incarnation may
// have been emptied or restored.
func (g Gap) MakesUnknown() bool { return !g.Former || g.From == 0 || !g.continued }

// CheckGaps returns an error if the results of fresh reads are unknown because of one of the gaps.
func CheckGaps(gaps []Gap) error {
	if i := slices.IndexFunc(gaps, Gap.MakesUnknown); i >= 0 {
		return fmt.Errorf("%s (%d gaps): run millrace rebuild", gaps[i], len(gaps))
	}
	return nil
}

func (g Gap) String() string {
	return fmt.Sprintf("%s lacks offsets %d to %d of %s, partition %d", g.Table, g.From, g.To-1, g.Topic, g.Partition)
}

// Compare orders gaps by table, topic, partition and offset.
func (g Gap) Compare(o Gap) int {
	return cmp.Or(cmp.Compare(g.Table, o.Table), cmp.Compare(g.Topic, o.Topic),
		cmp.Compare(g.Partition, o.Partition), cmp.Compare(g.From, o.From))
}

// A positionKey identifies a position: a partition of one incarnation of a topic, in one table.
type positionKey struct {
	table       string
	topic       schemas.Topic
	incarnation uint32
	partition   int32
}

// Gaps returns the gaps between the positions and the committed offsets. The caller must have read the committed
// offsets before the call.
func (db *DB) Gaps(ctx context.Context, committed map[schemas.Role][]schemas.Progress) ([]Gap, error) {
	at, err := db.positions(ctx, db.reads, positionTables())
	if err != nil {
		return nil, err
	}
	return gaps(committed, at), nil
}

func gaps(committed map[schemas.Role][]schemas.Progress, positions map[positionKey]int64) []Gap {
	var all []Gap
	add := func(of positionKey, to int64, former, continued bool) {
		if from := positions[of]; of.table != "" && from < to {
			all = append(all, Gap{of.table, of.topic, of.incarnation, of.partition, from, to, former, continued})
		}
	}
	current := map[schemas.Role]map[schemas.Topic]uint32{}
	for role, of := range Positions() {
		current[role] = map[schemas.Topic]uint32{}
		for _, p := range committed[role] {
			current[role][p.Topic] = p.Incarnation
			add(positionKey{of[p.Topic], p.Topic, p.Incarnation, p.Partition}, p.Next, false, true)
		}
	}
	// Earlier incarnations have no committed offsets. The highest position in any table shows how far each of them was.
	former := map[positionKey]int64{} // without a table
	for of, next := range positions {
		of.table = ""
		former[of] = max(former[of], next)
	}
	for of, next := range former {
		for role, tables := range Positions() {
			if now, known := current[role][of.topic]; known && now != of.incarnation {
				_, continued := positions[positionKey{tables[of.topic], of.topic, now, of.partition}]
				add(positionKey{tables[of.topic], of.topic, of.incarnation, of.partition}, next, true, continued)
			}
		}
	}
	slices.SortFunc(all, Gap.Compare)
	return all
}

// positionTime is the time of rows of positions in logs. Other rows have earlier times, so these rows have a month,
// and a partition of the table, of their own.
var positionTime = time.Date(2299, 12, 1, 0, 0, 0, 0, time.UTC)

// positions reads the positions in some tables.
func (db *DB) positions(ctx context.Context, conn driver.Conn, tables []string) (map[positionKey]int64, error) {
	var parts []string
	shards, err := db.shards(ctx)
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		if table == "copy_state" {
			// Rows of one Kafka partition are on all shards, and so is its position. The lowest one counts; a missing one is
			// 0.
			shard := "1"
			if db.cfg.Cluster != "" {
				shard = "_shard_num"
			}
			parts = append(parts, fmt.Sprintf("SELECT 'copy_state' AS held, topic, inc, part,"+
				" if(count() = %d, min(reached), 0) AS at FROM ("+
				"SELECT store::String AS topic, toUInt32(space) AS inc, toUInt16(item) AS part,"+
				" %s AS shard, max(position) AS reached"+
				" FROM {db}.copy_state WHERE account = '' AND position > 0 GROUP BY topic, inc, part, shard)"+
				" GROUP BY topic, inc, part", shards, shard))
			continue
		}
		parts = append(parts, fmt.Sprintf("SELECT '%[1]s' AS held, topic::String AS topic, inc, part,"+
			" max(position) AS at FROM {db}.%[1]s"+
			" WHERE account = '' AND ts = fromUnixTimestamp64Milli(%[2]d, 'UTC') AND position > 0"+
			" GROUP BY topic, inc, part", table, positionTime.UnixMilli()))
	}
	type row struct {
		Table string `ch:"held"`
		Topic string `ch:"topic"`
		Inc   uint32 `ch:"inc"`
		Part  uint16 `ch:"part"`
		At    uint64 `ch:"at"`
	}
	rows, err := queryOn[row](ctx, conn, "read the positions of the tables", db.name(strings.Join(parts, " UNION ALL ")))
	at := make(map[positionKey]int64, len(rows))
	for _, r := range rows {
		at[positionKey{r.Table, schemas.Topic(r.Topic), r.Inc, int32(r.Part)}] = int64(r.At)
	}
	return at, err
}

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

// errPositionLower means that a position is lower than before: the table was emptied or restored, or a stale replica
// answered. Rows that were stored since may be missing.
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

// advance moves the positions of partitions to Next, unless there is a gap below From: then it calls behind with the
// gaps. It never lowers a position. After an error the caller calls Forget for the partitions, and stores their
// uncommitted records again.
func (m *positionWriter) advance(
	ctx context.Context, done []schemas.Progress, behind func(context.Context, []Gap),
) error {
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
	held, err := m.db.positions(ctx, m.db.conn, tables)
	if err != nil {
		return err
	}
	rows := map[string][]positionRow{}
	var missing []Gap
	for _, p := range done {
		table := m.tables[p.Topic]
		at, there := held[positionKey{table, p.Topic, p.Incarnation, p.Partition}]
		if !there {
			at = p.Start
		}
		now, err := m.known[topicPartition{p.Topic, p.Partition}].update(p, at)
		if err != nil {
			return fmt.Errorf("move the position of %s, partition %d, in %s: %w", p.Topic, p.Partition, table, err)
		}
		m.known[topicPartition{p.Topic, p.Partition}] = now
		switch {
		case at < p.From:
			missing = append(missing, Gap{Table: table, Topic: p.Topic,
				Incarnation: p.Incarnation, Partition: p.Partition, From: at, To: p.From})
		case p.Next > at:
			rows[table] = append(rows[table], positionRow{m.rowID(p), p})
		}
	}
	if len(missing) > 0 && behind != nil {
		behind(ctx, missing)
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
	if err := m.db.writePositions(ctx, table, rows); err != nil {
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

// lastPositionMigration is the name of the last migration that adds positions.
const lastPositionMigration = "copy_state_position"

// initPositions sets the positions of a database that is older than positions to the committed offsets. It runs
// once, before that migration is recorded as applied. It is the only writer that does not read the position before.
// A topic without rows gets no position: the database may be empty, with some migrations applied by another migrate
// that was killed or is running. Rows are looked up before Committed is called: a sink of this program stores rows
// only after the caller has recorded that the tables have positions, and from then on Committed returns nothing.
func (db *DB) initPositions(ctx context.Context, p Plan) error {
	if p.older && p.Committed != nil {
		filled, err := db.tablesWithRows(ctx)
		if err != nil {
			return err
		}
		now, err := p.Committed(ctx)
		if err != nil {
			return fmt.Errorf("read committed offsets: %w", err)
		}
		if err := db.setPositions(ctx, now, filled); err != nil {
			return err
		}
	}
	if p.PositionsSet != nil {
		return p.PositionsSet(ctx)
	}
	return nil
}

// tablesWithRows returns the tables with positions, and dead_letters, that have other rows than positions.
func (db *DB) tablesWithRows(ctx context.Context) (map[string]bool, error) {
	parts := []string{"SELECT 'dead_letters' AS name FROM {db}.dead_letters LIMIT 1"}
	for _, table := range positionTables() {
		parts = append(parts, fmt.Sprintf("SELECT '%[1]s' AS name FROM {db}.%[1]s WHERE account != '' LIMIT 1", table))
	}
	type row struct {
		Name string `ch:"name"`
	}
	rows, err := queryOn[row](ctx, db.conn, "list the tables with rows", db.name(strings.Join(parts, " UNION ALL ")))
	filled := map[string]bool{}
	for _, r := range rows {
		filled[r.Name] = true
	}
	return filled, err
}

func (db *DB) setPositions(ctx context.Context, to map[schemas.Role][]schemas.Progress, filled map[string]bool) error {
	rows := map[string][]positionRow{}
	for role, of := range Positions() {
		m := newPositionWriter(db, role)
		for _, p := range to[role] {
			table := of[p.Topic]
			// A dead letter has a row in the table with its position only if it is a command.
			has := filled[table] || p.Topic == schemas.Dead && filled["dead_letters"]
			if table != "" && has && p.Next > 0 {
				rows[table] = append(rows[table], positionRow{m.rowID(p), p})
			}
		}
	}
	for table, rows := range rows {
		if err := db.writePositions(ctx, table, rows); err != nil {
			return err
		}
	}
	return nil
}

// writePositions inserts rows of positions into one table. On a cluster, those of copy_state go to every shard.
func (db *DB) writePositions(ctx context.Context, table string, rows []positionRow) error {
	if table != "copy_state" || db.cfg.Cluster == "" {
		return db.insertPositions(ctx, table, rows, nil)
	}
	shards, err := db.shards(ctx)
	for n := 1; n <= shards && err == nil; n++ {
		err = db.insertPositions(ctx, table, rows, []proto.Setting{{Key: "insert_shard_id", Value: strconv.Itoa(n)}})
	}
	return err
}

func (db *DB) insertPositions(ctx context.Context, table string, rows []positionRow, settings []proto.Setting) error {
	var spare freeList[[]appender[positionRow]]
	columns := positionColumns(table)
	block, release, err := fill(columns, &spare, rows, false, func(_ positionRow, column string, err error) error {
		return fmt.Errorf("column %s: %w", column, err)
	})
	if err != nil {
		return fmt.Errorf("make rows of positions: %w", err)
	}
	defer release()
	err = db.write(ctx, insertion{
		name: fmt.Sprintf("millrace/%s.%s/positions", db.cfg.Database, table),
		into: db.name(insertInto(table, columns)), columns: block, settings: append(insertSettings(), settings...),
	})
	if err != nil {
		return translate(fmt.Errorf("move positions in %s: %w", table, err))
	}
	return nil
}

// insertInto returns the INSERT statement for some columns of a table.
func insertInto[R any](table string, columns []column[R]) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = quoteName(c.name)
	}
	return "INSERT INTO {db}." + table + " (" + strings.Join(names, ", ") + ") VALUES"
}
