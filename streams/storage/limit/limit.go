// Package limit is a decorator of stores that leaves a store alone while it is away.
//
// Every operation tells the store's Breaker what it learned: an answer, also one such as
// "absent", shows that the store works; failures in a row, or one that says that the
// whole store is unavailable, open the breaker. Then operations fail at once
// with an error of class unavailable, which spends no attempt of a message, until one
// of them that is let through as a probe gets an answer. An operation that was refused
// did nothing: the error of a mutation is marked by storage.NotApplied. Errors of the inner store are
// returned as they are, marked or not, but that one which says that the store is away names it, as a
// refusal does.
//
// A Throttle, where there is one, has operations wait for their turn: so many at a time, requests and
// bytes in a second, fewer where the store asks for that. Waiting for a turn says nothing
// about the store.
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
	throttle *Throttle // nil: none
}

var _ storage.Store = (*Store)(nil)

// NewThrottled returns a Store around inner, which it does not close. All that use one store share its Breaker and its
// Throttle, which may be nil, and no two stores do.
func NewThrottled(inner storage.Store, b *Breaker, t *Throttle) *Store { return &Store{inner, b, t} }

// enter lets an operation through when it is its turn. One that is let through leaves, and gives its slot back, also if the
// inner store panics.
func (s *Store) enter(ctx context.Context) (pass, error) {
	p, err := s.breaker.enter(ctx)
	if err != nil {
		return p, err
	}
	return p, s.wait(ctx, p, others)
}

// begin is enter for a stream.
func (s *Store) begin(ctx context.Context, c class) (pass, error) {
	p, err := s.breaker.begin(ctx)
	if err != nil {
		return p, err
	}
	return p, s.wait(ctx, p, c)
}

func (s *Store) wait(ctx context.Context, p pass, c class) error {
	err := s.throttle.take(ctx, c)
	if err != nil {
		s.breaker.leave(p, nothing, nil)
	}
	return err
}

// leave reports what an operation learned that the store alone took time for, and returns its error.
func (s *Store) leave(ctx context.Context, p pass, err error) error {
	s.throttle.learn(err)
	if err == nil && s.breaker.knows(p, answered) {
		return nil
	}
	e := judge(ctx, err)
	s.breaker.leave(p, e, err)
	return s.breaker.blame(e, err)
}

// Capabilities implements storage.Store. It asks nobody and is never refused.
func (s *Store) Capabilities() storage.Capabilities { return s.inner.Capabilities() }

// Spaces implements storage.Store.
func (s *Store) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return listing(ctx, s, s.inner.Spaces(ctx))
}

// StatSpace implements storage.Store.
func (s *Store) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return storage.Space{}, err
	}
	defer s.throttle.give(others)
	o, err := s.inner.StatSpace(ctx, space)
	return o, s.leave(ctx, p, err)
}

// CreateSpace implements storage.Store.
func (s *Store) CreateSpace(ctx context.Context, space storage.Space) error {
	p, err := s.enter(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.throttle.give(others)
	return s.leave(ctx, p, s.inner.CreateSpace(ctx, space))
}

// SetSpace implements storage.Store.
func (s *Store) SetSpace(ctx context.Context, space storage.Space) error {
	p, err := s.enter(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.throttle.give(others)
	return s.leave(ctx, p, s.inner.SetSpace(ctx, space))
}

// DeleteSpace implements storage.Store.
func (s *Store) DeleteSpace(ctx context.Context, space string) error {
	p, err := s.enter(ctx)
	if err != nil {
		return storage.NotApplied(err)
	}
	defer s.throttle.give(others)
	return s.leave(ctx, p, s.inner.DeleteSpace(ctx, space))
}

// List implements storage.Store.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return listing(ctx, s, s.inner.List(ctx, space, after))
}

// listing is inner, let through when it begins. Its first entry is an answer, its error
// a failure.
func listing[T any](ctx context.Context, s *Store, inner iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		p, err := s.enter(ctx)
		if err != nil {
			var none T
			yield(none, err)
			return
		}
		reported, begun := false, true // in time, by the caller
		defer func() {
			if !reported {
				s.throttle.give(others)
			}
		}()
		for v, err := range inner {
			if err != nil || !reported {
				if !reported {
					s.throttle.give(others)
				}
				s.throttle.learn(err)
				e := judgeStream(ctx, err, begun)
				if e == hung {
					e = failed // nothing but an answer is expected of it
				}
				p = s.breaker.leave(p, e, err)
				err, reported = s.breaker.blame(e, err), true
			}
			if !yield(v, err) {
				return
			}
			begun = ctx.Err() == nil
		}
		if !reported {
			s.breaker.leave(p, answered, nil)
		}
	}
}

// Stat implements storage.Store.
func (s *Store) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return storage.Object{}, err
	}
	defer s.throttle.give(others)
	o, err := s.inner.Stat(ctx, space, item)
	return o, s.leave(ctx, p, err)
}

// Put implements storage.Store. What r or PutOptions.Verify returns is not the store's failure,
// nor is it that r takes its time.
func (s *Store) Put(ctx context.Context, space, item string, r io.Reader, o storage.PutOptions) (storage.Object, error) {
	p, err := s.begin(ctx, writes)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	defer s.throttle.give(writes)
	b := &body{r: r, over: func() bool { return ctx.Err() != nil }, move: func(n int) error { return s.throttle.move(ctx, n) }}
	o.Verify = b.verify(o.Verify)
	obj, err := s.inner.Put(ctx, space, item, b, o)
	s.throttle.learn(err)
	e := b.judge(ctx, err)
	s.breaker.leave(p, e, err)
	return obj, s.breaker.blame(e, err)
}

// SetProperties implements storage.Store.
func (s *Store) SetProperties(ctx context.Context, space, item string, p storage.Properties, c storage.Condition) (storage.Object, error) {
	in, err := s.enter(ctx)
	if err != nil {
		return storage.Object{}, storage.NotApplied(err)
	}
	defer s.throttle.give(others)
	o, err := s.inner.SetProperties(ctx, space, item, p, c)
	return o, s.leave(ctx, in, err)
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, space, item string, o storage.DeleteOptions) (storage.Deleted, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return storage.Deleted{}, storage.NotApplied(err)
	}
	defer s.throttle.give(others)
	d, err := s.inner.Delete(ctx, space, item, o)
	return d, s.leave(ctx, p, err)
}

// Marker implements storage.Store. That there is no marker, or another's, is an answer.
func (s *Store) Marker(ctx context.Context) error {
	p, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer s.throttle.give(others)
	return s.leave(ctx, p, s.inner.Marker(ctx))
}

// WriteMarker implements storage.Store.
func (s *Store) WriteMarker(ctx context.Context) error {
	p, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer s.throttle.give(others)
	return s.leave(ctx, p, s.inner.WriteMarker(ctx))
}
