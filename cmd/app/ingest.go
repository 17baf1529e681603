package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/ingest"
	"github.com/millrace/millrace/streams/ingest/hint"
	"github.com/millrace/millrace/streams/ingest/watch"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// Timeouts of the HTTP server for events. Sizes and publishing are bounded for each request.
const (
	ingestConnect = 5 * time.Second
	ingestRead    = 45 * time.Second
	ingestWrite   = time.Minute
	ingestStop    = 15 * time.Second // more than a request may wait for memory and for Kafka
)

// ingester handles notifications and, if configured, accepts events over HTTP and watches
// directories.
func (a *App) ingester() ([]part, error) {
	var m *ingest.Metrics
	if a.registry != nil {
		m = ingest.NewMetrics(a.registry)
	}
	h, err := hint.NewHandler(hint.NewObserver(a.stores, a.cfg.Reconcile.Settle), parkedRecords{records: a.reader},
		newBucketResolver(a.cfg, a.stores, eventStores{a}.IsDestination), m.Hints("notification"))
	if err != nil {
		return nil, err
	}
	topics := []schemas.Topic{schemas.Again(schemas.RoleIngester)} // also has the notifications of webhooks
	for _, n := range a.cfg.Ingest.Notifications {
		topics = append(topics, schemas.Foreign(n.Topic))
	}
	p, err := kafka.NewPool(a.kafka, a.pool(a.cfg.Roles.Ingester, kafka.PoolConfig{
		Role: schemas.RoleIngester, Topics: topics,
		DescribeValue: func(d *schemas.Delivery) kafka.Work {
			c, ok := h.Copy(d)
			if !ok {
				return kafka.Work{}
			}
			return kafka.Work{Key: c.String(), Account: c.Account, Stores: [2]string{c.Store}}
		}}), h.Handle)
	if err != nil {
		return nil, err
	}
	parts := []part{afterTables("ingester", func(ctx context.Context) error {
		a.warnMissingTopics(ctx)
		return p.Run(ctx)
	}, a.policies)} // or claims would be taken for facts
	if a.cfg.Ingest.Listen != "" {
		a.events = &eventServer{app: a, metrics: m}
		parts = append(parts, afterTables("ingest", a.events.run, a.policies)) // likewise
	}
	return append(parts, part{"watch", func(ctx context.Context) error { return a.watchDirectories(ctx, m) }}), nil
}

// watchDirectories watches the directories of stores with watch. A store that is added or changed is watched from then
// on.
func (a *App) watchDirectories(ctx context.Context, m *ingest.Metrics) error {
	g, ctx := errgroup.WithContext(ctx)
	type watched struct {
		cfg  config.Store
		stop context.CancelFunc
	}
	running := map[StoreName]watched{}
	g.Go(func() error {
		for ctx.Err() == nil {
			changed := a.stores.change()
			for n, w := range running {
				if c := a.stores.of(n).cfg; !c.Watch || !alike(c, w.cfg) {
					w.stop()
					delete(running, n)
				}
			}
			for _, n := range a.stores.storeNames() {
				c := a.stores.of(n).cfg
				if _, is := running[n]; is || !c.Watch {
					continue
				}
				w, err := watch.New(watch.Config{Account: n.Account, Store: n.Store, Root: c.Root,
					Settle: a.cfg.Reconcile.Settle, At: a.kafka.Clock.At, ItemAt: itemPathFunc(c),
					Ask: func(ctx context.Context) error {
						return a.producer.Publish(ctx, reconcile.Request(n.Account, n.Store))
					}},
					a.stores, a.producer, m.Hints("watch"), a.log)
				if err != nil {
					return fmt.Errorf("watch %s/%s: %w", n.Account, n.Store, err)
				}
				watching, stop := context.WithCancel(ctx)
				running[n] = watched{c, stop}
				g.Go(func() error { return w.Run(watching) })
			}
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
		return nil
	})
	return g.Wait()
}

// warnMissingTopics logs the configured notification topics that do not exist. Other systems create
// them; the role waits.
func (a *App) warnMissingTopics(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, n := range a.cfg.Ingest.Notifications {
		if ends, err := a.admin.EndOffsets(ctx, schemas.Foreign(n.Topic)); err == nil && len(ends) == 0 {
			a.log.Warn("wait for missing notification topic", "topic", n.Topic)
		}
	}
}

// An eventServer accepts events over HTTP. The nil eventServer accepts none.
type eventServer struct {
	app      *App
	metrics  *ingest.Metrics
	listener net.Listener // set by open
	handler  http.Handler // set by open
}

// open resolves the tokens and listens. It runs before the parts, so that a secret that is not set or an address that
// is taken is a precondition.
func (s *eventServer) open(ctx context.Context) error {
	if s == nil {
		return nil
	}
	a, c := s.app, s.app.cfg.Ingest
	tokens, err := tokensOf(ctx, c.Tokens)
	if err != nil {
		return err
	}
	s.handler, err = ingest.New(ingest.Config{
		Tokens: tokens, MaxBody: int64(c.MaxBody), MaxEvents: c.MaxEvents, Concurrency: c.Concurrency,
		Memory: int64(c.Memory),
	}, a.producer, eventStores{a}, s.metrics, a.log)
	if err != nil {
		return precondition.Of(fmt.Errorf("ingest.tokens: %w", err))
	}
	if s.listener, err = listenOn(ctx, "ingest.listen", c.Listen); err != nil {
		return err
	}
	a.log.Info("listen for events", "address", s.listener.Addr().String(), "tokens", len(tokens))
	return nil
}

// run serves until ctx is done. Requests in progress may then end. It connects the producer meanwhile, and not at the
// first event, because some clients wait for a few seconds only and never send an event again.
func (s *eventServer) run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, ingestConnect)
		defer cancel()
		if err := s.app.producer.Connect(ctx); err != nil {
			s.app.log.Debug("connect producer of events", "err", err) // each publish tries again
		}
		return nil
	})
	g.Go(func() error {
		return serveOn(ctx, s.listener, &http.Server{
			Handler: s.handler, ReadHeaderTimeout: serveHeader, ReadTimeout: ingestRead, WriteTimeout: ingestWrite,
			IdleTimeout: serveIdle, MaxHeaderBytes: 16 << 10,
			ErrorLog: slog.NewLogLogger(s.app.log.Handler(), slog.LevelDebug),
		}, ingestStop)
	})
	return g.Wait()
}

