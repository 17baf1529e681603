package integration

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// convergeNames returns the targets of faults.
func convergeNames() converge.Names {
	return converge.Names{
		Processes: []string{sinkProcess, otherProcess, workProcess, headProcess, stewardProcess},
		Roles:     []string{"checker", "copier", "planner", "sink", "steward", "deleter"},
		Stores:    []string{sourceStore, clockStore, outStore, "3"},
		Clock:     clockStore, Removable: outStore, Engine: "clickhouse", Spaces: []string{fanSpace, chainSpace},
		Steward: stewardProcess, Topics: []string{string(schemas.Policies), string(schemas.Admin)}, LostSpace: lostSpace,
	}
}

// Timeouts of the item events.
const (
	settleLimit = 90 * time.Second // until an item is copied to all destinations
	// until work that needs fresh records is done; the records may have to be rebuilt first
	restoreLimit = 4 * time.Minute
	hookLimit    = time.Minute // until a store gets a request, a delete is decided, or an incident is open
	// latest start of an event after the planned end of the clients; the short form has every event
	lastEventLimit = 2 * time.Minute
	clients        = 4
)

// run runs the clients and the faults. Item faults overlap with the other faults, which run one after the other.
func (w *convergeWorld) run(t *testing.T, form convergeForm) {
	t.Helper()
	events := converge.Events(w.seed, convergeNames(), form.length)
	if form.short {
		events = converge.Short(convergeNames())
	}
	begun := time.Now()
	at := func(ctx context.Context, at time.Duration) error { return retry.Sleep(ctx, time.Until(begun.Add(at))) }
	g, ctx := errgroup.WithContext(t.Context())
	w.work(ctx, g, converge.Ops(w.seed, converge.Load{Items: itemsOf("", ""), Length: form.length, Every: form.every}), at)
	w.work(ctx, g, opsWithoutDigests(form.length), at)
	for n, e := range events {
		if late := time.Since(begun) - form.length; late > lastEventLimit && !form.short {
			t.Logf("%d events were skipped: the clients are late by %v", len(events)-n, late.Round(time.Second))
			break
		}
		next, cancel := context.WithDeadline(ctx, begun.Add(e.At))
		w.engine.reviveUntil(t, next.Done())
		cancel()
		if ctx.Err() != nil {
			break // the group says why
		}
		t.Logf("%5.1f s: %s %s %v", time.Since(begun).Seconds(), e.Fault, e.Target, e.For)
		f := w.itemFault(t, e)
		if e.Fault == converge.Decide {
			f = w.decide(t, e)
		}
		if f != nil {
			g.Go(func() error { return f(ctx) })
			continue
		}
		w.inject(t, e)
	}
	must(t, w.engine.reviveDuring(t, g.Wait))
}

// opsWithoutDigests returns ops of a program that publishes records without digests.
func opsWithoutDigests(length time.Duration) (ops []converge.Op) {
	all := itemsOf("", bareItems)
	for n := 0; time.Duration(n)*time.Second < length; n++ {
		ops = append(ops,
			converge.Op{At: time.Duration(n) * time.Second, ItemRef: all[n%len(all)], Kind: converge.Put, User: "dan",
				Body: fmt.Sprintf("%d without a digest", n), MediaType: "text/plain"})
	}
	return ops
}

