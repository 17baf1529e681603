package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// Reasons why a database cannot be used.
var (
	// ErrMigration means that the database lacks a migration that this program needs.
	ErrMigration = errors.New("a migration is missing")
	// ErrChanged means that a migration was applied and has changed since.
	ErrChanged = errors.New("a migration has changed after it was applied")
	// ErrForm means that the tables were made for one server and a cluster is configured, or the other way round.
	ErrForm = errors.New("the tables have another layout")
	// ErrCluster means that the server knows no cluster of the configured name.
	ErrCluster = errors.New("no such cluster")
	// ErrReplicas means that no single quorum fits all shards, because their numbers of replicas differ.
	ErrReplicas = errors.New("the shards have different numbers of replicas")
	// ErrAltered means that a table differs from the migrations.
	ErrAltered = errors.New("altered by hand")
	// ErrOlder means that the server is older than the oldest tested release.
	ErrOlder = errors.New("the server is too old")
	// ErrAccess means that the server refuses the login, or that the user lacks a right.
	ErrAccess = errors.New("access refused")
)

type migration struct {
	number    uint32
	name      string // without the number
	statement string
}

func (m migration) String() string { return fmt.Sprintf("%04d_%s", m.number, m.name) }

// readMigrations returns the migrations in files, in the order of their numbers.
func readMigrations(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "*.sql") // sorted
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var all []migration
	for i, name := range names {
		digits, rest, ok := strings.Cut(strings.TrimSuffix(path.Base(name), ".sql"), "_")
		n, err := strconv.ParseUint(digits, 10, 32)
		if !ok || err != nil || n == 0 {
			return nil, fmt.Errorf("migration %s has no number", name)
		}
		if i > 0 && n == uint64(all[i-1].number) {
			return nil, fmt.Errorf("migration %s has the number of %s", name, all[i-1])
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		all = append(all, migration{uint32(n), rest, string(text)})
	}
	return all, nil
}

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

	migration migration
}

// Empty reports whether there is nothing to do.
func (p Plan) Empty() bool { return len(p.Prepare) == 0 && len(p.Steps) == 0 }

// Plan returns what Migrate would do, and changes nothing. With again, the plan has every migration, even if it was
// applied: for a server that has joined the cluster, or a table that was dropped. A migration that has changed since
// it was applied is ErrChanged.
func (db *DB) Plan(ctx context.Context, again bool) (Plan, error) {
	all, err := readMigrations(migrations.Files)
	if err != nil {
		return Plan{}, err
	}
	if err := db.checkLogin(ctx, db.cfg.writerLogin()); err != nil {
		return Plan{}, err
	}
	l, err := db.readApplied(ctx, db.conn)
	if err != nil {
		return Plan{}, db.explain(db.cfg.writerLogin(), err)
	}
	if err := db.checkApplied(ctx, all, l); err != nil {
		return Plan{}, fmt.Errorf("migrate database %s: %w", db.cfg.Database, err)
	}
	p := Plan{older: len(l.entries) > 0 && !l.has(lastPositionMigration)}
	if p.Prepare, err = db.prepare(ctx, l); err != nil {
		return Plan{}, err
	}
	form := newClusterDDL(db.cfg.Cluster, db.cfg.Database)
	for _, m := range all {
		statements := []string{m.statement}
		if db.cfg.Cluster != "" {
			if statements, err = form.statements(m); err != nil {
				return Plan{}, err
			}
		}
		if _, done := l.entries[m.number]; done && !again {
			continue
		}
		for i := range statements {
			statements[i] = strings.TrimSpace(db.name(statements[i]))
		}
		p.Steps = append(p.Steps, Step{m.String(), statements, m})
	}
	for i := range p.Prepare {
		p.Prepare[i] = db.name(p.Prepare[i])
	}
	return p, nil
}

// Migrate creates the database if it is missing, applies the missing migrations and returns their names. It may run
// twice at the same time: every statement can be run again.
func (db *DB) Migrate(ctx context.Context) (applied []string, err error) {
	p, err := db.Plan(ctx, false)
	if err != nil {
		return nil, err
	}
	return db.Apply(ctx, p)
}

// Apply runs the statements of a Plan, and returns the names of the migrations that it has applied. After an error
// or a crash, the caller makes a new Plan and applies it.
func (db *DB) Apply(ctx context.Context, p Plan) (applied []string, err error) {
	for _, statement := range p.Prepare {
		if err := db.conn.Exec(ctx, statement); err != nil {
			return nil, db.explain(db.cfg.writerLogin(),
				fmt.Errorf("make database %s and its table of migrations: %w", db.cfg.Database, err))
		}
	}
	for _, s := range p.Steps {
		for _, statement := range s.Statements {
			if err := db.conn.Exec(ctx, statement); err != nil {
				return applied, db.explain(db.cfg.writerLogin(), fmt.Errorf("apply migration %s: %w", s.Name, err))
			}
		}
		if s.migration.name == lastPositionMigration {
			if err := db.initPositions(ctx, p); err != nil {
				return applied, fmt.Errorf("apply migration %s: %w", s.Name, err)
			}
		}
		if err := db.recordMigration(ctx, s.migration); err != nil {
			return applied, err
		}
		applied = append(applied, s.Name)
	}
	return applied, nil
}

func quoteName(s string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(s) + "`"
}

// Drop drops the database with all its tables. It is for tests and temporary databases.
func (db *DB) Drop(ctx context.Context) error {
	if err := db.exec(ctx, "DROP DATABASE IF EXISTS {db} SYNC"); err != nil {
		return translate(fmt.Errorf("drop the database %s: %w", db.cfg.Database, err))
	}
	return nil
}
