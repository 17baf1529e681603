// Package app makes a process out of the parts of millrace. It is the only package
// that imports both streams and sinks, and the only place to read to know what runs.
//
// It promises that whoever fails first stops the rest, that a stop is bounded in time, that no
// role serves before the tables that it needs have been read, and that none waits for an engine
// or a store that it does not use, nor ends since one that it uses is away.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/emit"
)

// QuickDrain is how long tasks at work may go on when a process stops that a person at a
// terminal waits for. A task that is cancelled is done again.
const QuickDrain = 1500 * time.Millisecond

// overDrain is how much longer than the drain a stop may take.
const overDrain = 15 * time.Second

// Options are what is not a setting, and what is not as the settings say.
type Options struct {
	Log   *slog.Logger
	Drain time.Duration // in place of roles.drain, if it is not 0
}

// An App is one process's parts, made from its configuration.
type App struct {
	cfg      *config.Config
	log      *slog.Logger
	drain    time.Duration
	kafka    kafka.Config
	db       *clickhouse.DB
	stores   *Stores
	slots    *kafka.Slots
	book     *policy.Book
	reader   *clickhouse.Reader
	registry *prometheus.Registry // nil: nobody can ask for it
	tracing  *tracing             // nil: no spans
	producer *kafka.Producer
	admin    *kafka.Admin
	policies *kafka.Table
	controls *kafka.Controls
	outboxes []*emit.File  // of the stores that emit
	emits    *emit.Metrics // nil: nobody can ask for it, or nothing emits
	// published is closed when what the policy folder says is in force, or there is no folder.
	published chan struct{}
}