// work executes the clients' ops, those of an item in order.
func (w *convergeWorld) work(
	ctx context.Context, g *errgroup.Group, ops []converge.Op, at func(context.Context, time.Duration) error,
) {
	shares := make([][]converge.Op, clients)
	for _, o := range ops {
		h := fnv.New32()
		fmt.Fprint(h, o.Original())
		i := h.Sum32() % clients
		shares[i] = append(shares[i], o)
	}
	for _, share := range shares {
		g.Go(func() error {
			for _, o := range share {
				if err := at(ctx, o.At); err != nil {
					return err
				}
				if err := w.apply(ctx, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// inject executes an event on processes, roles, stores or clocks, and returns when it is over.
func (w *convergeWorld) inject(t *testing.T, e converge.Event) {
	t.Helper()
	_ = w.engine.reviveDuring(t, func() error { w.events.Lock(); return nil })
	defer w.events.Unlock()
	switch e.Fault {
	case converge.Kill:
		w.awaitStable(t.Context(), t)
		w.model.RecordFault(e.Fault, e.Target)
		w.process(e.Target).kill()
		wait(t, e.For)
		w.start(t, e.Target)
	case converge.Freeze:
		p := w.process(e.Target)
		p.signal(t, syscall.SIGSTOP)
		wait(t, e.For)
		p.signal(t, syscall.SIGCONT)
	case converge.Pause:
		w.want(t, 0, "paused", "pause", "role", e.Target, "--reason", "a test", "--until", e.For.String())
		wait(t, e.For)
	case converge.Unavailable:
		w.makeUnavailable(t, e)
	case converge.ClockStep:
		if e.For < 0 {
			w.model.RecordFault(e.Fault, e.Target)
		}
		w.clock.Store(min(max(w.clock.Load()+int64(e.For), int64(-4*time.Minute)), int64(time.Minute)))
	case converge.KillCopier:
		w.killCopier(t)
	case converge.RemoveStore:
		w.removeStore(t, e)
	case converge.Restore:
		w.model.RecordFault(e.Fault, e.Target)
		w.replaceClickHouse(t, w.backup)
	case converge.Empty:
		w.model.RecordFault(e.Fault, e.Target)
		w.replaceClickHouse(t, "")
	case converge.CorruptRecord:
		w.corruptRecord(t, schemas.Topic(e.Target))
	default:
		t.Fatalf("no such fault: %s", e.Fault)
	}
}

// makeUnavailable makes a store unavailable for a time: it moves its root or stops its service.
func (w *convergeWorld) makeUnavailable(t *testing.T, e converge.Event) {
	t.Helper()
	if e.Target == clockStore {
		w.s3Away.Store(true)
		wait(t, e.For)
		w.s3Away.Store(false)
		return
	}
	root := w.root(e.Target)
	must(t, os.Rename(root, root+".away"))
	wait(t, e.For)
	must(t, os.Rename(root+".away", root))
}

// root returns the directory of a store.
func (w *convergeWorld) root(store string) string {
	stores := w.cfg.Accounts[0].Stores
	return stores[slices.IndexFunc(stores, func(s config.Store) bool { return s.ID == store })].Root
}

// replaceClickHouse replaces the data of ClickHouse by a backup, or by nothing, and rebuilds the missing data.
func (w *convergeWorld) replaceClickHouse(t *testing.T, backup string) {
	t.Helper()
	w.engine.restore(t, backup)
	begun := time.Now()
	err := w.engine.reviveDuring(t, func() error {
		if backup == "" {
			if err := w.runUntilOK(t.Context(), "migrate"); err != nil {
				return err
			}
		}
		return w.runUntilOK(t.Context(), "rebuild")
	})
	must(t, err)
	t.Logf("rebuilt in %v", time.Since(begun).Round(100*time.Millisecond))
	for name := range processRoles() { // a process that finds no tables exits
		select {
		case <-w.process(name).exited:
			w.start(t, name)
		default:
		}
	}
}

// killCopier kills the copiers when the first copy of an item is on the S3 store but not published. The source is
// already deleted then.
func (w *convergeWorld) killCopier(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	w.used["killed"]++
	p := converge.ItemRef{Space: fanSpace, Item: fmt.Sprintf("killed/%d", w.used["killed"])}
	w.mu.Unlock()
	ctx := t.Context()
	w.awaitStable(ctx, t)
	killed := make(chan error, 1)
	w.hooks.set(w.hooks.after, "PUT", p, func() {
		err := w.apply(ctx, converge.Op{ItemRef: p, Kind: converge.Delete, User: "ben"})
		w.process(workProcess).kill()
		w.process(otherProcess).kill()
		killed <- err
	})
	must(t, w.apply(ctx, converge.Op{ItemRef: p, Kind: converge.Put, User: "ann", Body: "copied in vain " + p.Item}))
	timeout := time.After(hookLimit)
	for {
		select {
		case err := <-killed:
			must(t, err)
			t.Logf("%v was copied, its source deleted, and the copiers killed", p)
			w.tookEffect(string(converge.KillCopier))
			w.start(t, workProcess)
			w.start(t, otherProcess)
			return
		case <-timeout:
			if w.hooks.unset(w.hooks.after, "PUT", p) {
				t.Logf("%v was not copied within %v", p, hookLimit)
				return
			}
		}
	}
}

// removeStore runs all processes without a store for a time. Meanwhile it deletes items that the policy keeps as
// copies.
func (w *convergeWorld) removeStore(t *testing.T, e converge.Event) {
	t.Helper()
	var out []converge.ItemRef
	for range 3 {
		p := w.next(keptSpace, outItems)
		if err := w.awaitSettled(t.Context(), p); err != nil {
			t.Logf("%v: %v", p, err)
			continue
		}
		out = append(out, p)
	}
	w.model.RecordFault(e.Fault, e.Target)
	if len(out) > 0 {
		w.tookEffect(string(e.Fault))
	}
	w.restartAll(t, true)
	begun := time.Now()
	for _, p := range out {
		must(t, w.apply(t.Context(), converge.Op{ItemRef: p, Kind: converge.Delete, User: "cyd"}))
	}
	wait(t, e.For)
	w.awaitDecided(t, out, begun)
	w.restartAll(t, false)
}

// awaitDecided waits until the results of the items' deletes since a time are recorded.
func (w *convergeWorld) awaitDecided(t *testing.T, items []converge.ItemRef, since time.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hookLimit)
	defer cancel()
	for _, p := range items {
		for {
			all, err := read.Timeline(ctx, w.app.DB(), "acme", p.Space, p.Item)
			if err == nil && slices.ContainsFunc(all, func(e read.Event) bool {
				return e.Kind == "duplication" && e.Time.After(since) && !strings.Contains(e.What, "deletion-ordered")
			}) {
				break
			}
			if retry.Sleep(ctx, 300*time.Millisecond) != nil {
				t.Logf("the delete of %v was not decided within %v: %v", p, hookLimit, err)
				return
			}
		}
	}
}

// restartAll restarts all processes with or without the removable store.
func (w *convergeWorld) restartAll(t *testing.T, without bool) {
	t.Helper()
	w.awaitStable(t.Context(), t)
	for name := range processRoles() {
		w.process(name).signal(t, syscall.SIGTERM)
	}
	for name := range processRoles() {
		<-w.process(name).exited
	}
	w.mu.Lock()
	w.without = without
	w.mu.Unlock()
	for name := range processRoles() {
		w.start(t, name)
	}
}

// next returns the next item of a group, starting over after the last.
func (w *convergeWorld) next(space, group string) converge.ItemRef {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := itemsOf(space, group)
	p := all[w.used[space+group]%len(all)]
	w.used[space+group]++
	return p
}

// itemFault returns the function that executes an event on an item, or nil if the event is not about an item. The first
// event uses the first item, and so on.
func (w *convergeWorld) itemFault(t *testing.T, e converge.Event) func(context.Context) error {
	var p converge.ItemRef
	var f func(context.Context, converge.ItemRef) error
	switch e.Fault {
	case converge.PutBack:
		p = w.next(fanSpace, backItems)
		f = w.putBack(t, e)
	case converge.Lose:
		p, f = w.next(e.Target, lostItems), w.lose
	case converge.LoseSpace:
		p, f = w.next(e.Target, lostItems), w.loseSpace
	case converge.LoseAndGuess:
		p, f = w.next(e.Target, lostItems), w.loseAndGuess
	case converge.LoseAndPutBack:
		p, f = w.next(fanSpace, againItems), w.loseAndPutBack
	default:
		return nil
	}
	return func(ctx context.Context) error {
		defer w.lockItem(p)()
		if err := w.awaitSettled(ctx, p); err != nil {
			t.Logf("%s: %v: %v", e.Fault, p, err)
			return nil
		}
		if err := f(ctx, p); err != nil {
			return err
		}
		if e.Fault != converge.PutBack { // putBack counts those that crossed a delete
			w.tookEffect(string(e.Fault))
		}
		return nil
	}
}

// awaitSettled waits until the source and all destinations have the latest content.
func (w *convergeWorld) awaitSettled(ctx context.Context, p converge.ItemRef) error {
	w.mu.Lock()
	o, was := w.puts[p]
	w.mu.Unlock()
	if _, live := w.model.Content(p); !live && was {
		if err := w.apply(ctx, o); err != nil {
			return err
		}
	}
	if _, err := w.store(sourceStore).Stat(ctx, p.Space, p.Item); errors.Is(err, storage.ErrNotFound) { // it was lost
		if err := w.apply(ctx, o); err != nil {
			return err
		}
	}
	return w.awaitCopied(ctx, p, settleLimit)
}

// awaitCopied waits until all destinations have the latest content.
func (w *convergeWorld) awaitCopied(ctx context.Context, p converge.ItemRef, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for len(w.holders(ctx, p)) < len(w.model.Rule(p.Space).Pairs) {
		if err := retry.Sleep(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("it has not been copied within %v", limit)
		}
	}
	return nil
}

// putBack deletes an item and puts the same bytes back while the slow S3 store deletes its copy. The store executes the
// delete some time after the stat for the second put.
func (w *convergeWorld) putBack(t *testing.T, e converge.Event) func(context.Context, converge.ItemRef) error {
	slow := 200*time.Millisecond + time.Duration(eventHash(w.seed, e)%1400)*time.Millisecond
	return func(ctx context.Context, p converge.ItemRef) error {
		w.mu.Lock()
		back := w.puts[p]
		w.mu.Unlock()
		done := make(chan error, 1)
		w.hooks.set(w.hooks.before, "DELETE", p, func() {
			looked := w.hooks.next("HEAD", p)
			err := w.apply(ctx, back)
			select {
			case <-looked:
			case <-time.After(3 * time.Second):
			}
			_ = retry.Sleep(ctx, slow) // returns early at the end of the run
			done <- err
		})
		if err := w.apply(ctx, converge.Op{ItemRef: p, Kind: converge.Delete, User: "ben"}); err != nil {
			return err
		}
		select {
		case err := <-done:
			t.Logf("%v was put back, and then deleted after %v", p, slow)
			w.tookEffect(string(e.Fault))
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(hookLimit): // the delete comes later, without a hook
			t.Logf("%v was not deleted within %v", p, hookLimit)
			if w.hooks.unset(w.hooks.before, "DELETE", p) {
				return w.apply(ctx, back)
			}
			return <-done
		}
	}
}

// eventHash returns a hash of a seed and an event.
func eventHash(seed uint64, e converge.Event) uint32 {
	h := fnv.New32()
	fmt.Fprint(h, seed, e)
	return h.Sum32()
}

// lose removes the source and the first copy of an item, and starts a check of the sources in the space.
func (w *convergeWorld) lose(ctx context.Context, p converge.ItemRef) error {
	if _, err := w.loseCopies(ctx, p); err != nil {
		return err
	}
	return w.runUntilOK(ctx, "sweep", "start", "fixity", "--all", "--store", sourceStore, "--space", p.Space)
}

// loseAndGuess removes the source and the first copy of an item, and publishes the guessed delete that a sweep would
// publish.
func (w *convergeWorld) loseAndGuess(ctx context.Context, p converge.ItemRef) error {
	gone, err := w.loseCopies(ctx, p)
	if err != nil {
		return err
	}
	w.model.RecordGuess(p)
	guess := record.Delete(schemas.Copy{Account: "acme", Store: sourceStore, Space: p.Space, Item: p.Item}, gone)
	guess.Origin, guess.Agent = pb.Origin_ORIGIN_SWEEP, "sweeper"
	return w.producer.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: record.Seal(guess)})
}

// loseCopies removes the source and the first copy of an item, and returns the deleted source.
func (w *convergeWorld) loseCopies(ctx context.Context, p converge.ItemRef) (source storage.Deleted, err error) {
	for _, id := range []string{w.model.Rule(p.Space).Pairs[0].To, sourceStore} {
		if source, err = w.remove(ctx, converge.Copy{Store: id, ItemRef: p}); err != nil {
			return source, err
		}
		w.model.RecordLoss(converge.Copy{Store: id, ItemRef: p})
	}
	return source, nil
}

// remove removes a copy when its store is available. A store that becomes unavailable meanwhile may report that it
// failed to remove a copy that it has removed.
func (w *convergeWorld) remove(ctx context.Context, c converge.Copy) (d storage.Deleted, err error) {
	var failed storage.Object // that a Delete has failed to remove
	for begun := time.Now(); ; {
		o, err := w.store(c.Store).Stat(ctx, c.Space, c.Item)
		if err == nil {
			d, err = w.store(c.Store).Delete(ctx, c.Space, c.Item, storage.DeleteOptions{})
			if err != nil && !errors.Is(err, storage.ErrNotFound) {
				failed = o
			}
		}
		switch absent := errors.Is(err, storage.ErrNotFound); {
		case err == nil:
			return d, nil
		case absent && !failed.Modified.IsZero():
			return storage.Deleted{Object: failed, Time: time.Now().UTC()}, nil
		case absent || time.Since(begun) > hookLimit:
			return d, err
		}
		if err := retry.Sleep(ctx, 200*time.Millisecond); err != nil {
			return d, err
		}
	}
}

// loseAndPutBack removes the copy on S3, deletes the source, and puts it back when the delete of the copy is recorded.
func (w *convergeWorld) loseAndPutBack(ctx context.Context, p converge.ItemRef) error {
	w.mu.Lock()
	back := w.puts[p]
	w.mu.Unlock()
	if _, err := w.remove(ctx, converge.Copy{Store: clockStore, ItemRef: p}); err != nil {
		return err
	}
	w.model.RecordLoss(converge.Copy{Store: clockStore, ItemRef: p})
	if err := w.apply(ctx, converge.Op{ItemRef: p, Kind: converge.Delete, User: "cyd"}); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for retry.Sleep(limit, 200*time.Millisecond) == nil {
		r, err := read.Records(limit, w.app.DB(),
			[]schemas.Copy{{Account: "acme", Store: clockStore, Space: p.Space, Item: p.Item}})
		if err == nil && r[0].GetManifest().GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE {
			break
		}
	}
	return w.apply(ctx, back)
}
