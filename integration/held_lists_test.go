package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/deletion"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
)

// A heldTopic is duplication.results, of one partition, and what the tables have of it.
type heldTopic struct {
	records []*pb.DuplicationResult // of all incarnations of the topic
	begins  []int                   // the first record of each incarnation after the first one
	start   int                     // the first record that the topic still has
	stored  int                     // the first record that the tables still have
	emptied bool                    // the tables lack offsets
}

// incarnation returns that of a record, and the first record of it.
func (t *heldTopic) incarnation(n int) (id, first int) {
	for _, begin := range t.begins {
		if begin <= n {
			id, first = id+1, begin
		}
	}
	return id, first
}

func (t *heldTopic) coordinates(n int) schemas.Coordinates {
	id, first := t.incarnation(n)
	return schemas.Coordinates{Incarnation: uint32(id + 1), Offset: int64(n - first)}
}

// known returns an error while the tables lack offsets.
func (t *heldTopic) known() error {
	if t.emptied {
		return retry.Unavailable(errors.New("the tables lack offsets"))
	}
	return nil
}

// isHeld reports whether a record holds an effect of a kind in a space.
func isHeld(r *pb.DuplicationResult, of held.List) bool {
	_, at := schemas.CopiesOf(r)
	return r.GetResult() == "awaiting-approval" && held.KindOf(r.GetList()) == of.Kind && at.WithoutItem() == of.Space
}

// heldOf returns the records before one, of those in the tables, that hold an effect of a kind in a space.
func (t *heldTopic) heldOf(of held.List, before int) (all []int) {
	for n := t.stored; n < before; n++ {
		if isHeld(t.records[n], of) {
			all = append(all, n)
		}
	}
	return all
}

// seen returns what an operator has seen of a kind in a space who has seen the records before one, and the end of that.
func (t *heldTopic) seen(of held.List, before int) (s schemas.Seen, end int) {
	if all := t.heldOf(of, before); len(all) > 0 {
		end = all[len(all)-1] + 1
		at := t.coordinates(end - 1)
		s = schemas.Seen{Incarnation: at.Incarnation, Ends: map[int32]int64{0: at.Offset + 1}}
	}
	return s, end
}

// effects returns the effects that are on a list by the decisions that are known, as the queries of lists do.
func (t *heldTopic) effects(d *held.Decisions, of held.List) map[string]bool {
	one, before, decided := d.About(of)
	rows := t.heldOf(of, len(t.records))
	earlier, on := map[string]bool{}, map[string]bool{}
	for _, n := range rows {
		r, at := t.records[n], t.coordinates(n)
		has := func(s schemas.Seen) bool { return s.Has(at) }
		earlier[r.GetEffect()] = earlier[r.GetEffect()] || slices.ContainsFunc(before, has)
		on[r.GetEffect()] = on[r.GetEffect()] || decided && has(one.Seen) ||
			!decided && at.Incarnation == t.coordinates(rows[len(rows)-1]).Incarnation
	}
	maps.DeleteFunc(on, func(effect string, is bool) bool { return !is || earlier[effect] })
	return on
}

// listed returns the newest result of each item of which an effect is on a list, and is not moot.
func (t *heldTopic) listed(d *held.Decisions, of held.List) map[string]*pb.DuplicationResult {
	on, newest, moot := t.effects(d, of), map[string]*pb.DuplicationResult{}, t.moot(d, of)
	for _, n := range t.heldOf(of, len(t.records)) {
		if r := t.records[n]; on[r.GetEffect()] && n >= moot[r.GetItem()] {
			newest[r.GetItem()] = r
		}
	}
	return newest
}

// moot returns the last record about each item of those that were seen for the decision about a list, or of all if
// there is none, that shows that what was held before is not to be done any more; 0 if there is none.
func (t *heldTopic) moot(d *held.Decisions, of held.List) map[string]int {
	one, _, decided := d.About(of)
	last := map[string]int{}
	for n, r := range t.records[t.stored:] {
		n += t.stored
		_, at := schemas.CopiesOf(r)
		if at.WithoutItem() == of.Space && r.GetReason() != pb.DuplicationReason_DUPLICATION_REASON_RESTORE &&
			r.GetCause() != of.Name() && (!decided || one.Seen.Has(t.coordinates(n))) &&
			slices.Contains(schemas.Mooting(string(of.Kind)), r.GetResult()) {
			last[r.GetItem()] = n
		}
	}
	return last
}

// ended reports whether an item of a list has a result since the decision, of a restore too.
func (t *heldTopic) ended(of held.List, item string) bool {
	return slices.ContainsFunc(t.records[t.stored:], func(r *pb.DuplicationResult) bool {
		from, at := schemas.CopiesOf(r)
		if r.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_RESTORE {
			at = from
		}
		return r.GetCause() == of.Name() && at.WithoutItem() == of.Space && r.GetItem() == item
	})
}

