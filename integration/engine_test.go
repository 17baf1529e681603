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

// engine is a ClickHouse server that a test can kill, restart and restore.
type engine struct {
	config embedded.Config
	server *embedded.Server
	ended  chan struct{} // closed when the server has ended
}

// newEngine starts an engine with its data below dir. It ends with the test, which fails if the engine has exited by
// itself.
func newEngine(t *testing.T, dir string) *engine {
	t.Helper()
	e := &engine{config: embedded.Config{
		Dir: filepath.Join(dir, "engine"), Binary: clickhousetest.Binary(t), Port: freePort(t),
	}}
	e.start(t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		select {
		case <-e.ended:
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
	server, ended := e.server, make(chan struct{})
	e.ended = ended
	go func() {
		_ = server.Wait(context.Background())
		close(ended)
	}()
}

// revive restarts the engine if it has exited by itself, as a service manager does. libchdb sometimes aborts when a
// client is killed during a query.
func (e *engine) revive(t *testing.T) {
	t.Helper()
	select {
	case <-e.ended:
		t.Log(e.server.Wait(t.Context()))
		e.start(t)
	default:
	}
}

// reviveUntil restarts the engine whenever it exits, until done is closed.
func (e *engine) reviveUntil(t *testing.T, done <-chan struct{}) {
	t.Helper()
	for {
		select {
		case <-done:
			e.revive(t)
			return
		case <-e.ended:
			e.revive(t)
		}
	}
}

// reviveDuring calls do, and restarts the engine whenever it exits meanwhile.
func (e *engine) reviveDuring(t *testing.T, do func() error) error {
	t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = do()
	}()
	e.reviveUntil(t, done)
	return err
}

// kill kills the engine.
func (e *engine) kill(t *testing.T) {
	t.Helper()
	e.revive(t)
	must(t, syscall.Kill(e.server.Pid(), syscall.SIGKILL))
	<-e.ended
}

// backUp stops the engine, copies its data to a directory, which it returns, and restarts the engine.
func (e *engine) backUp(t *testing.T) (dir string) {
	t.Helper()
	dir = e.config.Dir + ".backup"
	must(t, errors.Join(e.server.Close(t.Context()), os.CopyFS(dir, os.DirFS(e.config.Dir))))
	e.start(t)
	return dir
}

// restore replaces the data of the engine by a backup, or by nothing if backup is empty.
func (e *engine) restore(t *testing.T, backup string) {
	t.Helper()
	err := errors.Join(e.server.Close(t.Context()), os.RemoveAll(e.config.Dir))
	if err == nil && backup != "" {
		err = os.CopyFS(e.config.Dir, os.DirFS(backup))
	}
	must(t, err)
	e.start(t)
}
