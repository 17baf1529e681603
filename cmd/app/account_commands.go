package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/revision"
)

// Accounts reads and publishes the documents of accounts. It needs Kafka and, for stores that move, ClickHouse. Running
// processes follow a published document within a second.
type Accounts struct {
	cfg      *config.Config
	log      *slog.Logger
	registry *accountRegistry
	producer *kafka.Producer
	// hasCopies reports whether a store has copies on record.
	hasCopies func(ctx context.Context, account, store string) (bool, error)
}

// ErrRecordsUnknown reports that a change depends on records of copies, and that ClickHouse does not answer.
var ErrRecordsUnknown = errors.New("the records of copies are unknown")

// WithoutRecords makes changes that depend on records of copies fail with ErrRecordsUnknown.
func (a *Accounts) WithoutRecords() {
	a.hasCopies = func(context.Context, string, string) (bool, error) {
		return false, errors.New("ClickHouse does not run")
	}
}

// WithAccounts reads the topic accounts, and then calls do. The Accounts follow the topic until do returns.
func WithAccounts(
	ctx context.Context, cfg *config.Config, log *slog.Logger, do func(context.Context, *Accounts) error,
) error {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return err
	}
	switch missing, err := lacksAccounts(ctx, cfg, k); {
	case err != nil:
		return fmt.Errorf("look for the topic of accounts: %w", err)
	case missing:
		return fmt.Errorf("%w: the topic %s is missing: run millrace migrate", precondition.Err, k.Topic(schemas.Accounts))
	}
	a := &Accounts{cfg: cfg, log: log, registry: newAccountRegistry(cfg)}
	a.hasCopies = a.copiesOnRecord
	if a.producer, err = kafka.NewProducer(k, "millrace"); err != nil {
		return fmt.Errorf("make the producer: %w", err)
	}
	defer a.producer.Close()
	table, err := accountTable(k, a.registry)
	if err != nil {
		return err
	}
	return withTable(ctx, table, func(ctx context.Context) error { return do(ctx, a) })
}

// accountTable returns a table that keeps a registry up to date.
func accountTable(k client.Config, r *accountRegistry) (*kafka.Table, error) {
	t, err := kafka.NewTable(k, schemas.Accounts, func(key []byte, d *schemas.Delivery) error {
		if rec, ok := d.Body.(*pb.Account); ok && r.Apply(key, d.Timestamp, rec) {
			return nil
		}
		return kafka.ErrIgnored
	})
	if err != nil {
		return nil, fmt.Errorf("make the accounts table: %w", err)
	}
	t.OnUnreadable(r.Unreadable)
	return t, nil
}

// brokerTimeout bounds the attempts to reach brokers before a command does without the topic of accounts.
const brokerTimeout = 2 * time.Second

