package sweep

import (
	"context"
	"maps"
)

// A Once is a round without a checkpoint: an interruption ends it. Its zero value has not begun.
type Once struct {
	Result
	cursor []byte
	ended  bool
}

// Once runs the pages of a split from where o is, to their end, and publishes the report. If the split is detached it
// returns when they only wait.
func (s *Sweeper) Once(ctx context.Context, m Split, o Once) (Once, error) {
	run, err := s.runner.begin(m, nil, false)
	if err != nil {
		return o, err
	}
	if o.ID == "" {
		o.Result = run.summary
	}
	for run.summary, run.cursor = o.Result, o.cursor; !o.ended && !(m.Detach && m.isQuiet(run.cursor)); {
		if err := m.blocked(ctx); err != nil && !m.isQuiet(run.cursor) {
			return o, err
		}
		page, err := run.page(ctx)
		switch {
		case err != nil:
			return o, err
		case page.Wait > 0:
			if err := run.wait(ctx, page.Wait); err != nil {
				return o, err
			}
			continue
		}
		if err := run.emit(ctx, page.Messages); err != nil {
			return o, err
		}
		run.summary.Counts = maps.Clone(run.summary.Counts) // those of o stay, as the page may be repeated
		run.count(page.Counts)
		if run.summary.Emitted += page.Emitted; page.Emitted > 0 && m.OnEmitted != nil {
			m.OnEmitted(page.Emitted)
		}
		if run.cursor = page.Next; page.Last {
			run.summary.Finished = run.config.Now().UTC()
			if err := run.publish(ctx, run.reports()...); err != nil {
				return o, err
			}
			o.ended = true
		}
		o.Result, o.cursor = run.summary, run.cursor
	}
	return o, nil
}
