package app

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/restore"
)

// ActionRestore is the action of an operator who restores items.
const ActionRestore = "restore"

const (
	// restorePage is the number of items that are in memory at once. A file store scans all that it keeps once for each
	// page.
	restorePage = 5000
	// maxProblems bounds the copies that a report names.
	maxProblems = 1000
	// ordersAtOnce is the number of orders that are published at once.
	ordersAtOnce = 500
)

// A RestoreRequest selects items, and the content that they get back.
type RestoreRequest struct {
	Account, Space string
	// Item is the item, or with Prefix the beginning of the ids of all items; it may then be empty.
	Item   string
	Prefix bool
	// At selects the content of a time, Version the one of a Change or of a version of the store. Without them, the one
	// that was deleted.
	At      time.Time
	Version string
	// Store is the store whose content and copy it is about; empty: the content of the source store, and the copies in
	// all stores of the policy.
	Store  string
	By     Actor
	DryRun bool
	lost   *read.Lost // selects the items; nil: all
	// Progress, if not nil, is called after each page of items.
	Progress func(RestoreReport)
}

// A RestoreReport is the result of Restore.
type RestoreReport struct {
	Action  string                    `json:"action"` // its id, which is the cause of the orders
	Source  string                    `json:"source"` // the store whose content it is
	Stores  []string                  `json:"stores"` // those that get it
	Items   int64                     `json:"items"`
	Copies  map[restore.Verdict]int64 `json:"copies"` // copies of these items, by verdict
	Choices []restore.Choice          `json:"choices"`
	More    int64                     `json:"more"` // choices that are not listed
	// Time is when this run began, which is the time of its orders.
	Time time.Time `json:"-"`
	// Selected is about the number of items that a request with Prefix selects.
	Selected int64 `json:"-"`
}

// Lacking returns the number of copies for which there is no proven content, or whose state is unknown.
func (r *RestoreReport) Lacking() int64 {
	return r.Copies[restore.Unproven] + r.Copies[restore.NoBytes] + r.Copies[restore.Unknown]
}

// id returns the id of the action: the same for the same request, so that a command that is repeated orders each copy
// once.
func (r *RestoreRequest) id() string {
	return schemas.ID("object-restore", r.Account, r.Space, r.Item, strconv.FormatBool(r.Prefix), r.what(), r.Store)
}

// what says which content comes back.
func (r *RestoreRequest) what() string {
	switch {
	case r.lost != nil:
		return fmt.Sprintf("lost after %s until %s", r.lost.From.Format(time.RFC3339), r.lost.Until.Format(time.RFC3339Nano))
	case !r.At.IsZero():
		return "at " + r.At.UTC().Format(time.RFC3339Nano)
	case r.Version != "":
		return "version " + r.Version
	}
	return "deleted"
}

// Restore publishes orders to restore items: one for each copy that does not have the content already. It names only
// content that the audit log proves, and places that may have its bytes; the copier reads them again, and writes only
// if the copy has not changed since. If one copy could not be restored, or not for long, it publishes none, and returns
// why: see restore.Targets. Restore needs running sinks: it waits until the tables have all changes.
func (a *App) Restore(ctx context.Context, r RestoreRequest) (report RestoreReport, err error) {
	report = RestoreReport{Action: r.id(), Copies: map[restore.Verdict]int64{}, Choices: []restore.Choice{},
		Time: time.Now().UTC().Truncate(time.Millisecond)}
	var targets restore.Targets
	if report.Source, targets, err = a.restoredStores(ctx, r); err != nil {
		return report, err
	}
	report.Stores = targets.Stores
	if err := a.freshTables(ctx); err != nil {
		return report, err
	}
	if !r.DryRun && targets.MayRefuse() {
		dry := r
		dry.DryRun, dry.Progress = true, nil
		if _, err := a.Restore(ctx, dry); err != nil {
			return report, err
		}
	}
	w := &restoration{app: a, request: r, report: &report, targets: targets, refused: map[string]restore.Choice{},
		from: holdings{a.stores, a.db, r.Account, r.Space},
		action: restore.Action{ID: report.Action, Who: r.By.Who, Why: r.By.Reason,
			Time: report.Time, Priority: pb.Priority_PRIORITY_HIGH}}
	if !r.Prefix {
		return report, cmp.Or(w.page(ctx, []string{r.Item}), w.refusal())
	}
	w.action.Priority = pb.Priority_PRIORITY_LOW
	q := read.ItemQuery{Account: r.Account, Space: r.Space, Prefix: r.Item, Lost: r.lost, Limit: restorePage}
	if report.Selected, err = a.selected(ctx, q); err != nil {
		return report, err
	}
	for {
		items, err := read.Items(ctx, a.db, q)
		if err != nil || len(items) == 0 {
			return report, cmp.Or(err, w.refusal())
		}
		if err := w.page(ctx, items); err != nil {
			return report, err
		}
		if r.Progress != nil {
			r.Progress(report)
		}
		q.After = items[len(items)-1]
	}
}

