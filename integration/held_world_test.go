package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/duplicate"
	"github.com/millrace/millrace/streams/held"
	planning "github.com/millrace/millrace/streams/plan"
	"github.com/millrace/millrace/streams/policy"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/steward"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/sweep"
	"github.com/millrace/millrace/streams/sweep/pairs"
)

// A heldWorld is a space of an account with a source, store 1, and its copies in store 2, and in some worlds in store
// 3: two processes that copy and delete, each with brakes of its own, the topics, and the operators. It lives in a
// bubble of fake time, by which all clocks go.
type heldWorld struct {
	space     string
	stores    map[string]storage.Store
	rules     policy.Rules
	limit     int64                                // deletes, and rewrites, of a space of a store within an hour
	facts     map[schemas.Copy][]*schemas.Delivery // the Changes of each copy
	open      []*waiting                           // commands that are not handled
	done      []*schemas.Delivery                  // those that are, but may be delivered again
	suspended [][]schemas.Message                  // what processes have done and not published yet
	brakes    map[brake.Kind]*braketest.Topic
	processes [2]heldProcess
	planner   *planning.Planner
	steward   *steward.Steward
	publishes int // how many messages a process still publishes itself before it is killed; < 0: all
	puts      int
	rounds    int
	reading   sync.Mutex
	moments   int    // reads of the process at work until meanwhile is called; guarded by reading
	meanwhile func() // what an operator does while a process is at work; nil: nothing

	results   heldTopic
	admin     []heldAction
	decisions held.Decisions               // by all of admin
	made      map[held.List][]heldDecision // those that win, by the list without a number
	incidents map[held.List]heldIncident

	effects map[string]*heldEffect
	isSame  func(*heldEffect) bool                 // whether source and copy are as they were when an effect was held
	acting  *watchedSides                          // what the process at work sees and does; nil: none is
	last    map[schemas.Copy]*pb.DuplicationResult // the newest result of each destination
	passed  map[string][]time.Time                 // when effects were done with a permit, by store and kind
	broken  []string                               // promises that do not hold
}

// A heldProcess is one process with the roles copier and deleter.
type heldProcess struct {
	copier  *duplicate.Executor
	deleter *deletion.Deleter
	lists   *heldLists
}

// A heldEffect is a delete or a rewrite that was held.
type heldEffect struct {
	id         string
	at         schemas.Copy
	rewrite    bool
	over, from string              // the versions at the destination and, of a rewrite, at the source
	deleted    time.Time           // when the source was deleted
	held       map[held.Kind][]int // the results in the tables that hold it, of each kind
	approved   bool                // by a list that the tables have no more
}

func (e *heldEffect) String() string {
	return fmt.Sprintf("the %s of %s in store %s, version %s",
		map[bool]string{true: "rewrite", false: "delete"}[e.rewrite], e.at.Item, e.at.Store, e.over)
}

// errHeldKilled is the error of a process that was killed.
var errHeldKilled = errors.New("killed")

// heldItems are the items of a heldWorld.
var heldItems = []string{"a", "b", "c", "d"}

// A heldStore is a store as the processes use it: while they read, operators act, and what they do is recorded.
type heldStore struct {
	storage.Store
	w  *heldWorld
	id string
}

func (s heldStore) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	s.w.moment()
	return s.Store.Stat(ctx, space, item)
}

func (s heldStore) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	s.w.moment()
	return s.Store.StatSpace(ctx, space)
}

func (s heldStore) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	s.w.moment()
	return s.Store.Open(ctx, space, item, version)
}

func (s heldStore) Delete(
	ctx context.Context, space, item string, o storage.DeleteOptions,
) (storage.Deleted, error) {
	s.w.acts(s.id)
	return s.Store.Delete(ctx, space, item, o)
}

func (s heldStore) DeleteSpace(ctx context.Context, space string) error {
	s.w.acts(s.id)
	return s.Store.DeleteSpace(ctx, space)
}

// moment lets an operator act when it is time. Both sides of an item are read at once.
func (w *heldWorld) moment() {
	w.reading.Lock()
	w.moments--
	act := w.meanwhile
	if w.moments != 0 {
		act = nil
	}
	w.reading.Unlock()
	if act != nil {
		act()
	}
}

// acts records the rules under which the process at work deletes or replaces a copy.
func (w *heldWorld) acts(store string) {
	if s := w.acting; s != nil && s.at.Store == store {
		s.held, s.rule = len(w.rules.Holds) > 0, w.ruleFor(s.at)
	}
}

