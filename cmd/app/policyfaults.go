package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
)

// policyFaults opens an incident for each account whose newest policy has a fault, and closes it when a revision without
// one takes its place, or the account has left the configuration.
//
// Processes that know different stores judge one document differently. Each opens the incident again as long as it finds
// the fault, and closes it once per revision and when the fault ends, so the incident of one process does not stay closed
// because of another.
type policyFaults struct {
	app *App
	// reported is what was last reported of each account. Only look uses it.
	reported map[string]policyReport
}

// A policyReport says whether a revision has a fault.
type policyReport struct {
	revision int64
	faulty   bool
}

func newPolicyFaults(a *App) *policyFaults { return &policyFaults{a, map[string]policyReport{}} }

// run looks again and again, until ctx is done.
func (p *policyFaults) run(ctx context.Context) error {
	if err := ready(ctx, p.app.policies, p.app.incidents); err != nil {
		return err
	}
	for ctx.Err() == nil {
		for _, account := range p.accounts() {
			if err := p.report(ctx, account); err != nil && ctx.Err() == nil {
				p.app.log.Warn("report the faults of a policy", "account", account, "err", err)
			}
		}
		_ = retry.Sleep(ctx, p.app.folder.interval) // only ctx ends it early
	}
	return nil
}

// accounts returns those of the configuration, and those that have an open incident.
func (p *policyFaults) accounts() (all []string) {
	for _, a := range p.app.cfg.Accounts {
		all = append(all, a.ID)
	}
	for _, about := range p.app.incidentBoard.OpenOf(incident.PolicyRefused) {
		if !slices.Contains(all, about.Account) {
			all = append(all, about.Account)
		}
	}
	return all
}

// look reports the fault of an account's policy, or that there is none.
func (p *policyFaults) report(ctx context.Context, account string) error {
	revision := p.app.policyRegistry.Revision(account) // first: a fault that is newer is reported again
	faults := p.app.recordFaults(account)
	if len(p.app.stores.IDs(account)) == 0 {
		faults.Stores = nil // which it has is not known here
	}
	fault := faults.Err()
	about := incident.Subject{Account: account, Kind: incident.PolicyRefused}
	now := policyReport{revision, fault != nil}
	last, ok := p.reported[account]
	if ok && last == now && (fault == nil || p.app.incidentBoard.IsOpen(about)) {
		return nil
	}
	if fault != nil && last != now {
		p.app.log.Warn("policy has faults", "account", account, "err", oneLine(fault))
	}
	var err error
	if fault != nil {
		err = p.app.incidentBoard.Open(ctx, about, oneLine(fault))
	} else {
		err = p.app.incidentBoard.Close(ctx, about, fmt.Sprintf("revision %d has no fault", revision))
	}
	if err == nil {
		p.reported[account] = now
	}
	return err
}
