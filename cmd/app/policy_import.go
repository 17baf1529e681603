package app

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/millrace/millrace/streams/policy"
)

// Results of the policy of one account in an import.
const (
	PolicyPublished = "published" // with a dry run: would be published
	PolicyUnchanged = "unchanged" // it equals the one in force
	PolicyRefused   = "refused"   // the document has faults; the policy in force stays
	PolicyLost      = "lost"      // another revision was published meanwhile
	PolicyGone      = "gone"      // no longer in the list of accounts; the policy in force stays
	PolicyWithdrawn = "withdrawn" // no longer in the list of accounts; with a dry run: would be withdrawn
)

// An ImportedPolicy is the result of an import for one account.
type ImportedPolicy struct {
	Account  string   `json:"account"`
	Result   string   `json:"result"`
	Revision int64    `json:"revision"` // the current one; 0 if there is none
	Faults   []string `json:"faults,omitempty"`
}

// A PolicyImport is the result of an import.
type PolicyImport struct {
	Source   string           `json:"source"`
	DryRun   bool             `json:"dry_run"`
	Policies []ImportedPolicy `json:"policies"`
	Ignored  []string         `json:"ignored,omitempty"` // files of accounts that are not in the list of accounts
}

// ImportOptions are the options of Import.
type ImportOptions struct {
	DryRun bool
	// Prune withdraws the policies of accounts that are no longer in the list of accounts.
	Prune bool
	By    Actor // From is not used
}

// Import publishes the documents of a source that differ from the policies in force. A faulty document does not affect
// the other accounts. The error is policy.Faults if the list of accounts cannot be read: nothing is published then.
func (p *Policies) Import(ctx context.Context, from *PolicySource, o ImportOptions) (*PolicyImport, error) {
	f := policy.ReadFolder(from.files, policyStores(p.cfg.Accounts))
	listed := f.Listed()
	if listed == nil {
		return nil, f.Faults
	}
	o.By.From = policy.FromImport
	result := &PolicyImport{Source: from.Location, DryRun: o.DryRun, Policies: []ImportedPolicy{}, Ignored: f.Ignored}
	for _, account := range slices.Sorted(maps.Keys(listed)) {
		done := ImportedPolicy{Account: account, Result: PolicyRefused, Revision: p.registry.Revision(account)}
		if d, ok := f.Documents[account]; ok {
			c := PolicyChange{Account: account, Base: AnyBase, Document: &d, Location: from.Location, By: o.By}
			var err error
			if done, err = p.importOne(ctx, c, PolicyPublished, o.DryRun); err != nil {
				return result, err
			}
		}
		for _, fault := range f.Faults {
			if fault.Account == account {
				done.Faults = append(done.Faults, fault.String())
			}
		}
		result.Policies = append(result.Policies, done)
	}
	for _, account := range p.importedFrom(from.Location) {
		if listed[account] {
			continue
		}
		done := ImportedPolicy{Account: account, Result: PolicyGone, Revision: p.registry.Revision(account)}
		if o.Prune {
			c := PolicyChange{Account: account, Base: AnyBase, Location: from.Location, By: o.By}
			var err error
			if done, err = p.importOne(ctx, c, PolicyWithdrawn, o.DryRun); err != nil {
				return result, err
			}
		}
		result.Policies = append(result.Policies, done)
	}
	return result, nil
}

// importOne publishes a change. word is the result if it is published.
func (p *Policies) importOne(ctx context.Context, c PolicyChange, word string, dryRun bool) (ImportedPolicy, error) {
	done := ImportedPolicy{Account: c.Account, Result: word, Revision: p.registry.Revision(c.Account)}
	if p.isCurrent(c) {
		done.Result = PolicyUnchanged
		return done, nil
	}
	if dryRun {
		return done, nil
	}
	revision, changed, err := p.Publish(ctx, c)
	done.Revision = revision
	var lost *policy.LostError
	switch {
	case errors.As(err, &lost):
		done.Result, done.Faults, err = PolicyLost, []string{err.Error()}, nil
	case err == nil && !changed:
		done.Result = PolicyUnchanged
	}
	return done, err
}

// importedFrom returns the accounts with an active policy of which a revision was imported from a location.
func (p *Policies) importedFrom(location string) (accounts []string) {
	for _, account := range p.registry.Accounts() {
		if _, ok := p.registry.Active(account); !ok {
			continue
		}
		if slices.ContainsFunc(p.registry.History(account), func(e policy.Entry) bool {
			return e.Revision > 0 && e.From == policy.FromImport && e.Location == location
		}) {
			accounts = append(accounts, account)
		}
	}
	return accounts
}