// A heldIncident is the incident of a list.
type heldIncident struct {
	open bool
	at   time.Time // when it was opened
}

// A heldAction is a record of the topic admin.
type heldAction struct {
	*pb.AdminAction
	at time.Time
}

// heldLists are the lists of a process. They do what deleteLists of cmd/app does, with the topics and the tables of a
// world.
type heldLists struct {
	w            *heldWorld
	decisions    held.Decisions
	read         int // actions
	looked, knew map[held.List]bool
}

var _ deletion.Lists = (*heldLists)(nil)

func newHeldLists(w *heldWorld) *heldLists {
	l := &heldLists{w: w, looked: map[held.List]bool{}, knew: map[held.List]bool{}}
	l.catchUp()
	return l
}

// catchUp reads the decisions to their end.
func (l *heldLists) catchUp() {
	for _, a := range l.w.admin[l.read:] {
		l.decisions.Apply(a.AdminAction, a.at)
	}
	l.read = len(l.w.admin)
}

// Hold implements held.Lists.
func (l *heldLists) Hold(_ context.Context, at schemas.Copy, k held.Kind, _ string) (string, error) {
	list := l.decisions.Open(at, k)
	return list.Name(), l.w.openList(list)
}

// Wait implements held.Lists.
func (l *heldLists) Wait(_ context.Context, at schemas.Copy, k held.Kind) (bool, error) {
	next := l.decisions.Open(at, k)
	if l.w.incidents[next].open {
		return true, nil
	}
	return l.openNext(next)
}

// openNext opens the incident of a list on which something is. It looks once, and so does report.
func (l *heldLists) openNext(next held.List) (bool, error) {
	if next.Number == 1 && !l.closed(next) || l.looked[next] {
		return false, nil
	}
	if err := l.w.results.known(); err != nil {
		return false, err
	}
	if len(l.w.results.listed(&l.decisions, next)) > 0 {
		return true, l.w.openList(next)
	}
	l.looked[next] = true
	return false, nil
}

// Decided implements held.Lists.
func (l *heldLists) Decided(_ context.Context, at schemas.Copy, act held.Act, effect string) (held.Standing, error) {
	for _, k := range held.Kinds() {
		next := l.decisions.Open(at, k)
		if closed := l.closed(next); !closed {
			delete(l.knew, next)
		} else if k.Act() == act && !l.knew[next] {
			l.catchUp()
			l.knew[next] = true
		}
	}
	if !l.decisions.Matter(at, act) {
		return held.Standing{}, nil
	}
	var where []held.Place
	done := false
	for n, r := range l.w.results.records[l.w.results.stored:] {
		switch n += l.w.results.stored; {
		case r.GetResult() == "awaiting-approval" && held.ReasonOf(r.GetEffect()) == held.ReasonOf(effect):
			where = append(where, held.Place{Coordinates: l.w.results.coordinates(n), Kind: held.KindOf(r.GetList()),
				Effect: r.GetEffect()})
		case r.GetEffect() == effect && r.GetOutcome() == pb.Outcome_OUTCOME_DONE:
			done = true
		}
	}
	return l.decisions.Standing(at, effect, where, done), l.w.results.known()
}

// closed reports whether the incident of a list is closed.
func (l *heldLists) closed(list held.List) bool {
	i, ok := l.w.incidents[list]
	return ok && !i.open
}

// Refused implements held.Lists.
func (l *heldLists) Refused(at schemas.Copy) error {
	if list, ok := l.decisions.Refused(at, l.closed); ok {
		return retry.UnavailableFor("refused list", fmt.Errorf("the copies are needed for list %s", list.Name()))
	}
	return nil
}

// Decide implements deletion.Lists.
func (l *heldLists) Decide(_ context.Context, list held.List, id string) (lost string, err error) {
	l.catchUp()
	switch d, _, decided := l.decisions.About(list); {
	case !decided:
		return "it is not about the list that waits", nil
	case d.ID != id:
		return "another decision was made before", nil
	}
	return "", nil
}

// Waiting implements deletion.Lists, in pages of two items.
func (l *heldLists) Waiting(_ context.Context, list held.List, after string) (page []deletion.Listed, _ error) {
	on := l.w.results.listed(&l.decisions, list)
	for _, item := range slices.Sorted(maps.Keys(on)) {
		if len(page) < 2 && (after == "" || item > after) && !l.w.results.ended(list, item) {
			r := on[item]
			at := r.GetChangeTime().AsTime()
			page = append(page, deletion.Listed{Item: item, SourceStore: r.GetSourceStore(), Effect: r.GetEffect(),
				Deleted: at, Reason: r.GetReason(), Changed: at, Version: r.GetSourceVersion(), Digests: r.GetDigests()})
		}
	}
	return page, l.w.results.known()
}