// close closes the listener, also if run was not called.
func (s *eventServer) close() {
	if s != nil && s.listener != nil {
		_ = s.listener.Close() // run has closed it, or nothing was accepted
	}
}

// tokensOf resolves the secrets of the tokens.
func tokensOf(ctx context.Context, all []config.Token) ([]ingest.Token, error) {
	var tokens []ingest.Token
	for _, t := range all {
		secret, err := t.Token.Resolve(ctx)
		if err != nil {
			return nil, fmt.Errorf("ingest.tokens: %s: %w", t.Name, err)
		}
		tokens = append(tokens, ingest.Token{Name: t.Name, Account: t.Account, Stores: t.Stores, Secret: secret})
	}
	return tokens, nil
}

// An eventStores implements ingest.Stores.
type eventStores struct{ *App }

func (s eventStores) HasStore(account, id string) bool { return s.hasStore(account, id) }

func (s eventStores) IsDestination(account, space, store string) bool {
	rules, _ := s.policyRegistry.Rules(account, space)
	return plan.IsDestination(rules, store)
}

// A bucketResolver maps a bucket and key to stores and items.
type bucketResolver struct {
	stores *Stores
	topics map[schemas.Topic]StoreName // of notifications; empty fields: any
	// isDestination reports whether the policy copies to a store for a space.
	isDestination func(account, space, store string) bool
}

var _ hint.Resolver = (*bucketResolver)(nil)

func newBucketResolver(
	cfg *config.Config, stores *Stores, isDestination func(account, space, store string) bool,
) *bucketResolver {
	p := &bucketResolver{stores, map[schemas.Topic]StoreName{}, isDestination}
	for _, n := range cfg.Ingest.Notifications {
		p.topics[schemas.Foreign(n.Topic)] = StoreName{n.Account, n.Store}
	}
	return p
}

// Resolve implements hint.Resolver. known is false for a topic that is not in the configuration any
// more.
func (p *bucketResolver) Resolve(topic schemas.Topic, bucket, key string) (all []schemas.Copy, known bool) {
	target, ok := p.topics[topic]
	if account, store, hook := ingest.Webhook(topic); hook {
		target, ok = StoreName{account, store}, true
	}
	if !ok {
		return nil, false
	}
	for _, n := range p.stores.storeNames() {
		if target.Account != "" && target.Account != n.Account || target.Store != "" && target.Store != n.Store {
			continue
		}
		space, item, is, mine := itemInBucket(p.stores.of(n).cfg, target.Store != "", bucket, key)
		known = known || mine
		if is {
			all = append(all, schemas.Copy{Account: n.Account, Store: n.Store, Space: space, Item: item})
		}
	}
	return all, known
}

// IsClaim implements hint.Resolver.
func (p *bucketResolver) IsClaim(topic schemas.Topic, c schemas.Copy) bool {
	_, _, hook := ingest.Webhook(topic)
	return hook && p.isDestination(c.Account, c.Space, c.Store)
}

// itemPathFunc returns a function from a path in a store of driver file to its space and item.
func itemPathFunc(c config.Store) func(path string) (space, item string, ok bool) {
	switch {
	case c.Layout != "plain":
		return file.ItemAt
	case c.Space != "":
		return func(path string) (space, item string, ok bool) { return c.Space, path, path != "" }
	}
	return func(path string) (space, item string, ok bool) {
		space, item, ok = strings.Cut(path, "/")
		return space, item, ok && item != ""
	}
}

// itemInBucket is the only switch over the drivers with buckets. For a store without buckets that
// the configuration names, a gateway serves the spaces as buckets.
func itemInBucket(s config.Store, isNamed bool, bucket, key string) (space, item string, is, known bool) {
	if s.Driver == "s3" {
		return s3.ItemAt(s3.Config{Bucket: s.Bucket, Prefix: s.Prefix, BucketPrefix: s.BucketPrefix}, bucket, key)
	}
	if s.Driver != "file" || !isNamed {
		return "", "", false, false
	}
	return bucket, key, true, true
}
