package clickhouse

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/schemas"
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

// PositionTables returns the sorted names of the tables that hold positions.
func PositionTables() []string {
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

// A PositionKey identifies a position: a partition of one incarnation of a topic, in one table.
type PositionKey struct {
	Table       string
	Topic       schemas.Topic
	Incarnation uint32
	Partition   int32
}

// Gaps returns the gaps between the positions and the committed offsets. The caller must have read the committed
// offsets before the call.
func Gaps(ctx context.Context, db *DB, committed map[schemas.Role][]schemas.Progress) ([]Gap, error) {
	at, err := ReadPositions(ctx, db, db.Reader(), PositionTables())
	if err != nil {
		return nil, err
	}
	return gaps(committed, at), nil
}

func gaps(committed map[schemas.Role][]schemas.Progress, positions map[PositionKey]int64) []Gap {
	var all []Gap
	add := func(of PositionKey, to int64, former, continued bool) {
		if from := positions[of]; of.Table != "" && from < to {
			all = append(all, Gap{of.Table, of.Topic, of.Incarnation, of.Partition, from, to, former, continued})
		}
	}
	current := map[schemas.Role]map[schemas.Topic]uint32{}
	for role, of := range Positions() {
		current[role] = map[schemas.Topic]uint32{}
		for _, p := range committed[role] {
			current[role][p.Topic] = p.Incarnation
			add(PositionKey{of[p.Topic], p.Topic, p.Incarnation, p.Partition}, p.Next, false, true)
		}
	}
	// Earlier incarnations have no committed offsets. The highest position in any table shows how far each of them was.
	former := map[PositionKey]int64{} // without a table
	for of, next := range positions {
		of.Table = ""
		former[of] = max(former[of], next)
	}
	for of, next := range former {
		for role, tables := range Positions() {
			if now, known := current[role][of.Topic]; known && now != of.Incarnation {
				_, continued := positions[PositionKey{tables[of.Topic], of.Topic, now, of.Partition}]
				add(PositionKey{tables[of.Topic], of.Topic, of.Incarnation, of.Partition}, next, true, continued)
			}
		}
	}
	slices.SortFunc(all, Gap.Compare)
	return all
}

// positionTime is the time of rows of positions in logs. Other rows have earlier years, so these rows have a
// partition of the table of their own.
var positionTime = time.Date(2299, 12, 1, 0, 0, 0, 0, time.UTC)

// ReadPositions reads the positions in some tables.
func ReadPositions(ctx context.Context, db *DB, conn driver.Conn, tables []string) (map[PositionKey]int64, error) {
	var parts []string
	for _, table := range tables {
		if table == "copy_state" {
			parts = append(parts, "SELECT 'copy_state' AS held, store::String AS topic, toUInt32(space) AS inc,"+
				" toUInt16(item) AS part, max(position) AS at"+
				" FROM {db}.copy_state WHERE account = '' AND store != '' AND position > 0 GROUP BY topic, inc, part")
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
	rows, err := QueryOn[row](ctx, conn, "read the positions of the tables", db.Name(strings.Join(parts, " UNION ALL ")))
	at := make(map[PositionKey]int64, len(rows))
	for _, r := range rows {
		at[PositionKey{r.Table, schemas.Topic(r.Topic), r.Inc, int32(r.Part)}] = int64(r.At)
	}
	return at, err
}