// Open makes the parts that cfg asks for. Nothing runs before Run.
func Open(ctx context.Context, cfg *config.Config, o Options) (_ *App, err error) {
	log := o.Log
	a := &App{cfg: cfg, log: log, drain: cmp.Or(o.Drain, cfg.Roles.Drain), published: make(chan struct{})}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	if a.kafka, err = kafkaConfig(ctx, cfg, log); err != nil {
		return nil, err
	}
	a.measure()
	a.tracing = newTracing(cfg.Trace, log)
	a.kafka.Tracer = a.tracing.tracer()
	if a.controls, err = kafka.NewControls(a.kafka); err != nil {
		return nil, fmt.Errorf("make the controls: %w", err)
	}
	a.kafka.Controls = a.controls
	if a.stores, err = newStores(cfg, log); err != nil {
		return nil, err
	}
	a.slots = kafka.NewSlots(a.stores.limit)
	a.book = policy.NewBook(a.stores.IDs)
	a.stores.book = a.book
	ch, err := clickhouseConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if a.db, err = clickhouse.Open(ch, log); err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	if a.producer, err = kafka.NewProducer(a.kafka, "millrace"); err != nil {
		return nil, fmt.Errorf("make the producer: %w", err)
	}
	if a.admin, err = kafka.NewAdmin(a.kafka); err != nil {
		return nil, fmt.Errorf("make the admin client: %w", err)
	}
	a.policies, err = kafka.NewTable(a.kafka, schemas.Policies, func(key []byte, d *schemas.Delivery) error {
		if p, ok := d.Body.(*pb.Policy); ok {
			a.book.Apply(key, d.Timestamp, p)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make the policies table: %w", err)
	}
	a.reader = clickhouse.NewReader(a.db, watermark{a.admin}, clickhouse.ReaderConfig{Wait: cfg.Fixity.FreshWait})
	return a, nil
}

// Close closes the clients. It is called after Run has returned.
func (a *App) Close() {
	a.closeOutboxes()
	if a.admin != nil {
		a.admin.Close()
	}
	if a.producer != nil {
		a.producer.Close()
	}
	if a.stores != nil {
		if err := a.stores.close(); err != nil {
			a.log.Warn("close the stores", "err", err)
		}
	}
	if a.db != nil {
		if err := a.db.Close(); err != nil {
			a.log.Warn("close ClickHouse", "err", err)
		}
	}
}

func (a *App) ensureTopics(ctx context.Context) error {
	k := a.cfg.Kafka
	err := kafka.EnsureTopics(ctx, a.kafka, kafka.TopicOptions{
		Partitions: int32(k.Partitions), Replication: int16(k.Replication), MinInSync: k.MinInSync})
	if err != nil {
		return fmt.Errorf("make the topics: %w", err)
	}
	return nil
}

// policyFolder publishes the documents of the folder that differ from what is in force,
// once, and then waits for ctx: it is a part like any other.
func (a *App) policyFolder(ctx context.Context) error {
	if err := ready(ctx, a.policies); err != nil {
		return err
	}
	documents, err := policy.ReadFolder(os.DirFS(a.cfg.Policies.Folder))
	if err != nil {
		a.log.Error("policy refused", "folder", a.cfg.Policies.Folder, "err", err)
	}
	for account, doc := range documents {
		if err := a.setPolicy(ctx, account, doc, filepath.Base(a.cfg.Policies.Folder)); err != nil {
			return err
		}
	}
	close(a.published)
	<-ctx.Done()
	return nil
}

// SetPolicy publishes a document for an account, where it differs from the one in force,
// and returns when this process follows it. It needs a Run that is under way.
func (a *App) SetPolicy(ctx context.Context, account string, doc policy.Document, by string) error {
	if err := ready(ctx, a.policies); err != nil {
		return err
	}
	return a.setPolicy(ctx, account, doc, by)
}

func (a *App) setPolicy(ctx context.Context, account string, doc policy.Document, by string) error {
	ids := a.stores.IDs(account)
	if len(ids) == 0 {
		a.log.Error("policy refused", "account", account, "err", "the configuration has no such account")
		return nil
	}
	if err := doc.Validate(ids); err != nil {
		a.log.Error("policy refused: the last good one stays in force; mend it and start again", "account", account, "stores", ids, "err", err)
		return nil
	}
	base := a.book.Revision(account)
	rec, err := policy.Record(account, base, doc, by, time.Now().UTC())
	if err != nil {
		return fmt.Errorf("encode the policy of %s: %w", account, err)
	}
	if held, ok := a.book.Document(account); ok && reflect.DeepEqual(held, doc) {
		return nil
	}
	if err := a.producer.Publish(ctx, schemas.Message{Topic: schemas.Policies, Body: rec}); err != nil {
		return fmt.Errorf("publish the policy of %s: %w", account, err)
	}
	for a.book.Revision(account) == base {
		if err := retry.Sleep(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// Stores returns the stores of the configuration.
func (a *App) Stores() *Stores { return a.stores }

// DB returns the read model.
func (a *App) DB() *clickhouse.DB { return a.db }

// CatchUp returns when all changes that are in Kafka now are in ClickHouse.
func (a *App) CatchUp(ctx context.Context) error { return watermark{a.admin}.Wait(ctx) }

// Behind is how many records the groups of roles have not committed, of those that wait for nothing.
func (a *App) Behind(ctx context.Context, roles ...schemas.Role) (records int64, err error) {
	lags, err := a.admin.Lags(ctx, roles...)
	for _, l := range lags {
		records += l.Records
	}
	return records, err
}

// InitStore makes a store known: it writes the marker that carries the store's id.
func (a *App) InitStore(ctx context.Context, account, id string) error {
	return a.stores.init(ctx, StoreName{account, id})
}

// A StoreName names one store of one account.
type StoreName struct{ Account, Store string }

// InitStore is App.InitStore without engines.
func InitStore(ctx context.Context, cfg *config.Config, log *slog.Logger, name StoreName) error {
	stores, err := newStores(cfg, log)
	if err != nil {
		return err
	}
	return errors.Join(stores.init(ctx, name), stores.close())
}

// changes publishes what the emit decorator tells.
type changes struct{ producer *kafka.Producer }

// Publish implements emit.Publisher.
func (p changes) Publish(ctx context.Context, c *pb.Change) error {
	return p.producer.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: c})
}

// watermark waits until ClickHouse holds the changes that are in Kafka now, in the log and in the state.
type watermark struct{ admin *kafka.Admin }

// Wait implements clickhouse.Watermark.
func (w watermark) Wait(ctx context.Context) error {
	return w.admin.Wait(ctx, schemas.Changes, schemas.RoleSink, schemas.RoleState)
}

// ready waits until the tables have been read to the ends that they had at the start.
func ready(ctx context.Context, tables ...*kafka.Table) error {
	for _, t := range tables {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.Ready():
		}
	}
	return nil
}