func (w *heldWorld) at(store, item string) schemas.Copy {
	return schemas.Copy{Account: "acme", Store: store, Space: w.space, Item: item}
}

// newHeldWorld returns a world in which each item is at the source and copied.
func newHeldWorld(stores int, limit int64) (*heldWorld, error) {
	w := &heldWorld{space: "s", stores: map[string]storage.Store{}, facts: map[schemas.Copy][]*schemas.Delivery{},
		limit: limit, brakes: map[brake.Kind]*braketest.Topic{}, publishes: -1, effects: map[string]*heldEffect{},
		made: map[held.List][]heldDecision{}, incidents: map[held.List]heldIncident{},
		last: map[schemas.Copy]*pb.DuplicationResult{}, passed: map[string][]time.Time{},
		rules: policy.Rules{Revision: 1, Deletes: policy.Propagate, Since: time.Now().AddDate(-10, 0, 0)}}
	for _, k := range []brake.Kind{brake.Deletes, brake.Rewrites} {
		w.brakes[k] = braketest.New(k)
		w.brakes[k].Limits = brake.Limits{MaxShare: 1, MaxCount: limit}
	}
	for n := range stores {
		id := fmt.Sprint(n + 1)
		s, err := mem.New(mem.Config{ID: id})
		if err == nil {
			err = errors.Join(s.WriteMarker(context.Background()),
				s.CreateSpace(context.Background(), storage.Space{Name: "s"}))
		}
		if err != nil {
			return nil, err
		}
		if w.stores[id] = s; n > 0 {
			w.rules.Pairs = append(w.rules.Pairs, policy.Pair{Source: "1", Destination: id})
		}
	}
	w.isSame = w.isAsHeld
	var err error
	if w.planner, err = planning.New(planning.Config{}, w); err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	w.steward, err = steward.New(steward.Config{}, steward.Deps{Stores: w, Records: w, Log: log})
	for i := range w.processes {
		err = errors.Join(err, w.start(i))
	}
	for _, item := range heldItems {
		err = errors.Join(err, w.putAt("1", item, true))
	}
	return w, errors.Join(err, w.deliver())
}

// start starts a process, in place of one that was killed.
func (w *heldWorld) start(i int) (err error) {
	interval := []time.Duration{time.Minute}
	p := &w.processes[i]
	p.lists = newHeldLists(w)
	p.copier, err = duplicate.New(duplicate.Config{NoCheck: true, WaitIntervals: interval, MissingIntervals: interval,
		Restores: w, Rewrites: w.brakes[brake.Rewrites].Process(), Held: p.lists}, w, w, w)
	if err == nil {
		p.deleter, err = deletion.New(deletion.Config{Settle: time.Minute, Brake: w.brakes[brake.Deletes].Process(),
			Lists: p.lists, Publisher: w}, w, w, w)
	}
	return err
}

func (w *heldWorld) Store(_, id string) (storage.Store, bool) {
	s, ok := w.stores[id]
	return heldStore{s, w, id}, ok
}

func (w *heldWorld) Rules(string, string) (policy.Rules, bool) { return w.rules, true }

// Fresh returns records that have all that was published.
func (w *heldWorld) Fresh(_ context.Context, copies []schemas.Copy) (all []*pb.CopyRecord, _ error) {
	for _, c := range copies {
		r := fold(w.facts[c], c)
		if c.Item == "" {
			w.expect(c, r)
		}
		all = append(all, r)
	}
	return all, w.results.known()
}

// expect makes of the last Change of a space its record: the space is expected if a copy in it is live on record that
// is newer than its delete.
func (w *heldWorld) expect(space schemas.Copy, r *pb.CopyRecord) {
	deleted := time.Time{}
	if r.GetAudit().GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE {
		deleted = r.GetAudit().GetTime().AsTime()
	}
	r.Audit.Origin, r.Manifest = r.GetManifest().GetOrigin(), clickhousetest.NoRecord()
	for _, item := range heldItems {
		m := fold(w.facts[w.at(space.Store, item)], w.at(space.Store, item)).GetManifest()
		if m.GetState() == pb.RecordState_RECORD_STATE_LIVE && m.GetTime().AsTime().After(deleted) {
			r.Manifest.State = pb.RecordState_RECORD_STATE_LIVE
		}
	}
}

