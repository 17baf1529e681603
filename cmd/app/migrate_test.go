package app

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/precondition"
)

// The tables of another build are a precondition: migrate and every start end with what to do, for a database and for a
// state directory.
func TestMigrateTablesOfAnotherBuild(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	r.exec("INSERT INTO {db}.schema_migrations (version, name, checksum, applied) SELECT 1, 'old', 'x', now64(3) + 1")
	_, migrated := r.app.Migrate(t.Context())
	_, planned := r.app.PlanMigration(t.Context(), false)
	for what, err := range map[string]error{"Migrate": migrated, "PlanMigration": planned} {
		if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), "(0001_old)") ||
			!strings.Contains(err.Error(), "configure a new database (clickhouse.database)") ||
			!strings.Contains(err.Error(), "for a state directory, start with a new one") {
			t.Errorf("%s = %v", what, err)
		}
	}
}
