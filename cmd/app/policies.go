package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/folder"
)

// CheckPolicies reads the policies of a folder, and returns them and their faults in the form of
// configuration faults. If accounts is false, it does not check whether cfg has the accounts and
// stores of the documents.
func CheckPolicies(cfg *config.Config, accounts bool, dir string) (policy.Folder, config.Faults) {
	var stores map[string][]policy.Store
	if accounts {
		stores = policyStores(cfg.Accounts)
	}
	f := policy.ReadFolder(os.DirFS(dir), stores)
	var faults config.Faults
	for _, fault := range f.Faults {
		faults = append(faults, config.Fault{Key: fault.Key, Reason: fault.Reason, Origin: fault.Origin(dir)})
	}
	return f, faults
}

// policyStores returns the stores of each account, with the settings on which policies depend.
func policyStores(all []config.Account) map[string][]policy.Store {
	accounts := map[string][]policy.Store{}
	for _, a := range all {
		stores := []policy.Store{}
		for _, s := range a.Stores {
			stores = append(stores, policy.Store{ID: s.ID, ReadOnly: s.Layout == "plain", Space: s.Space})
		}
		accounts[a.ID] = stores
	}
	return accounts
}

// forPolicies is policyStores for the accounts in force.
func (s *Stores) forPolicies() map[string][]policy.Store {
	return policyStores(s.inForce())
}

// newPolicies makes the table of policies, which keeps the registry up to date.
func (a *App) newPolicies() (err error) {
	apply := applyTo(a.policyRegistry)
	a.policies, err = kafka.NewTable(a.kafka, schemas.Policies, func(key []byte, d *schemas.Delivery) error {
		err := apply(key, d)
		for _, f := range a.onPolicy {
			f()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("make the policies table: %w", err)
	}
	a.policies.OnUnreadable(a.policyRegistry.Unreadable)
	return nil
}

// applyTo returns the function of a table that applies the records of the topic policies.
func applyTo(r *policy.Registry) func(key []byte, d *schemas.Delivery) error {
	return func(key []byte, d *schemas.Delivery) error {
		if p, ok := d.Body.(*pb.Policy); ok && r.Apply(key, d.Timestamp, p) {
			return nil
		}
		return kafka.ErrIgnored
	}
}

// newFolder makes the policy folder. interval is the time between two reads; 0: the default.
func (a *App) newFolder(interval time.Duration) *folder.Folder {
	c := folder.Config{Accounts: a.stores.forPolicies, Interval: interval, Follow: a.cfg.Policies.Interval}
	if a.policySource != nil {
		c.Location, c.Files = strings.TrimSuffix(a.cfg.Policies.Folder, "/"), a.policySource.files
	}
	return folder.New(c,
		folder.Deps{Registry: a.policyRegistry, Board: a.incidentBoard, Publisher: a.producer,
			Unreadable: a.unreadablePolicies, Lists: a.unreadLists, Log: a.log})
}

// configuredPolicies returns the configured policy folder; nil if there is none.
func configuredPolicies(ctx context.Context, c config.Policies) (*PolicySource, error) {
	switch {
	case c.Folder == "":
		return nil, nil
	case c.InBucket():
		return PolicyBucket(ctx, c.Folder, c.Endpoint)
	}
	return PolicyDirectory(c.Folder)
}

// unreadablePolicies returns the subjects of the incidents of the unreadable records of an account's policy.
func (a *App) unreadablePolicies(account string) (all []incident.Subject) {
	for _, u := range a.unreadable.List() {
		if u.Topic == schemas.Policies && string(u.Key) == account {
			all = append(all, recordSubject(u))
		}
	}
	return all
}

// unreadLists returns why this process could not read exclusion lists of an account's policy when it needed them; nil
// if it could.
func (a *App) unreadLists(account string) error {
	doc, _ := a.policyRegistry.Document(account)
	var all []error
	for _, ref := range doc.ExcludeLists() {
		all = append(all, a.lists.Failure(ref))
	}
	return errors.Join(all...)
}

// SetPolicy publishes a document for an account if it differs from the active one, and returns when
// this process follows it. A *policy.LostError reports that another writer's document was published
// first and is active. SetPolicy requires a running Run.
func (a *App) SetPolicy(ctx context.Context, account string, doc policy.Document, by string) error {
	if err := ready(ctx, a.policies); err != nil {
		return err
	}
	return a.folder.Set(ctx, account, doc, by)
}
