package integration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
)

// An engine is a ClickHouse of its own, which a test kills, starts again and replaces.
type engine struct {
	config embedded.Config
	server *embedded.Server
}

// newEngine starts an engine whose data lies below dir. It ends with the test, which fails if it has ended by itself.
func newEngine(t *testing.T, dir string) *engine {
	t.Helper()
	e := &engine{config: embedded.Config{
		Dir: filepath.Join(dir, "engine"), Binary: clickhousetest.Binary(t), Port: freePort(t),
	}}
	e.start(t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		select {
		case <-e.server.Done():
			t.Error(e.server.Wait(ctx))
		default:
		}
		if err := e.server.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// start starts the engine on its data.
func (e *engine) start(t *testing.T) {
	t.Helper()
	var err error
	if e.server, err = embedded.Start(context.WithoutCancel(t.Context()), e.config); err != nil {
		t.Fatal(err)
	}
}

// revive starts the engine again if it has ended by itself, as a service manager does: libchdb aborts now and then when a
// client is killed in the middle of a query.
func (e *engine) revive(t *testing.T) {
	t.Helper()
	select {
	case <-e.server.Done():
		t.Log(e.server.Wait(t.Context()))
		e.start(t)
	default:
	}
}

// attend revives the engine whenever it ends, until done is closed.
func (e *engine) reviveUntil(t *testing.T, done <-chan struct{}) {
	t.Helper()
	for {
		select {
		case <-done:
			e.revive(t)
			return
		case <-e.server.Done():
			e.revive(t)
		}
	}
}

// kill kills the engine.
func (e *engine) kill(t *testing.T) {
	t.Helper()
	e.revive(t)
	if err := syscall.Kill(e.server.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-e.server.Done()
}

// backUp stops the engine, copies its data to a directory beside it, which it returns, and starts the engine again.
func (e *engine) backUp(t *testing.T) (dir string) {
	t.Helper()
	dir = e.config.Dir + ".backup"
	if err := errors.Join(e.server.Close(t.Context()), os.CopyFS(dir, os.DirFS(e.config.Dir))); err != nil {
		t.Fatal(err)
	}
	e.start(t)
	return dir
}

// restore has the engine hold what a backup has; nothing if that is empty.
func (e *engine) restore(t *testing.T, backup string) {
	t.Helper()
	err := errors.Join(e.server.Close(t.Context()), os.RemoveAll(e.config.Dir))
	if err == nil && backup != "" {
		err = os.CopyFS(e.config.Dir, os.DirFS(backup))
	}
	if err != nil {
		t.Fatal(err)
	}
	e.start(t)
}
