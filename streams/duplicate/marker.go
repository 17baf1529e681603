package duplicate

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// confirmMarker returns nil if a reading of the store's marker that began at since or later found the store's own
// marker. After an error an item that the store lacks is unknown, not absent.
func (l *Observer) confirmMarker(ctx context.Context, at schemas.Copy, store storage.Store, since time.Time) error {
	err := l.markers.Confirm(ctx, schemas.Key(at.Account, at.Store), store, since)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	err = fmt.Errorf("read marker of store %s/%s: %w", at.Account, at.Store, err)
	if retry.ClassOf(err) == retry.Transient {
		err = retry.Unavailable(err)
	}
	return err
}
