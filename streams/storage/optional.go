package storage

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// What only some stores can do is in interfaces of its own, each with its field in
// Capabilities: whoever uses it asks for both. A decorator that has the methods has them
// whatever it decorates, and returns ErrUnsupported where that cannot; one that does not know
// them hides them, so that no mutation passes it by.

// A Ref names an item, and its version where one is given.
type Ref struct{ Space, Item, Version string }

// A Place is where an item's bytes lie, for PutOptions.Source of a store of the same kind. It pins them: what is copied
// from it is of the version in Object.
type Place struct {
	Kind   string // Capabilities.Kind of the driver whose it is
	Object Object
	At     any // the driver's own
	// Close lets go of it; never nil.
	Close func() error
}

// A Locator is a Store that tells places.
type Locator interface {
	// Locate fails as Open does, and with ErrUnsupported where the store has no places.
	Locate(ctx context.Context, ref Ref) (Place, error)
}

// Locate asks any store for a place; ErrUnsupported where it is no Locator.
func Locate(ctx context.Context, s Store, ref Ref) (Place, error) {
	if l, ok := s.(Locator); ok {
		return l.Locate(ctx, ref)
	}
	return Place{}, fmt.Errorf("locate item %q: %w", ref.Item, ErrUnsupported)
}

// Sorted passes on a listing of what comes after an id, and ends it with an error that wraps
// ErrListing at the first entry that does not come after all before: a listing that
// repeats itself may have skipped as well, so what was not listed is unknown.
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

// A Tidier is a Store in which things of no use stay behind: what processes that died had begun, and
// what was replaced or deleted and is kept for a time.
type Tidier interface {
	// Tidy removes what is older than o says, and nothing of whose age it is not sure. What it has removed
	// it tells also with an error; the rest is there for the next time.
	Tidy(ctx context.Context, o TidyOptions) (Tidied, error)
}

// TidyOptions say what is of no use any more. A zero time: nothing is. What dead processes have begun is of none: how
// that is known the driver says.
type TidyOptions struct {
	Kept time.Time // what was replaced or deleted before
	// Shared: others write there too, so what cannot be told from theirs stays.
	Shared bool
	// Each, where it is set, is told of each thing that was removed.
	Each func(Tidied)
}

// Tidied is what was removed.
type Tidied struct {
	Uploads int64 // that nobody has completed
	Kept    int64
	Bytes   int64 // of Kept
}

// Add adds what was removed, and tells o.Each.
func (t *Tidied) Add(o TidyOptions, more Tidied) {
	t.Uploads, t.Kept, t.Bytes = t.Uploads+more.Uploads, t.Kept+more.Kept, t.Bytes+more.Bytes
	if o.Each != nil {
		o.Each(more)
	}
}
