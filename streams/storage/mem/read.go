package mem

import (
	"bytes"
	"context"
	"io"

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
