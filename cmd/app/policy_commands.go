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
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/revision"
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
	return withRegistry(ctx, k, p.registry, func(ctx context.Context) error { return do(ctx, p) })
}

// withRegistry reads the topic policies into a registry, and calls do. The registry follows the topic until do returns.
func withRegistry(ctx context.Context, k client.Config, r *policy.Registry, do func(context.Context) error) error {
	t, err := kafka.NewTable(k, schemas.Policies, applyTo(r))
	if err != nil {
		return fmt.Errorf("make the policies table: %w", err)
	}
	t.OnUnreadable(r.Unreadable)
	return withTable(ctx, t, do)
}

// stores returns the ids of the configured stores of an account.
func (p *Policies) stores(account string) (ids []string) {
	for _, s := range policyStores(p.cfg.Accounts)[account] {
		ids = append(ids, s.ID)
	}
	return ids
}

// A PolicyInfo is the policy of an account.
type PolicyInfo = DocumentInfo[policy.Document]

// Accounts returns the accounts that are configured or have records, sorted.
func (p *Policies) Accounts() []string {
	all := slices.Collect(maps.Keys(policyStores(p.cfg.Accounts)))
	all = append(all, p.registry.Accounts()...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Info returns the policy of an account.
func (p *Policies) Info(account string) PolicyInfo {
	faults := p.registry.Faults(account)
	if _, ok := policyStores(p.cfg.Accounts)[account]; !ok {
		faults.Stores = errors.New("the configuration does not have the account")
	}
	info := documentInfo(p.registry.Registry, account)
	info.Fault = faults.Err()
	return info
}

// History returns all records of an account, oldest first, also those that are ignored.
func (p *Policies) History(account string) []policy.Entry { return p.registry.History(account) }

// CheckPolicy parses and validates a file with the document of one account. If account is empty, the document or the
// name of the file names it. If cfg is nil, accounts and stores are not checked.
func CheckPolicy(cfg *config.Config, account, file string, content []byte) policy.File {
	var stores map[string][]policy.Store
	if cfg != nil {
		stores = policyStores(cfg.Accounts)
	}
	if account == "" {
		return policy.ReadFile(file, content, stores)
	}
	return policy.ReadFileOf(account, file, content, stores)
}

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
func (p *Policies) Publish(ctx context.Context, c PolicyChange) (current int64, changed bool, err error) {
	return publication[policy.Document]{
		registry: p.registry.Registry, producer: p.producer, topic: schemas.Policies, noun: "policy", account: c.Account,
		base: c.Base, same: func() bool { return p.isCurrent(c) },
		record: func(base int64, at time.Time) (revision.Record, error) {
			c.Base = base
			return c.record(at)
		},
	}.publish(ctx)
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
