package app

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/inventory/sorted"
	"github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// reconcileSweep returns the sweep over the spaces of all stores.
func (a *App) reconcileSweep(w sweeping, lists *spaceLists) spaceSweep {
	return spaceSweep{reconcile.Name,
		func(ctx context.Context, n StoreName) ([]string, error) { return a.spacesOf(ctx, n, lists) }, nil,
		func(space schemas.Copy, items func(string) bool) (sweep.Split, error) {
			return a.reconcileSplit(w, space, items, nil)
		}}
}

// reconcileSplit returns the split of a space in a store. items reports whether an item is compared; nil: all are. l is
// compared in place of the listing of the store; nil: the store lists the space.
func (a *App) reconcileSplit(
	w sweeping, space schemas.Copy, items func(string) bool, l *reconcile.Listing,
) (sweep.Split, error) {
	n := StoreName{space.Account, space.Store}
	st, err := a.stores.configured(n)
	if err != nil {
		return sweep.Split{}, err
	}
	subject := incident.Subject{Account: space.Account, Store: space.Store, Space: space.Space,
		Kind: incident.ListingIncomplete}
	opened, closed := w.report(w.board.Open, subject), w.report(w.board.Close, subject)
	pages, err := reconcile.New(reconcile.Config{
		Space: space, ExternalWrites: st.cfg.ExternalWrites == "expected", ExternalWritesSince: st.since.externalWrites,
		Approves: func(modified time.Time) bool {
			rules, ok := w.rules.Rules(space.Account, space.Space)
			return ok && !plan.IsDestination(rules, space.Store) && st.cfg.Corrections == "auto" &&
				!modified.Before(st.since.corrections)
		},
		Settle: a.cfg.Reconcile.Settle, AppearsWhole: st.cfg.Driver == "s3", MaxMissing: float64(a.cfg.Sweep.MaxMissing),
		Large: int64(a.cfg.Duplication.LargeThreshold), Items: items,
		Request: w.known.reconcileRequest(n),
	}, reconcile.Deps{
		Store: storage.ReadOnly(st), Listing: l, Rows: ManifestRows(a.db, l != nil), Fresh: a.freshTables, Settle: w.Settle,
		OpenIncident:  func(ctx context.Context, _ schemas.Copy, detail string) error { return opened(ctx, detail) },
		CloseIncident: func(ctx context.Context, _ schemas.Copy, detail string) error { return closed(ctx, detail) },
		DeclaredGone:  func() bool { return !w.gone.Since(space.Account, space.Store, space.Space).IsZero() },
	})
	if err != nil {
		return sweep.Split{}, fmt.Errorf("reconcile %s: %w", space, err)
	}
	return sweep.Split{Sweep: reconcile.Name, Name: schemas.Key(space.Account, space.Store, space.Space),
		Account: space.Account, Pages: pages, Ahead: true, Blocked: a.storeBlocked(w.controls, reconcile.Name, n),
		Lag: a.reconcileLag, Carry: reconcile.Skipped,
		Report: func(r sweep.Result) *pb.Report { return reconcile.Report(space, l, r) }}, nil
}

// reconcileRequest returns the id of the newest request of rounds over a store; "" if there is none.
func (c *checkpoints) reconcileRequest(n StoreName) string {
	return c.of(reconcile.Requests, schemas.Key(n.Account, n.Store)).GetRound()
}

// isReconcileRequested reports whether a round of a split was requested beside the schedule.
func (c *checkpoints) isReconcileRequested(name, split string) bool {
	at := schemas.SplitKey(split)
	return reconcile.IsRequested(c.of(name, split), c.reconcileRequest(StoreName{at[0], at[1]}))
}

// reconcileLag returns the number of Changes that planner or state has not handled, and of tasks that the checker has
// not. Those of the planner count twice, since a Change of a client waits behind them.
func (a *App) reconcileLag(ctx context.Context) (int64, error) {
	lag, err := a.admin.Lag(ctx, schemas.RolePlanner, schemas.RoleState, schemas.RoleChecker)
	return max(2*lag[schemas.RolePlanner], lag[schemas.RoleState]) + lag[schemas.RoleChecker], err
}

// ManifestRows returns reconcile.Deps.Rows of a database. With digests the rows have them even if they have a version:
// listings may have none.
func ManifestRows(
	db *clickhouse.DB, digests bool,
) func(context.Context, schemas.Copy, string) iter.Seq2[reconcile.Row, error] {
	return func(ctx context.Context, of schemas.Copy, last string) iter.Seq2[reconcile.Row, error] {
		return func(yield func(reconcile.Row, error) bool) {
			stop := errors.New("stop")
			err := read.EachInSpace(ctx, db, of, last, func(c read.RecordedCopy) error {
				row := reconcile.Row{Item: c.Item, Live: c.Live, Inferred: c.Inferred, Time: c.Time, Size: c.Size,
					Version: c.Version, ETag: c.ETag, Passed: c.Passed}
				if !c.Live {
					row.Size = -1
				}
				if c.Live && (digests || c.Version == "" && c.ETag == "") {
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

// A ReconcileRequest selects the spaces of rounds of the reconcile sweep.
type ReconcileRequest struct {
	SpacesRequest
	// Listing has the copies of Account and Store, which are not empty then, and is compared in place of the listings of
	// the store. The selected spaces are those that it has. nil: the stores list their spaces.
	Listing *sorted.Listing
	// OnListed is called with the number of items that were read of Listing, some more than once; nil: not called.
	OnListed func(n int64)
}

// SweepReconcile runs one round of the reconcile sweep over each selected space, beside the periodic rounds. A round
// that an earlier call has left unfinished goes on, unless it began with another listing.
func (a *App) SweepReconcile(ctx context.Context, r ReconcileRequest) ([]SweptSpace, error) {
	return a.sweepSpaces(ctx, r.SpacesRequest, func(w sweeping) spaceSweep { return r.sweep(a, w) })
}
