package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/filter"
)

// A spaceSweep is a sweep whose splits are spaces in stores.
type spaceSweep struct {
	name   string
	spaces func(context.Context, StoreName) ([]string, error)
	// open reports whether the rounds over a store may go on now; nil: they may.
	open func(StoreName) bool
	// split returns the split of a space. items reports whether an item is looked at; nil: all are.
	split func(space schemas.Copy, items func(string) bool) (sweep.Split, error)
}

// spaceSplits returns what returns the splits of a periodic sweep. Its error names the stores whose spaces are unknown.
func (a *App) spaceSplits(w sweeping, s spaceSweep) func(context.Context) ([]sweep.Split, error) {
	return func(ctx context.Context) (all []sweep.Split, err error) {
		selected := a.filter(s.name)
		for _, n := range a.stores.storeNames() {
			blocked := a.sweepBlocked(w.controls, s.name, n)
			if blocked(ctx) != nil {
				continue
			}
			spaces, e := s.spaces(ctx, n)
			err = errors.Join(err, e)
			for _, space := range spaces {
				if !selected.Selects(n.Account, n.Store, space) {
					continue
				}
				m, e := s.split(schemas.Copy{Account: n.Account, Store: n.Store, Space: space},
					selected.Items(n.Account, n.Store, space))
				if e != nil {
					err = errors.Join(err, e)
					continue
				}
				m.Blocked = a.whileAnswering(n, s.whileOpen(n, blocked))
				all = append(all, m)
			}
		}
		return all, err
	}
}

// whileOpen returns blocked, or that the rounds over a store must wait.
func (s spaceSweep) whileOpen(n StoreName, blocked func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := blocked(ctx); err != nil {
			return err
		}
		if s.open != nil && !s.open(n) {
			return sweep.ErrNotNow
		}
		return nil
	}
}

// A SpacesRequest selects the spaces of rounds by hand. Empty fields select all. Of a pair, Store is the source or the
// destination.
type SpacesRequest struct {
	Account, Store, Space string
	// Filter selects spaces, and items in them, of a pair at both stores. A round over some items has no checkpoint and no
	// report.
	Filter filter.Filter
	// Begun identifies the rounds. OnEmitted is called with the number of findings, or commands, after each page.
	Begun     time.Time
	OnEmitted func(n int64)
	// DryRun compares, and publishes nothing.
	DryRun bool
}

// A SweptSpace is the result for one space in a store, for one space of a pair or, of the stats sweep, for an account.
type SweptSpace struct {
	schemas.Copy        // of a pair at the source
	Destination  string // of a pair
	sweep.Result
}

// sweepSpaces runs one round over each selected space, beside the periodic rounds. A round that an earlier call has
// left unfinished goes on. with returns the sweep of a command.
func (a *App) sweepSpaces(
	ctx context.Context, r SpacesRequest, with func(sweeping) spaceSweep,
) (all []SweptSpace, err error) {
	var spaces []schemas.Copy
	for _, n := range a.stores.storeNames() {
		if r.Account != "" && n.Account != r.Account || r.Store != "" && n.Store != r.Store {
			continue
		}
		names, err := with(sweeping{}).spaces(ctx, n)
		if err != nil {
			return nil, err
		}
		for _, space := range names {
			if (r.Space == "" || r.Space == space) && r.Filter.Selects(n.Account, n.Store, space) {
				spaces = append(spaces, schemas.Copy{Account: n.Account, Store: n.Store, Space: space})
			}
		}
	}
	if len(spaces) == 0 {
		return nil, fmt.Errorf("%w: there is no such space: see 'millrace space list' and 'millrace store list'",
			precondition.Err)
	}
	err = a.inCommand(ctx, r.DryRun, func(ctx context.Context, w sweeping) error {
		if err := w.known.Table.CatchUp(ctx); err != nil {
			return err
		}
		return byHand(ctx, w, spaces, func(space schemas.Copy) (sweep.Split, bool, error) {
			items := r.Filter.Items(space.Account, space.Store, space.Space)
			m, err := with(w).split(space, items)
			m.Start, m.OnEmitted = r.Begun, r.OnEmitted
			return m, items != nil, err
		}, func(at schemas.Copy, result sweep.Result) {
			all = append(all, SweptSpace{Copy: at, Result: result})
		})
	})
	slices.SortFunc(all, func(a, b SweptSpace) int {
		return strings.Compare(schemas.Key(a.Account, a.Store, a.Space), schemas.Key(b.Account, b.Store, b.Space))
	})
	return all, err
}

// spaceLists remembers the spaces of stores for a while, since listing them may take long.
type spaceLists struct {
	mu      sync.Mutex // guards byStore
	byStore map[StoreName]spaceList
}

type spaceList struct {
	at     time.Time
	spaces []string
}

// spaceListTimeout bounds the listing of the spaces of a store.
const spaceListTimeout = time.Minute

// spaceListAge is how long the spaces of a store are remembered.
const spaceListAge = 5 * time.Minute

func newSpaceLists() *spaceLists { return &spaceLists{byStore: map[StoreName]spaceList{}} }

// of returns the spaces of a store that find returns, or has returned lately.
func (l *spaceLists) of(n StoreName, find func() ([]string, error)) ([]string, error) {
	l.mu.Lock()
	known, ok := l.byStore[n]
	l.mu.Unlock()
	if ok && time.Since(known.at) < spaceListAge {
		return known.spaces, nil
	}
	spaces, err := find()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.byStore[n] = spaceList{time.Now(), spaces}
	l.mu.Unlock()
	return spaces, nil
}

// spacesOf returns the spaces that a store has, and those that it has according to the records.
func (a *App) spacesOf(ctx context.Context, n StoreName, l *spaceLists) (spaces []string, err error) {
	return l.of(n, func() ([]string, error) { return a.findSpaces(ctx, n) })
}

func (a *App) findSpaces(ctx context.Context, n StoreName) (spaces []string, err error) {
	if spaces, err = read.SpacesOnRecord(ctx, a.db, n.Account, n.Store); err != nil {
		return nil, err
	}
	st, err := a.stores.configured(n)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, spaceListTimeout, fmt.Errorf("no answer within %s", spaceListTimeout))
	defer cancel()
	for space, err := range st.Spaces(ctx) {
		if err != nil {
			return nil, fmt.Errorf("list the spaces of store %s/%s: %w", n.Account, n.Store, err)
		}
		spaces = append(spaces, space)
		retry.Alive(ctx)
	}
	slices.Sort(spaces)
	return slices.Compact(spaces), nil
}
