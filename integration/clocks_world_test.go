package integration

import (
	"cmp"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/held/heldtest"
	"github.com/millrace/millrace/streams/ingest/hint"
	planning "github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/steward"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/pairs"
	"github.com/millrace/millrace/streams/sweep/reconcile"
)

// A clockWorld is an account with a source, store 1, and its copies in stores 2 and 3, and all processes that handle
// one item of it. Each process and each store has a clock of its own; Kafka's is now.
//
// Each call of a processor is one of a new process, in a bubble of fake time that begins at the time of its clock. So a
// clock may show any time, and step both ways between two calls.
type clockWorld struct {
	t     *testing.T
	now   time.Time                // Kafka's clock, which never goes back
	began time.Time                // of the bubble that runs, by the clock of its process; zero: none does
	skew  map[string]time.Duration // how far each clock is ahead of Kafka's, by its name

	stores    map[string]*mem.Store
	rules     policy.Rules
	log       []*schemas.Delivery // all records of Kafka, in order
	open      []*waiting          // those that are not handled
	done      []*schemas.Delivery // those that are, but may be delivered again
	incidents map[string]*pb.Incident
	ends      map[string]string // the last result of each destination
	deletes   *braketest.Topic
	rewrites  *braketest.Topic
	lists     *heldtest.Lists
	direct    []schemas.Message // published by a processor itself, in the call that runs
	previous  map[string][]byte // cursors of the last reconcile rounds, by store
	checker   string            // which checker handles tasks: "checker A" or "checker B"
	rounds    int
	acts      []act             // of clients, in order
	late      []*pb.Change      // what clients have done and not reported yet
	restores  map[string]func() // bring back the snapshot of a store
	held      []*waiting        // set aside by a script
	failovers int               // how often a client has written to store 2
	bare      map[string]string // the texts of Changes without digests, by id
	external  bool              // other programs are expected to write to store 1
	shift     time.Duration     // of all clocks
	aged      time.Duration     // what the copier adds to the age of Changes
	kills     int               // of the process of each delivery: each time it has published one output more
	broken    []string          // promises that do not hold
}

// An act is what a client has done to a store: it has put a text, or deleted the item.
type act struct {
	store, text string
	at          time.Time // by Kafka's clock
}

// A waiting is a delivery that waits for its handler until it is due.
type waiting struct {
	*schemas.Delivery
	due time.Time
}

const (
	clockSpace, clockItem = "s", "a"
	otherItem             = "b"
	settled               = 10 * time.Minute // fixity.settle and reconcile.settle of a clockWorld
)

// clockStart is when a clockWorld begins.
var clockStart = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)

// clockNames are the clocks of a clockWorld but Kafka's.
var clockNames = []string{"planner", "copier", "deleter", "checker A", "checker B", "steward", "sweeper", "ingester",
	"store 1", "store 2", "store 3"}

// newClockWorld returns a world with empty stores. Store 3 keeps whole seconds.
func newClockWorld(t *testing.T) *clockWorld {
	t.Helper()
	w := &clockWorld{t: t, now: clockStart, skew: map[string]time.Duration{},
		stores: map[string]*mem.Store{}, incidents: map[string]*pb.Incident{}, previous: map[string][]byte{},
		restores: map[string]func(){}, ends: map[string]string{}, bare: map[string]string{},
		deletes: braketest.New(brake.Deletes), rewrites: braketest.New(brake.Rewrites),
		lists: heldtest.New(), checker: "checker A"}
	w.rules = policy.Rules{Revision: 3, Deletes: policy.Propagate, Since: w.now.AddDate(-10, 0, 0),
		Pairs: []policy.Pair{{Source: "1", Destination: "2"}, {Source: "1", Destination: "3"}}}
	for _, topic := range []*braketest.Topic{w.deletes, w.rewrites} {
		topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1000}
		topic.Fail = func(m schemas.Message) error {
			if _, ok := m.Body.(*pb.Checkpoint); !ok {
				w.direct = append(w.direct, m)
			}
			return nil
		}
	}
	for _, id := range []string{"1", "2", "3"} {
		cfg := mem.Config{ID: id, Now: func() time.Time { return w.kafka().Add(w.skew["store "+id]) }}
		if id == "3" {
			cfg.Weak.Times = time.Second
		}
		s, err := mem.New(cfg)
		if err == nil {
			err = errors.Join(s.WriteMarker(t.Context()), s.CreateSpace(t.Context(), storage.Space{Name: clockSpace}))
		}
		if err == nil { // another item, or a listing without the first one would conclude nothing
			_, err = s.Put(t.Context(), clockSpace, otherItem, strings.NewReader("other"), storage.PutOptions{Size: 5})
		}
		must(t, err)
		w.stores[id] = s
	}
	return w
}

