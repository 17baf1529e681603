package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
)

func newRun() *cobra.Command {
	var (
		file  string
		roles []string
	)
	c := &cobra.Command{
		Use:   "run --config FILE --roles ROLE,...",
		Short: "Run roles against the Kafka and ClickHouse of the configuration",
		Long: fmt.Sprintf(`Runs any set of roles; as many processes as wanted share the work. What the roles do not use need not be
there; a ClickHouse or a store that is away is waited for, and the rest goes on.

The first signal (SIGINT, SIGTERM) has no new work begun and what is at work end, for roles.drain at most;
a second one ends the process at once (exit code 130), and then what was at work is done again elsewhere.

Roles: %v.

Exit codes: 0 stopped by a signal, 1 error, 2 usage, 5 what a person must mend first: a migration that is
missing, a root that is another store's, a port that is taken.`, app.Roles()),
		Args: usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return fmt.Errorf("%w: name a configuration with --config FILE", usage.Err)
			}
			chosen, err := chooseRoles(roles)
			if err != nil {
				return err
			}
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			log := newLog(cfg, c.ErrOrStderr())
			defer logStop(c.Context(), log)()
			a, err := app.Open(c.Context(), cfg, app.Options{Log: log})
			if err != nil {
				return err
			}
			defer a.Close()
			warnNotCompared(log, chosen)
			return a.Run(c.Context(), chosen)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	c.Flags().StringSliceVar(&roles, "roles", nil, "`ROLES` to run, or all")
	return c
}

// warnNotCompared logs what a planner does not see, until a sweep compares stores.
func warnNotCompared(log *slog.Logger, roles []schemas.Role) {
	if slices.Contains(roles, schemas.RolePlanner) {
		log.Warn("only changes that are reported from now on are copied: files that are there already in a store that is not watched, "+
			"what was deleted while the ingester is stopped, and what a new store or pair lacks are not", "do", "millrace import (docs/first-steps.md)")
	}
}

// tellStop tells, when ctx ends, what the signal does. What it returns ends that.
func logStop(ctx context.Context, log *slog.Logger) (end func() bool) {
	return context.AfterFunc(ctx, func() { log.Info("signal: the process stops; a second one ends it at once") })
}

// chooseRoles reads the names of roles; none is not all, so that nobody runs what he did not name.
func chooseRoles(names []string) ([]schemas.Role, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: name the roles with --roles: all, or any of %v", usage.Err, app.Roles())
	}
	if slices.Equal(names, []string{"all"}) {
		return app.Roles(), nil
	}
	var roles []schemas.Role
	for _, n := range names {
		r := schemas.Role(n)
		if !slices.Contains(app.Roles(), r) {
			return nil, fmt.Errorf("%w: there is no role %q: the roles are %v", usage.Err, n, app.Roles())
		}
		if !slices.Contains(roles, r) {
			roles = append(roles, r)
		}
	}
	return roles, nil
}

const banner = `millrace standalone: all roles, a broker and a ClickHouse in one process and one directory.
It is for trying things out and for one machine's archive. It is not for production: there is one
broker and one copy of the journal, nothing takes over when this machine dies, and the
embedded broker reads its whole log at every start.
`

func newStandalone() *cobra.Command {
	var file, dir string
	c := &cobra.Command{
		Use:   "standalone --config FILE --state DIR",
		Short: "Run all roles with embedded engines in one state directory",
		Args:  usage.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return standalone(c, file, dir)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`; kept in the state directory, and not needed again")
	c.Flags().StringVar(&dir, "state", "", "state `DIR`")
	return c
}

func standalone(c *cobra.Command, file, dir string) (err error) {
	ctx, stderr := c.Context(), c.ErrOrStderr()
	if file == "" && (dir == "" || !app.IsState(dir)) {
		return fmt.Errorf("%w: name a configuration with --config FILE (examples/millrace.yaml is one)", usage.Err)
	}
	if file == "" {
		file = app.ConfigIn(dir)
	}
	cfg, err := loadConfig(file)
	if err != nil {
		return err
	}
	if dir == "" {
		dir = cfg.State.Dir
	}
	if dir == "" {
		return fmt.Errorf("%w: name a state directory with --state DIR, or state.dir in the configuration", usage.Err)
	}
	log := newLog(cfg, stderr)
	defer logStop(ctx, log)()
	if err := app.CheckStores(ctx, cfg, log); err != nil {
		return err
	}
	fmt.Fprint(stderr, banner)
	state, err := app.OpenState(ctx, app.StateConfig{Dir: dir, Log: log, Progress: stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close(ctx)) }()
	if err := app.SaveConfig(state, cfg); err != nil {
		return err
	}
	state.Configure(cfg)
	a, err := app.Open(ctx, cfg, app.Options{Log: log, Drain: app.QuickDrain})
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := a.Migrate(ctx); err != nil {
		return err
	}
	warnNotCompared(log, app.Roles())
	return a.RunWhile(ctx, app.Roles(), func(ctx context.Context) error { <-ctx.Done(); return nil }, state.Watch)
}
