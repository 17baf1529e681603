package folder

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/retry"
)

// ReportFaults opens an incident for each account that has a fault in its newest policy. It closes the incident when a
// revision without a fault follows, or the account was removed from the configuration. It reports periodically, until
// ctx is done.
//
// Processes that know different stores can disagree about a document. Each opens the incident again while it finds the
// fault, and closes it once per revision and when the fault ends. So no process keeps the incident of another closed.
func (p *Folder) ReportFaults(ctx context.Context) error {
	r := newReporter(p)
	for ctx.Err() == nil {
		for _, account := range r.accounts() {
			if err := r.report(ctx, account); err != nil && ctx.Err() == nil {
				p.deps.Log.Warn("publish policy incident", "account", account, "err", err)
			}
		}
		_ = retry.Sleep(ctx, p.config.Interval) // only ctx ends it early
	}
	return nil
}

// A reporter is one run of ReportFaults.
type reporter struct {
	*Folder
	reported map[string]report // the last report for each account
}

// A report records whether a revision has a fault.
type report struct {
	revision int64
	faulty   bool
}

func newReporter(p *Folder) *reporter { return &reporter{p, map[string]report{}} }

// accounts returns the configured accounts and those with an open incident.
func (r *reporter) accounts() []string {
	all := slices.Sorted(maps.Keys(r.config.Accounts()))
	for _, about := range r.deps.Board.OpenOf(incident.PolicyRefused) {
		if _, ok := r.config.Accounts()[about.Account]; !ok {
			all = append(all, about.Account)
		}
	}
	return all
}

// report opens or closes the incident of an account's policy.
func (r *reporter) report(ctx context.Context, account string) error {
	revision := r.deps.Registry.Revision(account) // read first, so that a newer fault is reported again
	faults := r.recordFaults(account)
	faults.Lists = r.deps.Lists(account)
	if len(r.config.Accounts()[account]) == 0 {
		faults.Stores = nil // the stores of the account are unknown here
	}
	fault := faults.Err()
	about := incident.Subject{Account: account, Kind: incident.PolicyRefused}
	now := report{revision, fault != nil}
	last, ok := r.reported[account]
	if ok && last == now && (fault == nil || r.deps.Board.IsOpen(about)) {
		return nil
	}
	if fault != nil && last != now {
		r.deps.Log.Warn("report policy faults", "account", account, "err", oneLine(fault))
	}
	var err error
	if fault != nil {
		err = r.deps.Board.Open(ctx, about, oneLine(fault))
	} else {
		err = r.deps.Board.Close(ctx, about, fmt.Sprintf("revision %d has no fault", revision))
	}
	if err == nil {
		r.reported[account] = now
	}
	return err
}