// at returns a copy of the item.
func (w *clockWorld) at(store string) schemas.Copy {
	return schemas.Copy{Account: "acme", Store: store, Space: clockSpace, Item: clockItem}
}

// kafka returns the time of Kafka's clock, in a bubble or outside of one.
func (w *clockWorld) kafka() time.Time {
	if w.began.IsZero() {
		return w.now
	}
	return w.now.Add(time.Since(w.began))
}

// shiftBy sets all clocks but Kafka's.
func (w *clockWorld) shiftBy(d time.Duration) {
	w.shift = d
	for _, name := range clockNames {
		w.skew[name] = d
	}
}

// set sets a clock, beside the shift of all.
func (w *clockWorld) set(clock string, d time.Duration) { w.skew[clock] = w.shift + d }

// as calls f in a bubble whose clock is that of a process. f must not fail the test.
func (w *clockWorld) as(process string, f func(context.Context) error) (err error) {
	synctest.Test(w.t, func(t *testing.T) {
		time.Sleep(time.Until(w.now.Add(w.skew[process])))
		w.began = time.Now()
		err = f(t.Context())
		w.now, w.began = w.kafka(), time.Time{}
	})
	return err
}

func (w *clockWorld) Store(_, id string) (storage.Store, bool) { s, ok := w.stores[id]; return s, ok }

func (w *clockWorld) Rules(string, string) (policy.Rules, bool) { return w.rules, true }

func (w *clockWorld) Settings(_, store string) fixity.StoreSettings {
	return fixity.StoreSettings{ExternalWrites: w.external && store == "1"}
}

// Resolve implements hint.Resolver: notifications are about store 1.
func (w *clockWorld) Resolve(schemas.Topic, string, string) ([]schemas.Copy, bool) {
	return []schemas.Copy{w.at("1")}, true
}

// IsClaim implements hint.Resolver.
func (w *clockWorld) IsClaim(schemas.Topic, schemas.Copy) bool { return false }

// Refuses implements duplicate.Restores.
func (w *clockWorld) Refuses(string, string) string { return "" }

// Proven implements duplicate.Restores: there are no restores.
func (w *clockWorld) Proven(context.Context, schemas.Copy, digest.Set) (digest.Set, error) {
	return nil, nil
}

// RepairMode implements steward.Stores by its defaults.
func (w *clockWorld) RepairMode(_, store string, _ time.Time) steward.Mode {
	if store == "1" {
		return steward.Approve
	}
	return steward.Auto
}

func (w *clockWorld) Others(_, _, store string) []string {
	return slices.DeleteFunc([]string{"1", "2", "3"}, func(s string) bool { return s == store })
}

func (w *clockWorld) Live(context.Context, schemas.Copy) (int64, error) { return 1000, nil }

// Open and Close implement fixity.SpaceIncidents: the space stays.
func (w *clockWorld) Open(context.Context, schemas.Copy, string) error  { return nil }
func (w *clockWorld) Close(context.Context, schemas.Copy, string) error { return nil }

// Publish implements schemas.Publisher for incidents without an item.
func (w *clockWorld) Publish(_ context.Context, all ...schemas.Message) error {
	w.direct = append(w.direct, all...)
	return nil
}

