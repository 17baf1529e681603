package limit

import (
	"context"
	"io"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

var _ storage.Locator = (*Store)(nil)

// Open implements storage.Store. That an item was opened is an answer; its reading is
// never refused, and a failure of it is one of the store.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	p, err := s.begin(ctx, reads)
	if err != nil {
		return nil, storage.Object{}, err
	}
	closed := func() { s.throttle.give(reads) }
	defer func() {
		if closed != nil { // also if the inner store panics
			closed()
		}
	}()
	r, o, err := s.inner.Open(ctx, space, item, version)
	s.throttle.learn(err)
	e := opened
	if err != nil {
		e = judge(ctx, err)
	}
	if p = s.breaker.leave(p, e, err); err != nil {
		return nil, storage.Object{}, s.breaker.blame(e, err)
	}
	body := &reader{
		ReadCloser: r, alive: func() { retry.Alive(ctx) }, over: func() bool { return ctx.Err() != nil },
		report: func(e event, err error) { p = s.breaker.leave(p, e, err) }, blame: s.breaker.blame,
		judge: func(err error, begun bool) event { return judgeStream(ctx, err, begun) },
		move:  func(n int) error { return s.throttle.move(ctx, n) }, closed: closed,
	}
	closed = nil
	return body, o, nil
}

// Locate implements storage.Locator.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Place, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return storage.Place{}, err
	}
	defer s.throttle.give(others)
	at, err := storage.Locate(ctx, s.inner, ref)
	return at, s.leave(ctx, p, err)
}
