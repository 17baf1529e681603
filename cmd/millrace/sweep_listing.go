package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/app"
	"github.com/millrace/millrace/cmd/millrace/progress"
	"github.com/millrace/millrace/cmd/millrace/usage"
	"github.com/millrace/millrace/streams/inventory"
	"github.com/millrace/millrace/streams/inventory/sorted"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// sweepListing are the flags of the listings that a round of the reconcile sweep compares.
type sweepListing struct {
	listingFlags
	files []string
	when  string
	made  time.Time // of when
}

func (l *sweepListing) register(c *cobra.Command) {
	l.listingFlags.register(c)
	for _, name := range listingFlagNames() {
		flag := c.Flags().Lookup(name)
		flag.Usage = "with --listing: " + flag.Usage
	}
	c.Flags().Lookup("strip").Usage = "with --listing: remove `PREFIX` from items (from paths: whole elements); " +
		"others are skipped"
	c.Flags().StringArrayVar(&l.files, "listing", nil,
		"reconcile: compare this `LISTING`, in a format of 'millrace import', instead of listing the store; may be repeated")
	c.Flags().StringVar(&l.when, "listing-time", "",
		"with --listing: the `TIME` at which they were made, as 2006-01-02T15:04:05Z; "+
			"default: that of the inventory or the file")
}

// checkListing validates the flags of listings.
func (f *sweepFlags) checkListing(c *cobra.Command, name string) (err error) {
	l := &f.listing
	given := slices.ContainsFunc(append(listingFlagNames(), "listing", "listing-time"), c.Flags().Changed)
	switch {
	case !given:
		return nil
	case len(l.files) == 0 || name != reconcile.Name:
		return fmt.Errorf("%w: listings are compared by sweep start reconcile, with --listing", usage.Err)
	case f.account == "" || f.store == "":
		return fmt.Errorf("%w: name the --account and --store that the listing is of", usage.Err)
	}
	if l.when != "" {
		if l.made, err = time.Parse(time.RFC3339, l.when); err != nil || l.made.After(time.Now()) {
			return fmt.Errorf("%w: --listing-time is a time in the past such as 2006-01-02T15:04:05Z, not %q", usage.Err,
				l.when)
		}
	}
	return l.check()
}

// read reads the listings; nil: there are none.
func (l *sweepListing) read(ctx context.Context, f *sweepFlags, e *engines) (*sorted.Listing, error) {
	if len(l.files) == 0 {
		return nil, nil
	}
	if err := app.RequireStore(e.cfg, app.StoreName{Account: f.account, Store: f.store}); err != nil {
		return nil, err
	}
	l.target.Account, l.target.Store, l.target.Space = f.account, f.store, f.space
	l.target.SkipOthers = true // a row about which nothing is concluded needs no fault
	c := sorted.Config{Made: l.made}
	var step, merge *progress.Step
	var total, read int64
	l.options.Progress = func(n int64) {
		if read += n; step != nil && read <= total {
			step.Set(read)
		}
	}
	for _, path := range l.files {
		in, err := l.openListing(path)
		if err == nil {
			_, err = in.Made() // after that, an S3 Inventory knows its size
		}
		if err != nil {
			return nil, classifyListingError(err)
		}
		total += in.Bytes()
		c.Listings = append(c.Listings, in)
	}
	c.Target, c.Merged = l.target, func(done, all int64) {
		if merge == nil {
			merge = e.display.Step("sort listing (rows)", all)
		}
		merge.Set(done)
	}
	read, step = 0, e.display.Step("read listing (bytes)", total)
	all, err := sorted.Read(ctx, c)
	step.End(err == nil)
	if merge != nil {
		merge.End(err == nil)
	}
	return all, classifyListingError(err)
}

// classifyListingError maps an unknown format to a usage error, and a fault or a damaged listing to a finding.
func classifyListingError(err error) error {
	var fault *inventory.Fault
	switch {
	case errors.Is(err, inventory.ErrFormat):
		return fmt.Errorf("%w: %w", usage.Err, err)
	case errors.As(err, &fault):
		return fmt.Errorf("%w: %w; nothing is compared; 'millrace import --dry-run' shows all faults", errFindings, err)
	case errors.Is(err, inventory.ErrInvalid):
		return fmt.Errorf("%w: %w; nothing is compared", errFindings, err)
	}
	return err
}

// reconcile runs a round of the reconcile sweep over the selected spaces. listed may be nil.
func (f *sweepFlags) reconcile(
	ctx context.Context, a *app.App, e *engines, listed *sorted.Listing, found func(int64),
) (all []app.SweptSpace, err error) {
	r := app.ReconcileRequest{SpacesRequest: f.spaces(found), Listing: listed}
	if listed != nil {
		step := e.display.Step("compare listing (items)", listed.Len())
		defer func() { step.End(err == nil) }()
		r.OnListed = step.Add
	}
	return a.SweepReconcile(ctx, r)
}

// reconciledListing are the findings of the reconcile sweep with a listing.
func reconciledListing() []countedItems {
	all := slices.Clone(reconciled)
	for i := range all {
		if all[i].key == string(reconcile.Missing) {
			all[i].text = "missing: a round without a listing looks again"
		}
	}
	return all
}