// append appends a message to Kafka's log, a millisecond after the one before. It waits for its handler until it is
// due.
func (w *clockWorld) append(m schemas.Message) error {
	r, err := schemas.Encode(m)
	if err != nil {
		return err
	}
	body, err := schemas.Decode(m.Topic, r.Headers, r.Value)
	if err != nil {
		return err
	}
	w.now = w.now.Add(time.Millisecond)
	d := &schemas.Delivery{Topic: m.Topic, From: m.Topic, Offset: int64(len(w.log)), Timestamp: w.now, Key: r.Key,
		Headers: r.Headers, Body: body, Attempt: 1}
	schemas.DateByKafka(d)
	w.log = append(w.log, d)
	if i, ok := body.(*pb.Incident); ok {
		w.incidents[string(r.Key)] = i
		return nil
	}
	if r, ok := body.(*pb.DuplicationResult); ok {
		w.ends[r.GetDestinationStore()] = r.GetResult()
		w.lists.Results = append(w.lists.Results, r)
	}
	w.open = append(w.open, &waiting{d, m.Due})
	return nil
}

// report appends a Change, and so do clients and those who publish for them.
func (w *clockWorld) report(c *pb.Change) error {
	return w.append(schemas.Message{Topic: schemas.Changes, Body: c})
}

// handler returns the process that handles a message, and makes its processor anew. It is called in a bubble.
func (w *clockWorld) handler(d *schemas.Delivery) (process string, make func() (handler, error)) {
	log := slog.New(slog.DiscardHandler)
	switch d.Body.(type) {
	case *pb.Change:
		return "planner", func() (handler, error) {
			p, err := planning.New(planning.Config{}, w)
			return p.Handle, err
		}
	case *pb.DuplicationCommand:
		return "copier", func() (handler, error) {
			e, err := duplicate.New(duplicate.Config{Restores: w, Rewrites: w.rewrites.Process(), Held: w.lists,
				Now: func() time.Time { return w.kafka().Add(w.aged) }}, w, w, w)
			return e.Handle, err
		}
	case *pb.DeletionCommand:
		return "deleter", func() (handler, error) {
			e, err := deletion.New(deletion.Config{Settle: time.Minute, Brake: w.deletes.Process(),
				Lists: noDecisions{w.lists}, Publisher: w.deletes}, w, w, w)
			return e.Handle, err
		}
	case *pb.FixityTask:
		return w.checker, func() (handler, error) {
			c, err := fixity.New(fixity.Config{Settings: fixity.Settings{Settle: settled,
				Recheck: []time.Duration{5 * time.Minute, 30 * time.Minute}}}, w, w, w)
			return c.Handle, err
		}
	}
	return "steward", func() (handler, error) {
		s, err := steward.New(steward.Config{}, steward.Deps{Stores: w, Records: w, Log: log})
		if err != nil {
			return nil, err
		}
		for key, i := range w.incidents {
			s.Apply([]byte(key), i)
		}
		return s.Handle, nil
	}
}

// noKill says that a process is not killed.
const noKill = -1

// handle handles the ith open delivery. A process that is killed has published only so many of its outputs, and the
// delivery stays open.
func (w *clockWorld) handle(i, killed int) error {
	d := w.open[i]
	var out []schemas.Message
	var now time.Time // by the clock of the process
	w.direct = nil
	before := w.texts()
	process, make := w.handler(d.Delivery)
	failure := w.as(process, func(ctx context.Context) error {
		h, err := make()
		if err != nil {
			return err
		}
		out, err = h(ctx, d.Delivery)
		now = time.Now()
		return err
	})
	w.checkWrites(d.Delivery, before)
	published := append(w.direct, out...)
	if killed != noKill {
		published = published[:min(len(w.direct)+killed, len(published))]
	}
	for _, m := range published {
		if !m.Due.IsZero() { // lanes delay by a duration
			m.Due = w.now.Add(m.Due.Sub(now))
		}
		if err := w.append(m); err != nil {
			return fmt.Errorf("publish a %T: %w", m.Body, err)
		}
	}
	switch {
	case killed != noKill:
	case failure == nil:
		w.open = slices.Delete(w.open, i, i+1)
		w.done = append(w.done, d.Delivery)
	case retry.ClassOf(failure) == retry.ClassWait:
		d.Waits++
		if cause := retry.CauseOf(failure); cause != "" {
			d.WaitsBy = maps.Clone(d.WaitsBy)
			if d.WaitsBy == nil {
				d.WaitsBy = map[string]int{}
			}
			d.WaitsBy[cause]++
		}
		d.due = w.now.Add(max(retry.Due(failure).Sub(now), time.Second))
	default: // no store and no table is ever away
		return fmt.Errorf("%s handles a %T: %w", process, d.Body, failure)
	}
	return nil
}

