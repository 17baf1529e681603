// Package migrate creates the database and applies the migrations of its schema, and checks that a database
// can be used. Every statement can be run again, so a migration that was interrupted or that
// runs twice at the same time does no harm.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// Reasons why a database cannot be used.
var (
	// ErrMissing means that the database lacks a migration that this program needs.
	ErrMissing = errors.New("a migration is missing")
	// ErrChanged means that another build of millrace made the tables, with other migrations.
	ErrChanged = errors.New("another build of millrace made its tables")
	// ErrAltered means that a table differs from the migrations.
	ErrAltered = errors.New("altered by hand")
)

// A Plan lists the statements that Run executes: Prepare creates the table of migrations, Steps are the missing
// migrations.
type Plan struct {
	Prepare []string `json:"prepare"`
	Steps   []Step   `json:"migrations"`
}

// A Step is one migration, as a statement that can be run again.
type Step struct {
	Name      string `json:"name"`
	Statement string `json:"statement"`

	migration migrations.Migration
}

// Empty reports whether there is nothing to do.
func (p Plan) Empty() bool { return len(p.Prepare) == 0 && len(p.Steps) == 0 }

// NewPlan returns what Migrate would do, and changes nothing. With again, the plan has every migration, even if it was
// applied: for a table that was dropped. Tables of another build are ErrChanged.
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
	if err := checkApplied(db, all, l); err != nil {
		return Plan{}, err
	}
	var p Plan
	if p.Prepare, err = prepareStatements(ctx, db, l); err != nil {
		return Plan{}, err
	}
	for _, m := range all {
		if _, done := l.entries[m.Number]; !done || again {
			p.Steps = append(p.Steps, Step{m.String(), strings.TrimSpace(db.Name(m.Statement)), m})
		}
	}
	for i := range p.Prepare {
		p.Prepare[i] = db.Name(p.Prepare[i])
	}
	return p, nil
}

// Run creates the database if it is missing, applies what NewPlan plans, and returns the names of the migrations. It
// may run twice at the same time: every statement can be run again.
func Run(ctx context.Context, db *clickhouse.DB, again bool) (applied []string, err error) {
	p, err := NewPlan(ctx, db, again)
	if err != nil {
		return nil, err
	}
	for _, statement := range p.Prepare {
		if err := db.Writer().Exec(ctx, statement); err != nil {
			return nil, db.Explain(db.Config().WriterLogin(),
				fmt.Errorf("make database %s and its table of migrations: %w", db.Config().Database, err))
		}
	}
	for _, s := range p.Steps {
		if err := db.Writer().Exec(ctx, s.Statement); err != nil {
			return applied, db.Explain(db.Config().WriterLogin(), fmt.Errorf("apply migration %s: %w", s.Name, err))
		}
		if err := recordMigration(ctx, db, s.migration); err != nil {
			return applied, err
		}
		applied = append(applied, s.Name)
	}
	return applied, nil
}