// selected returns about the number of items with a prefix, of which there must be some unless lost ones are selected.
func (a *App) selected(ctx context.Context, q read.ItemQuery) (n int64, err error) {
	if n, err = read.EstimateItems(ctx, a.db, q); err == nil && n == 0 && q.Lost == nil {
		err = fmt.Errorf("%w: no items with the prefix %s are on record", precondition.Err,
			schemas.Key(q.Account, q.Space, q.Prefix))
	}
	return n, err
}

// restoredStores returns the store whose content is restored, and the stores that get it.
func (a *App) restoredStores(ctx context.Context, r RestoreRequest) (source string, t restore.Targets, err error) {
	if r.Store != "" {
		if _, err := a.stores.configured(StoreName{r.Account, r.Store}); err != nil {
			return "", t, err
		}
	}
	registry := policy.NewRegistry(a.stores.IDs)
	err = a.readTable(ctx, schemas.Policies, applyTo(registry), func(context.Context) error { return nil })
	if err != nil {
		return "", t, fmt.Errorf("read the policies: %w", err)
	}
	rules, _ := registry.Rules(r.Account, r.Space)
	t = restore.Targets{Stores: []string{r.Store}, Pairs: rules.Pairs,
		Refuses: func(store string) string { return a.stores.refusesRestores(r.Account, store) }}
	if r.Store != "" {
		return r.Store, t, nil
	}
	if source, t.Stores = storesOf(rules.Pairs); source == "" {
		return "", t, fmt.Errorf("%w: the policy of account %q does not name one source store of space %q: name a store"+
			" with --store", precondition.Err, r.Account, r.Space)
	}
	return source, t, nil
}

// storesOf returns the store from which all others get their copies, and all stores, it first. It returns none if there
// are several such stores.
func storesOf(pairs []policy.Pair) (source string, stores []string) {
	for _, p := range pairs {
		first := !slices.ContainsFunc(pairs, func(o policy.Pair) bool { return o.Destination == p.Source })
		if first && source != "" && source != p.Source {
			return "", nil
		}
		if first {
			source = p.Source
		}
	}
	stores = []string{source}
	for _, p := range pairs {
		if !slices.Contains(stores, p.Destination) {
			stores = append(stores, p.Destination)
		}
	}
	return source, stores
}

// freshTables returns when the tables have all changes that were published before the call.
func (a *App) freshTables(ctx context.Context) error {
	wait, cancel := context.WithTimeoutCause(ctx, a.cfg.Fixity.FreshWait, fmt.Errorf(
		"%w: the tables do not have all changes after %s: is role sink running?", precondition.Err, a.cfg.Fixity.FreshWait))
	defer cancel()
	committed, err := a.watermark.Wait(wait)
	if err != nil {
		if wait.Err() != nil && ctx.Err() == nil {
			err = cmp.Or(context.Cause(wait), err)
		}
		return err
	}
	return checkGaps(ctx, a.db, committed)
}

// A restoration is the work of one Restore.
type restoration struct {
	app     *App
	request RestoreRequest
	report  *RestoreReport
	targets restore.Targets
	from    holdings
	action  restore.Action

	recorded bool                      // the action is published
	refused  map[string]restore.Choice // by store: the first copy that is refused
}

