package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// If the inner store panics and the caller recovers, the slot is released: the store can be used as before.
func TestPanics(t *testing.T) {
	ops := operations()
	locate, closing := ops["Stat"], ops["Open"]
	locate.call = func(ctx context.Context, s storage.Store) error {
		_, err := storage.Locate(ctx, s, storage.Ref{Space: sp, Item: "a"})
		return err
	}
	closing.call = func(ctx context.Context, s storage.Store) error {
		inner := s.(*world)
		inner.Store = New(panicCloserStore{inner.faulty}, inner.breaker, inner.throttle)
		return ops["Open"].call(ctx, inner)
	}
	ops["Locate"], ops["Close"] = locate, closing
	for method, op := range ops {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s done %v", method, done), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := throttled(t, Rates{Concurrency: 1})
					w.faulty.Script(storagetest.Fault{Method: method, Applied: done, Panic: true})
					func() {
						defer func() {
							if err, ok := recover().(error); !ok || !errors.Is(err, storagetest.ErrFault) {
								t.Errorf("recovered %v, want the scripted panic", err)
							}
						}()
						_ = op.call(t.Context(), w)
					}()
					if n := w.slotsHeld(); n > 0 {
						t.Errorf("%d slots are not given back", n)
					}
					wantState(t, w.breaker, Closed)
				})
			})
		}
	}
}

// A panicCloserStore opens items that panic when they are closed.
type panicCloserStore struct{ storage.Store }

func (s panicCloserStore) Open(
	ctx context.Context, space, item, version string,
) (io.ReadCloser, storage.Object, error) {
	r, o, err := s.Store.Open(ctx, space, item, version)
	return panicCloser{r}, o, err
}

type panicCloser struct{ io.ReadCloser }

func (panicCloser) Close() error { panic(storagetest.ErrFault) }
