package app

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
)

// Each row has the answers of ClickHouse, in order.
func TestSchema(t *testing.T) {
	unavailable := errors.New("connection refused")
	lacks := fmt.Errorf("%w: 0003", migrate.ErrMissing)
	for name, tt := range map[string]struct {
		says  []error // the last one again and again
		start error
		later error // what ends the process
		ping  error // after an hour
	}{
		"up to date":               {says: []error{nil}},
		"lacks a migration":        {says: []error{lacks}, start: migrate.ErrMissing},
		"is unavailable":           {says: []error{unavailable}, ping: unavailable},
		"is unavailable, and back": {says: []error{unavailable, unavailable, nil}},
		"is back, but lacks one":   {says: []error{unavailable, unavailable, lacks}, later: migrate.ErrMissing},
		"hangs":                    {says: []error{context.DeadlineExceeded, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				n := 0
				var said logtest.Lines
				s := &schema{log: said.Log(), pingDB: func(context.Context) error { return nil },
					check: func(ctx context.Context) error {
						err := tt.says[min(n, len(tt.says)-1)]
						n++
						if errors.Is(err, context.DeadlineExceeded) {
							<-ctx.Done()
						}
						return err
					}}
				if err := s.checkAtStart(ctx); !errors.Is(err, tt.start) || tt.start != nil && !errors.Is(err, precondition.Err) {
					t.Fatalf("at the start: got %v, want %v", err, tt.start)
				}
				if tt.start != nil {
					return
				}
				ended := make(chan error, 1)
				go func() { ended <- s.run(ctx) }()
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := s.ping(ctx); tt.later == nil && !errors.Is(got, tt.ping) {
					t.Errorf("ping: got %v, want %v", got, tt.ping)
				}
				cancel()
				if err := <-ended; !errors.Is(err, tt.later) || errors.Is(err, precondition.Err) {
					t.Errorf("ended with %v, want %v, which is no precondition any more", err, tt.later)
				}
				if tt.ping == nil && tt.later == nil && n != len(tt.says) {
					t.Errorf("asked %d times, want %d", n, len(tt.says))
				}
				if lost := said.Count("wait for ClickHouse"); (lost > 0) != (tt.says[0] != nil) {
					t.Errorf("got %d lines \"wait for ClickHouse\"", lost)
				}
			})
		})
	}
}
