package integration

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

// TestMigrateCommand checks the migrations of the command line: a dry run lists the migrations that a run executes, and
// a wrong schema is an error with the exit code of a precondition.
func TestMigrateCommand(t *testing.T) {
	p := newSetup(t)
	p.want(t, 2, "exclude each other", "migrate", "--state", t.TempDir())
	p.want(t, 5, "a migration is missing: 0001_audit_log, ", "object", "show", "acme/a/b")

	code, planned := p.millrace(t, "migrate", "--dry-run")
	for _, want := range []string{"CREATE DATABASE IF NOT EXISTS `millrace`;\n", "-- 0001_audit_log\n",
		"-- topic millrace.changes\n", "there is something to migrate"} {
		if code != 3 || !strings.Contains(planned, want) {
			t.Fatalf("dry run: exit code %d, want 3 and %q in\n%s", code, want, planned)
		}
	}
	if again, same := p.millrace(t, "migrate", "--dry-run"); again != 3 || same != planned {
		t.Errorf("a second dry run differs (exit code %d): the first has changed something:\n%s", again, same)
	}
	code, applied := p.millrace(t, "migrate")
	if code != 0 || strings.Count(applied, "applied ") != strings.Count(planned, "\n-- 0") {
		t.Fatalf("migrate: exit code %d, %s", code, applied)
	}
	p.want(t, 0, "nothing to apply", "migrate", "--dry-run")
	p.want(t, 0, "nothing to apply", "migrate")
	p.want(t, 3, "-- 0001_audit_log", "migrate", "--dry-run", "--again")
	p.want(t, 0, "applied 0022_copy_merged", "migrate", "--again")

	addr := p.cfg.ClickHouse.Addresses[0]
	must(t, clickhousetest.Exec(t.Context(), addr, "ALTER TABLE millrace.audit_log MODIFY COLUMN size String"))
	p.want(t, 5, "table audit_log: column size is String, wanted is Int64", "run", "--roles", "steward")
	must(t, clickhousetest.Exec(t.Context(), addr,
		"INSERT INTO millrace.schema_migrations (version, name, checksum, applied) "+
			"SELECT 1, 'audit_log', 'other', now64(3) + 1"))
	const refusal = "another build of millrace made its tables: " +
		"this build does not have 1 of its migrations (0001_audit_log)"
	p.want(t, 5, refusal, "migrate")
	p.want(t, 5, refusal, "run", "--roles", "steward")
}
