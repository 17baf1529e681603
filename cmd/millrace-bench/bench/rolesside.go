package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/cmd/statedir"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/inventory"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
)

// A RolesSide is what a process of its own does for a figure of the main job: it runs the roles over an embedded broker
// and an embedded ClickHouse, as millrace demo does, and reports how long they took for one job.
type RolesSide struct {
	Do     string        // store, change, delete or import
	Dir    string        // an empty folder for the state, the stores and the listing
	Files  string        // of store: the folder whose files are stored
	Items  int           // of the others: how many there are
	Window time.Duration // of delete and import: for how long deletes or copies are counted
}

var errRolesSide = errors.New(
	"wants --dir, and --do store with --files, --do change with --items, or --do delete or import with --items and --window")

func (s RolesSide) check() error {
	var complete bool
	switch s.Do {
	case "store":
		complete = s.Files != ""
	case "change":
		complete = s.Items > 0
	case "delete", "import":
		complete = s.Items > 0 && s.Window > 0
	}
	if s.Dir == "" || !complete {
		return fmt.Errorf("%w: %w", usage.Err, errRolesSide)
	}
	return nil
}

const (
	primary = "1"
	// puts is how many calls the client of the primary store has under way, as in the demo.
	puts = 128
	// known is the file by which the imported tree is known.
	known = "item-0000000"
)

// policies are the rules of each job: two copies of what is stored or changed, else one.
func (s RolesSide) policies() string {
	if s.Do == "store" || s.Do == "change" {
		return `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "1", "destStoreId": "3"}]}`
	}
	return `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}]}`
}

