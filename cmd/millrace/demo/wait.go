package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/streams/retry"
)

// stall is how long nothing may happen before the demo says that it will not come true.
const stall = 90 * time.Second

// A shortfall says what did not come true.
type shortfall struct{ what string }

// Error implements error.
func (s *shortfall) Error() string { return s.what }

type progressed struct{ done, total int64 }

// until looks again and again until all is done. Errors of looking are looked past, as long as something moves.
func (d *demo) until(ctx context.Context, what string, look func(context.Context) (progressed, error)) error {
	var (
		last  = progressed{done: -1}
		moved = time.Now()
	)
	for {
		now, err := look(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && now.done >= now.total {
			return nil
		}
		if err == nil && now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > stall {
			short := &shortfall{fmt.Sprintf("%s: %d of %d, and nothing moved for %v (what could not be handled: 'millrace dead list --state %s')",
				what, last.done, last.total, stall, d.cfg.State)}
			if err != nil {
				return fmt.Errorf("%w (%w)", short, err)
			}
			return short
		}
		if err := retry.Sleep(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}
