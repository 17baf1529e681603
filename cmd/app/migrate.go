package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
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
		return m, asPrecondition(fmt.Errorf("plan the migration of ClickHouse: %w", err))
	}
	if m.Topics, err = kafka.MissingTopics(ctx, a.kafka); err != nil {
		return m, asPrecondition(fmt.Errorf("look for the topics: %w", err))
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
	if err != nil {
		return done, asPrecondition(fmt.Errorf("migrate ClickHouse: %w", err))
	}
	missing, err := kafka.MissingTopics(ctx, a.kafka)
	if err != nil {
		return done, asPrecondition(fmt.Errorf("look for the topics: %w", err))
	}
	if err := a.ensureTopics(ctx); err != nil {
		return done, err
	}
	done.Topics = missing
	plan.Begun = a.recordPositionsBegun
	// Without changes, nothing was committed that a table could lack.
	if !slices.Contains(missing, a.kafka.Prefix+string(schemas.Changes)) {
		plan.Committed = a.committedBefore
	}
	if done.Applied, err = a.db.Apply(ctx, plan); err != nil {
		return done, asPrecondition(fmt.Errorf("migrate ClickHouse: %w", err))
	}
	// A database that got its positions from another build is not on record yet.
	if err := a.recordPositionsBegun(ctx); err != nil {
		return done, err
	}
	var lanes []string
	for _, l := range a.cfg.Delay.Lanes {
		lanes = append(lanes, l.Name)
	}
	done.Present = len(schemas.Catalogue(lanes...)) - len(missing)
	return done, nil
}

// actionPositions is on record once the tables have positions.
const actionPositions = "positions-begun"

// committedOnce returns what the groups have committed, unless it is on record that the tables have had positions: a
// database without them is then an older one that was restored, and does not hold what was committed since.
func (a *App) committedBefore(ctx context.Context) (map[schemas.Role][]schemas.Progress, error) {
	if begun, err := a.havePositionsBegun(ctx); begun || err != nil {
		return nil, err
	}
	return a.watermark.Committed(ctx)
}

// positionsBegin puts on record that the tables have positions.
func (a *App) recordPositionsBegun(ctx context.Context) error {
	if begun, err := a.havePositionsBegun(ctx); begun || err != nil {
		return err
	}
	err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: &pb.AdminAction{
		Id: schemas.ID(actionPositions), Time: timestamppb.Now(), Who: "millrace", Action: actionPositions, From: "migrate",
		Reason: "the tables have positions: a database without them is an older one",
	}})
	if err != nil {
		return fmt.Errorf("publish that the tables have positions: %w", err)
	}
	return nil
}

func (a *App) havePositionsBegun(ctx context.Context) (begun bool, err error) {
	err = eachAction(ctx, a.admin, func(action *pb.AdminAction) error {
		begun = begun || action.GetAction() == actionPositions
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("look whether the tables have had positions: %w", err)
	}
	return begun, nil
}

// refused marks what a person must mend before trying again.
func asPrecondition(err error) error {
	for _, kind := range []error{
		clickhouse.ErrMigration, clickhouse.ErrChanged, clickhouse.ErrForm, clickhouse.ErrCluster, clickhouse.ErrReplicas, clickhouse.ErrAltered,
		clickhouse.ErrAccess, clickhouse.ErrOlder, kafka.ErrLogin,
	} {
		if errors.Is(err, kind) {
			return fmt.Errorf("%w: %w", ErrPrecondition, err)
		}
	}
	return err
}
