package bench

import (
	"context"
	"log/slog"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
)

// openApp opens an app as the roles do. set changes the default configuration: addresses of services and stores. The
// caller closes the app.
func openApp(ctx context.Context, set func(*settings.Config)) (*app.App, error) {
	cfg := settings.Default()
	cfg.Kafka.TopicPrefix = prefix
	set(&cfg)
	return app.Open(ctx, &cfg, app.Options{Log: slog.New(slog.DiscardHandler), Drain: app.QuickDrain})
}

// rolesService returns a service that runs roles of a.
func rolesService(a *app.App, roles ...schemas.Role) service {
	return serviceFunc(func(ctx context.Context) error { return a.Run(ctx, roles) })
}

// serviceFunc adapts a function to service.
type serviceFunc func(context.Context) error

// Run implements service.
func (f serviceFunc) Run(ctx context.Context) error { return f(ctx) }