// texts returns the bytes of the item in each store that has it.
func (w *clockWorld) texts() map[string]string {
	all := map[string]string{}
	for id, s := range w.stores {
		r, _, err := s.Open(context.Background(), clockSpace, clockItem, "")
		if err != nil {
			continue
		}
		b, err := io.ReadAll(r)
		must(w.t, err)
		all[id] = string(b)
	}
	return all
}

// clientFacts returns what clients have reported about the item in any store.
func (w *clockWorld) clientFacts() (all []fact) {
	for id := range w.stores {
		all = append(all, slices.DeleteFunc(factsOf(w.log, w.at(id)), func(f fact) bool {
			return f.GetOrigin() != pb.Origin_ORIGIN_CLIENT
		})...)
	}
	return all
}

// isOf returns whether a fact reports a text.
func isOf(text string) func(fact) bool {
	sum := md5.Sum([]byte(text))
	return func(f fact) bool { return f.isContent() && f.GetDigests()["md5"] == hex.EncodeToString(sum[:]) }
}

// last returns the number of the last act of a client that is of a text, or, with "", a delete at the source; -1: none.
func (w *clockWorld) last(text string) int {
	for i, a := range slices.Backward(w.acts) {
		if a.text == text && (text != "" || a.store == "1") {
			return i
		}
	}
	return -1
}

// checkWrites records which promises the handler of a delivery has broken, from what the stores held before. What is
// newer is so by what clients did, and by the log.
func (w *clockWorld) checkWrites(d *schemas.Delivery, before map[string]string) {
	after, facts := w.texts(), w.clientFacts()
	for i, f := range facts { // what is known of a content that was reported without digests
		if len(f.GetDigests()) == 0 && f.isContent() {
			facts[i].Change = proto.CloneOf(f.Change)
			facts[i].Digests, _, _ = digestsOn(factsOf(w.log, schemas.CopyOf(f.Change)), f.GetId())
		}
	}
	source, _ := newestOf(facts, func(f fact) bool { return f.GetStore() == "1" })
	for _, id := range []string{"1", "2", "3"} {
		old, now := before[id], after[id]
		if old == now {
			continue
		}
		oldFact, oldKnown := newestOf(facts, isOf(old))
		nowFact, nowKnown := newestOf(facts, func(f fact) bool { return isOf(now)(f) || w.bare[f.GetId()] == now })
		what := ""
		switch {
		case now == "" && oldKnown && w.last("") < w.last(old) && source.compare(oldFact) < 0:
			what = fmt.Sprintf("%q is deleted without a later delete", old)
		case now == "rot":
			what = fmt.Sprintf("rot overwrites %q", old)
		case now == "" || !nowKnown:
		case oldKnown && w.last(now) < w.last(old) && nowFact.compare(oldFact) < 0:
			what = fmt.Sprintf("%q overwrites the newer %q", now, old)
		case old == "" && !isRepair(d) && source.isDelete() && w.last(now) < w.last("") && nowFact.compare(source) < 0:
			what = fmt.Sprintf("%q comes back after its delete", now)
		}
		if what != "" {
			w.broken = append(w.broken, fmt.Sprintf("store %s: %s, by a %T", id, what, d.Body))
		}
	}
}

// isRepair reports whether a repair is ordered. A copy that was lost comes back from another one, although a delete is
// on record, if that was not carried out because the source is present again.
func isRepair(d *schemas.Delivery) bool {
	c, ok := d.Body.(*pb.DuplicationCommand)
	return ok && c.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_REPAIR
}

// maxHandled bounds the deliveries until a world is at rest.
const maxHandled = 500

