package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
)

// policyFaults opens an incident for each account that has a fault in its newest policy. It closes
// the incident when a revision without a fault follows, or the account was removed from the
// configuration.
//
// Processes that know different stores can disagree about a document. Each opens the incident again
// while it finds the fault, and closes it once per revision and when the fault ends. So no process
// keeps the incident of another closed.
type policyFaults struct {
	app *App
	// reported is the last report for each account. Only report uses it.
	reported map[string]policyReport
}

// A policyReport records whether a revision has a fault.
type policyReport struct {
	revision int64
	faulty   bool
}

func newPolicyFaults(a *App) *policyFaults { return &policyFaults{a, map[string]policyReport{}} }

// run reports periodically, until ctx is done.
func (p *policyFaults) run(ctx context.Context) error {
	if err := ready(ctx, p.app.policies, p.app.incidents); err != nil {
		return err
	}
	for ctx.Err() == nil {
		for _, account := range p.accounts() {
			if err := p.report(ctx, account); err != nil && ctx.Err() == nil {
				p.app.log.Warn("publish policy incident", "account", account, "err", err)
			}
		}
		_ = retry.Sleep(ctx, p.app.folder.interval) // only ctx ends it early
	}
	return nil
}

// accounts returns the configured accounts and those with an open incident.
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

// report opens or closes the incident of an account's policy.
func (p *policyFaults) report(ctx context.Context, account string) error {
	revision := p.app.policyRegistry.Revision(account) // read first, so that a newer fault is reported again
	faults := p.app.recordFaults(account)
	if len(p.app.stores.IDs(account)) == 0 {
		faults.Stores = nil // the stores of the account are unknown here
	}
	fault := faults.Err()
	about := incident.Subject{Account: account, Kind: incident.PolicyRefused}
	now := policyReport{revision, fault != nil}
	last, ok := p.reported[account]
	if ok && last == now && (fault == nil || p.app.incidentBoard.IsOpen(about)) {
		return nil
	}
	if fault != nil && last != now {
		p.app.log.Warn("report policy faults", "account", account, "err", oneLine(fault))
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
