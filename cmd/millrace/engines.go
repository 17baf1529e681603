package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/sinks/clickhouse"
)

// engineFlags are the flags that select Kafka and ClickHouse: those of a configuration, or the
// embedded engines of a state directory, which the command starts.
type engineFlags struct {
	config, state string
}

func (f *engineFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.config, "config", "", "configuration `FILE`")
	c.Flags().StringVar(&f.state, "state", "", "state `DIR` of a demo or standalone; this command starts its engines")
}

// engines are the configuration and the resources that the command must close.
type engines struct {
	cfg     *config.Config    // its accounts are those in force after useTopicAccounts
	read    *config.Config    // cfg as it was read
	log     *slog.Logger      // writes to display, so that it does not disturb progress bars
	display *progress.Display // shows the progress of the command
	state   *statedir.Dir     // nil if --config was given
}

// open reads the configuration, and starts the engines of a state directory except those that
// without excludes.
func (f *engineFlags) open(ctx context.Context, stderr io.Writer, without statedir.Config) (*engines, error) {
	switch {
	case f.config == "" && f.state == "":
		return nil, fmt.Errorf("%w: name a configuration with --config FILE, or a kept state with --state DIR", usage.Err)
	case f.state == "":
		cfg, err := loadConfig(f.config)
		if err != nil {
			return nil, err
		}
		display := progress.New(stderr)
		return &engines{cfg: cfg, read: cfg, log: newLog(cfg, display), display: display}, nil
	case f.config != "":
		return nil, fmt.Errorf("%w: --config and --state exclude each other here", usage.Err)
	}
	if err := statedir.Check(f.state); err != nil {
		return nil, err
	}
	if !statedir.Is(f.state) {
		return nil, fmt.Errorf("%w: %s is not the state directory of a demo or standalone", precondition.Err, f.state)
	}
	display := progress.New(stderr)
	log := slog.New(slog.NewTextHandler(display, &slog.HandlerOptions{Level: slog.LevelWarn}))
	without.Dir, without.Log, without.Progress = f.state, log, display
	state, err := statedir.Open(ctx, without)
	if err != nil {
		return nil, err
	}
	cfg, err := loadConfig(state.Path("config.yaml"))
	if err != nil {
		return nil, errors.Join(err, state.Close(ctx))
	}
	state.Configure(cfg)
	return &engines{cfg: cfg, read: cfg, log: log, display: display, state: state}, nil
}

// useTopicAccounts replaces the accounts of the configuration by those in force. If Kafka cannot be asked, those of the
// configuration stay, with a warning.
func (e *engines) useTopicAccounts(ctx context.Context) {
	cfg, err := app.EffectiveConfig(ctx, e.cfg, e.log)
	if err != nil {
		e.log.Warn("use the accounts of the configuration: those of the topic are unknown", "err", err)
	}
	e.cfg = cfg
}

// Close stops the engines that open started.
func (e *engines) Close(ctx context.Context) error {
	e.display.Close()
	if e.state == nil {
		return nil
	}
	return e.state.Close(ctx)
}

// withEngines calls do with the configuration and the engines, as open makes them.
func (f *engineFlags) withEngines(
	c *cobra.Command, without statedir.Config, do func(ctx context.Context, e *engines) error,
) (err error) {
	ctx := c.Context()
	e, err := f.open(ctx, c.ErrOrStderr(), without)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	return do(ctx, e)
}

// withApp calls do with an App.
func (f *engineFlags) withApp(c *cobra.Command, do func(ctx context.Context, a *app.App, e *engines) error) error {
	return f.withEngines(c, statedir.Config{}, func(ctx context.Context, e *engines) error {
		e.useTopicAccounts(ctx)
		a, err := e.openApp(ctx)
		if err != nil {
			return err
		}
		defer a.Close()
		return do(ctx, a, e)
	})
}

// openApp makes an App. Settings that it changes at run time hold from their revisions on, as in other processes.
func (e *engines) openApp(ctx context.Context) (*app.App, error) {
	return app.Open(ctx, e.cfg, app.Options{Log: e.log, Drain: app.QuickDrain, Configured: e.read})
}

// withDB calls do with the ClickHouse database. It needs no Kafka.
func (f *engineFlags) withDB(c *cobra.Command, do func(ctx context.Context, db *clickhouse.DB) error) (err error) {
	return f.withTables(c, statedir.Config{WithoutBroker: true},
		func(ctx context.Context, _ *engines, db *clickhouse.DB) error { return do(ctx, db) })
}

// withTables is withDB with the configuration and, unless it is without Kafka, the accounts in force.
func (f *engineFlags) withTables(
	c *cobra.Command, without statedir.Config, do func(ctx context.Context, e *engines, db *clickhouse.DB) error,
) error {
	return f.withEngines(c, without, func(ctx context.Context, e *engines) (err error) {
		if !without.WithoutBroker {
			e.useTopicAccounts(ctx)
		}
		db, err := app.OpenDB(ctx, e.cfg, e.log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		return do(ctx, e, db)
	})
}

// loadConfig reads a configuration. Its faults are usage errors.
func loadConfig(file string) (*config.Config, error) {
	cfg, _, err := config.Load(config.Sources{File: file})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", usage.Err, err)
	}
	return cfg, nil
}

func newLog(cfg *config.Config, stderr io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		level = slog.LevelInfo // not reached: config.Load validates it
	}
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(stderr, o))
	}
	return slog.New(slog.NewTextHandler(stderr, o))
}
