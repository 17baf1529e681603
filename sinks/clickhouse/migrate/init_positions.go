package migrate

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse"
)

// lastPositionMigration is the name of the last migration that adds positions.
const lastPositionMigration = "copy_state_position"

// initPositions sets the positions of a database that is older than positions to the committed offsets. It runs
// once, before that migration is recorded as applied. It is the only writer that does not read the position before.
// A topic without rows gets no position: the database may be empty, with some migrations applied by another migrate
// that was killed or is running. Rows are looked up before Committed is called: a sink of this program stores rows
// only after the caller has recorded that the tables have positions, and from then on Committed returns nothing.
func initPositions(ctx context.Context, db *clickhouse.DB, p Plan) error {
	if p.older && p.Committed != nil {
		filled, err := tablesWithRows(ctx, db)
		if err != nil {
			return err
		}
		now, err := p.Committed(ctx)
		if err != nil {
			return fmt.Errorf("read committed offsets: %w", err)
		}
		if err := clickhouse.SetPositions(ctx, db, now, filled); err != nil {
			return err
		}
	}
	if p.PositionsSet != nil {
		return p.PositionsSet(ctx)
	}
	return nil
}

// tablesWithRows returns the tables with positions, and dead_letters, that have other rows than positions.
func tablesWithRows(ctx context.Context, db *clickhouse.DB) (map[string]bool, error) {
	parts := []string{"SELECT 'dead_letters' AS name FROM {db}.dead_letters LIMIT 1"}
	for _, table := range clickhouse.PositionTables() {
		parts = append(parts, fmt.Sprintf("SELECT '%[1]s' AS name FROM {db}.%[1]s WHERE account != '' LIMIT 1", table))
	}
	type row struct {
		Name string `ch:"name"`
	}
	rows, err := clickhouse.QueryOn[row](ctx, db.Writer(), "list the tables with rows",
		db.Name(strings.Join(parts, " UNION ALL ")))
	filled := map[string]bool{}
	for _, r := range rows {
		filled[r.Name] = true
	}
	return filled, err
}
