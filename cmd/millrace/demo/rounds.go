package demo

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// The names of the fixity rounds of a demo.
const (
	roundFirst = "sweep store 1"
	roundAll   = "sweep all stores"
	roundAdopt = "check the adopted file"
)

// A roundResult is a fixity round of the demo with the result in its report.
type roundResult struct {
	Name     string `json:"name"`
	Store    string `json:"store"`
	Round    string `json:"round"`
	Result   string `json:"result"`
	Complete bool   `json:"complete"`
	Checked  int64  `json:"checked"`
	Found    int64  `json:"findings"`
}

// round begins one fixity round over each space of stores, until all checks are requested. It records the time first,
// so that an interrupted round resumes. Items is the number of checks in each store. With anyAge all copies are
// checked, else those that have not passed within the period.
func (d *demo) round(
	ctx context.Context, name string, items int, anyAge bool, ids ...string,
) (rounds []app.FixityRound, err error) {
	begun, ok := d.checkpoint.Rounds[name]
	if !ok {
		begun = time.Now().UTC().Truncate(time.Millisecond)
		d.checkpoint.Rounds[name] = begun
		if err := d.checkpoint.save(); err != nil {
			return nil, err
		}
	}
	step := d.display.Step(name, int64(len(ids)*items))
	defer func() { step.End(err == nil) }()
	for _, id := range ids {
		found, err := d.app.SweepFixity(ctx,
			app.FixityRequest{Account: account, Store: id, Begun: begun, AnyAge: anyAge, Detach: true, OnRequested: step.Add})
		if err != nil {
			return nil, fmt.Errorf("sweep store %s: %w", id, err)
		}
		rounds = append(rounds, found...)
	}
	return rounds, nil
}

// untilEnded waits as until does, and until the rounds have ended, which reports them.
func (d *demo) untilEnded(ctx context.Context, what string, rounds []app.FixityRound, look app.ProgressFunc) error {
	var ended atomic.Bool
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := d.app.EndFixity(gctx, rounds, false); err != nil {
			return fmt.Errorf("end the rounds: %w", err)
		}
		ended.Store(true)
		return nil
	})
	g.Go(func() error {
		return d.until(gctx, what, func(ctx context.Context) (app.Progress, error) {
			p, err := look(ctx)
			if p.Total++; ended.Load() {
				p.Done++
			}
			return p, err
		})
	})
	return g.Wait()
}

// sweep checks every copy again, and waits until each check is concluded and the delete is done in
// all stores.
func (d *demo) sweep(ctx context.Context) error {
	if err := d.waitDeleted(ctx); err != nil {
		return err
	}
	rounds, err := d.round(ctx, roundAll, len(d.checkpoint.Files)-1, true, stores...)
	if err != nil {
		return err
	}
	var total int64
	for _, r := range rounds {
		total += r.Emitted
	}
	step := d.display.Step("check copies", total)
	err = d.untilEnded(ctx, "checks of the sweep concluded", rounds, func(ctx context.Context) (app.Progress, error) {
		var final int64
		for _, r := range rounds {
			p, err := read.SpaceRoundProgress(ctx, d.app.DB(), read.SpaceRound{Round: r.ID, Since: r.Started,
				Space: schemas.Copy{Account: r.Account, Store: r.Store, Space: r.Space}})
			if err != nil {
				return app.Progress{}, err
			}
			final += p.Final
		}
		step.Set(final)
		return app.Progress{Done: final, Total: total}, nil
	})
	step.End(err == nil)
	if err != nil {
		return err
	}
	found, err := d.findings(ctx)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f.Expected > 0 {
			fmt.Fprintf(d.display, "  store %s  %-22s  row %-2d  %-18s  %s\n", f.Store, f.Harm, f.Row, f.Finding, f.Item)
		}
	}
	return nil
}

// reported returns the reports of the demo's rounds, oldest first.
func (d *demo) reported(ctx context.Context) (all []roundResult, err error) {
	found, err := app.FixityReports(ctx, d.app.DB(), read.ReportQuery{Account: account})
	for i := len(found) - 1; i >= 0; i-- {
		r := found[i]
		for name, begun := range d.checkpoint.Rounds {
			if r.Started.Equal(begun) {
				all = append(all, roundResult{name, r.Store, r.Round, r.Result(), r.Complete, r.Checked(), r.Found()})
			}
		}
	}
	return all, err
}
