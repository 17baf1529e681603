package integration

import (
	"bytes"
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

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// setup has a broker in this process, a ClickHouse server, and their configuration.
type setup struct {
	cfg    *config.Config
	file   string
	engine *engine
}

// newSetup returns a setup with three file stores, unless edits change its configuration.
func newSetup(t *testing.T, edits ...func(*config.Config)) *setup {
	t.Helper()
	t.Setenv("PATH", filepath.Dir(binaries(t))+string(os.PathListSeparator)+os.Getenv("PATH"))
	state, err := statedir.Open(t.Context(), statedir.Config{Dir: t.TempDir(), WithoutEngine: true})
	must(t, err)
	t.Cleanup(func() {
		if err := state.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	cfg := config.Default()
	acc := config.Account{ID: "acme"}
	for _, id := range []string{"1", "2", "3"} {
		root := filepath.Join(dir, "store-"+id)
		must(t, os.Mkdir(root, 0o755))
		acc.Stores = append(acc.Stores, config.Store{ID: id, Driver: "file", Root: root, Primary: id == "1"})
	}
	cfg.Accounts = []config.Account{acc}
	cfg.Policies.Folder = filepath.Join(dir, "policies")
	cfg.Kafka.Partitions = 3
	cfg.Kafka.SessionTimeout = 6 * time.Second // the time after which a killed member is removed
	cfg.Delay.Lanes = []config.Lane{{Name: "200ms", Delay: 200 * time.Millisecond}, {Name: "1s", Delay: time.Second}}
	cfg.Sink.Age = 100 * time.Millisecond
	cfg.Fixity.Settle, cfg.Fixity.MinInterval = time.Millisecond, time.Millisecond
	cfg.Fixity.Recheck = []time.Duration{200 * time.Millisecond}
	cfg.Duplication.Wait = []time.Duration{200 * time.Millisecond, time.Second}
	for _, edit := range edits {
		edit(&cfg)
	}
	state.Configure(&cfg)
	p := &setup{file: filepath.Join(dir, "millrace.yaml"), engine: newEngine(t, dir)}
	cfg.ClickHouse.Addresses = []string{p.engine.server.Addr()}
	p.write(t, "policies/duplication-accounts.json", `["acme"]`)
	p.write(t, "policies/acme-duplication-policy.json",
		`{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "1", "destStoreId": "3"}],
			"spacesToIgnore": ["scratch"]}`)
	var text bytes.Buffer
	must(t, config.Print(&text, &cfg, nil))
	p.write(t, "millrace.yaml", text.String())
	if p.cfg, _, err = config.Load(config.Sources{File: p.file}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *setup) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(filepath.Dir(p.file), name)
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)))
}

// millrace runs a command and returns its exit code and its output.
func (p *setup) millrace(t *testing.T, args ...string) (int, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binaries(t), append(args, "--config", p.file)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (p *setup) want(t *testing.T, code int, said string, args ...string) {
	t.Helper()
	got, out := p.millrace(t, args...)
	if got != code || !strings.Contains(out, said) {
		t.Fatalf("millrace %s: exit code %d, want %d, and %q in:\n%s", strings.Join(args, " "), got, code, said, out)
	}
}

// serve starts a process with roles that is stopped at the end of the test.
func (p *setup) serve(t *testing.T, roles string) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binaries(t), "run", "--config", p.file, "--roles",
		roles)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	killed := false
	t.Cleanup(func() {
		if t.Failed() {
			defer func() { t.Logf("%s printed:\n%s", roles, out.String()) }()
		}
		if killed {
			return
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Errorf("%s: %v\n%s", roles, err, out.String())
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s did not stop cleanly: %v\n%s", roles, err, out.String())
		}
	})
	return func() {
		killed = true
		_ = cmd.Process.Kill() // the test must not wait for it
		_ = cmd.Wait()
	}
}

// openClient opens the stores for a client of store 1 until the end of the test. What the client does is reported.
func (p *setup) openClient(t *testing.T) (*app.App, *emit.Store) {
	t.Helper()
	p.cfg.Outbox.Dir = t.TempDir()
	a, err := app.Open(t.Context(), p.cfg, app.Options{Log: slog.New(slog.DiscardHandler), Drain: time.Second})
	must(t, err)
	t.Cleanup(a.Close)
	return a, runClient(t, a)
}

// runClient returns store 1 of acme for a client, whose Changes are published until the end of the test.
func runClient(t *testing.T, a *app.App) *emit.Store {
	t.Helper()
	store, err := a.EmittingStore("acme", "1", "client")
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- store.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return store
}