// Ordered implements deletion.Lists.
func (l *heldLists) Ordered(context.Context, held.List, string) error { return nil }

// report closes the incidents of lists that are worked off, or have been empty for an hour, and opens those of lists
// that follow, as a process does every few seconds.
func (l *heldLists) report() {
	l.catchUp()
	clear(l.looked)
	if l.w.results.emptied {
		return
	}
	for list, i := range l.w.incidents {
		d, _, decided := l.decisions.About(list)
		on := l.w.results.listed(&l.decisions, list)
		rest := maps.Clone(on)
		maps.DeleteFunc(rest, func(item string, _ *pb.DuplicationResult) bool { return l.w.results.ended(list, item) })
		if i.open && (decided && (d.Action == held.ActionClose || len(rest) == 0) ||
			!decided && len(on) == 0 && time.Since(i.at) > hour) {
			l.w.incidents[list] = heldIncident{}
		}
	}
	for _, list := range l.decisions.Decided(time.Now().Add(-held.Final)) {
		if next := l.decisions.Open(list.Space, list.Kind); !l.w.incidents[next].open {
			_, _ = l.openNext(next) // the tables are known
		}
	}
}

// openList opens the incident of a list, if it is not open.
func (w *heldWorld) openList(l held.List) error {
	if !w.incidents[l].open {
		w.incidents[l] = heldIncident{true, time.Now()}
	}
	return nil
}

// trim removes from the topic what comes before the lists that are undecided, being carried out, or decided about
// within held.Final. While the tables lack offsets it removes nothing.
func (w *heldWorld) trim() {
	if w.results.emptied {
		return
	}
	lists, first := w.decisions.Decided(time.Now().Add(-held.Final)), len(w.results.records)
	for l, i := range w.incidents {
		if i.open {
			lists = append(lists, l)
		}
	}
	for _, l := range lists {
		on := w.results.effects(&w.decisions, l)
		for _, n := range w.results.heldOf(l, first) {
			if on[w.results.records[n].GetEffect()] {
				first = min(first, n)
			}
		}
	}
	w.results.start = max(w.results.start, first)
}

// recreate makes the topic anew, without its records. The tables keep theirs.
func (w *heldWorld) recreate() {
	w.results.start = len(w.results.records)
	w.results.begins = append(w.results.begins, w.results.start)
}

// fill fills the tables with what the topic still has. What was held before that is not known any more. A list that
// still matters loses nothing that way.
func (w *heldWorld) fill() {
	t := &w.results
	if !t.emptied {
		return
	}
	t.emptied, t.stored = false, t.start
	for _, e := range w.effects {
		approved, _ := w.decided(e)
		e.approved = e.approved || approved
		for k, held := range e.held {
			l := w.listOf(e, k)
			left := slices.DeleteFunc(slices.Clone(held), func(n int) bool { return n < t.stored })
			if e.held[k] = left; len(left) == len(held) {
				continue
			}
			id, _ := t.incarnation(held[0])
			now, _ := t.incarnation(len(t.records))
			if w.matters(l) && id == now {
				w.fault("%s was on list %s, which the topic lacks", e, l.Name())
			}
			if len(left) == 0 {
				delete(e.held, k)
			}
		}
	}
}

// matters reports whether a list is undecided, being carried out, or was decided about within held.Final.
func (w *heldWorld) matters(l held.List) bool {
	made := w.made[listWithout(l)]
	return w.incidents[l].open || l.Number <= len(made) && time.Since(made[l.Number-1].at) < held.Final
}

// A heldDecision is a decision about a list that wins: of what was held before the end of what the operator saw.
type heldDecision struct {
	id, action string
	seen       int
	at         time.Time
}

// has reports whether the decision is about what a record holds.
func (w *heldWorld) has(d heldDecision, n int) bool {
	of, _ := w.results.incarnation(n)
	in, _ := w.results.incarnation(d.seen - 1)
	return n < d.seen && of == in
}

