package app

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/schemas"
)

// positionInterval is the time between two recordings of the groups' positions. If the brokers
// delete the offsets of a group, the group repeats the work since the last recording.
const positionInterval = 10 * time.Minute

// publishPositions publishes the positions of groups that are not recorded, for the case that the
// brokers delete their offsets. Each is published by itself: one that is too large does not block the
// others. The next run repeats what failed.
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
		a.log.Warn("record group positions", "retry_after", positionInterval, "err", err)
	}
}
