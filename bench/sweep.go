package bench

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/pairs"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// differing is the number of items that differ in the comparisons.
const differing = 100

// sweep returns the figures of the sweeps.
func (r *runner) sweep() ([]figure, error) {
	a := r.amounts
	return []figure{
		{fmt.Sprintf("pairs: two file stores of %s files that differ in %d", count(a.files), directories(a.files)),
			"items/s", "rclone check --size-only", ratioAtLeast(1.5), r.comparePairs},
		{fmt.Sprintf("import: p99 of a client's write until its copy, while a sweep adopts %s files", count(a.adopted)), "s",
			"", atMost(5), func(ctx context.Context) (m measurement, err error) {
				res, err := r.roles(ctx, &rolesSide{Do: "import", Items: a.adopted})
				m.ours = []float64{res.Seconds}
				return m, err
			}},
		{fmt.Sprintf("reconcile: a listing in memory, manifest of %s items, %d are new", count(a.compared), differing),
			"items/s", "", atLeast(100_000), r.compareManifest},
	}, nil
}

// directories returns the number of directories that hold n files, which is that of the files that differ.
func directories(n int) int { return (n + 999) / 1000 }

// comparePairs compares two file stores, in turns with the peer. The time is that of the whole process on both sides.
func (r *runner) comparePairs(ctx context.Context) (m measurement, err error) {
	n := r.amounts.files
	return m, inTemp(func(dir string) error {
		// The files have no digests on record.
		for id, first := range map[string][]byte{source: nil, destination: []byte("seven b")} {
			store, err := fileStore(ctx, dir, id)
			if err != nil {
				return err
			}
			if err := errors.Join(store.Close(), fillFiles(filepath.Join(dir, id, space), n, first)); err != nil {
				return err
			}
		}
		m, err = r.besideRclone(r.amounts.rounds, func(int) (float64, error) {
			_, seconds, err := r.runSide(ctx, "pairs", &pairsSide{Root: dir, Items: n, Differing: directories(n)})
			return float64(n) / seconds, err
		}, func(program string) (float64, error) {
			seconds, _, err := rclone(ctx, program, "", sideWork, "check", "--size-only",
				filepath.Join(dir, source, space), filepath.Join(dir, destination, space))
			found := fmt.Sprintf(" %d differences found", directories(n))
			if err == nil || !strings.Contains(err.Error(), found) {
				return 0, errors.Join(err, fmt.Errorf("rclone did not report%s", found))
			}
			return float64(n) / seconds, nil
		})
		return err
	})
}

// compareManifest compares a generated listing with a manifest.
func (r *runner) compareManifest(ctx context.Context) (m measurement, err error) {
	n := r.amounts.compared
	b, err := r.newDatabase(ctx, "manifest")
	if err != nil {
		return m, err
	}
	if err := b.fill(ctx, spaceRows(), n); err != nil {
		return m, err
	}
	// Otherwise the merges of the rows that were just filled in would take processor time from the rounds.
	if err := b.exec(ctx, "OPTIMIZE TABLE {db}.copy_state FINAL"); err != nil {
		return m, err
	}
	return inTurns(r.amounts.rounds, "", func(int) (float64, error) {
		res, _, err := r.runSide(ctx, "reconcile",
			&reconcileSide{ClickHouse: b.addr, Database: b.name, Items: n, Differing: differing})
		return res.rate(), err
	}, nil)
}

// pairsSide runs one round of a sweep over a pair of file stores, with the runner of the role.
type pairsSide struct {
	Root             string // directory with the stores
	Items, Differing int
}

func (s *pairsSide) run(ctx context.Context) (res sideResult, err error) {
	a, err := openApp(ctx, func(cfg *settings.Config) {
		var stores []settings.Store
		for _, id := range []string{source, destination} {
			stores = append(stores, settings.Store{ID: id, Driver: "file", Root: filepath.Join(s.Root, id)})
		}
		cfg.Accounts = []settings.Account{{ID: mainAccount, Stores: stores}}
	})
	if err != nil {
		return res, err
	}
	defer a.Close()
	one, err := openMarked(ctx, a, source)
	if err != nil {
		return res, err
	}
	two, err := openMarked(ctx, a, destination)
	if err != nil {
		return res, err
	}
	pages, err := pairs.New(
		pairs.Config{Pair: pairs.Pair{Account: mainAccount, Space: space, Source: source, Destination: destination}},
		pairs.Deps{Source: one, Destination: two, Rules: onePair{}, Records: noRecords{}})
	if err != nil {
		return res, err
	}
	sweeper, err := newSweeper()
	if err != nil {
		return res, err
	}
	seconds, err := runRound(ctx, sweeper, pages, s.Differing, s.Items-s.Differing)
	return sideResult{Records: int64(s.Items), Seconds: seconds}, err
}

// reconcileSide runs one round of a sweep over a generated listing, of which some items have no record.
type reconcileSide struct {
	ClickHouse, Database string
	Items, Differing     int
}

