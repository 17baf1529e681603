package verify

import (
	"context"
	"fmt"

	ch "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// gapRows is the condition that selects the rows of a Gap in a log.
const gapRows = "topic = ? AND inc = ? AND part = ? AND off >= ? AND off < ?"

func gapArgs(g clickhouse.Gap) []any {
	return []any{string(g.Topic), g.Incarnation, uint16(g.Partition), uint64(g.From), uint64(g.To)}
}

// CountRows returns the number of offsets of a gap that have a row, whatever the position says: in the log or, if the
// sink could not store the record, in dead_letters. dead_letters does not record the incarnation of the topic. For
// topic dead, dead letters that are not commands are only in dead_letters.
func CountRows(ctx context.Context, db *clickhouse.DB, g clickhouse.Gap) (int64, error) {
	args := append(gapArgs(g), string(schemas.RoleSink), string(g.Topic), g.Partition, g.From, g.To)
	others := ""
	if g.Topic == schemas.Dead {
		others = " UNION ALL SELECT off FROM {db}.dead_letters WHERE " + gapRows + " AND " + notCommand
		args = append(args, gapArgs(g)...)
	}
	return db.Count(ctx, "count the rows of "+g.Table,
		"SELECT uniqExact(off) AS n FROM (SELECT off FROM {db}."+g.Table+" WHERE position = 0 AND "+gapRows+
			" UNION ALL SELECT toUInt64(origin_off) AS off FROM {db}.dead_letters"+
			" WHERE role = ? AND origin_topic = ? AND origin_part = ?"+
			" AND origin_off >= ? AND origin_off < ?"+others+")", args...)
}

// notCommand is the condition of dead letters for which isCommand is false. A command that can be decoded has an
// account.
const notCommand = "NOT (account != '' AND (origin_topic = 'deletions'" +
	" OR startsWith(origin_topic, 'duplication.') AND origin_topic != 'duplication.results'))"

// FillState inserts the rows of the state for the offsets of a gap, made from the rows of the log. It can be repeated
// without harm.
func FillState(ctx context.Context, db *clickhouse.DB, g clickhouse.Gap) error {
	return fillFrom(ctx, db, g, gapRows, gapArgs(g)...)
}

// FillFormerState is FillState for all rows of earlier incarnations of the gap's topic.
func FillFormerState(ctx context.Context, db *clickhouse.DB, g clickhouse.Gap) error {
	return fillFrom(ctx, db, g, "topic = ? AND inc != ?", string(g.Topic), g.Incarnation)
}

func fillFrom(ctx context.Context, db *clickhouse.DB, g clickhouse.Gap, which string, args ...any) error {
	log := clickhouse.Positions()[schemas.RoleSink][g.Topic]
	ctx = ch.Context(ctx, ch.WithSettings(ch.Settings{"async_insert": 0}))
	for _, r := range stateQueries() {
		if r.log != log {
			continue
		}
		if err := db.Exec(ctx, r.insertInto("copy_state")+" AND "+which, args...); err != nil {
			return clickhouse.Classify(fmt.Errorf("make the state of %s, partition %d, from %s: %w", g.Topic, g.Partition,
				r.log, err))
		}
	}
	return nil
}
