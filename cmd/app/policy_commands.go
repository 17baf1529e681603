package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
)

// Policies reads and publishes the policies of accounts. It needs only Kafka. Running processes follow a published
// record within a second.
type Policies struct {
	cfg      *config.Config
	registry *policy.Registry
	producer *kafka.Producer
}

// WithPolicies reads the topic policies, and then calls do. The Policies follow the topic until do returns.
func WithPolicies(
	ctx context.Context, cfg *config.Config, log *slog.Logger, do func(context.Context, *Policies) error,
) error {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return err
	}
	p := &Policies{cfg: cfg}
	p.registry = policy.NewRegistry(p.stores)
	if p.producer, err = kafka.NewProducer(k, "millrace"); err != nil {
		return fmt.Errorf("make the producer: %w", err)
	}
	defer p.producer.Close()
	t, err := kafka.NewTable(k, schemas.Policies, applyTo(p.registry))
	if err != nil {
		return fmt.Errorf("make the policies table: %w", err)
	}
	t.OnUnreadable(p.registry.Unreadable)
	return runDuring(ctx, t.Run, func(ctx context.Context) error {
		if err := ready(ctx, t); err != nil {
			return err
		}
		return do(ctx, p)
	})
}

// stores returns the ids of the configured stores of an account.
func (p *Policies) stores(account string) (ids []string) {
	for _, s := range policyStores(p.cfg)[account] {
		ids = append(ids, s.ID)
	}
	return ids
}

// A PolicyInfo is the policy of an account.
type PolicyInfo struct {
	Account  string
	Revision int64 // the current one; 0 if there is none
	Active   *policy.Entry
	Newest   *policy.Entry // of the current revision; nil if there is none
	Fault    error         // of the newest records, or of the configuration
}

// Accounts returns the accounts that are configured or have records, sorted.
func (p *Policies) Accounts() []string {
	all := slices.Collect(maps.Keys(policyStores(p.cfg)))
	all = append(all, p.registry.Accounts()...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Info returns the policy of an account.
func (p *Policies) Info(account string) PolicyInfo {
	faults := p.registry.Faults(account)
	if _, ok := policyStores(p.cfg)[account]; !ok {
		faults.Stores = errors.New("the configuration does not have the account")
	}
	info := PolicyInfo{Account: account, Revision: p.registry.Revision(account), Fault: faults.Err()}
	if e, ok := p.registry.Active(account); ok {
		info.Active = &e
	}
	for _, e := range p.registry.History(account) {
		if e.Revision > 0 {
			info.Newest = &e
		}
	}
	return info
}

// History returns all records of an account, oldest first, also those that are ignored.
func (p *Policies) History(account string) []policy.Entry { return p.registry.History(account) }

// CheckPolicy parses and validates a file with the document of one account. If account is empty, the document or the
// name of the file names it. If cfg is nil, accounts and stores are not checked.
func CheckPolicy(cfg *config.Config, account, file string, content []byte) policy.File {
	var stores map[string][]policy.Store
	if cfg != nil {
		stores = policyStores(cfg)
	}
	if account == "" {
		return policy.ReadFile(file, content, stores)
	}
	return policy.ReadFileOf(account, file, content, stores)
}

// AnyBase as the base of a PolicyChange is the revision that is current when the change is made.
const AnyBase = -1

// A PolicyChange replaces or removes the policy of an account.
type PolicyChange struct {
	Account  string
	Base     int64            // the revision that was edited, or AnyBase
	Document *policy.Document // a valid one; nil removes the policy
	Location string           // the path or URL of the folder that the document was read from
	By       Actor
}

// Publish publishes a change unless it changes nothing, and returns when it is in force, with the current revision. A
// *policy.LostError reports that another revision was published after the base.
func (p *Policies) Publish(ctx context.Context, c PolicyChange) (revision int64, changed bool, err error) {
	revision = p.registry.Revision(c.Account) // read first, so that a later revision is not overwritten
	if p.isCurrent(c) {
		return revision, false, nil
	}
	if c.Base == AnyBase {
		c.Base = revision
	}
	if err := p.checkBase(c, revision); err != nil {
		return revision, false, err
	}
	rec, err := c.record(time.Now().UTC())
	if err != nil {
		return revision, false, err
	}
	if err := p.producer.Publish(ctx, schemas.Message{Topic: schemas.Policies, Body: rec}); err != nil {
		return revision, false, fmt.Errorf("publish the policy of %s: the result is unknown; repeating it is safe: %w",
			c.Account, err)
	}
	for {
		settled, err := p.registry.Settled(rec)
		switch now := p.registry.Revision(c.Account); {
		case settled && err != nil && p.isCurrent(c):
			return now, false, nil // the other writer published the same
		case settled:
			return now, err == nil, err
		}
		if err := retry.Sleep(ctx, 10*time.Millisecond); err != nil {
			return revision, false, err
		}
	}
}

// isCurrent reports whether a change changes nothing.
func (p *Policies) isCurrent(c PolicyChange) bool {
	if f := p.registry.Faults(c.Account); f.Unread != nil || f.Gap != nil {
		return false
	}
	d, ok := p.registry.Document(c.Account)
	if c.Document == nil {
		return !ok
	}
	return ok && d.Equal(*c.Document)
}

// checkBase returns an error if the base of a change is not the current revision.
func (p *Policies) checkBase(c PolicyChange, revision int64) error {
	if c.Base > revision || c.Base < 0 {
		return fmt.Errorf("policy of account %q: there is no revision %d; the current one is %d", c.Account, c.Base, revision)
	}
	if c.Base == revision {
		return nil
	}
	for _, e := range p.registry.History(c.Account) {
		if e.Revision == c.Base+1 {
			return &policy.LostError{Account: c.Account, Revision: e.Revision, By: e.By, Time: e.Time}
		}
	}
	return nil // not reached: the history has every revision
}

// record returns the message of a change.
func (c PolicyChange) record(at time.Time) (rec *pb.Policy, err error) {
	if c.Document == nil {
		rec, err = policy.Removal(c.Account, c.Base, c.By.Who, at)
	} else {
		rec, err = policy.Record(c.Account, c.Base, *c.Document, c.By.Who, at)
	}
	if err != nil {
		return nil, err
	}
	rec.Reason, rec.From, rec.Location = c.By.Reason, c.By.From, c.Location
	return rec, nil
}
