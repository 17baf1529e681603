package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka"
)

// A Migration is what Migrate would do.
type Migration struct {
	clickhouse.Plan
	Topics []string // that are missing
}

// Empty says that there is nothing to do.
func (m Migration) Empty() bool { return m.Plan.Empty() && len(m.Topics) == 0 }

// PlanMigration says what Migrate would do, and does nothing. With again every migration of
// ClickHouse is in it, those that were applied too.
func (a *App) PlanMigration(ctx context.Context, again bool) (m Migration, err error) {
	if m.Plan, err = a.db.Plan(ctx, again); err != nil {
		return m, refused(fmt.Errorf("plan the migration of ClickHouse: %w", err))
	}
	if m.Topics, err = kafka.MissingTopics(ctx, a.kafka); err != nil {
		return m, refused(fmt.Errorf("look for the topics: %w", err))
	}
	return m, nil
}

// Migrated is what Migrate did.
type Migrated struct {
	Applied []string // names of migrations of ClickHouse
	Topics  []string // that it made
	// Present counts the topics that were there before.
	Present int
}

// Migrate brings the tables of ClickHouse up to date and makes the topics that are
// missing. It returns what it did, with an error too.
func (a *App) Migrate(ctx context.Context) (Migrated, error) { return a.migrate(ctx, false) }

// MigrateAgain is Migrate that applies every migration of ClickHouse, those that were applied
// too: for a server that has joined the cluster, or a table that was dropped.
func (a *App) MigrateAgain(ctx context.Context) (Migrated, error) { return a.migrate(ctx, true) }

func (a *App) migrate(ctx context.Context, again bool) (done Migrated, err error) {
	plan, err := a.db.Plan(ctx, again)
	if err == nil {
		plan.Committed = a.mark.Committed
		done.Applied, err = a.db.Apply(ctx, plan)
	}
	if err != nil {
		return done, refused(fmt.Errorf("migrate ClickHouse: %w", err))
	}
	missing, err := kafka.MissingTopics(ctx, a.kafka)
	if err != nil {
		return done, refused(fmt.Errorf("look for the topics: %w", err))
	}
	if err := a.ensureTopics(ctx); err != nil {
		return done, err
	}
	var lanes []string
	for _, l := range a.cfg.Delay.Lanes {
		lanes = append(lanes, l.Name)
	}
	done.Topics, done.Present = missing, len(schemas.Catalogue(lanes...))-len(missing)
	return done, nil
}

// refused marks what a person must mend before trying again.
func refused(err error) error {
	for _, kind := range []error{
		clickhouse.ErrMigration, clickhouse.ErrChanged, clickhouse.ErrForm, clickhouse.ErrCluster, clickhouse.ErrAltered, clickhouse.ErrAccess,
		clickhouse.ErrOlder, kafka.ErrLogin,
	} {
		if errors.Is(err, kind) {
			return fmt.Errorf("%w: %w", ErrPrecondition, err)
		}
	}
	return err
}
