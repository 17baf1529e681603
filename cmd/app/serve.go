package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/health"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// Timeouts and limits of the HTTP server for health and metrics.
const (
	serveHeader = 5 * time.Second
	serveRead   = 10 * time.Second
	serveWrite  = 20 * time.Second
	serveIdle   = time.Minute
	serveStop   = 3 * time.Second
)

// registerMetrics creates the metrics. Without http.listen only the process itself reads them.
func (a *App) registerMetrics() {
	reg := health.NewRegistry()
	a.kafka.Metrics, a.lagMetrics, a.workMetrics = metrics.New(reg), admin.NewLagMetrics(reg), newWorkMetrics(reg)
	if a.cfg.HTTP.Listen != "" {
		a.registry = reg
	}
}

// listen opens the listener of http.listen, before anything runs: if the port is taken, the process
// does not start. It returns nil if http.listen is empty. The caller closes it.
func (a *App) listen(ctx context.Context) (net.Listener, error) {
	if a.cfg.HTTP.Listen == "" {
		return nil, nil
	}
	l, err := listenOn(ctx, "http.listen", a.cfg.HTTP.Listen)
	if err != nil {
		return nil, err
	}
	logListen(a.log, l.Addr())
	return l, nil
}

// logListen logs the address of http.listen, and what others can read there. Nothing can be changed through it, so it
// needs no authentication beyond loopback either.
func logListen(log *slog.Logger, address net.Addr) {
	if at, ok := address.(*net.TCPAddr); ok && at.IP.IsLoopback() {
		log.Info("listen", "address", address.String())
		return
	}
	log.Info("listen beyond loopback: everyone who reaches the address can read /livez, /readyz, /startupz and /metrics, "+
		"without authentication", "address", address.String())
}

// listenOn opens the listener of a setting. Its error wraps precondition.Err and says what to do.
func listenOn(ctx context.Context, setting, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err == nil {
		return l, nil
	}
	remedy := "set another address"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		remedy = "another process listens there (ss -ltnp names it): stop it, or set another port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		remedy = "no interface of this machine has this address: set one that it has"
	case errors.Is(err, fs.ErrPermission):
		remedy = "this user may not use this port: set one from 1024 on"
	}
	return nil, precondition.Of(fmt.Errorf("%s: %w: %s", setting, err, remedy))
}

// serve serves h on l until ctx is done, and then closes l. Requests have serveStop to end.
func serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: serveHeader, ReadTimeout: serveRead, WriteTimeout: serveWrite, IdleTimeout: serveIdle,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return serveOn(ctx, l, s, serveStop)
}

// serveOn runs s on l until ctx is done, and then closes l. Requests have grace to end.
func serveOn(ctx context.Context, l net.Listener, s *http.Server, grace time.Duration) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if s.Shutdown(stop) != nil {
			s.Close()
		}
		return nil
	})
	return g.Wait()
}