// joined waits until groups are stable. The embedded broker may keep a member forever that is killed while it joins.
func (p *setup) joined(t *testing.T, groups ...string) {
	t.Helper()
	c := harness.Existing(p.cfg.Kafka.Brokers...)
	harness.Eventually(t, time.Minute, "join the groups", func(ctx context.Context) error {
		for _, group := range groups {
			if g, err := c.Describe(ctx, p.cfg.Kafka.TopicPrefix+group); err != nil || g.State != "Stable" {
				return fmt.Errorf("group %s is %+v (%w)", group, g, cmpOr(err, errNotYet))
			}
		}
		return nil
	})
}

// TestRolesInSeparateProcesses runs each role in its own process and kills one of them.
func TestRolesInSeparateProcesses(t *testing.T) {
	need.Full(t)
	p := newSetup(t)
	t.Cleanup(func() { p.engine.revive(t) }) // libchdb may abort when its clients exit
	p.want(t, 5, "run millrace migrate", "run", "--roles", "sink")
	p.want(t, 0, "applied", "migrate")
	p.want(t, 0, "nothing to apply", "migrate")
	p.want(t, 5, "millrace store init acme/1", "standalone", "--state", t.TempDir())
	p.want(t, 5, "no store acme/9", "store", "init", "acme/9")
	for _, id := range []string{"1", "2", "3"} {
		p.want(t, 0, "has its marker", "store", "init", "acme/"+id)
	}
	p.serve(t, "planner,steward,delayer,sink")
	kill := p.serve(t, "copier,checker,deleter,sweeper")

	ctx := t.Context()
	a, store := p.openClient(t)
	ids := append([]string{"again/and again.txt", "deleted/soon"}, storagetest.OddIDs()...)
	put := func(space, item, content string) {
		t.Helper()
		if _, err := store.Put(ctx, space, item, strings.NewReader(content),
			storage.PutOptions{Size: storage.UnknownSize}); err != nil {
			t.Fatalf("put %q: %v", item, err)
		}
	}
	for _, space := range []string{"odd", "scratch"} {
		must(t, store.CreateSpace(ctx, storage.Space{Name: space}))
	}
	put("scratch", "ignored", "not to be copied")
	for i, id := range ids {
		put("odd", id, fmt.Sprintf("item %d", i))
		if i == len(ids)/2 {
			p.joined(t, "copier", "copier.low", "copier.large", "checker", "checker.low", "checker.large", "deleter")
			kill()
			p.serve(t, "copier,checker,deleter,sweeper")
		}
	}
	put("odd", ids[0], "another content")
	// or there is no tombstone
	harness.Eventually(t, time.Minute, "copy the item to delete", func(ctx context.Context) error {
		p.engine.revive(t) // libchdb may abort after the kill
		var errs []error
		for _, id := range []string{"2", "3"} {
			dest, _ := a.Stores().Store("acme", id)
			_, err := dest.Stat(ctx, "odd", ids[1])
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if _, err := store.Delete(ctx, "odd", ids[1], storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.until(t, a.DB(), uint64(len(ids)-1))
	for _, id := range []string{"2", "3"} {
		dest, _ := a.Stores().Store("acme", id)
		if _, err := dest.StatSpace(ctx, "scratch"); !errors.Is(err, storage.ErrNoSpace) {
			t.Errorf("store %s: an ignored space: %v, want ErrNoSpace", id, err)
		}
		if _, err := dest.Stat(ctx, "odd", ids[1]); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("store %s: the deleted item: %v, want ErrNotFound", id, err)
		}
		if o, err := dest.Stat(ctx, "odd", ids[0]); err != nil || o.Size != int64(len("another content")) {
			t.Errorf("store %s: the item that was put again: %+v, %v", id, o, err)
		}
	}
	p.want(t, 0, "update (duplication)", "object", "show", "acme/odd/"+ids[0])
	p.want(t, 1, "there are no records of item", "object", "show", "acme/odd/never was")
	p.want(t, 0, "KEY", "incident", "list")
	p.want(t, 0, "checks requested", "sweep", "start", "fixity", "--store", "2", "--all")
}

// until waits until stores 2 and 3 have n verified items in the space and one tombstone.
func (p *setup) until(t *testing.T, db *clickhouse.DB, n uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last string // the last observed state
	for {
		began := time.Now()
		counts, err := read.CopyCounts(ctx, db, "acme")
		if ctx.Err() == nil {
			last = fmt.Sprintf("%+v, %v, in %v", counts, err, time.Since(began))
		}
		if err == nil && len(counts) == 3 {
			whole := true
			for _, c := range counts[1:] {
				whole = whole && c.Live == n && c.Verified == n && c.Tombstones == 1
			}
			if whole {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after three minutes: %s; since %v: %+v, %v; want %d live and verified and 1 tombstone in stores 2 and 3",
				last, time.Since(began), counts, err, n)
		case <-tick.C:
			p.engine.revive(t)
		}
	}
}
