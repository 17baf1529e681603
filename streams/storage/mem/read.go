package mem

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/millrace/millrace/streams/storage"
)

var (
	_ storage.Ranger  = (*Store)(nil)
	_ storage.Locator = (*Store)(nil)
	_ storage.Copier  = (*Store)(nil)
)

// Open implements storage.Store. What is read stays as it was when it was opened.
func (s *Store) Open(ctx context.Context, space, id, version string) (io.ReadCloser, storage.Object, error) {
	it, err := s.pinned(ctx, storage.Ref{Space: space, Item: id, Version: version})
	if err != nil {
		return nil, storage.Object{}, err
	}
	return io.NopCloser(bytes.NewReader(it.bytes)), clone(it.object), nil
}

// pinned returns an item as it is now.
func (s *Store) pinned(ctx context.Context, ref storage.Ref) (*item, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, it, err := s.find(ref.Space, ref.Item)
	if err != nil {
		return nil, err
	}
	return it, (storage.Condition{Version: ref.Version}).Check(it.object, true)
}

// OpenRange implements storage.Ranger.
func (s *Store) OpenRange(ctx context.Context, ref storage.Ref, r storage.Range) (io.ReadCloser, storage.Object, error) {
	it, err := s.pinned(ctx, ref)
	if err == nil {
		err = r.Check(it.object.Size)
	}
	if err != nil {
		return nil, storage.Object{}, err
	}
	end := r.Offset + r.Len(it.object.Size)
	return io.NopCloser(bytes.NewReader(it.bytes[min(r.Offset, int64(len(it.bytes))):min(end, int64(len(it.bytes)))])), clone(it.object), nil
}

// Locate implements storage.Locator. A place stays as it was when it was told.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Place, error) {
	it, err := s.pinned(ctx, ref)
	if err != nil {
		return storage.Place{}, err
	}
	return storage.Place{Kind: "mem", Object: clone(it.object), At: it, Close: func() error { return nil }}, nil
}

// CopyFrom implements storage.Copier.
func (s *Store) CopyFrom(ctx context.Context, space, id string, from storage.Place, o storage.PutOptions) (storage.Copied, error) {
	it, ok := from.At.(*item)
	if !ok {
		return storage.Copied{}, fmt.Errorf("copy from a place of kind %q: %w", from.Kind, storage.ErrUnsupported)
	}
	obj, err := s.Put(ctx, space, id, bytes.NewReader(it.bytes), o)
	if err != nil {
		return storage.Copied{}, err
	}
	return storage.Copied{Object: obj, How: "memory", Read: true}, nil
}
