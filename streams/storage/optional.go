package storage

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Optional features are interfaces of their own, each with a field in Capabilities: callers check both. A decorator
// that implements such an interface has its methods whatever store it wraps, and returns ErrUnsupported if that store
// has not; a decorator that does not implement it hides it, so that no mutation bypasses the decorator.

// A Ref names an item, and optionally its version.
type Ref struct{ Space, Item, Version string }

// A Location is the location of an item's bytes, for PutOptions.Source of a store of the same kind. It pins
// the bytes: a copy from it is of the version in Object.
type Location struct {
	Kind   string // Capabilities.Kind of the driver that returned it
	Object Object
	Handle any // opaque to all but the driver
	// Close releases the location; never nil.
	Close func() error
}

// A Locator is a Store that returns the locations of items.
type Locator interface {
	// Locate returns the errors of Open, and ErrUnsupported if the store has no locations.
	Locate(ctx context.Context, ref Ref) (Location, error)
}

// Locate returns the location of an item in any store; ErrUnsupported if the store is no Locator.
func Locate(ctx context.Context, s Store, ref Ref) (Location, error) {
	if l, ok := s.(Locator); ok {
		return l.Locate(ctx, ref)
	}
	return Location{}, fmt.Errorf("locate item %q: %w", ref.Item, ErrUnsupported)
}

// Sorted passes on a listing of the items after an id, and ends it with an error that wraps ErrListing at
// the first entry that is out of order: a listing that repeats itself may also have skipped items, so those
// not listed are unknown.
func Sorted(after string, listing iter.Seq2[Object, error]) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		last := after
		for o, err := range listing {
			if err == nil && o.Item <= last {
				yield(Object{}, fmt.Errorf("item %q after %q: %w", o.Item, last, ErrListing))
				return
			}
			if !yield(o, err) || err != nil {
				return
			}
			last = o.Item
		}
	}
}

// An Expirer is a Store that accumulates unneeded data: uploads of dead processes, and replaced or deleted
// bytes that are kept for a time.
type Expirer interface {
	// Expire removes data that o declares unneeded, and nothing of uncertain age. It returns the counts of removed
	// data also with an error; the rest is left for the next call.
	Expire(ctx context.Context, o ExpireOptions) (Expired, error)
}

// ExpireOptions declare which data is unneeded. Uploads of dead processes always are: the driver knows which
// those are.
type ExpireOptions struct {
	RetainedBefore time.Time // remove bytes replaced or deleted before; zero: none
	// Shared: other programs write to the store too, so data that may be theirs is left.
	Shared bool
	// Hold, if not nil, reports whether bytes kept of a space stay, whatever their age. It is called for each of them
	// that would be removed; space is "" if it is unknown.
	Hold func(space string) bool
	// Each, if not nil, is called for each removal and for each object that Hold retains.
	Each func(Expired)
}

// Expired counts removed data.
type Expired struct {
	Uploads  int64 // incomplete uploads
	Retained int64 // replaced or deleted objects
	Bytes    int64 // of Retained
	Held     int64 // old enough, and left because of ExpireOptions.Hold
}

// Holds reports whether bytes kept of a space stay; "" is an unknown space.
func (o ExpireOptions) Holds(space string) bool { return o.Hold != nil && o.Hold(space) }

// Add adds a removal, or an object that is held, and calls o.Each.
func (t *Expired) Add(o ExpireOptions, more Expired) {
	t.Uploads, t.Retained, t.Bytes = t.Uploads+more.Uploads, t.Retained+more.Retained, t.Bytes+more.Bytes
	t.Held += more.Held
	if o.Each != nil {
		o.Each(more)
	}
}
