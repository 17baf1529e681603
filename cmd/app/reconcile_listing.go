package app

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// sweep returns the sweep of a request.
func (r *ReconcileRequest) sweep(a *App, w sweeping) spaceSweep {
	s := a.reconcileSweep(w, newSpaceLists())
	if r.Listing != nil {
		of := s.spaces
		s.spaces = func(ctx context.Context, n StoreName) ([]string, error) {
			names, err := of(ctx, n)
			if err != nil {
				return nil, err
			}
			return r.spaces(n, names)
		}
	}
	s.split = func(space schemas.Copy, items func(string) bool) (m sweep.Split, err error) {
		l := r.listingOf(space.Space)
		if m, err = a.reconcileSplit(w, space, items, l); err != nil {
			return m, err
		}
		m.Anew, err = beganOtherwise(w.known.of(reconcile.Name+demand, m.Name), l)
		return m, err
	}
	return s
}

// spaces returns the spaces of the listing. names are those of the store.
func (r *ReconcileRequest) spaces(n StoreName, names []string) ([]string, error) {
	for _, space := range r.Listing.Spaces() {
		if !slices.Contains(names, space) {
			return nil, fmt.Errorf("%w: the listing has items of space %q, and store %s/%s has no such space; "+
				"say with --space which it is", precondition.Err, space, n.Account, n.Store)
		}
	}
	return r.Listing.Spaces(), nil
}

// listingOf returns the part of the listing that is of a space; nil if there is no listing.
func (r *ReconcileRequest) listingOf(space string) *reconcile.Listing {
	if r.Listing == nil {
		return nil
	}
	items := func(_ context.Context, after string) iter.Seq2[storage.Object, error] {
		return func(yield func(storage.Object, error) bool) {
			for i, err := range r.Listing.Items(space, after) {
				if r.OnListed != nil {
					r.OnListed(1)
				}
				o := storage.Object{Item: i.Name, Size: i.Size, Modified: i.Time, Version: i.Version, ETag: i.ETag,
					Digests: i.Digests}
				if !yield(o, err) {
					return
				}
			}
		}
	}
	return &reconcile.Listing{ID: r.Listing.ID(), Time: r.Listing.Made(), Items: items}
}

// beganOtherwise reports whether the unfinished round of a checkpoint began with another listing than l; nil is the
// listing of the store. Such a round does not go on.
func beganOtherwise(last *pb.Checkpoint, l *reconcile.Listing) (bool, error) {
	if last == nil || last.GetFinished() != nil {
		return false, nil
	}
	began, err := reconcile.ListingOf(last.GetCursor())
	if l == nil {
		return began != "", err
	}
	return began != l.ID, err
}
