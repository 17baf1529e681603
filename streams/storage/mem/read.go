package mem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Open implements storage.Store. The bytes are those at the time of the call.
func (s *Store) Open(ctx context.Context, space, id, version string) (io.ReadCloser, storage.Object, error) {
	it, err := s.current(ctx, storage.Ref{Space: space, Item: id, Version: version})
	if err != nil {
		return nil, storage.Object{}, err
	}
	return io.NopCloser(bytes.NewReader(it.bytes)), clone(it.object), nil
}

// current returns an item as it is now.
func (s *Store) current(ctx context.Context, ref storage.Ref) (*item, error) {
	if ctx.Err() != nil {
		return nil, storage.ContextErr(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, it, err := s.find(ref.Space, ref.Item)
	if err != nil {
		return nil, err
	}
	return it, (storage.Condition{Version: ref.Version}).Check(it.object, true)
}

// Kept implements storage.Keeper.
func (s *Store) Kept(ctx context.Context, space string, items []string) iter.Seq2[storage.Kept, error] {
	return func(yield func(storage.Kept, error) bool) {
		byItem := map[string][]storage.Kept{}
		for _, k := range s.AllKept() {
			if k.Space == space {
				byItem[k.Object.Item] = append(byItem[k.Object.Item], k.Kept)
			}
		}
		err := storage.CheckSpace(space)
		for _, id := range items {
			err = errors.Join(err, storage.CheckItem(id))
		}
		if err != nil {
			yield(storage.Kept{}, retry.Permanent(err))
			return
		}
		for _, id := range items {
			for _, k := range byItem[id] {
				if ctx.Err() != nil {
					yield(storage.Kept{}, storage.ContextErr(ctx))
					return
				}
				k.Object = clone(k.Object)
				if !yield(k, nil) {
					return
				}
			}
		}
	}
}

// StatKept implements storage.Keeper.
func (s *Store) StatKept(ctx context.Context, ref storage.KeptRef) (storage.Kept, error) {
	k, err := s.findKept(ctx, ref)
	return k.Kept, err
}

// OpenKept implements storage.Keeper.
func (s *Store) OpenKept(ctx context.Context, ref storage.KeptRef) (io.ReadCloser, storage.Kept, error) {
	k, err := s.findKept(ctx, ref)
	if err != nil {
		return nil, storage.Kept{}, err
	}
	return io.NopCloser(bytes.NewReader(k.Bytes)), k.Kept, nil
}

func (s *Store) findKept(ctx context.Context, ref storage.KeptRef) (Kept, error) {
	if ctx.Err() != nil {
		return Kept{}, storage.ContextErr(ctx)
	}
	if err := errors.Join(storage.CheckSpace(ref.Space), storage.CheckItem(ref.Item)); err != nil {
		return Kept{}, retry.Permanent(err)
	}
	for _, k := range s.AllKept() {
		if k.Space == ref.Space && k.Object.Item == ref.Item && k.ID == ref.ID {
			k.Object = clone(k.Object)
			return k, nil
		}
	}
	return Kept{}, fmt.Errorf("bytes %q kept of item %q: %w", ref.ID, ref.Item, storage.ErrNotFound)
}
