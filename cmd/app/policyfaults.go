package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
)

// policyFaults opens an incident for each account of this configuration whose newest policy has a fault, and closes it
// when a revision without one takes its place.
//
// Processes that know different stores judge one document differently. Each opens the incident again as long as it finds
// the fault, and closes it once per revision, so the incident of one process does not stay closed because of another.
type policyFaults struct {
	app *App
	// reported is the revision of each account that was last reported, with a fault or without. Only look uses it.
	reported map[string]int64
}

func newPolicyFaults(a *App) *policyFaults { return &policyFaults{a, map[string]int64{}} }

// run looks again and again, until ctx is done.
func (p *policyFaults) run(ctx context.Context) error {
	if err := ready(ctx, p.app.policies, p.app.incidents); err != nil {
		return err
	}
	for ctx.Err() == nil {
		for _, a := range p.app.cfg.Accounts {
			if err := p.look(ctx, a.ID); err != nil && ctx.Err() == nil {
				p.app.log.Warn("report the faults of a policy", "account", a.ID, "err", err)
			}
		}
		_ = retry.Sleep(ctx, p.app.folder.again) // only ctx ends it early
	}
	return nil
}

// look reports the fault of an account's policy, or that there is none.
func (p *policyFaults) look(ctx context.Context, account string) error {
	revision := p.app.book.Revision(account) // first: a fault that is newer is reported again
	fault := p.app.book.Faults()[account]
	about := incident.Subject{Account: account, Kind: incident.PolicyRefused}
	if last, ok := p.reported[account]; ok && last == revision && (fault == nil || p.app.board.IsOpen(about)) {
		return nil
	}
	var err error
	if fault != nil {
		err = p.app.board.Open(ctx, about, strings.ReplaceAll(fault.Error(), "\n", "; "))
	} else {
		err = p.app.board.Close(ctx, about, fmt.Sprintf("revision %d has no fault", revision))
	}
	if err == nil {
		p.reported[account] = revision
	}
	return err
}