// deliver handles all that is open, and waits for what is not due.
func (w *clockWorld) deliver() error {
	for n := 0; len(w.open) > 0; n++ {
		if n == maxHandled {
			return fmt.Errorf("no rest after %d messages; next is %v", n, w.open[0].Body)
		}
		first := 0
		for i, d := range w.open {
			if d.due.Before(w.open[first].due) {
				first = i
			}
		}
		if due := w.open[first].due; due.After(w.now) {
			w.now = due
		}
		for killed := range w.kills {
			if err := w.handle(first, killed); err != nil {
				return err
			}
		}
		if err := w.handle(first, noKill); err != nil {
			return err
		}
	}
	return nil
}

// rest lets all that is under way end, and sweeps and checks all copies, until a day brings nothing new.
func (w *clockWorld) rest() error {
	const most = 8
	for range most {
		if err := w.deliver(); err != nil {
			return err
		}
		before := w.summary()
		for _, store := range []string{"1", "2", "3"} {
			if err := errors.Join(w.reconcile(store), w.deliver()); err != nil {
				return err
			}
		}
		for _, store := range []string{"2", "3"} {
			if err := errors.Join(w.sweepPair(store), w.deliver()); err != nil {
				return err
			}
		}
		for _, store := range []string{"1", "2", "3"} {
			if err := errors.Join(w.check(store), w.deliver()); err != nil {
				return err
			}
		}
		if w.now = w.now.Add(24 * time.Hour); w.summary() == before {
			return nil
		}
	}
	return fmt.Errorf("%d days bring something new each", most)
}

// summary returns what the stores hold, what is on record, and which incidents are open.
func (w *clockWorld) summary() string {
	var all []string
	texts := w.texts()
	for _, id := range []string{"1", "2", "3"} {
		r := fold(w.log, w.at(id)).GetManifest()
		state := strings.ToLower(strings.TrimPrefix(r.GetState().String(), "RECORD_STATE_"))
		if r.GetState() == pb.RecordState_RECORD_STATE_LIVE {
			state = w.textOf(r)
		}
		all = append(all, fmt.Sprintf("%s: %s (%s)", id, cmp.Or(texts[id], "nothing"), state))
	}
	return strings.Join(append(all, w.named()...), ", ")
}

// textOf returns the text that a record describes, or its digest if no client has reported it.
func (w *clockWorld) textOf(r *pb.Record) string {
	for _, text := range clockTexts {
		if isOf(text)(fact{Change: &pb.Change{Op: pb.Op_OP_ADD, Digests: r.GetDigests()}}) {
			return text
		}
	}
	return cmp.Or(r.GetDigests()["md5"], "bare")
}

// clockTexts are the contents that clients put, and rot. Those from the fourth on are put into store 2, each once.
var clockTexts = []string{"one", "two", "three", "four", "five", "six", "seven", "rot"}

