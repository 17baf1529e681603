package limit

import (
	"context"
	"io"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

var _ storage.Locator = (*Store)(nil)

// Open implements storage.Store. A successful Open is an answer; reading is never refused, and its failure
// counts as the store's.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	p, err := s.beginStream(ctx, reads)
	if err != nil {
		return nil, storage.Object{}, err
	}
	closed := func() { s.throttle.release(reads) }
	defer func() {
		if closed != nil { // the inner store failed or panicked
			closed()
		}
	}()
	r, o, err := s.inner.Open(ctx, space, item, version)
	s.throttle.observe(err)
	e := opened
	if err != nil {
		e = classify(ctx, err)
	}
	if p = s.breaker.report(p, e, err); err != nil {
		return nil, storage.Object{}, s.breaker.nameStore(e, err)
	}
	body := &openReader{
		ReadCloser: r, alive: func() { retry.Alive(ctx) }, expired: func() bool { return ctx.Err() != nil },
		report: func(e event, err error) { p = s.breaker.report(p, e, err) }, nameStore: s.breaker.nameStore,
		classify: func(err error, begun bool) event { return classifyStream(ctx, err, begun) },
		throttle: func(n int) error { return s.throttle.waitBytes(ctx, n) }, closed: closed,
	}
	closed = nil
	return body, o, nil
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
