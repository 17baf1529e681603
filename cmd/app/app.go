// Package app assembles the parts of millrace into a process. Only this package connects streams with
// sinks; it shows which parts a role consists of.
//
// The first failure of a part stops all others, and a stop is bounded in time. A role starts after
// the tables that it needs have been read. A role does not wait for an engine or a store that it
// does not use, and does not end because one that it uses is unavailable.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/tracing"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/schedule"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/policy/exclusion"
	"github.com/millrace/millrace/streams/policy/folder"
	"github.com/millrace/millrace/streams/space"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/sweep"
)

// Version is set by the linker.
var Version = "dev"

// QuickDrain is the drain timeout of a process that a user at a terminal waits for. A task that
// is cancelled is repeated.
const QuickDrain = 1500 * time.Millisecond

// StopGrace is the time that a stop may take in addition to the drain. Service managers must wait for longer than both.
const StopGrace = 15 * time.Second

// Options are values that do not come from the configuration, or override it.
type Options struct {
	Log   *slog.Logger
	Drain time.Duration // overrides roles.drain; 0: roles.drain
	// Configured is the configuration as it was read, if that of Open has the accounts in force; nil: it is the same.
	Configured *config.Config
}

// An App holds the parts of one process, made from its configuration.
type App struct {
	cfg            *config.Config
	configured     *config.Config // cfg as it was read, without the accounts of the topic
	log            *slog.Logger
	drain          time.Duration
	kafka          client.Config
	db             *clickhouse.DB
	stores         *Stores
	slots          *schedule.Slots
	policyRegistry *policy.Registry
	// accountRegistry has the accounts of the topic; with those of configured it determines the stores.
	accountRegistry *accountRegistry
	reader          *read.Reader
	registry        *prometheus.Registry // nil: http.listen is not set
	lagMetrics      *admin.LagMetrics
	workMetrics     *workMetrics
	sweepMetrics    *sweep.Metrics   // nil: http.listen is not set, or another process has role sweeper
	tracing         *tracing.Tracing // nil: no spans
	producer        *kafka.Producer
	admin           *admin.Admin
	watermark       *admin.Watermark
	policies        *kafka.Table
	accounts        *kafka.Table
	controls        *client.Controls
	incidentBoard   *incident.Board
	// incidents is the table of the topic incidents. It passes its records to all of onIncident, which
	// must be complete before the table runs.
	incidents         *kafka.Table
	onIncident        []func(key []byte, i *pb.Incident)
	onPolicy          []func() // called after each change of a policy; complete before the table policies runs
	spaceHolds        *spaceHolds
	goneSpaces        space.Gone
	skippedRounds     skippedRounds
	jobRequests       jobRequests
	schedules         schedules
	onJobRequest      func()  // called after each request for a job, or another schedule; complete before actions runs
	answers           answers // of stores, to sweeps
	dueReads          lazyDue
	actions           *kafka.Table        // of the topic admin: the actions of operators that roles use
	unreadable        *client.Unreadables // unreadable records of this process's tables
	outboxes          []*outbox.File      // of the stores that emit
	events            *eventServer        // nil: ingest.listen is not set, or another process has role ingester
	emits             *emit.Metrics       // nil: http.listen is not set, or nothing emits
	folder            *folder.Folder
	policySource      *PolicySource // of folder; nil: policies.folder is not set
	lists             *exclusion.Lists
	deleteLists       *deleteLists // nil: no role uses it
	decided           held.Decisions
	commitTimeout     time.Duration // maximum time of a commit; a rebuild waits for it and compares again
	republishInterval time.Duration // between checks for overwritten incidents; 0: 10 s
}

// Open makes the parts that cfg requires. Nothing runs before Run.
func Open(ctx context.Context, cfg *config.Config, o Options) (_ *App, err error) {
	log := o.Log
	a := &App{cfg: cfg, configured: cmp.Or(o.Configured, cfg), log: log, drain: cmp.Or(o.Drain, cfg.Roles.Drain),
		commitTimeout: kafka.CommitTimeout}
	a.schedules.configure(cfg.Sweep.Schedules)
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	if err := a.newKafka(ctx); err != nil {
		return nil, err
	}
	if a.stores, err = newStores(cfg, log); err != nil {
		return nil, err
	}
	a.stores.waiting = a.kafka.Unavailable
	a.slots = schedule.NewSlots(a.stores.limit)
	a.policyRegistry = policy.NewRegistry(a.stores.IDs)
	a.stores.policies = a.policyRegistry
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
	if a.admin, err = admin.New(a.kafka); err != nil {
		return nil, fmt.Errorf("make the admin client: %w", err)
	}
	if err := a.newAccounts(); err != nil {
		return nil, err
	}
	if err := a.newPolicies(); err != nil {
		return nil, err
	}
	if err := a.newIncidents(); err != nil {
		return nil, err
	}
	if err := a.newActions(); err != nil {
		return nil, err
	}
	a.lists = exclusion.New(ctx, exclusion.Config{})
	if a.policySource, err = configuredPolicies(ctx, cfg.Policies); err != nil {
		return nil, fmt.Errorf("open the policy folder: %w", err)
	}
	a.folder = a.newFolder(0)
	a.watermark = a.admin.NewWatermark(schemas.Changes, positionTopics())
	a.reader = read.NewReader(a.db, a.watermark, read.ReaderConfig{
		Wait: cfg.Fixity.FreshWait, Gaps: a.reportAllGaps, DeclaredGone: a.goneSpaces.Since,
	})
	return a, nil
}

