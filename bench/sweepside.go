package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/app"
	settings "github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/pairs"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// SweepSide is the job of one child process in the sweep figures. It runs one round with the runner of the role, which
// publishes to a publisher that only counts, and reports the time of the round and the peak memory of the process.
type SweepSide struct {
	Do                   string // pairs or reconcile
	Root                 string // directory with two file stores; empty: listings are generated
	Space                string
	ClickHouse, Database string // for reconcile
	Items                int    // of each side
	Differing            int    // of them; for reconcile: further items, which no record has
	Profile              string // file for a CPU profile; empty: none
}

var errSweepSide = errors.New("required: --do pairs, or --do reconcile with --clickhouse and --database; " +
	"--space, --items and --differing")

func (s SweepSide) check() error {
	known := s.Do == "pairs" || s.Do == "reconcile" && s.ClickHouse != "" && s.Database != ""
	if !known || s.Space == "" || s.Items <= 0 || s.Differing <= 0 {
		return fmt.Errorf("%w: %w", usage.Err, errSweepSide)
	}
	return nil
}

// Run runs the round and returns the line to print.
func (s SweepSide) Run(ctx context.Context) (line []byte, err error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Profile != "" {
		f, err := os.Create(s.Profile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	a, err := openApp(ctx, func(cfg *settings.Config) {
		if s.Root != "" {
			cfg.Accounts = []settings.Account{{ID: mainAccount, Stores: s.stores()}}
		}
		if s.ClickHouse != "" {
			cfg.ClickHouse.Addresses, cfg.ClickHouse.Database = []string{s.ClickHouse}, s.Database
		}
	})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	sweeper, err := newCountingSweeper()
	if err != nil {
		return nil, err
	}
	pages, err := s.pages(ctx, a, sweeper)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	results, err := sweeper.Rounds(ctx, []sweep.Split{{Sweep: s.Do, Name: s.Space, Account: mainAccount, Pages: pages,
		Lag: func(context.Context) (int64, error) { return 0, nil }, Start: start}})
	if err != nil {
		return nil, err
	}
	res := sideResult{Records: int64(s.Items), Seconds: time.Since(start).Seconds()}
	if n := results[0].Emitted; n != int64(s.Differing) {
		return nil, fmt.Errorf("found %d differences, not %d: %v", n, s.Differing, results[0].Counts)
	}
	equal := s.Items - s.Differing
	if s.Do == "reconcile" { // the others are not on record
		equal = s.Items
	}
	if n := results[0].Counts["equal"]; n != int64(equal) {
		return nil, fmt.Errorf("%d items are equal, not %d: %v", n, equal, results[0].Counts)
	}
	if res.Bytes, err = peakMemory(); err != nil {
		return nil, err
	}
	return json.Marshal(res)
}

func (s SweepSide) stores() (all []settings.Store) {
	for _, id := range []string{source, destination} {
		all = append(all, settings.Store{ID: id, Driver: "file", Root: filepath.Join(s.Root, id)})
	}
	return all
}

// pages returns the sweep.
func (s SweepSide) pages(ctx context.Context, a *app.App, sweeper *sweep.Sweeper) (sweep.Sweep, error) {
	every := s.Items / s.Differing
	if s.Do == "reconcile" {
		space := schemas.Copy{Account: mainAccount, Store: source, Space: s.Space}
		noIncident := func(context.Context, schemas.Copy, string) error { return nil }
		return reconcile.New(reconcile.Config{Space: space, AppearsWhole: true, MaxMissing: 0.1}, reconcile.Deps{
			Store: generated{items: s.Items, extra: every}, Rows: app.ManifestRows(a.DB()),
			Fresh: func(context.Context) error { return nil }, Settle: sweeper.Settle,
			OpenIncident: noIncident, CloseIncident: noIncident, DeclaredGone: func() bool { return false },
		})
	}
	if s.Root == "" {
		return newPairs(s.Space, generated{items: s.Items}, generated{items: s.Items, other: every})
	}
	one, err := openMarked(ctx, a, source)
	if err != nil {
		return nil, err
	}
	two, err := openMarked(ctx, a, destination)
	if err != nil {
		return nil, err
	}
	return newPairs(s.Space, one, two)
}

// newPairs returns the sweep of a pair of stores that has no records.
func newPairs(space string, from, to pairs.Store) (sweep.Sweep, error) {
	return pairs.New(
		pairs.Config{Pair: pairs.Pair{Account: mainAccount, Space: space, Source: source, Destination: destination}},
		pairs.Deps{Source: from, Destination: to, Rules: onePair{}, Records: noRecords{}})
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

// newCountingSweeper returns a Sweeper with the default configuration and without checkpoints of earlier rounds. It
// publishes nothing.
func newCountingSweeper() (*sweep.Sweeper, error) {
	return newSweeperTo(discard{})
}

func newSweeperTo(p schemas.Publisher) (*sweep.Sweeper, error) {
	return sweep.NewSweeper(sweep.SweeperConfig{}, sweep.SweeperDeps{
		Publisher: p, Log: slog.New(slog.DiscardHandler),
		Checkpoint: func(string, string) *pb.Checkpoint { return nil },
		CatchUp:    func(context.Context) error { return nil },
	})
}

// discard publishes nothing.
type discard struct{}

// Publish implements schemas.Publisher.
func (discard) Publish(context.Context, ...schemas.Message) error { return nil }

// generated is a store of one space, whose listing it makes as it goes: the items of clickhousebench.SpaceRows.
type generated struct {
	storage.Store
	items int
	other int // every so manyth item has another size; 0: none
	extra int // every so manyth item is followed by one that no record has; 0: none
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
	if s.other > 0 && n%s.other == s.other-1 {
		o.Size++
	}
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
			if s.extra == 0 || n%s.extra != s.extra-1 {
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
