package storage_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// The error of an ended context has its cause in the text only and does not wrap it.
func TestEnded(t *testing.T) {
	if err := storage.ContextErr(t.Context()); err != nil {
		t.Errorf("of a context that has not ended: %v", err)
	}
	other := storage.NotApplied(retry.Permanent(&storage.AbsentError{At: time.Now(), Err: storage.ErrNotFound}))
	for name, tt := range map[string]struct {
		cause error
		late  bool
		want  error
	}{
		"cancelled":                         {nil, false, context.Canceled},
		"cancelled, with a cause":           {io.ErrClosedPipe, false, context.Canceled},
		"too late":                          {nil, true, context.DeadlineExceeded},
		"too late, with a cause":            {io.ErrClosedPipe, true, context.DeadlineExceeded},
		"cancelled, of another call":        {other, false, context.Canceled},
		"too late, of another call":         {other, true, context.DeadlineExceeded},
		"cancelled, by a fact that is bare": {storage.ErrNotFound, false, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), -time.Second, tt.cause)
			if !tt.late {
				cancelled, cancel := context.WithCancelCause(t.Context())
				cancel(tt.cause)
				ctx = cancelled
			}
			defer cancel()
			err := storage.ContextErr(ctx)
			var absent *storage.AbsentError
			if !errors.Is(err, tt.want) || tt.cause != nil && !strings.Contains(err.Error(), tt.cause.Error()) {
				t.Errorf("got %v, want %v and its cause %v", err, tt.want, tt.cause)
			}
			if tt.cause != nil && errors.Is(err, tt.cause) || storage.IsNotApplied(err) || errors.As(err, &absent) ||
				errors.Is(err, storage.ErrNotFound) || retry.ClassOf(err) != retry.Transient {
				t.Errorf("got %v, which wraps the error of another call", err)
			}
		})
	}
}
