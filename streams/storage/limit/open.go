package limit

import (
	"context"
	"io"
	"iter"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

var (
	_ storage.Locator = (*Store)(nil)
	_ storage.Keeper  = (*Store)(nil)
)

// Open implements storage.Store. A successful Open is an answer; reading is never refused, and its failure
// counts as the store's.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	return openStream(ctx, s, func() (io.ReadCloser, storage.Object, error) {
		return s.inner.Open(ctx, space, item, version)
	})
}

// OpenKept implements storage.Keeper, as Open.
func (s *Store) OpenKept(ctx context.Context, ref storage.KeptRef) (io.ReadCloser, storage.Kept, error) {
	return openStream(ctx, s, func() (io.ReadCloser, storage.Kept, error) { return storage.OpenKept(ctx, s.inner, ref) })
}

// openStream opens a stream of bytes, described by a T.
func openStream[T any](
	ctx context.Context, s *Store, open func() (io.ReadCloser, T, error),
) (_ io.ReadCloser, about T, err error) {
	p, err := s.beginStream(ctx, reads)
	if err != nil {
		return nil, about, err
	}
	closed := func() { s.throttle.release(reads) }
	defer func() {
		if closed != nil { // the inner store failed or panicked
			closed()
		}
	}()
	r, about, err := open()
	s.throttle.observe(err)
	e := opened
	if err != nil {
		e = classify(ctx, err)
	}
	if p = s.breaker.report(p, e, err); err != nil {
		var none T
		return nil, none, s.breaker.nameStore(e, err)
	}
	body := &openReader{
		ReadCloser: r, alive: func() { retry.Alive(ctx) }, expired: func() bool { return ctx.Err() != nil },
		report: func(e event, err error) { p = s.breaker.report(p, e, err) }, nameStore: s.breaker.nameStore,
		classify: func(err error, begun bool) event { return classifyStream(ctx, err, begun) },
		throttle: func(n int) error { return s.throttle.waitBytes(ctx, n) }, closed: closed,
	}
	closed = nil
	return body, about, nil
}

// Kept implements storage.Keeper.
func (s *Store) Kept(ctx context.Context, space string, items []string) iter.Seq2[storage.Kept, error] {
	return listing(ctx, s, storage.ListKept(ctx, s.inner, space, items))
}

// StatKept implements storage.Keeper.
func (s *Store) StatKept(ctx context.Context, ref storage.KeptRef) (storage.Kept, error) {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.Kept{}, err
	}
	defer s.throttle.release(others)
	k, err := storage.StatKept(ctx, s.inner, ref)
	return k, s.end(ctx, p, err)
}

// Locate implements storage.Locator.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Location, error) {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.Location{}, err
	}
	defer s.throttle.release(others)
	at, err := storage.Locate(ctx, s.inner, ref)
	return at, s.end(ctx, p, err)
}
