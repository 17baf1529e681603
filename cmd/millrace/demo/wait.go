package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/cmd/app"
)

// stall is how long nothing may change before the demo reports that a step does not come true.
const stallTimeout = 90 * time.Second

// A shortfall says what did not come true.
type shortfall struct{ what string }

// Error implements error.
func (s *shortfall) Error() string { return s.what }

// until waits until all is done. If nothing changes for as long as stall, it returns a shortfall.
func (d *demo) until(ctx context.Context, what string, look app.Look) error {
	return app.Wait{Look: look, Patience: stallTimeout, Stalled: func(_ context.Context, last app.Progress, err error) error {
		short := &shortfall{fmt.Sprintf("%s: %d of %d, and nothing moved for %v (what could not be handled: "+
			"'millrace dead list --state %s')", what, last.Done, last.Total, stallTimeout, d.cfg.State)}
		if err != nil {
			return fmt.Errorf("%w (%w)", short, err)
		}
		return short
	}}.Until(ctx)
}