// EffectiveConfig returns cfg with the accounts in force: those of the configuration, as the topic accounts changes
// them. If Kafka cannot be asked, it returns cfg and the reason.
func EffectiveConfig(ctx context.Context, cfg *config.Config, log *slog.Logger) (*config.Config, error) {
	k, err := kafkaConfig(ctx, cfg, log)
	if err != nil {
		return cfg, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := reachBroker(ctx, cfg.Kafka.Brokers); err != nil {
		return cfg, err
	}
	if missing, err := lacksAccounts(ctx, cfg, k); missing || err != nil {
		return cfg, err
	}
	r := newAccountRegistry(cfg)
	t, err := accountTable(k, r)
	if err != nil {
		return cfg, err
	}
	if err := withTable(ctx, t, func(context.Context) error { return nil }); err != nil {
		return cfg, err
	}
	effective := *cfg
	effective.Accounts = effectiveAccounts(cfg, r)
	return &effective, nil
}

// lacksAccounts reports whether the topic of accounts is missing: no newer program has used this Kafka.
func lacksAccounts(ctx context.Context, cfg *config.Config, k client.Config) (bool, error) {
	missing, err := admin.MissingTopics(ctx, k, admin.TopicOptions{Partitions: int32(cfg.Kafka.Partitions),
		Replication: int16(cfg.Kafka.Replication), MinInSync: cfg.Kafka.MinInSync})
	return slices.Contains(missing, k.Topic(schemas.Accounts)), err
}

// reachBroker connects to one of the brokers.
func reachBroker(ctx context.Context, brokers []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	for _, address := range brokers {
		var c net.Conn
		if c, err = new(net.Dialer).DialContext(ctx, "tcp", address); err == nil {
			return c.Close()
		}
	}
	return err
}

// An AccountInfo is the document of an account.
type AccountInfo = DocumentInfo[config.AccountDocument]

// Accounts returns the accounts that are configured or have records, sorted.
func (a *Accounts) Accounts() []string {
	all := a.registry.Accounts()
	for _, acc := range a.cfg.Accounts {
		all = append(all, acc.ID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Info returns the document of an account.
func (a *Accounts) Info(account string) AccountInfo {
	info := documentInfo(a.registry, account)
	faults := []error{a.registry.Faults(account).Err()}
	file := fileAccount(a.cfg, account)
	switch {
	case info.Revision == 0 || file == nil:
	case info.Active == nil:
		faults = append(faults, errors.New("the configuration has the account, and it is removed"))
	case !file.Equal(info.Active.Document.Account):
		faults = append(faults, errors.New("the configuration has another document, which does not count"))
	}
	if info.Active != nil {
		for _, s := range info.Active.Document.Stores {
			faults = append(faults, info.Active.Document.Faults[s.ID])
		}
	}
	info.Fault = errors.Join(faults...)
	return info
}

// History returns all records of an account, oldest first, also those that are ignored.
func (a *Accounts) History(account string) []revision.Entry[config.AccountDocument] {
	return a.registry.History(account)
}

// Configured returns an account of the configuration; false if it has none.
func (a *Accounts) Configured(account string) (config.AccountDocument, bool) {
	if file := fileAccount(a.cfg, account); file != nil {
		return config.AccountDocument{Account: *file}, true
	}
	return config.AccountDocument{}, false
}

// Check parses a file with the document of one account, and validates it together with the other accounts in force.
func (a *Accounts) Check(file string, content []byte) (config.Account, config.Faults) {
	inForce := *a.cfg
	inForce.Accounts = effectiveAccounts(a.cfg, a.registry)
	next, faults := WithDocument(&inForce, file, content)
	return next.Accounts[len(next.Accounts)-1], faults
}

// WithDocument returns cfg with the account of a file, which is validated together with the other accounts.
func WithDocument(cfg *config.Config, file string, content []byte) (*config.Config, config.Faults) {
	parsed, _ := config.ParseAccount(file, content, &config.Config{})
	next := *cfg
	next.Accounts = slices.DeleteFunc(slices.Clone(cfg.Accounts), func(o config.Account) bool { return o.ID == parsed.ID })
	d, faults := config.ParseAccount(file, content, &next)
	next.Accounts = append(next.Accounts, d)
	return &next, faults
}

// An AccountChange replaces or removes the document of an account.
type AccountChange struct {
	Account  string
	Base     int64           // the revision that was edited, or AnyBase
	Document *config.Account // a valid one; nil removes the account
	By       Actor
}

// Publish publishes a change unless it changes nothing, and returns when it is in force, with the current revision. A
// *revision.LostError reports that another revision was published after the base. It refuses a change that moves a
// store with copies on record, or of which that is unknown.
func (a *Accounts) Publish(ctx context.Context, c AccountChange) (current int64, changed bool, err error) {
	current = a.registry.Revision(c.Account) // read first, so that a later revision is not overwritten
	if c.Base == AnyBase {
		c.Base = current
	}
	if !a.isCurrent(c) {
		if err := a.registry.CheckBase(c.Account, c.Base); err != nil {
			return current, false, err
		}
		if err := a.checkMoves(ctx, c); err != nil {
			return current, false, err
		}
	}
	return publication[config.AccountDocument]{
		registry: a.registry, producer: a.producer, topic: schemas.Accounts, noun: "document", account: c.Account,
		base: c.Base, same: func() bool { return a.isCurrent(c) },
		record: func(base int64, at time.Time) (revision.Record, error) { return c.record(base, at) },
	}.publish(ctx)
}

// isCurrent reports whether a change changes nothing.
func (a *Accounts) isCurrent(c AccountChange) bool {
	if a.registry.Faults(c.Account).Err() != nil {
		return false
	}
	d, ok := a.registry.Document(c.Account)
	if c.Document == nil {
		// The account of a configuration is removed by a revision.
		return !ok && (a.registry.Revision(c.Account) > 0 || fileAccount(a.cfg, c.Account) == nil)
	}
	return ok && d.Equal(*c.Document)
}

// record returns the message of a change.
func (c AccountChange) record(base int64, at time.Time) (*pb.Account, error) {
	rec := &pb.Account{Account: c.Account, Base: base, Removed: c.Document == nil, By: c.By.Who, Reason: c.By.Reason,
		From: c.By.From, Time: timestamppb.New(at)}
	if c.Document != nil {
		content, err := json.Marshal(c.Document)
		if err != nil {
			return nil, fmt.Errorf("encode account %s: %w", c.Account, err)
		}
		rec.Document = string(content)
	}
	rec.Id = schemas.ID("account", rec.Account, strconv.FormatInt(base, 10), rec.Document, rec.By,
		strconv.FormatInt(at.UnixMilli(), 10))
	return rec, nil
}

// checkMoves returns an error if a change moves a store that has copies on record, or of which that is unknown.
func (a *Accounts) checkMoves(ctx context.Context, c AccountChange) error {
	if c.Document == nil {
		return nil
	}
	var known []config.Account // oldest first
	if file := fileAccount(a.cfg, c.Account); file != nil {
		known = append(known, *file)
	}
	for _, e := range a.registry.History(c.Account) {
		if e.Document != nil {
			known = append(known, e.Document.Account)
		}
	}
	var errs []error
	for _, m := range movesOf(known, *c.Document) {
		has, err := a.hasCopies(ctx, c.Account, m.store)
		const remedy = "add a store with another id, copy to it by a policy, and remove this one"
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("store %s/%s: %s cannot change unless ClickHouse shows that it has no copies: %w: %w",
				c.Account, m.store, m.setting, ErrRecordsUnknown, err))
		case has:
			errs = append(errs, fmt.Errorf("store %s/%s: %s cannot change, because it has copies on record: %s",
				c.Account, m.store, m.setting, remedy))
		}
	}
	return precondition.Join(errs)
}

// A move is a store whose identity a document changes.
type move struct{ store, setting string }

// movesOf returns the stores of a document whose place or role differs from the last one that is known.
func movesOf(known []config.Account, next config.Account) (moves []move) {
	for _, s := range next.Stores {
		for _, a := range slices.Backward(known) {
			i := slices.IndexFunc(a.Stores, func(o config.Store) bool { return o.ID == s.ID })
			if i < 0 {
				continue
			}
			switch o := a.Stores[i]; {
			case o.Driver != s.Driver:
				moves = append(moves, move{s.ID, "driver"})
			case o.Place() != s.Place():
				moves = append(moves, move{s.ID, "the place " + o.Place()})
			case (o.Layout == "plain") != (s.Layout == "plain") || o.Space != s.Space:
				moves = append(moves, move{s.ID, "layout"})
			case o.Primary != s.Primary:
				moves = append(moves, move{s.ID, "primary"})
			}
			break
		}
	}
	return moves
}

// copiesOnRecord asks ClickHouse whether a store has copies on record. Tables that lack records do not know.
func (a *Accounts) copiesOnRecord(ctx context.Context, account, store string) (has bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	open, err := Open(ctx, a.cfg, Options{Log: a.log})
	if err != nil {
		return false, err
	}
	defer open.Close()
	stores, err := read.StoresOf(ctx, open.db, account)
	if err != nil || slices.Contains(stores, store) {
		return err == nil, err
	}
	return false, open.requireNoGaps(ctx)
}