// refusal returns why nothing may be ordered; nil if something may be.
func (w *restoration) refusal() error {
	if len(w.refused) == 0 {
		return nil
	}
	var why []string
	for _, store := range slices.Sorted(maps.Keys(w.refused)) {
		c := w.refused[store]
		why = append(why, fmt.Sprintf("store %s: %s: %q", store, c.Detail, c.Item))
	}
	r := w.request
	return fmt.Errorf("%w: nothing is restored: %s: %s", precondition.Err, strings.Join(why, "; "),
		exportHint(r.Account+"/"+r.Space+"/"+r.Item, r.At))
}

// exportHint says how content gets out that cannot be restored.
func exportHint(of string, at time.Time) string {
	when := "TIME"
	if !at.IsZero() {
		when = at.UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprintf("'millrace object export %q DIR --at %s' writes it to a directory", of, when)
}

// page restores some items, which are in the order of their ids.
func (w *restoration) page(ctx context.Context, ids []string) error {
	items, err := w.from.items(ctx, ids)
	if err != nil {
		return err
	}
	contents := make([]*pb.Change, len(items))
	var needed []*restore.Item // of these the kept bytes matter
	for i, item := range items {
		if contents[i], err = w.content(item); err != nil {
			return err
		}
		if w.lacks(item, contents[i]) {
			needed = append(needed, item)
		}
	}
	if err := w.from.kept(ctx, needed); err != nil {
		return err
	}
	var orders []schemas.Message
	for i, item := range items {
		w.report.Items++
		for _, store := range w.report.Stores {
			c := w.targets.Choose(item, store, contents[i])
			if w.add(c); c.Verdict == restore.Ordered {
				orders = append(orders, w.message(item, c))
			}
		}
	}
	return w.publish(ctx, orders)
}

// content returns the content that an item gets back; nil: none.
func (w *restoration) content(item *restore.Item) (*pb.Change, error) {
	r, source := w.request, w.report.Source
	name := schemas.Key(r.Account, r.Space, item.ID)
	switch {
	case len(item.Changes) == 0 && r.Prefix: // only its properties are on record
		return nil, nil
	case len(item.Changes) == 0:
		return nil, fmt.Errorf("%w: there are no records of item %s", precondition.Err, name)
	case r.lost != nil:
		return item.Lost(source, r.lost.From, r.lost.Until), nil
	case !r.At.IsZero():
		return item.At(source, r.At), nil
	case r.Version != "":
		return findContent(item, source, r.Version)
	}
	if item.At(source, time.Unix(1<<40, 0)) != nil {
		return nil, fmt.Errorf("%w: item %s is not deleted in store %s: name a content with --at or --version",
			precondition.Err, name, source)
	}
	return item.Before(source), nil
}

// findContent returns the content of an item with an id, or of a version of a store.
func findContent(item *restore.Item, store, version string) (*pb.Change, error) {
	name := schemas.Key(item.Account, item.Space, item.ID)
	c, ambiguous := item.Find(store, version)
	switch {
	case ambiguous:
		return nil, fmt.Errorf("%w: %q stands for several contents of item %s", precondition.Err, version, name)
	case c == nil:
		return nil, fmt.Errorf("%w: item %s has no content %q in store %s: see 'millrace object versions'",
			precondition.Err, name, version, store)
	}
	return c, nil
}

// lacks reports whether a copy of an item does not have its content, as far as is known without the kept bytes.
func (w *restoration) lacks(item *restore.Item, content *pb.Change) bool {
	return slices.ContainsFunc(w.report.Stores, func(store string) bool {
		v := restore.Choose(item, store, content).Verdict
		return v == restore.Ordered || v == restore.NoBytes || v == restore.Unknown
	})
}

// add counts a choice, and lists it if there is something to be done or wrong.
func (w *restoration) add(c restore.Choice) {
	r := w.report
	r.Copies[c.Verdict]++
	if _, known := w.refused[c.Store]; c.Verdict == restore.Refused && !known {
		w.refused[c.Store] = c
	}
	switch listed := c.Verdict != restore.Already && c.Verdict != restore.NotThen; {
	case !listed, c.Verdict == restore.Ordered && w.request.Prefix && !w.request.DryRun:
	case len(r.Choices) == maxProblems:
		r.More++
	default:
		r.Choices = append(r.Choices, c)
	}
}

// message returns the order for a choice.
func (w *restoration) message(item *restore.Item, c restore.Choice) schemas.Message {
	cmd := w.action.Command(item, c)
	m := schemas.Message{Topic: schemas.DuplicationHigh, Body: cmd}
	switch {
	case cmd.GetSize() >= int64(w.app.cfg.Duplication.LargeThreshold):
		m.Topic, cmd.Priority = schemas.DuplicationLarge, pb.Priority_PRIORITY_LARGE
	case w.request.Prefix:
		m.Topic = schemas.DuplicationLow
	}
	return m
}

// publish publishes the action, once, and orders.
func (w *restoration) publish(ctx context.Context, orders []schemas.Message) error {
	if w.request.DryRun || len(orders) == 0 {
		return nil
	}
	if !w.recorded {
		if err := w.app.producer.Publish(ctx, schemas.Message{Topic: schemas.Admin, Body: w.adminAction()}); err != nil {
			return fmt.Errorf("record the action: %w", err)
		}
		w.recorded = true
	}
	for part := range slices.Chunk(orders, ordersAtOnce) {
		if err := w.app.producer.Publish(ctx, part...); err != nil {
			return fmt.Errorf("publish restore orders: %w", err)
		}
	}
	return nil
}

// adminAction returns the record of the action. Its id is that of the request, so a repeated command is one action.
func (w *restoration) adminAction() *pb.AdminAction {
	r := w.request
	done := r.By.action(ActionRestore, schemas.Key(r.Account, r.Space, r.Item))
	done.Id, done.Time = w.action.ID, timestamppb.New(w.action.Time)
	done.Account, done.Store, done.Space, done.After = r.Account, r.Store, r.Space, r.what()
	if !r.Prefix {
		done.Item = r.Item
	}
	return done
}

// orders selects the orders of a report.
func (r *RestoreReport) orders(of RestoreRequest) read.RestorationQuery {
	return read.RestorationQuery{Account: of.Account, Space: of.Space, Action: r.Action, Made: r.Time, Limit: maxProblems}
}

// Restored returns a ProgressFunc that counts the orders of a report that have ended.
func (a *App) Restored(r RestoreRequest, report RestoreReport) ProgressFunc {
	return a.ended(report.orders(r), report.Copies[restore.Ordered])
}

// ended returns a ProgressFunc that counts which of a number of orders have ended.
func (a *App) ended(q read.RestorationQuery, orders int64) ProgressFunc {
	return func(ctx context.Context) (Progress, error) {
		results, err := read.Restorations(ctx, a.db, q)
		p := Progress{Total: orders}
		for _, n := range results {
			p.Done += int64(n.Orders)
		}
		return p, err
	}
}

// A RestoreOutcome says how the orders of an action ended.
type RestoreOutcome struct {
	Results map[string]int64         `json:"results"` // orders by result
	Failed  []read.FailedRestoration `json:"failed"`  // those that brought nothing back, at most maxProblems
}

// RestoreOutcome returns how the orders of a report ended.
func (a *App) RestoreOutcome(ctx context.Context, r RestoreRequest, report RestoreReport) (RestoreOutcome, error) {
	return a.outcome(ctx, report.orders(r))
}

func (a *App) outcome(ctx context.Context, q read.RestorationQuery) (o RestoreOutcome, err error) {
	o.Results = map[string]int64{}
	results, err := read.Restorations(ctx, a.db, q)
	for _, n := range results {
		o.Results[n.Result] += int64(n.Orders)
	}
	if err != nil {
		return o, err
	}
	o.Failed, err = read.FailedRestorations(ctx, a.db, q)
	return o, err
}
