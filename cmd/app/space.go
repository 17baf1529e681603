package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/space"
	"github.com/millrace/millrace/streams/storage"
)

// newActions makes the table of the admin actions that roles use.
func (a *App) newActions() (err error) {
	toTables := a.actionsTo(&a.goneSpaces, &a.skippedRounds)
	a.actions, err = kafka.NewTable(a.kafka, schemas.Admin, func(key []byte, d *schemas.Delivery) error {
		err := toTables(key, d)
		action, _ := d.Body.(*pb.AdminAction) // nil for a tombstone
		due := a.jobRequests.apply(action, d.Timestamp) || action.GetAction() == actionSetSchedule
		if due && a.onJobRequest != nil {
			a.onJobRequest()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("make the table of actions: %w", err)
	}
	return nil
}

// actionsTo returns a table function that applies the actions of operators to gone spaces, skipped rounds, and the
// schedules and the decisions about lists of a.
func (a *App) actionsTo(gone *space.Gone, skipped *skippedRounds) func([]byte, *schemas.Delivery) error {
	return func(_ []byte, d *schemas.Delivery) error {
		if action, ok := d.Body.(*pb.AdminAction); ok {
			gone.Apply(d.Partition, d.Timestamp, action)
			skipped.apply(action)
			a.decided.Apply(action, d.Timestamp)
			a.applySchedule(action, d.Timestamp)
		}
		return nil
	}
}

// spaceIncidents keeps the incidents of missing spaces on the board.
type spaceIncidents struct{ board *incident.Board }

var _ fixity.SpaceIncidents = spaceIncidents{}

// Open implements fixity.SpaceIncidents.
func (m spaceIncidents) Open(ctx context.Context, space schemas.Copy, detail string) error {
	return m.board.Open(ctx, spaceMissing(space), detail)
}

// Close implements fixity.SpaceIncidents.
func (m spaceIncidents) Close(ctx context.Context, space schemas.Copy, detail string) error {
	return m.board.Close(ctx, spaceMissing(space), detail)
}

func spaceMissing(space schemas.Copy) incident.Subject {
	return incident.Subject{Account: space.Account, Store: space.Store, Space: space.Space, Kind: incident.SpaceMissing}
}

// SpaceGone publishes that a space of a store is gone. From then on its items are absent, and are
// treated as lost. SpaceGone refuses a space that exists or cannot be checked.
func (a *App) SpaceGone(ctx context.Context, of StoreName, name string, by Actor) error {
	st, err := a.stores.configured(of)
	if err != nil {
		return err
	}
	if err := st.Marker(ctx); err != nil {
		return fmt.Errorf("%w: check space %q in store %s/%s: %w",
			precondition.Err, name, of.Account, of.Store, err)
	}
	switch _, err := st.StatSpace(ctx, name); {
	case err == nil:
		return fmt.Errorf("%w: store %s/%s has the space %q", precondition.Err, of.Account, of.Store, name)
	case !errors.Is(err, storage.ErrNoSpace):
		return fmt.Errorf("check space %q in store %s/%s: %w", name, of.Account, of.Store, err)
	}
	return a.publishSpaceAction(ctx, space.ActionGone, of, name, by)
}

// SpaceBack publishes that a space is expected again.
func (a *App) SpaceBack(ctx context.Context, of StoreName, name string, by Actor) error {
	if _, err := a.stores.configured(of); err != nil {
		return err
	}
	return a.publishSpaceAction(ctx, space.ActionBack, of, name, by)
}

func (a *App) publishSpaceAction(ctx context.Context, action string, of StoreName, name string, by Actor) error {
	done := by.action(action, "")
	done.Account, done.Store, done.Space = of.Account, of.Store, name
	return a.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: done})
}
