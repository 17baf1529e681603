package app

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// reconcileSplits returns the splits of the periodic reconcile sweep: the spaces of all stores. The error names the
// stores whose spaces are unknown.
func (a *App) reconcileSplits(ctx context.Context, w sweeping, lists *spaceLists) (all []sweep.Split, err error) {
	for _, n := range a.stores.storeNames() {
		if a.sweepBlocked(w.controls, reconcile.Name, n)(ctx) != nil {
			continue
		}
		spaces, e := a.spacesOf(ctx, n, lists)
		err = errors.Join(err, e)
		for _, space := range spaces {
			m, e := a.reconcileSplit(w, schemas.Copy{Account: n.Account, Store: n.Store, Space: space})
			if e != nil {
				err = errors.Join(err, e)
				continue
			}
			m.Blocked = a.whileAnswering(n, m.Blocked)
			all = append(all, m)
		}
	}
	return all, err
}

// reconcileSplit returns the split of a space in a store.
func (a *App) reconcileSplit(w sweeping, space schemas.Copy) (sweep.Split, error) {
	n := StoreName{space.Account, space.Store}
	st, err := a.stores.configured(n)
	if err != nil {
		return sweep.Split{}, err
	}
	subject := incident.Subject{Account: space.Account, Store: space.Store, Space: space.Space,
		Kind: incident.ListingIncomplete}
	pages, err := reconcile.New(reconcile.Config{
		Space: space, ExternalWrites: st.cfg.ExternalWrites == "expected", ExternalWritesSince: st.since.externalWrites,
		Settle: a.cfg.Reconcile.Settle, AppearsWhole: st.cfg.Driver == "s3", MaxMissing: float64(a.cfg.Sweep.MaxMissing),
		Large: int64(a.cfg.Duplication.LargeThreshold),
	}, reconcile.Deps{
		Store: storage.ReadOnly(st), Rows: ManifestRows(a.db), Fresh: a.freshTables, Settle: w.Settle,
		OpenIncident: func(ctx context.Context, _ schemas.Copy, detail string) error {
			return w.board.Open(ctx, subject, detail)
		},
		CloseIncident: func(ctx context.Context, _ schemas.Copy, detail string) error {
			return w.board.Close(ctx, subject, detail)
		},
		DeclaredGone: func() bool { return !w.gone.Since(space.Account, space.Store, space.Space).IsZero() },
	})
	if err != nil {
		return sweep.Split{}, fmt.Errorf("reconcile %s: %w", space, err)
	}
	return sweep.Split{Sweep: reconcile.Name, Name: schemas.Key(space.Account, space.Store, space.Space),
		Account: space.Account, Pages: pages, Blocked: a.sweepBlocked(w.controls, reconcile.Name, n),
		Lag:    a.lagOf(schemas.RolePlanner, schemas.RoleChecker, schemas.RoleState),
		Report: func(r sweep.Result) *pb.Report { return reconcile.Report(space, r) }}, nil
}

// ManifestRows returns reconcile.Deps.Rows of a database.
func ManifestRows(db *clickhouse.DB) func(context.Context, schemas.Copy, string) iter.Seq2[reconcile.Row, error] {
	return func(ctx context.Context, of schemas.Copy, last string) iter.Seq2[reconcile.Row, error] {
		return func(yield func(reconcile.Row, error) bool) {
			stop := errors.New("stop")
			err := read.EachInSpace(ctx, db, of, last, func(c read.RecordedCopy) error {
				row := reconcile.Row{Item: c.Item, Live: c.Live, Time: c.Time, Size: c.Size, Version: c.Version, ETag: c.ETag,
					Passed: c.Passed}
				if c.Live && c.Version == "" && c.ETag == "" {
					row.Digests = digestsOf(c.Digests)
				}
				if !yield(row, nil) {
					return stop
				}
				return nil
			})
			if err != nil && !errors.Is(err, stop) {
				yield(reconcile.Row{}, err)
			}
		}
	}
}

// digestsOf parses digests in the form of read.StoredCopy.
func digestsOf(text string) digest.Set {
	set := digest.Set{}
	for _, f := range strings.Fields(text) {
		algorithm, value, _ := strings.Cut(f, ":")
		set[algorithm] = value
	}
	return set
}

// A ReconcileRequest selects spaces. Empty fields select all.
type ReconcileRequest struct {
	Account, Store, Space string
	// Begun identifies the rounds. OnEmitted is called with the number of findings after each page.
	Begun     time.Time
	OnEmitted func(n int64)
}

// A ReconciledSpace is the result for one space in a store.
type ReconciledSpace struct {
	Account, Store, Space string
	sweep.Result
}

// SweepReconcile runs one round of the reconcile sweep over each selected space, beside the periodic rounds. A round
// that an earlier call has left unfinished goes on.
func (a *App) SweepReconcile(ctx context.Context, r ReconcileRequest) (all []ReconciledSpace, err error) {
	var spaces []schemas.Copy
	for _, n := range a.stores.storeNames() {
		if r.Account != "" && n.Account != r.Account || r.Store != "" && n.Store != r.Store {
			continue
		}
		names, err := a.spacesOf(ctx, n, newSpaceLists())
		if err != nil {
			return nil, err
		}
		for _, space := range names {
			if r.Space == "" || r.Space == space {
				spaces = append(spaces, schemas.Copy{Account: n.Account, Store: n.Store, Space: space})
			}
		}
	}
	if len(spaces) == 0 {
		return nil, fmt.Errorf("%w: there is no such space: see 'millrace space list' and 'millrace store list'",
			precondition.Err)
	}
	err = a.inCommand(ctx, func(ctx context.Context, w sweeping) error {
		return byHand(ctx, w, spaces, func(space schemas.Copy) (sweep.Split, error) {
			m, err := a.reconcileSplit(w, space)
			m.Start, m.OnEmitted = r.Begun, r.OnEmitted
			return m, err
		}, func(at schemas.Copy, result sweep.Result) {
			all = append(all, ReconciledSpace{at.Account, at.Store, at.Space, result})
		})
	})
	slices.SortFunc(all, func(a, b ReconciledSpace) int {
		return strings.Compare(schemas.Key(a.Account, a.Store, a.Space), schemas.Key(b.Account, b.Store, b.Space))
	})
	return all, err
}
