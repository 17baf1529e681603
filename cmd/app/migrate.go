package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
)

// A Migration is the work that Migrate would do.
type Migration struct {
	migrate.Plan
	Topics []string `json:"topics"` // missing topics
}

// Empty reports whether there is nothing to do.
func (m Migration) Empty() bool { return m.Plan.Empty() && len(m.Topics) == 0 }

// PlanMigration returns the work that Migrate would do, and changes nothing. With again it includes
// the migrations of ClickHouse that were applied before.
func (a *App) PlanMigration(ctx context.Context, again bool) (m Migration, err error) {
	if m.Plan, err = migrate.NewPlan(ctx, a.db, again); err != nil {
		return m, asPrecondition(fmt.Errorf("plan the migration of ClickHouse: %w", err))
	}
	missing, err := a.missingTopics(ctx)
	m.Prepare, m.Steps, m.Topics = filled(m.Prepare), filled(m.Steps), filled(missing)
	return m, err
}

// missingTopics returns the topics that Migrate would create. Its error names all Kafka rights that the login is known
// to lack.
func (a *App) missingTopics(ctx context.Context) ([]string, error) {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := access.Check(limited, a.kafka, access.MigrateCheck(a.kafka)); errors.Is(err, client.ErrAccess) {
		return nil, asPrecondition(err)
	}
	missing, err := admin.MissingTopics(ctx, a.kafka, a.topicOptions())
	if err != nil {
		return nil, asPrecondition(fmt.Errorf("look for the topics: %w", err))
	}
	return missing, nil
}

// MigrationResult is the work that Migrate did.
type MigrationResult struct {
	Applied []string `json:"applied"` // names of migrations of ClickHouse
	Topics  []string `json:"topics"`  // topics that it created
	Present int      `json:"present"` // the number of topics that existed before
}

// Migrate updates the tables of ClickHouse and creates the missing topics. With an error too, it
// returns the work that it did.
func (a *App) Migrate(ctx context.Context) (MigrationResult, error) { return a.migrate(ctx, false) }

// MigrateAgain is Migrate that also repeats the migrations of ClickHouse that were applied before:
// for a table that was dropped.
func (a *App) MigrateAgain(ctx context.Context) (MigrationResult, error) { return a.migrate(ctx, true) }

func (a *App) migrate(ctx context.Context, again bool) (done MigrationResult, err error) {
	done.Applied, done.Topics = []string{}, []string{}
	planned, err := a.PlanMigration(ctx, again)
	if err != nil {
		return done, err
	}
	if err := a.ensureTopics(ctx); err != nil {
		return done, err
	}
	done.Topics = planned.Topics
	applied, err := migrate.Run(ctx, a.db, again)
	if done.Applied = filled(applied); err != nil {
		return done, asPrecondition(fmt.Errorf("migrate ClickHouse: %w", err))
	}
	var lanes []string
	for _, l := range a.cfg.Delay.Lanes {
		lanes = append(lanes, l.Name)
	}
	done.Present = len(schemas.Catalogue(lanes...)) - len(planned.Topics)
	return done, nil
}

// asPrecondition wraps errors that an operator must resolve before a retry with precondition.Err. It is for commands,
// and for what is checked before parts run.
func asPrecondition(err error) error {
	if needsOperator(err) {
		return fmt.Errorf("%w: %w", precondition.Err, err)
	}
	return err
}

// needsOperator reports whether a retry fails until an operator has acted.
func needsOperator(err error) bool {
	return slices.ContainsFunc([]error{
		migrate.ErrMissing, migrate.ErrChanged, migrate.ErrAltered, clickhouse.ErrAccess, clickhouse.ErrOlder,
		client.ErrLoginRejected, admin.ErrTopics, client.ErrAccess,
	}, func(kind error) bool { return errors.Is(err, kind) })
}