// decide makes a decision about a list, of an operator who has seen so many results, and who has read so many actions,
// and hands it to the steward. It takes the place of the decision with the id before.
func (w *heldWorld) decide(l held.List, action string, seen, read int, before string) error {
	time.Sleep(time.Millisecond)
	var by held.Decisions
	for _, a := range w.admin[:read] {
		by.Apply(a.AdminAction, a.at)
	}
	known, _, decided := by.About(l)
	if decided != (before != "") || decided && known.ID != before {
		return nil // the command says who decided
	}
	of, end := w.results.seen(l, seen)
	if before == "" {
		all := w.results.records
		w.results.records = all[:max(seen, w.results.stored)]
		n := len(w.results.listed(&by, l))
		if w.results.records = all; n == 0 || w.results.emptied {
			return nil // the command says that nothing is on record, or that it is unknown
		}
	} else {
		of = known.Seen
	}
	a := heldAction{&pb.AdminAction{Id: fmt.Sprint("decision ", len(w.admin)), Action: action, Who: "ann", Reason: "why",
		Before: before, After: of.String(),
		Target: schemas.Key(l.Space.Account, l.Space.Store, l.Space.Space, "", l.Kind.Act().IncidentKind(), l.Name())},
		time.Now()}
	if w.acted(l, a, end) && action == held.ActionClose {
		w.incidents[l] = heldIncident{}
	}
	out, err := w.steward.Handle(context.Background(),
		&schemas.Delivery{Topic: schemas.Admin, Body: a.AdminAction, Timestamp: a.at})
	for _, m := range out {
		err = errors.Join(err, w.append(m))
	}
	return err
}

// acted records a decision about a list, of an operator who saw the results before an end, and reports whether it wins.
func (w *heldWorld) acted(l held.List, a heldAction, end int) bool {
	w.admin = append(w.admin, a)
	w.decisions.Apply(a.AdminAction, a.at)
	made, n := w.made[listWithout(l)], l.Number-1
	switch one := (heldDecision{a.GetId(), a.GetAction(), end, a.at}); {
	case n == len(made):
		w.made[listWithout(l)] = append(made, one)
	case n < len(made) && made[n].action == held.ActionClose && one.action == held.ActionApprove &&
		a.GetBefore() == made[n].id && a.at.Sub(made[n].at) < held.Final:
		one.seen = made[n].seen
		made[n] = one
	default:
		return false
	}
	return true
}

// decided returns the decision about an effect, or else that about another object that keeps the copy for the same
// reason.
func (w *heldWorld) decided(e *heldEffect) (approved, keeps bool) {
	approved, keeps = w.decidedAlone(e)
	for id, other := range w.effects {
		if !approved && !keeps && held.ReasonOf(id) == held.ReasonOf(e.id) {
			_, keeps = w.decidedAlone(other)
		}
	}
	return approved, keeps
}

// decidedAlone returns the decision about an effect: one that keeps it wins over an approval on a list of another kind.
func (w *heldWorld) decidedAlone(e *heldEffect) (approved, keeps bool) {
	for k := range e.held {
		l := w.listOf(e, k)
		if made := w.made[listWithout(l)]; l.Number <= len(made) {
			is := made[l.Number-1].action == held.ActionApprove
			approved, keeps = approved || is, keeps || !is
		}
	}
	return approved && !keeps, keeps
}

// listOf returns the list of a kind that has an effect: the first one about which somebody has decided who had seen the
// effect, or else the one that is open.
func (w *heldWorld) listOf(e *heldEffect, k held.Kind) held.List {
	l := held.List{Space: e.at.WithoutItem(), Kind: k}
	made := w.made[l]
	l.Number = len(made) + 1
	for n, d := range made {
		if slices.ContainsFunc(e.held[k], func(at int) bool { return w.has(d, at) }) {
			l.Number = n + 1
			break
		}
	}
	return l
}

func listWithout(l held.List) held.List { l.Number = 0; return l }

// onList returns the effects that the results put on a list, by item. What only a topic before had is on no open list
// once something is held in the new one.
func (w *heldWorld) onList(l held.List) map[string][]*heldEffect {
	all := map[string][]*heldEffect{}
	rows := w.results.heldOf(l, len(w.results.records))
	for _, e := range w.effects {
		at := e.held[l.Kind]
		if len(at) == 0 || w.listOf(e, l.Kind) != l {
			continue
		}
		is, _ := w.results.incarnation(at[len(at)-1])
		now, _ := w.results.incarnation(rows[len(rows)-1])
		if is == now || l.Number <= len(w.made[listWithout(l)]) {
			all[e.at.Item] = append(all[e.at.Item], e)
		}
	}
	return all
}

// waitsOn returns the effects on a list that are not moot, by item: those of items of which no later result, seen for
// the decision about the list, shows that nothing is to be done any more.
func (w *heldWorld) waitsOn(l held.List) map[string][]*heldEffect {
	all, moot := w.onList(l), w.results.moot(&w.decisions, l)
	maps.DeleteFunc(all, func(item string, effects []*heldEffect) bool {
		return !slices.ContainsFunc(effects, func(e *heldEffect) bool {
			held := e.held[l.Kind]
			return held[len(held)-1] >= moot[item]
		})
	})
	return all
}
