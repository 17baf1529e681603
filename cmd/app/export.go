package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/extract"
	"github.com/millrace/millrace/streams/restore"
	"github.com/millrace/millrace/streams/storage"
)

// filesAtOnce is the number of files that an export writes at once.
const filesAtOnce = 16

// An ItemsRequest selects contents that leave the stores.
type ItemsRequest struct {
	Account, Space string
	Item           string // of ExportItems: the beginning of the ids of all items; it may be empty
	// At selects the content of a time, Version the one of a Change or of a version of the store. Without them it is the
	// present one.
	At      time.Time
	Version string
	// Store is the store whose content it is; empty: the source store. The bytes may come from any store.
	Store string
}

// An ExportedItem is what became of an item.
type ExportedItem struct {
	Item string `json:"item"`
	extract.Outcome
}

// An ExportReport is the result of ExportItems.
type ExportReport struct {
	Source   string `json:"source"` // the store whose content it is
	Exported int64  `json:"exported"`
	Present  int64  `json:"present"` // these files were there already, with the right bytes
	Lacking  int64  `json:"lacking"` // no good copy
	Differ   int64  `json:"differ"`  // other files or directories were in the way, and are left
	Unnamed  int64  `json:"unnamed"` // names that cannot be files
	Bytes    int64  `json:"bytes"`   // exported
	// BadCopies counts the copies of these items that have not given the bytes.
	BadCopies map[extract.State]int64 `json:"bad_copies"`
	Items     []ExportedItem          `json:"items"` // that were not exported, or have bad copies
	More      int64                   `json:"more"`  // items that are not listed

	Ended int64 `json:"-"` // items with a result

	mu       sync.Mutex // guards the fields above during the export
	selected int64
	progress func(ended, items int64) // nil: none
}

// Complete reports whether every content is a file now, but those whose names cannot be.
func (r *ExportReport) Complete() bool { return r.Lacking == 0 && r.Differ == 0 }

// add counts an item.
func (r *ExportReport) add(item string, o extract.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch o.Result {
	case extract.Exported:
		r.Exported++
	case extract.Present:
		r.Present++
	case extract.Differs:
		r.Differ++
	case extract.Unnamed:
		r.Unnamed++
	case extract.Lacking:
		r.Lacking++
	}
	r.Ended++
	r.Bytes += o.Bytes
	for _, f := range o.Faults {
		r.BadCopies[f.State]++
	}
	switch {
	case o.Result == extract.Present, o.Result == extract.Exported && len(o.Faults) == 0:
	case len(r.Items) == maxProblems:
		r.More++
	default:
		r.Items = append(r.Items, ExportedItem{item, o})
	}
	if r.progress != nil {
		r.progress(r.Ended, r.selected)
	}
}

// ExportItems writes the contents of items as files below a directory, which it makes if it is absent. The same export
// again writes only files that are missing. It needs running sinks: it waits until the tables have all changes.
// progress, if not nil, is called for each item with the number of those that have ended, and about that of all on
// record.
func (a *App) ExportItems(
	ctx context.Context, r ItemsRequest, dir string, progress func(ended, items int64),
) (report *ExportReport, err error) {
	report = &ExportReport{BadCopies: map[extract.State]int64{}, Items: []ExportedItem{}, progress: progress}
	x, err := a.exporter(ctx, r)
	if err != nil {
		return report, err
	}
	report.Source = x.source
	q := read.ItemQuery{Account: r.Account, Space: r.Space, Prefix: r.Item, Limit: restorePage}
	if report.selected, err = a.selected(ctx, q); err != nil {
		return report, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return report, err
	}
	to, err := extract.OpenDir(dir)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, to.Sync(), to.Close()) }()
	for {
		ids, err := read.Items(ctx, a.db, q)
		if err != nil || len(ids) == 0 {
			return report, err
		}
		if err := x.page(ctx, ids, to, report); err != nil {
			return report, err
		}
		q.After = ids[len(ids)-1]
	}
}

// GetItem passes the content of one item, and the places that may have its bytes, to write: at first the copies that
// have it on record, and all others if these lack it.
func (a *App) GetItem(
	ctx context.Context, r ItemsRequest, write func(extract.Content, []extract.Place) (extract.Outcome, error),
) (o extract.Outcome, err error) {
	x, err := a.exporter(ctx, r)
	if err != nil {
		return o, err
	}
	items, err := x.records(ctx, []string{r.Item})
	if err != nil {
		return o, err
	}
	item, name := items[0], schemas.Key(r.Account, r.Space, r.Item)
	content := item.At(x.source, x.at)
	switch {
	case len(item.Changes) == 0:
		return o, fmt.Errorf("%w: there are no records of item %s", precondition.Err, name)
	case r.Version != "":
		if content, err = findContent(item, x.source, r.Version); err != nil {
			return o, err
		}
	case content == nil:
		return o, fmt.Errorf("%w: store %s has no item %s, or had none then: see 'millrace object versions', and name a"+
			" content with --at or --version", precondition.Err, x.source, name)
	}
	e := &exporting{item: item, content: content}
	to := func(_ context.Context, _ *exporting, from []extract.Place) (extract.Outcome, error) {
		return write(e.expected(), from)
	}
	err = x.write(ctx, []*exporting{e}, to, func(*exporting) {})
	return e.outcome, err
}

// An exporter reads contents.
type exporter struct {
	holdings
	source string
	at     time.Time
}

