// Package limit is a decorator that stops using a store while it is unavailable, and limits how much it is
// used.
//
// Every operation reports its result to the store's Breaker. An answer, even one such as "absent", shows
// that the store works. Consecutive failures, or one error of class unavailable, open the breaker. Then
// operations fail at once with an error of class unavailable, which does not count as an attempt of a
// message, until an operation that is let through as a probe gets an answer. A refused operation did
// nothing: the error of a mutation is marked by storage.NotApplied. Errors of the inner store are returned
// unchanged, marked or not, except that an error of class unavailable gets the name of the store, as a
// refusal has.
//
// A Throttle, if there is one, makes operations wait: it bounds concurrency, requests per second and bytes
// per second, and lowers the request rate when the store asks for that. Such waits do not count as the
// store's.
//
// Watch probes an unavailable store, so that its return is noticed without a message for it.
package limit

import (
	"context"
	"io"
	"iter"

	"github.com/millrace/millrace/streams/storage"
)

// A Store is a storage.Store behind a Breaker and a Throttle.
type Store struct {
	inner    storage.Store
	breaker  *Breaker
	throttle *Throttle // may be nil
}

var _ storage.Store = (*Store)(nil)

// New returns a Store around inner, which it does not close. All users of one store share its
// Breaker and its Throttle, which may be nil; no two stores share them.
func New(inner storage.Store, b *Breaker, t *Throttle) *Store { return &Store{inner, b, t} }

// begin admits an operation and waits for its turn. Every admitted operation calls end or Breaker.report,
// and releases its slot, even if the inner store panics.
func (s *Store) begin(ctx context.Context) (epoch, error) {
	p, err := s.breaker.begin(ctx)
	if err != nil {
		return p, err
	}
	return p, s.wait(ctx, p, others)
}

// beginStream is begin for a stream.
func (s *Store) beginStream(ctx context.Context, c class) (epoch, error) {
	p, err := s.breaker.acquire(ctx, stream)
	if err != nil {
		return p, err
	}
	return p, s.wait(ctx, p, c)
}

func (s *Store) wait(ctx context.Context, p epoch, c class) error {
	err := s.throttle.acquire(ctx, c)
	if err != nil {
		s.breaker.report(p, nothing, nil)
	}
	return err
}

// end reports the result of an operation that took only the store's time, and returns its error.
func (s *Store) end(ctx context.Context, p epoch, err error) error {
	s.throttle.observe(err)
	if err == nil && s.breaker.noEffect(p, answered) {
		return nil
	}
	e := classify(ctx, err)
	s.breaker.report(p, e, err)
	return s.breaker.nameStore(e, err)
}

// Capabilities implements storage.Store. It sends no request and is never refused.
func (s *Store) Capabilities() storage.Capabilities { return s.inner.Capabilities() }

// Spaces implements storage.Store.
func (s *Store) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return listing(ctx, s, s.inner.Spaces(ctx))
}

// StatSpace implements storage.Store.
func (s *Store) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.Space{}, err
	}
	defer s.throttle.release(others)
	o, err := s.inner.StatSpace(ctx, space)
	return o, s.end(ctx, p, err)
}

// CreateSpace implements storage.Store.
func (s *Store) CreateSpace(ctx context.Context, space storage.Space) error {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.throttle.release(others)
	return s.end(ctx, p, s.inner.CreateSpace(ctx, space))
}

// SetSpace implements storage.Store.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.throttle.release(others)
	return s.end(ctx, p, s.inner.SetSpace(ctx, space))
}

// DeleteSpace implements storage.Store.
func (s *Store) DeleteSpace(ctx context.Context, space string) error {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.throttle.release(others)
	return s.end(ctx, p, s.inner.DeleteSpace(ctx, space))
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return listing(ctx, s, s.inner.List(ctx, space, after))
}

// listing returns inner, admitted when the iteration begins. Its first entry counts as an answer, its error
// as a failure.
func listing[T any](ctx context.Context, s *Store, inner iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		p, err := s.begin(ctx)
		if err != nil {
			var none T
			yield(none, err)
			return
		}
		reported, begun := false, true // begun: ctx was alive when the store was last asked
		defer func() {
			if !reported {
				s.throttle.release(others)
			}
		}()
		for v, err := range inner {
			if err != nil || !reported {
				if !reported {
					s.throttle.release(others)
				}
				s.throttle.observe(err)
				e := classifyStream(ctx, err, begun)
				if e == hung {
					e = failed // a listing is no stream of bytes
				}
				p = s.breaker.report(p, e, err)
				err, reported = s.breaker.nameStore(e, err), true
			}
			if !yield(v, err) {
				return
			}
			begun = ctx.Err() == nil
		}
		if !reported {
			s.breaker.report(p, answered, nil)
		}
	}
}

// Stat implements storage.Store.
func (s *Store) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.Object{}, err
	}
	defer s.throttle.release(others)
	o, err := s.inner.Stat(ctx, space, item)
	return o, s.end(ctx, p, err)
}

// Put implements storage.Store. Errors of r and of PutOptions.Verify, and the time that r takes, do not
// count as the store's.
func (s *Store) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	p, err := s.beginStream(ctx, writes)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	defer s.throttle.release(writes)
	b := &putBody{r: r, expired: func() bool { return ctx.Err() != nil },
		throttle: func(n int) error { return s.throttle.waitBytes(ctx, n) }}
	o.Verify = b.verify(o.Verify)
	obj, err := s.inner.Put(ctx, space, item, b, o)
	s.throttle.observe(err)
	e := b.classify(ctx, err)
	s.breaker.report(p, e, err)
	return obj, s.breaker.nameStore(e, err)
}

// SetProperties implements storage.Store.
func (s *Store) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	in, err := s.begin(ctx)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	defer s.throttle.release(others)
	o, err := s.inner.SetProperties(ctx, space, item, p, c)
	return o, s.end(ctx, in, err)
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, space, item string, o storage.DeleteOptions) (storage.Deleted, error) {
	p, err := s.begin(ctx)
	if err != nil {
		return storage.Deleted{}, storage.NotApplied(err)
	}
	defer s.throttle.release(others)
	d, err := s.inner.Delete(ctx, space, item, o)
	return d, s.end(ctx, p, err)
}

// Marker implements storage.Store. A missing or wrong marker is an answer.
func (s *Store) Marker(ctx context.Context) error {
	p, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.throttle.release(others)
	return s.end(ctx, p, s.inner.Marker(ctx))
}

// WriteMarker implements storage.Store.
func (s *Store) WriteMarker(ctx context.Context) error {
	p, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer s.throttle.release(others)
	return s.end(ctx, p, s.inner.WriteMarker(ctx))
}