// Run does the job. It returns the line that it is to print.
func (s RolesSide) Run(ctx context.Context) (line []byte, err error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	state, err := statedir.Open(ctx, statedir.Config{Dir: filepath.Join(s.Dir, "state"), Log: log, Progress: io.Discard})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, state.Close(ctx)) }()
	cfg, err := s.configure(state)
	if err != nil {
		return nil, err
	}
	a, err := app.Open(ctx, cfg, app.Options{Log: log, Drain: app.QuickDrain})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	if _, err := a.Migrate(ctx); err != nil {
		return nil, err
	}
	j := &job{RolesSide: s, app: a, cfg: cfg}
	for _, store := range cfg.Accounts[0].Stores {
		if store.Layout == "plain" {
			continue // it is only read
		}
		if err := a.InitStore(ctx, us, store.ID); err != nil {
			return nil, err
		}
	}
	// All but the sweeper: the job begins its round itself, as the demo does.
	roles := slices.DeleteFunc(app.Roles(), func(r schemas.Role) bool { return r == schemas.RoleSweeper })
	all := []part{runs(a, roles...), partOf(state.Watch)}
	if s.Do != "import" {
		if j.client, err = a.Emitting(us, primary, "bench"); err != nil {
			return nil, err
		}
		all = append(all, j.client)
	}
	var res sideResult
	err = while(ctx, together(all), func(ctx context.Context) (err error) {
		res, err = j.run(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(res)
}

// together is the part that runs all of several, and ends with the first that ends.
func together(parts []part) part {
	return partOf(func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, p := range parts {
			group.Go(func() error { return p.Run(ctx) })
		}
		return group.Wait()
	})
}

// configure makes the stores. All settings but theirs and the outbox are the defaults.
func (s RolesSide) configure(state *statedir.Dir) (*settings.Config, error) {
	cfg := settings.Default()
	account := settings.Account{ID: us}
	for _, id := range []string{primary, "2", "3"} {
		root := filepath.Join(s.Dir, "store-"+id)
		if err := os.MkdirAll(root, 0o755); err != nil {
			return nil, fmt.Errorf("make a store: %w", err)
		}
		store := settings.Store{ID: id, Driver: "file", Root: root, Primary: id == primary}
		if s.Do == "import" && id == primary {
			store.Layout, store.Space, store.Expect = "plain", space, known
			if err := s.fillTree(root); err != nil {
				return nil, err
			}
		}
		account.Stores = append(account.Stores, store)
	}
	cfg.Accounts = []settings.Account{account}
	cfg.Outbox.Dir = filepath.Join(s.Dir, "outbox")
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

// fillTree writes the files that are imported: a KiB each.
func (s RolesSide) fillTree(root string) error {
	for i := range s.Items {
		if err := os.WriteFile(filepath.Join(root, item(i)), []byte(content(i)), 0o644); err != nil {
			return fmt.Errorf("write a file to import: %w", err)
		}
	}
	return nil
}

// content is that of the ith item: a KiB.
func content(i int) string { return strings.Repeat(fmt.Sprintf("%-63d\n", i), 16) }

// A job is one that a RolesSide does while the roles run.
type job struct {
	RolesSide
	app    *app.App
	cfg    *settings.Config
	client *emit.Store // of the primary store; nil: it is only read
}

func (j *job) run(ctx context.Context) (res sideResult, err error) {
	doc, err := policy.Parse([]byte(j.policies()))
	if err != nil {
		return res, err
	}
	if err := j.app.SetPolicy(ctx, us, doc, "bench"); err != nil {
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
	case "import":
		return j.imported(ctx)
	}
	return j.store(ctx)
}

// store stores all files, and ends when each is on record in all three stores, and has passed a check there. The copies
// are checked as they are made, the first store's items by a sweep.
func (j *job) store(ctx context.Context) (res sideResult, err error) {
	files, err := filesBelow(j.Files)
	if err != nil {
		return res, err
	}
	start := time.Now()
	err = j.each(ctx, len(files), func(ctx context.Context, i int) error {
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
	order := app.SweepOrder{Account: us, Store: primary, Begun: start.UTC().Truncate(time.Millisecond)}
	if _, err := j.app.SweepFixity(ctx, order); err != nil {
		return res, err
	}
	if _, err := j.until(ctx, 3*len(files), 0, func(_ string, n counts) int { return int(n.Verified) }); err != nil {
		return res, err
	}
	return sideResult{Records: int64(len(files)), Seconds: time.Since(start).Seconds()}, nil
}

// delete stores the items, waits for their copies, deletes them in the first store, and counts the deletes of the
// second that are on record within the window.
func (j *job) delete(ctx context.Context) (res sideResult, err error) {
	err = j.each(ctx, j.Items, func(ctx context.Context, i int) error {
		_, err := j.client.Put(ctx, space, item(i), strings.NewReader(content(i)),
			storage.PutOptions{Size: storage.UnknownSize})
		return err
	})
	if err != nil {
		return res, err
	}
	if _, err := j.until(ctx, j.Items, 0, func(id string, n counts) int { return second(id, n.Verified) }); err != nil {
		return res, err
	}
	return j.count(ctx, func(ctx context.Context) error {
		return j.each(ctx, j.Items, func(ctx context.Context, i int) error {
			_, err := j.client.Delete(ctx, space, item(i), storage.DeleteOptions{})
			return err
		})
	}, func(n counts) uint64 { return n.Tombstones })
}

// imported publishes a Change of origin import for each file of the first store, without digests, and counts the copies
// that are on record within the window.
func (j *job) imported(ctx context.Context) (res sideResult, err error) {
	producer, err := app.OpenProducer(ctx, j.cfg, slog.New(slog.DiscardHandler), "bench")
	if err != nil {
		return res, err
	}
	defer producer.Close()
	target := inventory.Target{Account: us, Store: primary, Space: space, Now: time.Now()}
	var changes []schemas.Message
	for i := range j.Items {
		info, err := os.Stat(filepath.Join(j.Dir, "store-"+primary, item(i)))
		if err != nil {
			return res, err
		}
		c, err := target.Change(inventory.Entry{Item: item(i), Key: true, Size: info.Size(), Time: info.ModTime()})
		if err != nil {
			return res, err
		}
		changes = append(changes, schemas.Message{Topic: schemas.Changes, Body: c})
	}
	return j.count(ctx, func(ctx context.Context) error { return producer.Publish(ctx, changes...) },
		func(n counts) uint64 { return n.Live })
}

// counts are those of the copies of one store.
type counts struct{ Live, Verified, Tombstones uint64 }

// second is n of the second store, 0 of the others.
func second(id string, n uint64) int {
	if id != "2" {
		return 0
	}
	return int(n) //nolint:gosec // a few
}

// count begins something and returns how much of it the second store shows within the window, from its begin on, or
// until all of it is done.
func (j *job) count(
	ctx context.Context, begin func(context.Context) error, of func(counts) uint64,
) (res sideResult, err error) {
	start := time.Now()
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return begin(gctx) })
	group.Go(func() error {
		done, err := j.until(gctx, j.Items, j.Window, func(id string, n counts) int { return second(id, of(n)) })
		res = sideResult{Records: int64(done), Seconds: time.Since(start).Seconds()}
		return err
	})
	return res, group.Wait()
}

// each does something with n items, several at a time, and returns when Kafka has what it did.
func (j *job) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(puts)
	for i := range n {
		if gctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(gctx, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for j.app.Untold() > 0 {
		if err := retry.Sleep(ctx, lookEvery); err != nil {
			return err
		}
	}
	return nil
}

// lookEvery is the time between two looks at what is on record.
const lookEvery = 250 * time.Millisecond

// still is how long nothing may happen: above the longest wait that roles may come to, which is the first of
// duplication.wait.
const still = 90 * time.Second

// until looks at what is on record until the sum of all stores is n, or for the window, if there is one and at least
// one is done. It returns the sum.
func (j *job) until(
	ctx context.Context, n int, window time.Duration, of func(id string, n counts) int,
) (done int, err error) {
	start, moved := time.Now(), time.Now()
	for {
		stores, err := j.app.DB().CopyCounts(ctx, us)
		if err != nil {
			return 0, err
		}
		before := done
		done = 0
		for _, c := range stores {
			done += of(c.Store, counts{c.Live, c.Verified, c.Tombstones})
		}
		switch {
		case done >= n, window > 0 && done > 0 && time.Since(start) >= window:
			return done, nil
		case done != before:
			moved = time.Now()
		case time.Since(moved) > still:
			return 0, fmt.Errorf("nothing moves for %v: %d of %d are on record", still, done, n)
		}
		if err := retry.Sleep(ctx, lookEvery); err != nil {
			return 0, err
		}
	}
}

// filesBelow lists the regular files below a folder, as paths below it.
func filesBelow(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		files = append(files, name)
		return err
	})
	return files, err
}