func (a *App) exporter(ctx context.Context, r ItemsRequest) (*exporter, error) {
	source, _, err := a.restoredStores(ctx, RestoreRequest{Account: r.Account, Space: r.Space, Store: r.Store})
	if err != nil {
		return nil, err
	}
	x := &exporter{holdings{a.stores, a.db, r.Account, r.Space}, source, r.At}
	if x.at.IsZero() {
		x.at = time.Unix(1<<40, 0)
	}
	return x, a.freshTables(ctx)
}

// An exporting is a content that leaves the stores.
type exporting struct {
	item    *restore.Item
	content *pb.Change
	outcome extract.Outcome
}

// expected returns what the bytes have to be.
func (e *exporting) expected() extract.Content {
	c := extract.Content{Digests: e.item.Expected(e.content), Size: e.content.GetSize(), Modified: e.item.Date(e.content)}
	if e.content.GetSizeUnknown() {
		c.Size = storage.UnknownSize
	}
	return c
}

// mayBeElsewhere reports whether other places than the copies on record have to be tried.
func (e *exporting) mayBeElsewhere() bool {
	c := e.expected()
	return e.outcome.Result == extract.Lacking && e.outcome.Bytes == 0 && c.Verifiable()
}

// page exports some items, which are in the order of their ids.
func (x *exporter) page(ctx context.Context, ids []string, to *extract.Dir, report *ExportReport) error {
	items, err := x.records(ctx, ids)
	if err != nil {
		return err
	}
	var all []*exporting
	for _, item := range items {
		if c := item.At(x.source, x.at); c != nil {
			all = append(all, &exporting{item: item, content: c})
		}
	}
	err = x.write(ctx, all, func(ctx context.Context, e *exporting, from []extract.Place) (extract.Outcome, error) {
		return to.Extract(ctx, e.item.ID, e.expected(), from)
	}, func(e *exporting) { report.add(e.item.ID, e.outcome) })
	return errors.Join(err, to.Sync())
}

// write passes contents to write with the copies that have them on record, and those that these lack with all other
// places. ended is called for each content with its outcome.
func (x *exporter) write(
	ctx context.Context, all []*exporting,
	write func(context.Context, *exporting, []extract.Place) (extract.Outcome, error), ended func(*exporting),
) error {
	err := eachExporting(ctx, all, func(ctx context.Context, e *exporting) (err error) {
		e.outcome, err = write(ctx, e, x.holders(e))
		if err == nil && !e.mayBeElsewhere() {
			ended(e)
		}
		return err
	})
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(all, func(e *exporting) bool { return !e.mayBeElsewhere() })
	if len(left) == 0 {
		return nil
	}
	if err := x.observe(ctx, left); err != nil {
		return err
	}
	return eachExporting(ctx, left, func(ctx context.Context, e *exporting) (err error) {
		places, unknown := x.elsewhere(e)
		if before := e.outcome.Faults; len(places) > 0 {
			e.outcome, err = write(ctx, e, places)
			e.outcome.Faults = append(before, e.outcome.Faults...)
		}
		if e.outcome.Result == extract.Lacking {
			e.outcome.AddUnknown(unknown)
		}
		if err == nil {
			ended(e)
		}
		return err
	})
}

// eachExporting calls do for several at once. It stops at the first error.
func eachExporting(ctx context.Context, all []*exporting, do func(context.Context, *exporting) error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(filesAtOnce)
	for _, e := range all {
		g.Go(func() error { return do(gctx, e) })
	}
	err := g.Wait()
	return cmp.Or(ctx.Err(), err)
}

// holders returns the copies that have a content on record.
func (x *exporter) holders(e *exporting) (places []extract.Place) {
	for _, id := range e.item.Holders(e.content) {
		places = append(places, x.place(e, &pb.RestoreSource{Store: id}))
	}
	return places
}

// observe reads what the stores hold and keep of items whose copies on record have not given the bytes.
func (x *exporter) observe(ctx context.Context, left []*exporting) error {
	items := make([]*restore.Item, len(left))
	for i, e := range left {
		items[i] = e.item
	}
	return cmp.Or(x.looks(ctx, items), x.kept(ctx, items))
}

// elsewhere returns the places besides the copies on record, and the stores that may have more.
func (x *exporter) elsewhere(e *exporting) (places []extract.Place, unknown map[string]error) {
	sure, guessed, unknown := e.item.Elsewhere(e.content)
	for _, s := range append(sure, guessed...) {
		p := x.place(e, s)
		p.Guessed = len(places) >= len(sure)
		places = append(places, p)
	}
	return places, unknown
}

// place returns a place that opens bytes. An absence counts only if the marker could be read after it.
func (x *exporter) place(e *exporting, s *pb.RestoreSource) extract.Place {
	p := extract.Place{Store: s.GetStore(), Kept: s.GetKept()}
	p.Open = func(ctx context.Context) (r io.ReadCloser, err error) {
		st, err := x.stores.configured(StoreName{x.account, p.Store})
		switch {
		case err != nil:
			return nil, err
		case p.Kept != "":
			r, _, err = storage.OpenKept(ctx, st, storage.KeptRef{Space: x.space, Item: e.item.ID, ID: p.Kept})
		default:
			r, _, err = st.Open(ctx, x.space, e.item.ID, "")
		}
		if absent(err) {
			if err := st.Marker(ctx); err != nil {
				return nil, fmt.Errorf("confirm that the item is absent: %w", err)
			}
		}
		return r, err
	}
	return p
}
