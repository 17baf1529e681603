package emit

import (
	"context"
	"io"
	"iter"

	"github.com/millrace/millrace/streams/storage"
)

// Kept implements storage.Keeper. Reading what is kept makes no Change.
func (s *Store) Kept(ctx context.Context, space string, items []string) iter.Seq2[storage.Kept, error] {
	return storage.ListKept(ctx, s.inner, space, items)
}

// StatKept implements storage.Keeper.
func (s *Store) StatKept(ctx context.Context, ref storage.KeptRef) (storage.Kept, error) {
	return storage.StatKept(ctx, s.inner, ref)
}

// OpenKept implements storage.Keeper.
func (s *Store) OpenKept(ctx context.Context, ref storage.KeptRef) (io.ReadCloser, storage.Kept, error) {
	return storage.OpenKept(ctx, s.inner, ref)
}