// Refuses implements duplicate.Restores.
func (w *heldWorld) Refuses(string, string) string { return "" }

// Proven implements duplicate.Restores by what clients have reported.
func (w *heldWorld) Proven(_ context.Context, item schemas.Copy, digests digest.Set) (digest.Set, error) {
	for id := range w.stores {
		for _, f := range factsOf(w.facts[item.In(id)], item.In(id)) {
			if f.isContent() && digests.Compare(f.GetDigests()) == digest.Agree {
				return f.GetDigests(), nil
			}
		}
	}
	return nil, nil
}

// RepairMode and Others implement steward.Stores, and Live steward.Copies: nothing is repaired.
func (w *heldWorld) RepairMode(string, string, time.Time) steward.Mode { return steward.Off }
func (w *heldWorld) Others(string, string, string) []string            { return nil }
func (w *heldWorld) Live(context.Context, schemas.Copy) (int64, error) { return 0, nil }

// Publish implements schemas.Publisher for processes, which may be killed between two messages.
func (w *heldWorld) Publish(_ context.Context, all ...schemas.Message) error {
	for _, m := range all {
		if w.publishes == 0 {
			return errHeldKilled
		}
		w.publishes--
		if err := w.append(m); err != nil {
			return err
		}
	}
	return nil
}

// append publishes a message, a millisecond after the one before.
func (w *heldWorld) append(m schemas.Message) error {
	r, err := schemas.Encode(m)
	if err != nil {
		return err
	}
	body, err := schemas.Decode(m.Topic, r.Headers, r.Value)
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	d := &schemas.Delivery{Topic: m.Topic, From: m.Topic, Timestamp: time.Now(), Key: r.Key, Headers: r.Headers,
		Body: body, Attempt: 1}
	schemas.DateByKafka(d)
	switch b := body.(type) {
	case *pb.Change:
		at := schemas.CopyOf(b)
		d.Offset = int64(len(w.facts[at]))
		w.facts[at] = append(w.facts[at], d)
		commands, err := w.planner.Handle(context.Background(), d)
		for _, c := range commands {
			err = errors.Join(err, w.append(c))
		}
		return err
	case *pb.DuplicationResult:
		w.result(b)
	case *pb.DuplicationCommand, *pb.DeletionCommand:
		w.open = append(w.open, &waiting{d, m.Due})
	}
	return nil // nobody checks copies
}

// result adds a record to duplication.results.
func (w *heldWorld) result(r *pb.DuplicationResult) {
	_, at := schemas.CopiesOf(r)
	n := len(w.results.records)
	w.results.records = append(w.results.records, r)
	w.last[at] = r
	if r.GetResult() != "awaiting-approval" {
		return
	}
	e, k := w.effects[r.GetEffect()], held.KindOf(r.GetList())
	if e == nil || k == "" {
		w.fault("a result of %s holds effect %q on list %q", at, r.GetEffect(), r.GetList())
		return
	}
	e.held[k] = append(e.held[k], n)
}

func (w *heldWorld) fault(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// setRule sets the rule for deletes, as a new revision of the policy does.
func (w *heldWorld) setRule(rule policy.Deletes) {
	r := &w.rules
	switch {
	case rule == r.Deletes:
		return
	case rule == policy.Propagate && r.Deletes == policy.Approve:
		r.Propagated = time.Now()
	case rule == policy.KeepCopy || r.Deletes == policy.KeepCopy:
		r.Since, r.Propagated = time.Now(), time.Time{}
	}
	r.Deletes = rule
	r.Revision++
}

// ruleFor returns the rule for a copy whose source is deleted.
func (w *heldWorld) ruleFor(at schemas.Copy) policy.Deletes {
	deleted := fold(w.facts[at.In("1")], at.In("1")).GetManifest().GetTime().AsTime()
	return w.rules.DeletesOf(policy.Pair{Source: "1", Destination: at.Store}, deleted)
}

// look returns an object of a store; false if there is none.
func (w *heldWorld) look(at schemas.Copy) (storage.Object, bool) {
	if at.Item == "" {
		_, err := w.stores[at.Store].StatSpace(context.Background(), at.Space)
		return storage.Object{}, err == nil
	}
	o, err := w.stores[at.Store].Stat(context.Background(), at.Space, at.Item)
	return o, err == nil
}

// putAt stores new content of an item, as a client of a store does.
func (w *heldWorld) putAt(store, item string, reported bool) error {
	time.Sleep(time.Millisecond)
	if _, present := w.look(w.at(store, "")); !present {
		if store != "1" {
			return nil
		}
		if err := w.changeSpace(pb.Op_OP_CREATE_SPACE); err != nil {
			return err
		}
	}
	w.puts++
	text := fmt.Sprint("text ", w.puts%7) // some come again
	o, err := w.stores[store].Put(context.Background(), "s", item, strings.NewReader(text),
		storage.PutOptions{Size: int64(len(text))})
	if err != nil || !reported {
		return err
	}
	return w.append(schemas.Message{Topic: schemas.Changes, Body: clientChange(record.Content(w.at(store, item), o))})
}

// remove deletes an item of the source, as a client does.
func (w *heldWorld) remove(item string, reported bool) error {
	time.Sleep(time.Millisecond)
	d, err := w.stores["1"].Delete(context.Background(), "s", item, storage.DeleteOptions{})
	if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace) || err == nil && !reported {
		return nil
	}
	if err != nil {
		return err
	}
	return w.append(schemas.Message{Topic: schemas.Changes, Body: clientChange(record.Delete(w.at("1", item), d))})
}

