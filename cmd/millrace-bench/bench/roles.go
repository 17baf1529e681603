package bench

import (
	"context"
	"log/slog"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
)

// openApp opens the parts of a process as the roles have them, with the defaults of the configuration but for what set
// changes: where engines and stores are. The caller closes it.
func openApp(ctx context.Context, set func(*settings.Config)) (*app.App, error) {
	cfg := settings.Default()
	cfg.Kafka.TopicPrefix = prefix
	set(&cfg)
	return app.Open(ctx, &cfg, app.Options{Log: slog.New(slog.DiscardHandler), Drain: app.QuickDrain})
}

// runs is the part that runs roles of a process.
func rolesService(a *app.App, roles ...schemas.Role) service {
	return serviceFunc(func(ctx context.Context) error { return a.Run(ctx, roles) })
}

// partOf is a part that is a function.
type serviceFunc func(context.Context) error

// Run implements part.
func (f serviceFunc) Run(ctx context.Context) error { return f(ctx) }
