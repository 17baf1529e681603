package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	sink "github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	clickhouse "github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/embedded"
)

// stored is the command "stored DIR N": it makes a state directory with N changes that the sink has
// stored, and adds the command of the engine to the script's PATH.
func stored(ts *testscript.TestScript, neg bool, args []string) {
	var n int
	if _, err := fmt.Sscan(args[len(args)-1], &n); neg || len(args) != 2 || err != nil {
		ts.Fatalf("usage: stored DIR N")
	}
	bin := ts.MkAbs("bin")
	ts.Check(os.MkdirAll(bin, 0o755))
	build := exec.Command("go", "build", "-o", bin, "../millrace-clickhouse")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // as make build does
	if out, err := build.CombinedOutput(); err != nil {
		ts.Fatalf("build the engine's command: %v\n%s", err, out)
	}
	ts.Setenv("PATH", bin+string(filepath.ListSeparator)+ts.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if os.Getenv("MILLRACE_LIBCHDB") == "" {
		library, err := clickhouse.Fetch(ctx, os.Stderr)
		ts.Check(err)
		ts.Setenv("MILLRACE_LIBCHDB", library) // the script's HOME has none
	}
	ts.Check(makeStored(ctx, ts.MkAbs(args[0]), filepath.Join(bin, "millrace-clickhouse"), n))
}

// Stored records are verified, with an engine that each command starts.
func TestVerifyScripts(t *testing.T) {
	t.Parallel()
	wantEngine(t)
	scripts(t, "testdata/verify")
}

// Damage to the tables is reported.
func TestVerifyDamageScripts(t *testing.T) {
	need.Integration(t)
	t.Parallel()
	wantEngine(t)
	scripts(t, "testdata/damage")
}

func wantEngine(t *testing.T) {
	t.Helper()
	if os.Getenv("MILLRACE_LIBCHDB") != "" {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := clickhouse.Fetch(ctx, os.Stderr); err != nil {
		need.Missing(t, need.ClickHouse(), err)
	}
}

func makeStored(ctx context.Context, dir, binary string, n int) (err error) {
	broker, err := embedded.StartBroker(embedded.BrokerConfig{Dir: filepath.Join(dir, "kafka")})
	if err != nil {
		return err
	}
	defer broker.Close()
	engine, err := clickhouse.Start(ctx, clickhouse.Config{Dir: filepath.Join(dir, "clickhouse"), Binary: binary})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close(ctx)) }()
	cfg := config.Default()
	cfg.Kafka.Brokers, cfg.Kafka.Replication, cfg.Kafka.MinInSync, cfg.Kafka.Partitions = []string{broker.Addr()}, 1, 1, 2
	cfg.ClickHouse.Addresses = []string{engine.Addr()}
	cfg.Sink.Age = 50 * time.Millisecond
	a, err := app.Open(ctx, &cfg, app.Options{Log: slog.New(slog.DiscardHandler), Drain: time.Second})
	if err != nil {
		return err
	}
	defer a.Close()
	if _, err := a.Migrate(ctx); err != nil {
		return err
	}
	if err := publishChanges(ctx, broker.Addr(), n); err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return a.Run(run, []schemas.Role{schemas.RoleSink}) })
	err = a.CatchUp(ctx)
	stop()
	err = errors.Join(err, g.Wait(),
		os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("log: {level: warn}\n"), 0o644))
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"version": 3}`), 0o644))
}

// publishChanges publishes n changes.
func publishChanges(ctx context.Context, broker string, n int) error {
	p, err := kafka.NewProducer(client.Config{Brokers: []string{broker}, Prefix: "millrace."}, "test")
	if err != nil {
		return err
	}
	defer p.Close()
	for i := range n {
		c := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "maps", Item: fmt.Sprintf("item-%d", i),
			Version: "v", Size: int64(i),
			Time: timestamppb.New(time.UnixMilli(1_700_000_000_000 + int64(i)))}
		c.Id = schemas.ChangeID(c)
		if err := p.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: c}); err != nil {
			return err
		}
	}
	return nil
}

// more is the command "more DIR N": it publishes the first N changes again, without a sink that stores them.
func more(ts *testscript.TestScript, _ bool, args []string) {
	var n int
	_, err := fmt.Sscan(args[1], &n)
	ts.Check(err)
	broker, err := embedded.StartBroker(embedded.BrokerConfig{Dir: filepath.Join(ts.MkAbs(args[0]), "kafka")})
	ts.Check(err)
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ts.Check(publishChanges(ctx, broker.Addr(), n))
}

// damage is the command "damage DIR SQL": it runs a statement on the engine of a state.
func damage(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	engine, err := clickhouse.Start(ctx, clickhouse.Config{Dir: filepath.Join(ts.MkAbs(args[0]), "clickhouse"),
		Binary: filepath.Join(ts.MkAbs("bin"), "millrace-clickhouse")})
	ts.Check(err)
	err = clickhousetest.Exec(ctx, engine.Addr(), args[1])
	ts.Check(errors.Join(err, engine.Close(ctx)))
}

// Gaps of tables and lost records are findings of --manifest too.
func TestVerdictOfAManifestNamesWhatIsLacking(t *testing.T) {
	t.Parallel()
	gap := sink.Gap{Table: "bit_log", Topic: "fixity.results", To: 20}
	r := verifyReport{Manifest: new(app.ManifestReport), Gaps: []sink.Gap{gap}, Lost: []app.Loss{{Gap: gap, Held: 5,
		Lists: []string{"brake-1 of acme/2/photos", "differs-1 of acme/2/photos"}}}}
	var out strings.Builder
	if err := r.finish(&out, false); !errors.Is(err, errFindings) || r.Findings != 2 {
		t.Errorf("%d findings, %v, want 2", r.Findings, err)
	}
	for _, want := range []string{"bit_log lacks offsets 0 to 19 of fixity.results, partition 0 (run millrace rebuild)\n",
		"bit_log: lost: offsets 0 to 19 of fixity.results, partition 0 (incarnation 00000000): " +
			"Kafka no longer has them, and 5 of 20 have rows\n" +
			"  these lists keep copies because of such records: brake-1 of acme/2/photos, differs-1 of acme/2/photos. " +
			"The copies may be deleted or replaced now: restore a backup of bit_log\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got %s, want %s", out.String(), want)
		}
	}
}

// A rebuild that fails does not report that the tables are complete.
func TestRebuildThatFailed(t *testing.T) {
	t.Parallel()
	const whole = "the tables have all committed records\n"
	for _, failed := range []error{nil, errors.New("ClickHouse is unavailable")} {
		var out strings.Builder
		err := printRebuilt(&out, &output{form: formText}, app.RebuildResult{}, failed)
		if said := out.String() == whole; said != (failed == nil) || !errors.Is(err, failed) {
			t.Errorf("after %v: %q, %v", failed, out.String(), err)
		}
	}
}