// named returns the open incidents of the item, the last ends of commands that leave a copy, and lists, as
// "2 copy-differs", sorted.
func (w *clockWorld) named() (all []string) {
	for _, i := range w.incidents {
		if i.GetState() != pb.IncidentState_INCIDENT_STATE_CLOSED {
			all = append(all, i.GetStore()+" "+i.GetKind())
		}
	}
	for _, id := range []string{"2", "3"} {
		switch end := w.ends[id]; end {
		case "orphan", "kept", "kept-newer": // an operator finds these in duplication_log
			all = append(all, id+" "+end)
		}
	}
	for l := range w.lists.Open {
		switch {
		case l.Kind != held.Differs:
			all = append(all, l.Kind.Act().IncidentKind())
		case len(w.lists.On(l)) > 0:
			all = append(all, l.Space.Store+" copy-differs")
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// check publishes a round's task for a copy, with the records of now.
func (w *clockWorld) check(store string) error {
	at := w.at(store)
	return w.append(schemas.Message{Topic: schemas.FixityLow, Body: &pb.FixityTask{Id: schemas.NewID(),
		Account: at.Account, Store: at.Store, Space: at.Space, Item: at.Item,
		Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Priority: pb.Priority_PRIORITY_LOW,
		Known: schemas.WithoutProperties(fold(w.log, at))}})
}

// sweepPair publishes what the sweep of the pair from store 1 finds.
func (w *clockWorld) sweepPair(to string) error {
	return w.sweep(func(ctx context.Context, round sweep.Round) (sweep.Page, error) {
		pages, err := pairs.New(
			pairs.Config{Pair: pairs.Pair{Account: "acme", Space: clockSpace, Source: "1", Destination: to}},
			pairs.Deps{Source: w.stores["1"], Destination: w.stores[to], Rules: w, Records: w})
		if err != nil {
			return sweep.Page{}, err
		}
		return pages(ctx, round, nil)
	})
}

// reconcile publishes what a round of reconcile of a store finds.
func (w *clockWorld) reconcile(store string) error {
	space := w.at(store).WithoutItem()
	nothing := func(context.Context, schemas.Copy, string) error { return nil }
	return w.sweep(func(ctx context.Context, round sweep.Round) (sweep.Page, error) {
		pages, err := reconcile.New(
			reconcile.Config{Space: space, Settle: settled, MaxMissing: 1, ExternalWrites: w.external && store == "1",
				Approves: func(time.Time) bool { return w.external && store == "1" }},
			reconcile.Deps{Store: w.stores[store], Rows: w.rows, Fresh: func(context.Context) error { return nil },
				Settle: func(_ context.Context, d time.Duration, _ int) error {
					time.Sleep(d) // fake time
					return nil
				},
				OpenIncident: nothing, CloseIncident: nothing, DeclaredGone: func() bool { return false }})
		if err != nil {
			return sweep.Page{}, err
		}
		round.Previous = w.previous[store]
		page, err := pages(ctx, round, nil)
		w.previous[store] = page.Next
		return page, err
	})
}

// rows returns the rows of the manifest after an item. That of the other item is as the store has it.
func (w *clockWorld) rows(ctx context.Context, of schemas.Copy, last string) iter.Seq2[reconcile.Row, error] {
	return func(yield func(reconcile.Row, error) bool) {
		r := fold(w.log, w.at(of.Store))
		m := r.GetManifest()
		if of.Item < clockItem && m.GetState() != pb.RecordState_RECORD_STATE_NONE {
			found := m.GetOrigin() == pb.Origin_ORIGIN_SWEEP || m.GetOrigin() == pb.Origin_ORIGIN_FIXITY
			live := m.GetState() == pb.RecordState_RECORD_STATE_LIVE
			if !yield(reconcile.Row{Item: clockItem, Live: live, Inferred: !live && found, Time: m.GetTime().AsTime(),
				Size: schemas.SizeOf(m), Version: m.GetVersion(), ETag: m.GetEtag(), Digests: m.GetDigests(),
				Passed: timeOf(r.GetLastPass())}, nil) {
				return
			}
		}
		if o, err := w.stores[of.Store].Stat(ctx, clockSpace, otherItem); of.Item < otherItem && last != clockItem {
			yield(reconcile.Row{Item: otherItem, Live: true, Time: o.Modified, Size: o.Size, Version: o.Version}, err)
		}
	}
}

// timeOf returns the time of a message; zero if it has none.
func timeOf(t interface{ AsTime() time.Time }) time.Time {
	if at := t.AsTime(); at.Unix() != 0 {
		return at
	}
	return time.Time{}
}

// sweep publishes the page of a round.
func (w *clockWorld) sweep(page func(context.Context, sweep.Round) (sweep.Page, error)) error {
	w.rounds++
	var out []schemas.Message
	err := w.as("sweeper", func(ctx context.Context) error {
		p, err := page(ctx, sweep.Round{ID: schemas.ID("round", fmt.Sprint(w.rounds)), Started: time.Now()})
		out = p.Messages
		return err
	})
	for _, m := range out {
		err = errors.Join(err, w.append(m))
	}
	return err
}

// put stores a text as a client of a store does, and returns the client's Change, which is not reported yet.
func (w *clockWorld) put(store, text string) *pb.Change {
	w.now = w.now.Add(time.Millisecond) // what clients do has times of its own
	s := w.stores[store]
	o, err := s.Put(context.Background(), clockSpace, clockItem, strings.NewReader(text),
		storage.PutOptions{Size: int64(len(text))})
	must(w.t, err)
	if now := w.now.Add(w.skew["store "+store]); o.Modified.After(now.Add(time.Second)) {
		o.Modified = now // a store may date an item before the one that it replaces
		s.Date(clockSpace, clockItem, now)
	}
	w.acts = append(w.acts, act{store, text, w.now})
	w.now = w.now.Add(time.Millisecond)
	return clientChange(record.Content(w.at(store), o))
}

// putBare is put for a client that knows no digests.
func (w *clockWorld) putBare(text string) *pb.Change {
	c := undigested(w.put("1", text))
	w.bare[c.GetId()] = text
	return c
}

// putPlain is put for a client that knows no digests, in a store that has none, as of plain files.
func (w *clockWorld) putPlain(store, text string) *pb.Change {
	c := w.put(store, text)
	w.stores[store].Rewrite(clockSpace, clockItem, []byte(text))
	w.stores[store].Date(clockSpace, clockItem, c.GetTime().AsTime())
	return undigested(c)
}

func clientChange(c *pb.Change) *pb.Change {
	c.Origin = pb.Origin_ORIGIN_CLIENT
	return record.Seal(c)
}

// remove deletes the item of a store as a client does, and returns the client's Change; nil if there is no item.
func (w *clockWorld) remove(store string) *pb.Change {
	w.now = w.now.Add(time.Millisecond)
	d, err := w.stores[store].Delete(context.Background(), clockSpace, clockItem, storage.DeleteOptions{})
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	}
	must(w.t, err)
	w.acts = append(w.acts, act{store: store, at: w.now})
	w.now = w.now.Add(time.Millisecond)
	return clientChange(record.Delete(w.at(store), d))
}

// arrives handles the event of a watch of store 1 that something has appeared there.
func (w *clockWorld) arrives() error { return w.watched(hint.Created, w.now) }

// removed handles the event of a watch of store 1 that the item was removed at a time of Kafka's clock.
func (w *clockWorld) removed(at time.Time) error { return w.watched(hint.Removed, at) }

// watched publishes what store 1 shows after an event.
func (w *clockWorld) watched(k hint.Kind, at time.Time) error {
	var c *pb.Change
	err := w.as("ingester", func(ctx context.Context) error {
		s, err := hint.NewObserver(w, time.Minute).Observe(ctx, w.at("1"))
		if err == nil {
			s.Received = at.Add(w.skew["ingester"])
			c = hint.Decide(w.at("1"), hint.Hint{Kind: k, Vendor: "watch"}, s).Change
		}
		return err
	})
	if err != nil || c == nil {
		return err
	}
	return w.report(c)
}

// notify handles the notification of an object store about a version of the item in store 1.
func (w *clockWorld) notify(event, version string) error {
	return w.hinted(&schemas.Delivery{Topic: schemas.Foreign("s3"), Timestamp: w.now, Value: fmt.Appendf(nil,
		`{"Records": [{"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": %q, "eventTime": %q,
			"s3": {"bucket": {"name": %q}, "object": {"key": %q, "versionId": %q}}}]}`,
		event, w.now.Add(w.skew["store 1"]).Format(time.RFC3339Nano), clockSpace, clockItem, version)})
}

// claim handles an event about a copy that millrace writes.
func (w *clockWorld) claim(c *pb.Change) error {
	m := hint.Claim("loader", c)
	return w.hinted(&schemas.Delivery{Topic: m.Topic, Timestamp: w.now, Value: m.Value})
}

// hinted handles a delivery of hints.
func (w *clockWorld) hinted(d *schemas.Delivery) error {
	var out []schemas.Message
	err := w.as("ingester", func(ctx context.Context) error {
		h, err := hint.NewHandler(hint.NewObserver(w, time.Minute), w, w, nil)
		if err == nil {
			out, err = h.Handle(ctx, d)
		}
		return err
	})
	for _, m := range out {
		err = errors.Join(err, w.append(m))
	}
	return err
}
