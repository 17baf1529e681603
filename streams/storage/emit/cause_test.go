package emit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A causeWrapper ends its context during each mutation and wraps the context's cause in the mutation's
// error.
type causeWrapper struct {
	storage.Store
	end func()
}

func (s causeWrapper) wrap(ctx context.Context, err error) error {
	s.end()
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", err, context.Cause(ctx))
}

func (s causeWrapper) Put(
	ctx context.Context, space, item string, r io.Reader, o storage.PutOptions,
) (storage.Object, error) {
	obj, err := s.Store.Put(ctx, space, item, r, o)
	return obj, s.wrap(ctx, err)
}

func (s causeWrapper) Delete(
	ctx context.Context, space, item string, o storage.DeleteOptions,
) (storage.Deleted, error) {
	d, err := s.Store.Delete(ctx, space, item, o)
	return d, s.wrap(ctx, err)
}

func (s causeWrapper) SetProperties(
	ctx context.Context, space, item string, p storage.Properties, c storage.Condition,
) (storage.Object, error) {
	o, err := s.Store.SetProperties(ctx, space, item, p, c)
	return o, s.wrap(ctx, err)
}

// A call ends because another call of its errgroup was refused: the cause of its context is the other
// call's error, with its NotApplied mark. The mark proves nothing about this call, even if the store wraps
// the cause: a mutation that was made is published, and the caller's error is not marked. If the store
// itself refused the call, its mark cannot be distinguished from the foreign one, so the store is observed, with the
// same result.
func TestMarkOfTheCauseProvesNothing(t *testing.T) {
	cause := storage.NotApplied(fmt.Errorf("another call: %w", storage.ErrNotFound))
	calls := map[string]struct {
		op   string
		call func(ctx context.Context, w *world) error
	}{
		"Put": {"ADD", func(ctx context.Context, w *world) error {
			_, err := w.s.Put(ctx, sp, "a", strings.NewReader("new"), storage.PutOptions{Size: 3})
			return err
		}},
		"Delete": {"DELETE", func(ctx context.Context, w *world) error {
			_, err := w.s.Delete(ctx, sp, "b", storage.DeleteOptions{})
			return err
		}},
		"SetProperties": {"SET_PROPERTIES", func(ctx context.Context, w *world) error {
			_, err := w.s.SetProperties(ctx, sp, "b", storage.Properties{MediaType: "x/y"}, storage.Condition{})
			return err
		}},
	}
	for method, m := range calls {
		for name, fault := range map[string]storagetest.Fault{
			"done":              {Applied: true, Err: errors.New("connection is cut")},
			"not done":          {Err: errors.New("connection is cut")},
			"not done, refused": {Err: storage.NotApplied(errors.New("refused"))},
		} {
			t.Run(method+" "+name, func(t *testing.T) {
				w, _ := newMutationWorld(t)
				ctx, cancel := context.WithCancelCause(t.Context())
				var err error
				w.s, err = New(causeWrapper{w.faulty, func() { cancel(cause) }}, w.s.cfg, w.topic)
				must(t, err)
				fault.Method = method
				w.faulty.Script(fault)
				err = m.call(ctx, w)
				unread := method == "Put" && !fault.Applied // no byte was read, which proves it
				if err == nil || storage.IsNotApplied(err) != unread {
					t.Errorf("got %v, marked %v, want an error, marked %v", err, storage.IsNotApplied(err), unread)
				}
				must(t, w.s.Flush(t.Context()))
				if fault.Applied {
					w.wantOps(0, m.op)
				} else {
					w.wantOps(0)
				}
				w.wantNoQueues()
			})
		}
	}
}