// changeSpace creates the space at the source, or deletes it if it has no items, as a client does.
func (w *heldWorld) changeSpace(op pb.Op) (err error) {
	time.Sleep(time.Millisecond)
	if op == pb.Op_OP_CREATE_SPACE {
		err = w.stores["1"].CreateSpace(context.Background(), storage.Space{Name: "s"})
	} else {
		err = w.stores["1"].DeleteSpace(context.Background(), "s")
	}
	if errors.Is(err, storage.ErrNoSpace) || errors.Is(err, storage.ErrNotEmpty) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.append(schemas.Message{Topic: schemas.Changes, Body: clientChange(&pb.Change{Op: op, Account: "acme",
		Store: "1", Space: "s", Time: record.Time(time.Now())})})
}

// sweep reports what differs from the records at the source, and orders every difference of a pair again.
func (w *heldWorld) sweep() (err error) {
	for _, item := range heldItems {
		at := w.at("1", item)
		m := fold(w.facts[at], at).GetManifest()
		var c *pb.Change
		switch o, present := w.look(at); {
		case present && !record.IsOf(m, o):
			c = record.Content(at, o)
		case !present && m.GetState() == pb.RecordState_RECORD_STATE_LIVE:
			c = record.Delete(at, storage.Deleted{Time: time.Now(),
				Object: storage.Object{Item: item, Size: m.GetSize(), Version: m.GetVersion()}})
		default:
			continue
		}
		c.Origin, c.Agent = pb.Origin_ORIGIN_SWEEP, "sweeper"
		err = errors.Join(err, w.append(schemas.Message{Topic: schemas.Changes, Body: record.Seal(c)}))
	}
	for _, p := range w.rules.Pairs {
		page, e := pairs.New(pairs.Config{
			Pair: pairs.Pair{Account: "acme", Space: "s", Source: p.Source, Destination: p.Destination}},
			pairs.Deps{Source: w.stores[p.Source], Destination: w.stores[p.Destination], Rules: w, Records: w})
		if e != nil {
			return e
		}
		w.rounds++
		found, e := page(context.Background(), sweep.Round{ID: fmt.Sprint("round ", w.rounds), Started: time.Now()}, nil)
		for _, m := range found.Messages {
			e = errors.Join(e, w.append(m))
		}
		err = errors.Join(err, e)
	}
	return err
}

// A heldEnding is how a process ends that executes a command.
type heldEnding int

const (
	heldEnds      heldEnding = iota // it publishes what follows, and commits
	heldIsKilled                    // it publishes a part of that
	heldSuspended                   // it publishes that later, and another process has the command meanwhile
)

