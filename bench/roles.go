package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
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

// rolesSide runs the roles with an embedded broker and an embedded ClickHouse, as millrace demo does, and reports the
// time of one job.
type rolesSide struct {
	Do     string        // store, change, delete, check or import
	Dir    string        // an empty directory for the state and the stores
	Files  string        // directory of the files to store; only for store
	Items  int           // number of items; for the other jobs
	Window time.Duration // how long deletes are counted
}

const (
	primary = source
	// clientCalls is the number of concurrent calls of the client, as in the demo.
	clientCalls = 128
	// expectedFile is the file that identifies the tree to check.
	expectedFile = "item-0000000"
)

// policies returns the policy of each job.
func (s *rolesSide) policies() string {
	switch s.Do {
	case "check":
		return `{}`
	case "store", "change":
		return `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "1", "destStoreId": "3"}]}`
	}
	return `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}]}`
}

func (s *rolesSide) run(ctx context.Context) (res sideResult, err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	state, err := statedir.Open(ctx, statedir.Config{Dir: filepath.Join(s.Dir, "state"), Log: log, Progress: io.Discard})
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, state.Close(ctx)) }()
	cfg, err := s.configure(state)
	if err != nil {
		return res, err
	}
	a, err := app.Open(ctx, cfg, app.Options{Log: log, Drain: app.QuickDrain})
	if err != nil {
		return res, err
	}
	defer a.Close()
	if _, err := a.Migrate(ctx); err != nil {
		return res, err
	}
	j := &job{rolesSide: s, app: a, cfg: cfg}
	for _, store := range cfg.Accounts[0].Stores {
		if store.Layout == "plain" {
			continue // a plain store is read-only
		}
		if err := app.InitStore(ctx, cfg, log, app.StoreName{Account: mainAccount, Store: store.ID}); err != nil {
			return res, err
		}
	}
	// All but the sweeper: the job starts its round itself, as the demo does.
	roles := slices.DeleteFunc(app.Roles(), func(r schemas.Role) bool { return r == schemas.RoleSweeper })
	all := []service{rolesService(a, roles...), serviceFunc(state.Watch)}
	if s.Do != "check" {
		if j.client, err = a.EmittingStore(mainAccount, primary, "bench"); err != nil {
			return res, err
		}
		all = append(all, j.client)
	}
	err = runWhile(ctx, runAll(all), func(ctx context.Context) (err error) {
		res, err = j.run(ctx)
		return err
	})
	return res, err
}

// runAll returns a service that runs all of parts until the first of them fails.
func runAll(parts []service) service {
	return serviceFunc(func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, p := range parts {
			group.Go(func() error { return p.Run(ctx) })
		}
		return group.Wait()
	})
}

// configure makes the stores. The other settings are the defaults, but for the outbox, the limits of mass deletes and
// rewrites, and reconcile.settle of the job import.
func (s *rolesSide) configure(state *statedir.Dir) (*settings.Config, error) {
	cfg := settings.Default()
	cfg.Outbox.Dir = state.Path("outbox")
	account := settings.Account{ID: mainAccount}
	for _, id := range []string{primary, "2", "3"} {
		root := filepath.Join(s.Dir, "store-"+id)
		if err := os.MkdirAll(root, 0o755); err != nil {
			return nil, fmt.Errorf("make a store: %w", err)
		}
		store := settings.Store{ID: id, Driver: "file", Root: root, Primary: id == primary}
		if s.Do == "check" && id == primary {
			store.Layout, store.Space, store.Expect = "plain", space, expectedFile
			if err := s.fillTree(root); err != nil {
				return nil, err
			}
		}
		account.Stores = append(account.Stores, store)
	}
	cfg.Accounts = []settings.Account{account}
	cfg.Deletes.MaxShare, cfg.Deletes.MaxCount = 1, 1_000_000   // all items of a space are deleted
	cfg.Replaced.MaxShare, cfg.Replaced.MaxCount = 1, 1_000_000 // what is measured rewrites whole spaces
	if s.Do == "import" {
		cfg.Reconcile.Settle = adoptSettle
	}
	if err := state.SaveConfig(&cfg); err != nil {
		return nil, err
	}
	saved, _, err := settings.Load(settings.Sources{File: statedir.ConfigFile(filepath.Join(s.Dir, "state"))})
	if err != nil {
		return nil, fmt.Errorf("read back the configuration: %w", err)
	}
	state.Configure(saved)
	return saved, nil
}

// checkedSize is the size in bytes of the files that are checked.
const checkedSize = 10 << 10

// fillTree writes the files to check.
func (s *rolesSide) fillTree(root string) error {
	for i := range s.Items {
		bytes := strings.Repeat(content(i), checkedSize/len(content(i)))
		if err := os.WriteFile(filepath.Join(root, item(i)), []byte(bytes), 0o644); err != nil {
			return fmt.Errorf("write a file to check: %w", err)
		}
	}
	return nil
}

// content returns the 1 KiB of item i.
func content(i int) string { return strings.Repeat(fmt.Sprintf("%-63d\n", i), 16) }

// job is the job of a rolesSide while the roles run.
type job struct {
	*rolesSide
	app    *app.App
	cfg    *settings.Config
	client *emit.Store // of the primary store; nil if that is read-only
}

func (j *job) run(ctx context.Context) (res sideResult, err error) {
	doc, err := policy.Parse([]byte(j.policies()))
	if err != nil {
		return res, err
	}
	if err := j.app.SetPolicy(ctx, mainAccount, doc, "bench"); err != nil {
		return res, err
	}
	if j.client != nil {
		if err := j.client.CreateSpace(ctx, storage.Space{Name: space}); err != nil {
			return res, err
		}
	}
	switch j.Do {
	case "change":
		return j.change(ctx)
	case "delete":
		return j.delete(ctx)
	case "check":
		return j.check(ctx)
	case "import":
		return j.importLive(ctx)
	}
	return j.store(ctx)
}

