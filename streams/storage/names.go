package storage

import (
	"context"
	"fmt"
	"iter"
	"unicode/utf8"
)

// Bounds of names, in bytes of UTF-8.
const (
	MaxItemID    = 1024
	MaxSpaceName = 255
)

// CheckItem returns an error that wraps ErrName if id is not a valid item id: it is empty, longer than
// MaxItemID, or not UTF-8.
func CheckItem(id string) error { return checkName("item id", id, MaxItemID) }

// CheckSpace returns an error that wraps ErrName if name is not a valid space name: it is empty, longer
// than MaxSpaceName, or not UTF-8.
func CheckSpace(name string) error { return checkName("space name", name, MaxSpaceName) }

func checkName(what, name string, limit int) error {
	switch {
	case name == "":
		return fmt.Errorf("%s is empty: %w", what, ErrName)
	case len(name) > limit:
		return fmt.Errorf("%s of %d bytes is longer than %d: %w", what, len(name), limit, ErrName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s %q is not UTF-8: %w", what, name, ErrName)
	}
	return nil
}

// Names returns what Store.Spaces returns of a driver that reads all names at once.
func Names(ctx context.Context, read func() ([]string, error)) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		names, err := read()
		if err != nil {
			yield("", err)
			return
		}
		for _, name := range names {
			if ctx.Err() != nil {
				yield("", ContextErr(ctx))
				return
			}
			if !yield(name, nil) {
				return
			}
		}
	}
}