// execute executes the ith command. A process that is killed publishes so many messages.
func (w *heldWorld) execute(i, process int, end heldEnding, published int) error {
	d, p := w.open[i], w.processes[process]
	handle := p.copier.Handle
	if _, ok := d.Body.(*pb.DeletionCommand); ok {
		handle = p.deleter.Handle
	}
	if end == heldIsKilled {
		w.publishes = published
	}
	p.lists.catchUp() // it may lag behind decisions that are made while it is at work
	w.acting = w.watch(d.Body)
	out, err := handle(context.Background(), d.Delivery)
	w.acting.compare(w, out)
	if w.acting = nil; w.meanwhile != nil && w.moments <= 0 {
		w.meanwhile = nil
		defer w.lookAgain()
	}
	killed := errors.Is(err, errHeldKilled)
	switch {
	case killed || err == nil && end == heldIsKilled:
		w.open = append(slices.Delete(w.open, i, i+1), d)
		err = w.start(process)
	case err == nil && end == heldSuspended:
		w.suspended, out = append(w.suspended, out), nil
	case err == nil:
		w.open, w.done = slices.Delete(w.open, i, i+1), append(w.done, d.Delivery)
	case retry.ClassOf(err) == retry.ClassWait:
		if cause := retry.CauseOf(err); cause != "" {
			d.WaitsBy = maps.Clone(d.WaitsBy)
			if d.WaitsBy == nil {
				d.WaitsBy = map[string]int{}
			}
			d.WaitsBy[cause]++
		}
		d.Waits, d.due, err = d.Waits+1, retry.Due(err), nil
	case retry.ClassOf(err) == retry.ClassUnavailable:
		d.due, err = time.Now().Add(time.Minute), nil
	}
	left := w.publishes
	w.publishes = -1
	if end == heldIsKilled && !killed {
		out = out[:min(max(left, 0), len(out))]
	}
	for _, m := range out {
		err = errors.Join(err, w.append(m))
	}
	return err
}

// lookAgain lets the processes look for what was held after a decision that did not know it. They do so every few
// minutes, and until then what follows may be done within the limits.
func (w *heldWorld) lookAgain() {
	for _, p := range w.processes {
		p.lists.report()
	}
}

// resume publishes what a suspended process has done.
func (w *heldWorld) resume(i int) (err error) {
	defer w.lookAgain()
	out := w.suspended[i]
	w.suspended = slices.Delete(w.suspended, i, i+1)
	for _, m := range out {
		err = errors.Join(err, w.append(m))
	}
	return err
}

// A watchedSides is both sides of a command before it is executed, and what was decided about the copy.
type watchedSides struct {
	at             schemas.Copy
	from, over     storage.Object
	fromIs, overIs bool
	kept           map[*heldEffect]bool // the effects on the copy that a decision keeps
	refusing       string               // the refused list that is carried out in the space
	waiting        map[held.Kind]string // the lists on which something waits
	held           bool                 // a hold was in force at the act
	rule           policy.Deletes       // that was in force then
}

func (w *heldWorld) watch(b schemas.Body) *watchedSides {
	c := b.(interface {
		GetItem() string
		GetSourceStore() string
		GetDestinationStore() string
	})
	s := &watchedSides{at: w.at(c.GetDestinationStore(), c.GetItem()), kept: map[*heldEffect]bool{},
		waiting: map[held.Kind]string{}}
	if c.GetSourceStore() == "" || c.GetDestinationStore() == "1" { // of a list, or a restore
		return s
	}
	s.from, s.fromIs = w.look(s.at.In(c.GetSourceStore()))
	s.over, s.overIs = w.look(s.at)
	s.refusing = w.refusing(s.at)
	for _, e := range w.effects {
		if _, keeps := w.decided(e); keeps && e.at == s.at {
			s.kept[e] = true
		}
	}
	for _, k := range []held.Kind{held.Limit, held.Rewrites} {
		if open := w.decisions.Open(s.at, k); len(w.waitsOn(open)) > 0 {
			s.waiting[k] = open.Name()
		}
	}
	return s
}

// compare records what was held, and checks what was done.
func (s *watchedSides) compare(w *heldWorld, out []schemas.Message) {
	r := &pb.DuplicationResult{}
	if len(out) > 0 {
		if last, ok := out[len(out)-1].Body.(*pb.DuplicationResult); ok {
			r = last
		}
	}
	if !s.overIs && r.GetResult() != "awaiting-approval" { // row C4o holds what the copy lacks too
		return
	}
	e := &heldEffect{id: r.GetEffect(), at: s.at, rewrite: s.fromIs && s.at.Item != "", over: s.over.Version,
		deleted: r.GetChangeTime().AsTime(), held: map[held.Kind][]int{}}
	if e.rewrite {
		e.from, e.deleted = s.from.Version, time.Time{}
	}
	now, is := w.look(s.at)
	done := s.overIs && !is || now.Digests.Compare(s.over.Digests) == digest.Disagree
	switch known := w.effects[e.id]; {
	case done:
		w.did(s, e, r)
	case r.GetResult() != "awaiting-approval":
	case known == nil:
		w.effects[e.id] = e
	case known.at != e.at || known.over != e.over || known.from != e.from || !known.deleted.Equal(e.deleted):
		w.fault("%s and %s have one id", known, e)
	}
}

