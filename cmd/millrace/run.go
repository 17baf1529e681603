package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
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
		Long: fmt.Sprintf(`Runs the given roles. Any number of processes share the work. Engines and stores that the roles
do not use are not needed. If ClickHouse or a store is unavailable, the work that needs it waits, and the rest
continues.

The first signal (SIGINT, SIGTERM) stops the process: it starts no new tasks, and running tasks may finish within
roles.drain. A second one ends it immediately (exit code 130); another process repeats the running tasks.

Roles: %v.

Exit codes: 0 stopped by a signal, 1 error, 2 usage, 5 precondition, such as a missing migration, a root with the
marker of another store, or a port that is in use.`, app.Roles()),
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
			return a.Run(c.Context(), chosen)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE`")
	c.Flags().StringSliceVar(&roles, "roles", nil, "`ROLES` to run, or all")
	return c
}

// logStop logs the stop when ctx is done. The returned function cancels that.
func logStop(ctx context.Context, log *slog.Logger) (end func() bool) {
	return context.AfterFunc(ctx, func() { log.Info("stop: a second signal ends the process immediately") })
}

// chooseRoles parses the names of roles. An empty list is an error, so that all roles run only on
// request.
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

const banner = `millrace standalone: all roles, a Kafka broker and a ClickHouse server in one directory.
It is for evaluation, and for an archive on a single machine. It is not for production: there is one
broker with one replica, no failover if this machine fails, and the embedded broker reads its whole
log at every start.
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
	c.Flags().StringVar(&file, "config", "",
		"configuration `FILE`; it is copied to the state directory, and not needed again")
	c.Flags().StringVar(&dir, "state", "", "state `DIR`")
	return c
}

// checkInForce checks the stores of the accounts in force: the topic of accounts may have removed those of cfg.
func checkInForce(ctx context.Context, cfg config.Config, state *statedir.Dir, log *slog.Logger) error {
	state.Configure(&cfg)
	inForce, err := app.EffectiveConfig(ctx, &cfg, log)
	if err != nil {
		return err
	}
	return app.CheckStores(ctx, inForce, log)
}

func standalone(c *cobra.Command, file, dir string) (err error) {
	ctx, stderr := c.Context(), c.ErrOrStderr()
	if dir != "" {
		if err := statedir.Check(dir); err != nil {
			return err
		}
	}
	if file == "" && (dir == "" || !statedir.Is(dir)) {
		return fmt.Errorf("%w: name a configuration with --config FILE (examples/millrace.yaml is one)", usage.Err)
	}
	if file == "" {
		file = statedir.ConfigFile(dir)
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
	unusable := app.CheckStores(ctx, cfg, log)
	if unusable != nil && !statedir.Is(dir) {
		return unusable
	}
	fmt.Fprint(stderr, banner)
	state, err := statedir.Open(ctx, statedir.Config{Dir: dir, Log: log, Progress: stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close(ctx)) }()
	if unusable != nil {
		if err := checkInForce(ctx, *cfg, state, log); err != nil {
			return err
		}
	}
	if err := state.SaveConfig(cfg); err != nil {
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
	return a.RunWhile(ctx, app.Roles(), func(ctx context.Context) error { <-ctx.Done(); return nil }, state.Watch)
}