// store stores all files and returns when every file is recorded and checked in all three stores. Copies are checked
// when they are made, the items of the first store by a sweep.
func (j *job) store(ctx context.Context) (res sideResult, err error) {
	files, err := filesBelow(j.Files)
	if err != nil {
		return res, err
	}
	start := time.Now()
	err = j.forEach(ctx, len(files), func(ctx context.Context, i int) error {
		f, err := os.Open(filepath.Join(j.Files, files[i]))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = j.client.Put(ctx, space, filepath.ToSlash(files[i]), f, storage.PutOptions{
			Size: storage.UnknownSize, Properties: storage.Properties{MediaType: "application/octet-stream"},
		})
		return err
	})
	if err != nil {
		return res, err
	}
	if err := j.app.CatchUp(ctx); err != nil {
		return res, err
	}
	order := app.FixityRequest{Account: mainAccount, Store: primary, Begun: start.UTC().Truncate(time.Millisecond),
		AnyAge: true, Detach: true}
	if _, err := j.app.SweepFixity(ctx, order); err != nil {
		return res, err
	}
	if _, err := j.waitRecorded(ctx, 3*len(files), 0,
		func(n read.CopyCount) uint64 { return n.Verified }); err != nil {
		return res, err
	}
	return sideResult{Records: int64(len(files)), Seconds: time.Since(start).Seconds()}, nil
}

// delete stores the items, waits for their copies, deletes the items in the first store, and counts the deletes in the
// second store that are recorded within the window.
func (j *job) delete(ctx context.Context) (res sideResult, err error) {
	err = j.forEach(ctx, j.Items, func(ctx context.Context, i int) error {
		_, err := j.client.Put(ctx, space, item(i), strings.NewReader(content(i)),
			storage.PutOptions{Size: storage.UnknownSize})
		return err
	})
	if err != nil {
		return res, err
	}
	if _, err := j.waitRecorded(ctx, j.Items, 0,
		func(n read.CopyCount) uint64 { return inSecond(n, n.Verified) }); err != nil {
		return res, err
	}
	start := time.Now()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return j.forEach(gctx, j.Items, func(ctx context.Context, i int) error {
			_, err := j.client.Delete(ctx, space, item(i), storage.DeleteOptions{})
			return err
		})
	})
	group.Go(func() error {
		done, err := j.waitRecorded(gctx, j.Items, j.Window,
			func(n read.CopyCount) uint64 { return inSecond(n, n.Tombstones) })
		res = sideResult{Records: int64(done), Seconds: time.Since(start).Seconds()}
		return err
	})
	return res, group.Wait()
}

// fillFiles writes n files of up to 6 bytes below dir, 1,000 per directory. The first file of each directory has the
// content first.
func fillFiles(dir string, n int, first []byte) error {
	for i := range n {
		of := filepath.Join(dir, fmt.Sprintf("dir%03d", i/1000))
		content := []byte("content")[:i%7]
		if i%1000 == 0 {
			content = first
			if err := os.MkdirAll(of, 0o777); err != nil {
				return fmt.Errorf("make a directory of files: %w", err)
			}
		}
		if err := os.WriteFile(filepath.Join(of, item(i)), content, 0o666); err != nil {
			return fmt.Errorf("write a file: %w", err)
		}
	}
	return nil
}

// inSecond returns v if n counts copies in the second store, and 0 otherwise.
func inSecond(n read.CopyCount, v uint64) uint64 {
	if n.Store != destination {
		return 0
	}
	return v
}

// forEach calls do for n items concurrently and returns when Kafka has acknowledged all changes.
func (j *job) forEach(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(clientCalls)
	for i := range n {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(gctx, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for j.app.Unpublished() > 0 {
		if err := retry.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	return nil
}

// pollInterval is the time between two queries of the recorded copies.
const pollInterval = 250 * time.Millisecond

// progressTimeout is how long a job may make no progress before it fails. It exceeds the longest wait of the roles, the
// first one of duplication.wait.
const progressTimeout = 90 * time.Second

// waitRecorded polls the recorded copies until the sum over all stores is n. With a window it also returns at the end
// of the window if the sum is not 0. It returns the sum.
func (j *job) waitRecorded(
	ctx context.Context, n int, window time.Duration, of func(read.CopyCount) uint64,
) (done int, err error) {
	return waitCount(ctx, n, window, func() (sum int, err error) {
		stores, err := read.CopyCounts(ctx, j.app.DB(), mainAccount)
		for _, c := range stores {
			sum += int(of(c)) //nolint:gosec // a few
		}
		return sum, err
	})
}

// waitCount polls count until it returns n, or at the end of a window anything but 0. It returns the last count.
func waitCount(ctx context.Context, n int, window time.Duration, count func() (int, error)) (done int, err error) {
	start, moved := time.Now(), time.Now()
	for {
		before := done
		if done, err = count(); err != nil {
			return 0, err
		}
		switch {
		case done >= n, window > 0 && done > 0 && time.Since(start) >= window:
			return done, nil
		case done != before:
			moved = time.Now()
		case time.Since(moved) > progressTimeout:
			return 0, fmt.Errorf("no progress for %v: %d of %d are recorded", progressTimeout, done, n)
		}
		if err := retry.Sleep(ctx, pollInterval); err != nil {
			return 0, err
		}
	}
}
