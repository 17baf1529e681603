package app

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
)

// older turns the database into a backup from before it had positions.
func (r *restored) older() {
	r.exec("DELETE FROM {db}.schema_migrations WHERE version > 28")
	for _, log := range []string{"audit_log", "duplication_log", "bit_log", "copy_state"} {
		r.exec("DELETE FROM {db}." + log + " WHERE position > 0")
	}
}

// The positions of a database without any start at the committed offsets, once. One that is
// restored later lacks the records since its backup.
func TestMigrateRestoredDatabaseWithoutPositions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		// upgrade is the first migration and its result.
		upgrade func(t *testing.T, r *restored)
	}{
		"at once": {func(t *testing.T, r *restored) { r.migrate() }},
		"killed before the migration was noted": {func(t *testing.T, r *restored) {
			r.migrate()
			r.exec("DELETE FROM {db}.schema_migrations WHERE version > 33")
			r.migrate()
		}},
		"killed before that was on record": {func(t *testing.T, r *restored) {
			r.cannotNote(func(context.Context) error { return context.Canceled })
			r.migrate()
		}},
		"on record, and reported as failed": {func(t *testing.T, r *restored) {
			r.cannotNote(func(ctx context.Context) error {
				return errors.Join(r.app.recordPositionsBegun(ctx),
					context.Canceled)
			})
			r.migrate()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "at once" && name != "on record, and reported as failed" {
				need.Full(t)
			}
			r := newRestored(t)
			r.t = t
			r.work(0, 3)
			r.older()
			tt.upgrade(t, r)
			if got := r.lacking(); got != "" {
				t.Fatalf("once it is upgraded %s lack records", got)
			}
			r.work(3, 3)
			r.older() // the rows of the second half are there, which no position says
			r.migrate()
			const all = "audit_log bit_log copy_state duplication_log"
			if got := r.lacking(); got != all {
				t.Errorf("once the older one is restored %q lack records, want %q", got, all)
			}
			if n := r.begun(); n != 1 {
				t.Errorf("it is on record %d times, want once", n)
			}
		})
	}
}

// A migration records once that the tables have positions, whichever version created them.
func TestMigrateDatabaseWithUnrecordedPositions(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	r.work(0, 3)
	for range 2 {
		r.migrate()
	}
	r.work(3, 3)
	r.older()
	r.migrate()
	const all = "audit_log bit_log copy_state duplication_log"
	if got := r.lacking(); got != all {
		t.Errorf("once a database without positions is restored %q lack records, want %q", got, all)
	}
	if n := r.begun(); n != 1 {
		t.Errorf("it is on record %d times, want once", n)
	}
}

// The positions of an older database start at the committed offsets even if an unrelated topic is
// missing.
func TestMigrateWithoutTheTopicAdmin(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	r.work(0, 3)
	r.older()
	r.app.cfg.Kafka.Partitions = 1
	r.b.Delete(schemas.Admin)
	for range 2 {
		r.migrate()
		if got := r.lacking(); got != "" {
			t.Errorf("once it is upgraded %s lack records", got)
		}
	}
	if n := r.begun(); n != 1 {
		t.Errorf("it is on record %d times, want once", n)
	}
}

// begun returns the number of records that the tables have positions.
func (r *restored) begun() (n int) {
	for _, b := range r.b.Bodies(schemas.Admin) {
		if b.(*pb.AdminAction).GetAction() == actionPositions {
			n++
		}
	}
	return n
}

// cannotNote migrates with a recordPositionsBegun that fails.
func (r *restored) cannotNote(begin func(context.Context) error) {
	r.t.Helper()
	plan, err := migrate.NewPlan(r.t.Context(), r.db, false)
	if err != nil {
		r.t.Fatal(err)
	}
	plan.Committed, plan.PositionsSet = r.app.committedBefore, begin
	if _, err := migrate.Apply(r.t.Context(), r.db, plan); !errors.Is(err, context.Canceled) {
		r.t.Fatalf("Apply = %v", err)
	}
}

func (r *restored) migrate() {
	r.t.Helper()
	if _, err := r.app.Migrate(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}
