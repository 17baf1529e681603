package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSupervise(t *testing.T) {
	untilDone := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	errBoom := errors.New("boom")

	for name, tt := range map[string]struct {
		b    func(context.Context) error
		stop time.Duration // when the caller stops everything; never if zero
		want string
	}{
		"stopped by the caller": {b: untilDone, stop: time.Hour},
		"a part fails": {b: func(context.Context) error { time.Sleep(time.Minute); return errBoom },
			want: "b: boom"},
		"a part just returns": {b: func(context.Context) error { time.Sleep(time.Minute); return nil },
			want: "b: ended before the process was stopped"},
		"a part fails while it stops": {b: func(ctx context.Context) error { <-ctx.Done(); return errBoom },
			stop: time.Minute, want: "b: boom"},
		"a part hangs": {b: func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Hour); return nil },
			stop: time.Minute, want: "not stopped after 30s: b"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.stop > 0 {
					time.AfterFunc(tt.stop, cancel)
				}
				err := supervise(ctx, slog.New(slog.DiscardHandler), 30*time.Second, part{"a", untilDone}, part{"b", tt.b})
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("supervise = %v, want %q", err, tt.want)
				}
				time.Sleep(2 * time.Hour) // let the part that hangs come to its end
			})
		})
	}
}
