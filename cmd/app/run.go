package app

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/health"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/client"
)

// Run runs the roles until ctx is done, and then returns nil within the drain and the stop grace.
// If http.listen is set, it serves health and metrics during the whole time, and if a service manager waits for
// messages, it sends them.
func (a *App) Run(ctx context.Context, roles []schemas.Role) error {
	l, err := a.listen(ctx)
	if err != nil {
		return err
	}
	n := needsOf(roles)
	w := appRun{App: a, needs: n, schema: newSchema(a.db, roles, a.log)}
	if l == nil && !health.Notified() {
		return w.run(ctx, roles)
	}
	w.health = a.newHealth(n, w.schema)
	if l != nil {
		a.registry.MustRegister(a.folder.Metric(), a.unreadable)
		if n.stores {
			a.registry.MustRegister(a.stores.metrics(), a.stores.clocks)
		}
	}
	return w.runAndReport(ctx, l, roles)
}

// newHealth returns the monitor of a process with the given needs. s is the check of ClickHouse.
func (a *App) newHealth(n needs, s *schema) *health.Monitor {
	m := a.kafka.Metrics
	c := health.Config{
		Log: a.log, StallAfter: a.cfg.Health.StallAfter, TopicPrefix: a.cfg.Kafka.TopicPrefix,
		Roles: m.State, Lags: a.admin.Lags, Unreadable: func() []string { return a.unreadableRecords(n) },
		Stopped: a.unreadable.Batches, SetLags: a.lagMetrics.Set,
	}
	if n.engine {
		c.Ping = s.ping
	}
	if n.stores {
		c.Stores = a.stores.Breakers
	}
	if n.policies {
		c.Policies = a.folder.Refused
	}
	return health.New(c)
}

// appRun is one Run of an App.
type appRun struct {
	*App
	needs  needs
	schema *schema
	health *health.Monitor // nil: http.listen is not set, and no service manager waits for messages
}

// runAndReport is run with the HTTP server, if l is not nil, and the messages to the service manager. Both also
// report before the parts start and while they stop.
func (w appRun) runAndReport(ctx context.Context, l net.Listener, roles []schemas.Role) error {
	g, gctx := errgroup.WithContext(ctx)
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	if l != nil {
		g.Go(func() error { return serve(reporting, l, w.health.Handler(w.registry), w.log) })
	}
	if health.Notified() {
		g.Go(func() error { return w.health.Notify(reporting) })
	}
	g.Go(func() error {
		defer stop()
		return w.run(gctx, roles)
	})
	return g.Wait()
}

// run checks the preconditions, and then supervises the parts.
func (w appRun) run(ctx context.Context, roles []schemas.Role) error {
	if err := w.tracing.Start(ctx); err != nil {
		return err
	}
	defer w.tracing.Stop(ctx)
	defer context.AfterFunc(ctx, func() {
		if w.health != nil {
			w.health.Stop()
		}
		w.log.Info("stop: running tasks may end within the drain, or are cancelled and repeated later", "drain", w.drain)
	})()
	parts, err := w.parts(roles)
	if err != nil {
		return err
	}
	defer w.events.close()
	if err := w.prepare(ctx, roles); err != nil || ctx.Err() != nil {
		return err
	}
	return w.work(ctx, roles, parts)
}

// work supervises the parts. What a running part meets, such as a right that is withdrawn, is no precondition.
func (w appRun) work(ctx context.Context, roles []schemas.Role, parts []part) error {
	w.log.Info("run", "roles", roles)
	err := supervise(ctx, w.log, w.drain+StopGrace, parts...)
	if err == nil {
		w.log.Info("stopped", "roles", roles)
	}
	return err
}

// prepare returns the errors that an operator must resolve before the roles can run. An unavailable
// engine or store is not one of them.
func (w appRun) prepare(ctx context.Context, roles []schemas.Role) error {
	if w.needs.clickhouse {
		if err := w.schema.checkAtStart(ctx); err != nil {
			return err
		}
	}
	if w.needs.stores {
		if err := w.stores.checkAtStart(ctx, w.accountsInForce); err != nil {
			return err
		}
	}
	if err := w.checkRights(ctx, roles); err != nil {
		return err
	}
	err := w.ensureTopics(ctx, roles...)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // a stop is no failure
	}
	if err != nil {
		return err
	}
	return w.events.open(ctx) // last: connections wait until the parts run
}

// checkRights returns an error that names all Kafka rights that the login lacks. If the brokers do not
// say, the parts report what is refused when it is.
func (w appRun) checkRights(run context.Context, roles []schemas.Role) error {
	ctx, cancel := context.WithTimeout(run, requestTimeout)
	defer cancel()
	rights := access.Rights(w.kafka, roles...)
	if w.cfg.Policies.Folder != "" {
		rights = append(rights, access.PolicyFolder(w.kafka))
	}
	err := access.Check(ctx, w.kafka, rights)
	groups := (*access.GroupsUncheckedError)(nil)
	switch {
	case errors.Is(err, client.ErrAccess):
		return asPrecondition(err)
	case errors.Is(err, client.ErrOffsetsNotReady) && errors.As(err, &groups): // a new cluster
		w.log.Info("skip the check of Kafka rights on groups: the brokers are preparing their offsets topic; "+
			"the rights on topics are checked", "groups", groups.Groups)
	case errors.As(err, &groups):
		w.log.Warn("skip the check of Kafka rights on groups: the rights on topics are checked",
			"groups", groups.Groups, "err", groups.Err)
	case err != nil && run.Err() == nil:
		w.log.Warn("skip the check of Kafka rights", "err", err)
	}
	return nil
}

// parts returns the parts of the roles, and those that they use.
func (w appRun) parts(roles []schemas.Role) ([]part, error) {
	parts := []part{{"controls", w.controls.Run}, {"accounts", w.accounts.Run}, {"policies", w.policies.Run},
		{"incidents", w.incidents.Run},
		{"unreadable records", w.watchUnreadable}, {"topics", func(ctx context.Context) error {
			return w.admin.WatchTopics(ctx, roles...)
		}},
		{"groups", func(ctx context.Context) error {
			return watchGroups(ctx, w.kafka.Metrics.State, w.admin.JoinWait, w.log)
		}}}
	if w.needs.clickhouse {
		parts = append(parts, part{"schema", w.schema.run}, part{"reader", w.reader.Run}, part{"actions", w.actions.Run})
	}
	if w.needs.stores {
		parts = append(parts, part{"stores", w.stores.run})
	}
	if w.needs.policies {
		parts = append(parts, afterTables("policy faults", w.folder.ReportFaults, w.accounts, w.policies, w.incidents))
	}
	if w.cfg.Policies.Folder != "" {
		parts = append(parts, afterTables("policy folder", w.folder.Run, w.accounts, w.policies, w.incidents))
	}
	if w.health != nil {
		parts = append(parts, part{"health", w.health.Run})
	}
	for _, role := range roles {
		made, err := w.role(role)
		if err != nil {
			return nil, fmt.Errorf("make role %s: %w", role, err)
		}
		for _, p := range made {
			parts = append(parts, w.afterControls(p))
		}
	}
	return parts, nil
}
