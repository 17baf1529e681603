package app

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// older makes of the database a backup from before it had positions.
func (r *restored) older() {
	r.exec("DELETE FROM {db}.schema_migrations WHERE version > 28")
	for _, log := range []string{"audit_log", "duplication_log", "bit_log", "copy_state"} {
		r.exec("DELETE FROM {db}." + log + " WHERE position > 0")
	}
}

// The positions of a database that is older than they are begin at what is committed, once: one that is restored later
// lacks what was stored since its backup.
func TestMigrateARestoredDatabaseThatIsOlderThanPositions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		// upgrade is the first migration, and what becomes of it.
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

// A migration puts on record that the tables have positions, once, whichever program has brought them.
func TestMigrateADatabaseWithPositionsThatAreNotOnRecord(t *testing.T) {
	t.Parallel()
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

// The positions of an older database begin at what is committed, although a topic that is not of them is missing.
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

// begun returns how often it is on record that the tables have positions.
func (r *restored) begun() (n int) {
	for _, b := range r.b.Bodies(schemas.Admin) {
		if b.(*pb.AdminAction).GetAction() == actionPositions {
			n++
		}
	}
	return n
}

// cannotNote migrates with a positionsBegin that fails.
func (r *restored) cannotNote(begin func(context.Context) error) {
	r.t.Helper()
	plan, err := r.db.Plan(r.t.Context(), false)
	if err != nil {
		r.t.Fatal(err)
	}
	plan.Committed, plan.Begun = r.app.committedBefore, begin
	if _, err := r.db.Apply(r.t.Context(), plan); !errors.Is(err, context.Canceled) {
		r.t.Fatalf("Apply = %v", err)
	}
}

func (r *restored) migrate() {
	r.t.Helper()
	if _, err := r.app.Migrate(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}
