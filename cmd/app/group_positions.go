package app

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/schemas"
)

// keepEvery is how often the positions of groups are put on record: what a group handles between that and the time when
// the brokers forget its offsets is handled again.
const positionInterval = 10 * time.Minute

// keeper puts on record where groups are, for when the brokers have forgotten it.
func (a *App) positionPublisher() []part {
	return []part{a.periodic("position keeper", positionInterval, a.publishPositions)}
}

// keep publishes the positions that are not on record, one by one: one that is too long keeps no other from being
// published. What failed is left to the next time.
func (a *App) publishPositions(ctx context.Context) {
	all, err := a.admin.Positions(ctx)
	errs := []error{err}
	for _, m := range all {
		err := a.producer.Publish(ctx, m)
		errs = append(errs, err)
		if err != nil && !errors.Is(err, schemas.ErrTooLarge) {
			break
		}
	}
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		a.log.Warn("the positions of groups will be put on record again", "wait", positionInterval, "err", err)
	}
}
