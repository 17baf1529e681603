// Package migrate creates the database and applies the migrations of its schema, on one server or on a cluster, and
// checks that a database can be used. Every statement can be run again, so a migration that was interrupted or that
// runs twice at the same time does no harm.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// Reasons why a database cannot be used.
var (
	// ErrMissing means that the database lacks a migration that this program needs.
	ErrMissing = errors.New("a migration is missing")
	// ErrChanged means that a migration was applied and has changed since.
	ErrChanged = errors.New("a migration has changed after it was applied")
	// ErrLayout means that the tables were made for one server and a cluster is configured, or the other way round.
	ErrLayout = errors.New("the tables have another layout")
	// ErrAltered means that a table differs from the migrations.
	ErrAltered = errors.New("altered by hand")
)

// A Plan lists the statements that Migrate runs: those that create or update the table of migrations, and the
// missing migrations.
type Plan struct {
	Prepare []string
	Steps   []Step
	// Committed returns the committed offsets of the sinks' groups. If the database is older than positions, the positions
	// of its tables with rows are set to these offsets. If Committed is nil, they get no positions, so the tables lack
	// everything that was committed.
	Committed func(context.Context) (map[schemas.Role][]schemas.Progress, error)
	// PositionsSet is called, if it is not nil, after the database has positions and before that migration is recorded in
	// it. That record is lost and restored with the database. So the caller keeps its own, and then leaves Committed nil.
	PositionsSet func(context.Context) error

	older bool // some migrations were applied, but not the one that adds positions
}

// A Step is one migration, as statements that can each be run again.
type Step struct {
	Name       string
	Statements []string

	migration migrations.Migration
}

// Empty reports whether there is nothing to do.
func (p Plan) Empty() bool { return len(p.Prepare) == 0 && len(p.Steps) == 0 }

// NewPlan returns what Migrate would do, and changes nothing. With again, the plan has every migration, even if it was
// applied: for a server that has joined the cluster, or a table that was dropped. A migration that has changed since
// it was applied is ErrChanged.
func NewPlan(ctx context.Context, db *clickhouse.DB, again bool) (Plan, error) {
	all, err := migrations.All()
	if err != nil {
		return Plan{}, err
	}
	if err := db.CheckLogin(ctx, db.Config().WriterLogin()); err != nil {
		return Plan{}, err
	}
	l, err := readApplied(ctx, db, db.Writer())
	if err != nil {
		return Plan{}, db.Explain(db.Config().WriterLogin(), err)
	}
	if err := checkApplied(ctx, db, all, l); err != nil {
		return Plan{}, fmt.Errorf("migrate database %s: %w", db.Config().Database, err)
	}
	p := Plan{older: len(l.entries) > 0 && !l.has(lastPositionMigration)}
	if p.Prepare, err = prepareStatements(ctx, db, l); err != nil {
		return Plan{}, err
	}
	form := newClusterDDL(db.Config().Cluster, db.Config().Database)
	for _, m := range all {
		statements := []string{m.Statement}
		if db.Config().Cluster != "" {
			if statements, err = form.statements(m); err != nil {
				return Plan{}, err
			}
		}
		if _, done := l.entries[m.Number]; done && !again {
			continue
		}
		for i := range statements {
			statements[i] = strings.TrimSpace(db.Name(statements[i]))
		}
		p.Steps = append(p.Steps, Step{m.String(), statements, m})
	}
	for i := range p.Prepare {
		p.Prepare[i] = db.Name(p.Prepare[i])
	}
	return p, nil
}

// Run creates the database if it is missing, applies the missing migrations and returns their names. It may run
// twice at the same time: every statement can be run again.
func Run(ctx context.Context, db *clickhouse.DB) (applied []string, err error) {
	p, err := NewPlan(ctx, db, false)
	if err != nil {
		return nil, err
	}
	return Apply(ctx, db, p)
}

// Apply runs the statements of a Plan, and returns the names of the migrations that it has applied. After an error
// or a crash, the caller makes a new Plan and applies it.
func Apply(ctx context.Context, db *clickhouse.DB, p Plan) (applied []string, err error) {
	for _, statement := range p.Prepare {
		if err := db.Writer().Exec(ctx, statement); err != nil {
			return nil, db.Explain(db.Config().WriterLogin(),
				fmt.Errorf("make database %s and its table of migrations: %w", db.Config().Database, err))
		}
	}
	for _, s := range p.Steps {
		for _, statement := range s.Statements {
			if err := db.Writer().Exec(ctx, statement); err != nil {
				return applied, db.Explain(db.Config().WriterLogin(), fmt.Errorf("apply migration %s: %w", s.Name, err))
			}
		}
		if s.migration.Name == lastPositionMigration {
			if err := initPositions(ctx, db, p); err != nil {
				return applied, fmt.Errorf("apply migration %s: %w", s.Name, err)
			}
		}
		if err := recordMigration(ctx, db, s.migration); err != nil {
			return applied, err
		}
		applied = append(applied, s.Name)
	}
	return applied, nil
}