// newKafka makes the configuration of the clients of Kafka, with the controls and counts that they share.
func (a *App) newKafka(ctx context.Context) (err error) {
	if a.kafka, err = kafkaConfig(ctx, a.cfg, a.log); err != nil {
		return err
	}
	a.unreadable = client.NewUnreadables()
	a.kafka.Unreadables, a.kafka.Deleted = a.unreadable, new(client.DeletedTopics)
	a.kafka.Unavailable, a.kafka.Clock = new(client.UnavailableCounts), new(client.Clock)
	a.registerMetrics()
	a.tracing = tracing.New(a.cfg.Trace, Version, hostname(), a.log)
	a.kafka.Tracer = a.tracing.Tracer()
	if a.controls, err = kafka.NewControls(a.kafka); err != nil {
		return fmt.Errorf("make the controls: %w", err)
	}
	a.kafka.Controls = a.controls
	return nil
}

// Close closes the clients. Call it after Run has returned.
func (a *App) Close() {
	a.closeOutboxes()
	if a.lists != nil {
		a.lists.Close()
	}
	if a.admin != nil {
		a.admin.Close()
	}
	if a.producer != nil {
		a.producer.Close()
	}
	if a.policySource != nil {
		if err := a.policySource.Close(); err != nil {
			a.log.Warn("close the policy folder", "err", err)
		}
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

// ensureTopics creates the missing topics, and checks the topic settings on which roles depend;
// without roles, those on which any role depends.
func (a *App) ensureTopics(ctx context.Context, roles ...schemas.Role) error {
	err := admin.EnsureTopics(ctx, a.kafka, a.topicOptions(roles...))
	if err == nil {
		return nil
	}
	if len(roles) > 0 && errors.Is(err, client.ErrAccess) {
		err = a.explainMissingTopics(ctx, err)
	}
	return asPrecondition(fmt.Errorf("make the topics: %w", err))
}

// explainMissingTopics returns an error that says to run millrace migrate if topics are missing, otherwise err: the
// logins of roles may not create topics.
func (a *App) explainMissingTopics(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	missing, look := admin.MissingTopics(ctx, a.kafka, a.topicOptions())
	if look != nil || len(missing) == 0 {
		return err
	}
	return fmt.Errorf("%w: topics are missing, and the login may not create them: run millrace migrate: %s",
		client.ErrAccess, strings.Join(missing, ", "))
}

func (a *App) topicOptions(roles ...schemas.Role) admin.TopicOptions {
	k := a.cfg.Kafka
	return admin.TopicOptions{
		Partitions: int32(k.Partitions), Replication: int16(k.Replication), MinInSync: k.MinInSync, Roles: roles}
}

// Stores returns the stores in force.
func (a *App) Stores() *Stores { return a.stores }

// DB returns the ClickHouse database.
func (a *App) DB() *clickhouse.DB { return a.db }

// CatchUp returns when all changes that are in Kafka at the time of the call are in ClickHouse.
func (a *App) CatchUp(ctx context.Context) error {
	_, err := a.watermark.Wait(ctx)
	return err
}

// Lag returns the lag of the groups of roles in records, without those in delay lanes that are
// not due.
func (a *App) Lag(ctx context.Context, roles ...schemas.Role) (records int64, err error) {
	lags, err := a.admin.Lags(ctx, roles...)
	for _, l := range lags {
		records += l.Records
	}
	return records, err
}

// positionTopics returns the topics with positions in ClickHouse, by the role that writes the
// tables.
func positionTopics() map[schemas.Role][]schemas.Topic {
	topics := map[schemas.Role][]schemas.Topic{}
	for role, byTopic := range clickhouse.Positions() {
		topics[role] = slices.Sorted(maps.Keys(byTopic))
	}
	return topics
}

// readTable reads a topic to its end, calls then, and keeps applying new records until then has
// returned.
func (a *App) readTable(ctx context.Context, topic schemas.Topic, apply func(key []byte, d *schemas.Delivery) error,
	then func(context.Context) error) error {
	t, err := kafka.NewTable(a.kafka, topic, apply)
	if err != nil {
		return fmt.Errorf("make the table %s: %w", topic, err)
	}
	return withTable(ctx, t, then)
}

// A topicReader keeps what it has read of a topic up to date: a table, or the controls.
type topicReader interface {
	Run(context.Context) error
	Ready() <-chan struct{} // closed when the topic was read to the end that it had at the start
}

// withTable reads a table, calls do, and keeps the table up to date until do has returned.
func withTable(ctx context.Context, t topicReader, do func(context.Context) error) error {
	return runDuring(ctx, t.Run, func(ctx context.Context) error {
		if err := ready(ctx, t); err != nil {
			return err
		}
		return do(ctx)
	})
}

// runDuring runs run and do concurrently, and cancels run when do has returned.
func runDuring(ctx context.Context, run, do func(context.Context) error) error {
	g, gctx := errgroup.WithContext(ctx)
	rctx, stop := context.WithCancel(gctx)
	g.Go(func() error { return run(rctx) })
	g.Go(func() error {
		defer stop()
		return do(gctx)
	})
	return g.Wait()
}

// ready waits until each table has been read to the end that its topic had at the start.
func ready(ctx context.Context, tables ...topicReader) error {
	for _, t := range tables {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.Ready():
		}
	}
	return nil
}
