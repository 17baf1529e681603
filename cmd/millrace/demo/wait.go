package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/cmd/app"
)

// stallTimeout is the time without progress after which a step fails.
const stallTimeout = 90 * time.Second

// A shortfall is the error of a step that made no progress.
type shortfall struct{ what string }

// Error implements error.
func (s *shortfall) Error() string { return s.what }

// until waits until look reports that all is done. It returns a shortfall after stallTimeout
// without progress.
func (d *demo) until(ctx context.Context, what string, look app.ProgressFunc) error {
	stalled := func(_ context.Context, last app.Progress, err error) error {
		short := &shortfall{fmt.Sprintf("%s: %d of %d, without progress for %v (messages that failed: "+
			"'millrace dead list --state %s')", what, last.Done, last.Total, stallTimeout, d.cfg.State)}
		if err != nil {
			return fmt.Errorf("%w (%w)", short, err)
		}
		return short
	}
	return app.Wait{Progress: look, StallTimeout: stallTimeout, Stalled: stalled}.Until(ctx)
}