func (s *reconcileSide) run(ctx context.Context) (res sideResult, err error) {
	a, err := openApp(ctx, func(cfg *settings.Config) {
		cfg.ClickHouse.Addresses, cfg.ClickHouse.Database = []string{s.ClickHouse}, s.Database
	})
	if err != nil {
		return res, err
	}
	defer a.Close()
	sweeper, err := newSweeper()
	if err != nil {
		return res, err
	}
	recorded, _ := filledItem(0, s.Items)
	noIncident := func(context.Context, schemas.Copy, string) error { return nil }
	pages, err := reconcile.New(reconcile.Config{
		Space: schemas.Copy{Account: mainAccount, Store: source, Space: recorded}, AppearsWhole: true, MaxMissing: 0.1,
	}, reconcile.Deps{
		Store: generated{items: s.Items, extra: s.Items / s.Differing}, Rows: app.ManifestRows(a.DB(), false),
		Fresh: func(context.Context) error { return nil }, Settle: sweeper.Settle,
		OpenIncident: noIncident, CloseIncident: noIncident, DeclaredGone: func() bool { return false },
	})
	if err != nil {
		return res, err
	}
	seconds, err := runRound(ctx, sweeper, pages, s.Differing, s.Items)
	return sideResult{Records: int64(s.Items), Seconds: seconds}, err
}

// newSweeper returns a Sweeper with the default configuration and without checkpoints of earlier rounds. It publishes
// nothing.
func newSweeper() (*sweep.Sweeper, error) {
	return sweep.NewSweeper(sweep.SweeperConfig{}, sweep.SweeperDeps{
		Publisher: discard{}, Log: slog.New(slog.DiscardHandler),
		Checkpoint: func(string, string) *pb.Checkpoint { return nil },
		CatchUp:    func(context.Context) error { return nil },
	})
}

// runRound runs one round, which must find exactly the differences that there are, and returns the seconds it took.
func runRound(
	ctx context.Context, sweeper *sweep.Sweeper, pages sweep.Sweep, differing, equal int,
) (seconds float64, err error) {
	start := time.Now()
	results, err := sweeper.Rounds(ctx, []sweep.Split{{Sweep: "bench", Name: space, Account: mainAccount, Pages: pages,
		Lag: func(context.Context) (int64, error) { return 0, nil }, Start: start}})
	if err != nil {
		return 0, err
	}
	if r := results[0]; r.Emitted != int64(differing) || r.Counts["equal"] != int64(equal) {
		err = fmt.Errorf("found %d differences, not %d, and want %d equal items: %v", r.Emitted, differing, equal, r.Counts)
	}
	return time.Since(start).Seconds(), err
}

// onePair is a policy that copies every space from source to destination.
type onePair struct{}

// Rules implements pairs.Rules.
func (onePair) Rules(string, string) (policy.Rules, bool) {
	return policy.Rules{Revision: 1, Deletes: policy.Propagate,
		Pairs: []policy.Pair{{Source: source, Destination: destination}}}, true
}

// noRecords has no record of any copy.
type noRecords struct{}

// Fresh implements pairs.Records.
func (noRecords) Fresh(_ context.Context, copies []schemas.Copy) ([]*pb.CopyRecord, error) {
	all := make([]*pb.CopyRecord, len(copies))
	none := &pb.Record{State: pb.RecordState_RECORD_STATE_NONE}
	for i := range all {
		all[i] = &pb.CopyRecord{Manifest: none, Audit: none}
	}
	return all, nil
}

// discard publishes nothing.
type discard struct{}

// Publish implements schemas.Publisher.
func (discard) Publish(context.Context, ...schemas.Message) error { return nil }

// generated is a store of one space, whose listing it makes as it goes: the items of spaceRows.
type generated struct {
	storage.Store
	items int
	extra int // every so manyth item is followed by one that no record has
}

// Capabilities implements storage.Store.
func (generated) Capabilities() storage.Capabilities { return storage.Capabilities{} }

// Marker implements storage.Store.
func (generated) Marker(context.Context) error { return nil }

const extraSuffix = ".new"

// object returns the nth item.
func (s generated) object(n int) storage.Object {
	const digits = 9
	id, version := []byte("img-000000000.tif"), []byte("v000000000")
	first := len(version)
	for at, rest := digits, n; rest > 0 || at == digits; at, rest = at-1, rest/10 {
		digit := byte('0' + rest%10)
		id[len("img-")+at-1], version[at], first = digit, digit, at
	}
	version[first-1] = 'v'
	o := storage.Object{Item: string(id), Size: 1000, Version: string(version[first-1:]), Modified: epoch().AsTime()}
	return o
}

// List implements storage.Store.
func (s generated) List(_ context.Context, _, after string) iter.Seq2[storage.Object, error] {
	first := 0
	_, _ = fmt.Sscanf(after, "img-%09d.tif", &first) // of the beginning: 0
	return func(yield func(storage.Object, error) bool) {
		for n := first; n < s.items; n++ {
			o := s.object(n)
			if o.Item > after && !yield(o, nil) {
				return
			}
			if n%s.extra != s.extra-1 {
				continue
			}
			if o.Item += extraSuffix; o.Item > after && !yield(o, nil) {
				return
			}
		}
	}
}

// Stat implements storage.Store.
func (s generated) Stat(_ context.Context, _, item string) (storage.Object, error) {
	var n int
	if _, err := fmt.Sscanf(strings.TrimSuffix(item, extraSuffix), "img-%09d.tif", &n); err != nil {
		return storage.Object{}, fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	}
	o := s.object(n)
	o.Item = item
	return o, nil
}
