package clickhouse_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/child"
	"github.com/millrace/millrace/streams/retry"
)

// The engine is killed while records are stored. Each time the records since the last success are stored again.
// Nothing is lost, and the views show nothing twice.
func TestEngineKilled(t *testing.T) {
	t.Parallel()
	need.Integration(t)
	cfg := embedded.Config{Dir: clickhousetest.Dir(t), Binary: clickhousetest.Binary(t)}
	const size = 500
	batches, kills := need.Amount(10, 40, 400), need.Amount(1, 6, 60)
	all := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(batches*size)...)
	next := 0
	for round := 0; next < batches; round++ {
		server, err := embedded.Start(t.Context(), cfg)
		must(t, err)
		db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{server.Addr()}}, nil)
		must(t, err)
		if _, err := migrate.Run(t.Context(), db, false); err != nil {
			t.Fatal(err)
		}
		var killer errgroup.Group
		if round < kills {
			wait := time.Duration(rand.IntN(150)) * time.Millisecond
			killer.Go(func() error {
				if err := retry.Sleep(t.Context(), wait); err != nil {
					return err
				}
				return syscall.Kill(server.Pid(), syscall.SIGKILL)
			})
		}
		logs, state := clickhouse.NewSink(db), clickhouse.NewState(db)
		for ; next < batches; next++ {
			batch := all[next*size : (next+1)*size]
			err := logs.Store(t.Context(), batch)
			if err == nil {
				err = state.Store(t.Context(), batch)
			}
			if err != nil {
				if retry.ClassOf(err) != retry.ClassUnavailable {
					t.Fatalf("Store = %v, want class unavailable", err)
				}
				break
			}
		}
		must(t, killer.Wait())
		if next == batches && round >= kills {
			want := strconv.Itoa(batches * size)
			for _, from := range []string{"audit_log", "audit_log_v", "manifest"} {
				if got := clickhousetest.Count(t, db, from); got != want {
					t.Errorf("after %d kills %s has %s rows, want %s", round, from, got, want)
				}
			}
		} else if next == batches {
			next-- // repeat the last batch: acknowledged rows must have survived
		}
		db.Close()
		must(t, server.Close(t.Context()))
	}
}

// Queries succeed at once after a restart of the server, although the pooled connections are dead.
func TestQueryAfterRestart(t *testing.T) {
	t.Parallel()
	ports, err := child.FreePorts(1)
	must(t, err)
	cfg := embedded.Config{Dir: clickhousetest.Dir(t), Binary: clickhousetest.Binary(t), Port: ports[0]}
	start := func() *embedded.Server {
		server, err := embedded.Start(t.Context(), cfg)
		must(t, err)
		return server
	}
	server := start()
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{server.Addr()}}, nil)
	must(t, err)
	defer db.Close()
	if _, err := migrate.Run(t.Context(), db, false); err != nil {
		t.Fatal(err)
	}
	var asking errgroup.Group
	for range 4 { // to keep several connections
		asking.Go(func() error {
			_, err := read.OpenIncidents(t.Context(), db, "")
			return err
		})
	}
	must(t, errors.Join(asking.Wait(), server.Close(t.Context())))
	server = start()
	if _, err := read.OpenIncidents(t.Context(), db, ""); err != nil {
		t.Error(err)
	}
	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
