package storage

import (
	"context"
	"fmt"
	"io"
	"iter"
	"time"
)

// A Keeper is a Store that can read the bytes that it keeps of replaced and deleted items, as versions or in
// quarantine. Its methods change nothing, and work in read-only stores too. They do not need the space to exist: its
// items may have been deleted with it.
//
// As for items, an absence counts only if Marker succeeds afterwards, and an error is not a fact.
type Keeper interface {
	// Kept lists what is kept of these items, which are sorted and distinct. The entries are in the order of the items,
	// and of one item the oldest first. Digests, properties and Original may be missing; StatKept has them. An error
	// ends the listing; what follows is then unknown. A listing may scan everything that the store keeps, so callers
	// pass many items at once.
	Kept(ctx context.Context, space string, items []string) iter.Seq2[Kept, error]
	// StatKept returns ErrNotFound if nothing is kept of this item under this id.
	StatKept(ctx context.Context, ref KeptRef) (Kept, error)
	// OpenKept opens the bytes; errors as of StatKept. Bytes that change during the read end it with ErrChanged.
	OpenKept(ctx context.Context, ref KeptRef) (io.ReadCloser, Kept, error)
}

// A KeptRef names kept bytes of an item.
type KeptRef struct {
	Space, Item string
	ID          string // Kept.ID
}

// Kept describes bytes that a store keeps of a replaced or deleted item. Nothing proves that they are undamaged: also
// bytes that a repair replaced are kept.
type Kept struct {
	ID     string     // of the bytes among those of the item; opaque, printable ASCII
	Object Object     // as the item was; Modified is zero if unknown
	At     time.Time  // when it was replaced or deleted, by the store's clock; zero: unknown
	Reason KeptReason // why the bytes are kept
	// Expires: Expirer removes the bytes when they have been kept for long enough. Otherwise rules of the service do.
	Expires bool
}

// A KeptReason says why bytes are kept.
type KeptReason string

// The reasons.
const (
	KeptUnknown  KeptReason = ""
	KeptReplaced KeptReason = "replaced"
	KeptDeleted  KeptReason = "deleted"
)

// ListKept is Keeper.Kept of any store: ErrUnsupported if it is no Keeper.
func ListKept(ctx context.Context, s Store, space string, items []string) iter.Seq2[Kept, error] {
	if k, ok := s.(Keeper); ok {
		return k.Kept(ctx, space, items)
	}
	return func(yield func(Kept, error) bool) {
		yield(Kept{}, fmt.Errorf("list what is kept of space %q: %w", space, ErrUnsupported))
	}
}

// StatKept is Keeper.StatKept of any store: ErrUnsupported if it is no Keeper.
func StatKept(ctx context.Context, s Store, ref KeptRef) (Kept, error) {
	if k, ok := s.(Keeper); ok {
		return k.StatKept(ctx, ref)
	}
	return Kept{}, fmt.Errorf("stat what is kept of item %q: %w", ref.Item, ErrUnsupported)
}

// OpenKept is Keeper.OpenKept of any store: ErrUnsupported if it is no Keeper.
func OpenKept(ctx context.Context, s Store, ref KeptRef) (io.ReadCloser, Kept, error) {
	if k, ok := s.(Keeper); ok {
		return k.OpenKept(ctx, ref)
	}
	return nil, Kept{}, fmt.Errorf("open what is kept of item %q: %w", ref.Item, ErrUnsupported)
}