// refused reports whether a list with the name of l was refused, in any store.
func (w *heldWorld) refused(l held.List) bool {
	for of, made := range w.made {
		if of.Kind == l.Kind && l.Number <= len(made) && made[l.Number-1].action == held.ActionRefuse {
			return true
		}
	}
	return false
}

// did checks a delete or a rewrite that was done:
//   - It was approved, by a decision about a list that has this very effect, or the brake has permitted it: then it is
//     within the limits, of an hour and of 30 days, and neither the rule nor an earlier effect that waits forbids it.
//   - No decision keeps the copy from it, and no hold. No refusal is carried out in the space of the copy, which may be
//     the source of a restore.
func (w *heldWorld) did(s *watchedSides, e *heldEffect, r *pb.DuplicationResult) {
	for _, known := range w.effects {
		if known.at == e.at && known.rewrite == e.rewrite && known.over == e.over && known.from == e.from &&
			(e.rewrite || known.id == e.id) {
			e = known
		}
	}
	approved, _ := w.decided(e)
	approved = approved || e.approved
	if s.kept[e] {
		w.fault("%s is done, and was to be kept", e)
	}
	if s.held {
		w.fault("%s is done under a hold", e)
	}
	if s.refusing != "" {
		w.fault("%s is done while the refused list %s is carried out", e, s.refusing)
	}
	if !e.rewrite && s.rule == policy.KeepCopy {
		w.fault("%s is done under the rule keep", e)
	}
	if r.GetList() != "" && r.GetCause() != r.GetList() && !approved { // the undo of a refused rewrite, in another store
		if l, ok := held.Named(e.at, r.GetList()); !ok || !w.refused(l) {
			w.fault("%s is done for list %s, which nobody has refused", e, r.GetList())
		}
		return
	}
	if r.GetList() != "" {
		if l, ok := held.Named(e.at, r.GetList()); !approved || !ok || w.listOf(e, l.Kind) != l && !e.approved {
			w.fault("%s is done as one of list %s, and nobody has approved it", e, r.GetList())
		}
		return
	}
	k, now := held.Limit, time.Now()
	if e.rewrite {
		k = held.Rewrites
	}
	if !e.rewrite && s.rule == policy.Approve {
		w.fault("%s is done without approval, and the rule is approve", e)
	}
	if list := s.waiting[k]; list != "" {
		w.fault("%s is done, and an earlier one waits on list %s", e, list)
	}
	key := string(k) + " " + e.at.Store
	w.passed[key] = append(w.passed[key], now)
	inHour, inMonth := int64(0), int64(0)
	for _, t := range w.passed[key] {
		if now.Sub(t) < hour {
			inHour++
		}
		if now.Sub(t) < 30*24*hour {
			inMonth++
		}
	}
	if inHour > w.limit || inMonth > 3*w.limit {
		w.fault("%s is done beyond the limits: the %dth of an hour, and the %dth of 30 days", e, inHour, inMonth)
	}
}

// refusing returns the name of a list of the space of a copy whose refusal is being carried out; "" if there is none.
func (w *heldWorld) refusing(at schemas.Copy) string {
	for _, l := range w.spaces() {
		for n, d := range w.made[l] {
			if l.Number = n + 1; l.Space == at.WithoutItem() && d.action == held.ActionRefuse && w.incidents[l].open {
				return l.Name()
			}
			l.Number = 0
		}
	}
	return ""
}

// spaces returns the lists of all kinds at all destinations, without their numbers.
func (w *heldWorld) spaces() (all []held.List) {
	for _, p := range w.rules.Pairs {
		for _, k := range held.Kinds() {
			all = append(all, held.List{Space: w.at(p.Destination, "").WithoutItem(), Kind: k})
		}
	}
	return all
}

// openLists returns the lists with an open incident about which there is no decision.
func (w *heldWorld) openLists() (all []held.List) {
	for _, l := range w.spaces() {
		if l = w.decisions.Open(l.Space, l.Kind); w.incidents[l].open {
			all = append(all, l)
		}
	}
	return all
}
