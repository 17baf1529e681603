package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/policy"
)

// TestHeldModel runs random histories of what is held for a decision: clients and scripts that delete and overwrite,
// sweeps, commands that are delivered again, processes that are killed or suspended between any two effects, operators
// who decide about what they have seen, late, twice and against each other, and rules and holds that come and go.
//
// While a history runs, and at rest, these promises hold:
//
//   - No copy is deleted or replaced beyond the limits, under a hold, or against the rule, unless a decision approves
//     this very effect. While an effect waits, no further one of its kind is done unasked.
//   - What a decision keeps stays: no sweep, command or approval of something else does it.
//   - Each approved effect whose source and copy are still the same is done.
//   - Each item of a refused list has the result of a restore, and is back at the source unless that result says why
//     not.
//   - Nothing waits for ever: each held effect is decided, or is on exactly one list, which is open and has an
//     incident; no command waits; the incidents of decided lists are closed.
//   - What an operator sees on an open list is what the results say.
//
// The variable MILLRACE_TEST_SEED repeats one history.
func TestHeldModel(t *testing.T) {
	from, n := uint64(0), uint64(need.Amount(500, 10_000, 100_000))
	if seed, ok := givenSeed(t); ok {
		from, n = seed, 1
	}
	for seed, bad := from, 0; seed < from+n && bad < 4; seed++ {
		script := drawHeld(seed)
		if len(runHeld(t, seed, script)) == 0 {
			continue
		}
		bad++
		script = shrink(script, func(s []clockStep) bool { return len(runHeld(t, seed, s)) > 0 })
		t.Errorf("seed %d: %v\n%s", seed, script, strings.Join(runHeld(t, seed, script), "\n"))
	}
}

func drawHeld(seed uint64) []clockStep {
	dice := rand.New(rand.NewPCG(seed, 44)) //nolint:gosec // cases must be reproducible
	pick := func(of ...string) string { return of[dice.IntN(len(of))] }
	script := make([]clockStep, 10+dice.IntN(51))
	for i := range script {
		s := clockStep{n: dice.IntN(1000)}
		s.do = pick("put", "put", "put quietly", "put at 2", "delete", "delete", "delete quietly", "delete all",
			"encrypt all", "sweep", "sweep", "run", "run", "run", "run", "run", "run all", "run all", "again", "kill",
			"kill", "kill", "suspend", "resume", "decide", "decide", "decide", "decide too", "approve after", "report",
			"report", "rule", "hold", "delete space", "meanwhile", "meanwhile", "empty", "fill", "trim", "recreate", "wait",
			"wait")
		switch s.do {
		case "decide", "decide too":
			s.who = pick(held.ActionApprove, held.ActionRefuse, held.ActionClose)
		case "rule":
			s.who = pick(string(policy.Propagate), string(policy.Approve), string(policy.KeepCopy))
		case "wait":
			s.by = []time.Duration{time.Minute, 2 * hour, 2 * hour, 31 * 24 * hour}[dice.IntN(4)]
		}
		script[i] = s
	}
	return script
}

// runHeld runs a script to its rest, and returns the promises that do not hold.
func runHeld(t *testing.T, seed uint64, script []clockStep) (faults []string) {
	synctest.Test(t, func(*testing.T) {
		w, err := newHeldWorld(2+int(seed%2), 1+int64(seed/2%3))
		for i := 0; err == nil && len(w.broken) == 0 && i < len(script); i++ {
			if err = w.step(script[i]); err != nil {
				err = fmt.Errorf("step %d, %s: %w", i, script[i], err)
			}
		}
		if err == nil && len(w.broken) == 0 {
			err = w.rest(rand.New(rand.NewPCG(seed, 45))) //nolint:gosec // cases must be reproducible
		}
		if faults = w.broken; err != nil {
			faults = append(faults, err.Error())
		}
	})
	return faults
}

func (w *heldWorld) step(s clockStep) (err error) {
	item := heldItems[s.n%len(heldItems)]
	switch s.do {
	case "put", "put quietly":
		return w.putAt("1", item, s.do == "put")
	case "put at 2":
		return w.putAt("2", item, true)
	case "delete", "delete quietly":
		return w.remove(item, s.do == "delete")
	case "delete all", "encrypt all": // from an item on
		for _, item := range heldItems[s.n%2:] {
			if s.do == "delete all" {
				err = errors.Join(err, w.remove(item, true))
			} else {
				err = errors.Join(err, w.putAt("1", item, true))
			}
		}
		return err
	case "sweep":
		if !w.results.emptied {
			return w.sweep()
		}
	case "run", "kill", "suspend":
		if len(w.open) == 0 {
			return nil
		}
		end := map[string]heldEnding{"run": heldEnds, "kill": heldIsKilled, "suspend": heldSuspended}[s.do]
		return w.execute(s.n%len(w.open), s.n/7%2, end, s.n/3%4)
	case "run all":
		return w.deliver()
	case "again":
		if len(w.done) > 0 {
			w.open = append(w.open, &waiting{Delivery: w.done[s.n%len(w.done)]})
		}
	case "resume":
		if len(w.suspended) > 0 {
			return w.resume(s.n % len(w.suspended))
		}
	case "decide":
		if open := w.openLists(); len(open) > 0 {
			l := open[s.n%len(open)]
			w.checkList(l)
			return w.decide(l, s.who, max(len(w.results.records)-s.n/13%4, 0), max(len(w.admin)-s.n/29%2, 0), "")
		}
	case "decide too", "approve after": // about a list that was decided about
		return w.decideAgain(s)
	case "report":
		w.lookAgain()
	case "delete space":
		for _, item := range heldItems {
			err = errors.Join(err, w.remove(item, true))
		}
		return errors.Join(err, w.changeSpace(pb.Op_OP_DELETE_SPACE))
	case "meanwhile":
		w.moments, w.meanwhile = 1+s.n%6, func() { w.operate(s) }
	case "empty":
		w.results.emptied = true
	case "fill":
		w.fill()
	case "trim":
		w.trim()
	case "recreate":
		w.recreate()
	case "rule":
		w.setRule(policy.Deletes(s.who))
	case "hold":
		w.rules.Revision++
		if len(w.rules.Holds) == 0 {
			w.rules.Holds = []policy.Hold{{Reason: "why"}}
		} else {
			w.rules.Holds = nil
		}
	case "wait":
		w.lookAgain()
		time.Sleep(s.by)
	}
	return nil
}

// operate is what an operator does while a process is at work.
func (w *heldWorld) operate(s clockStep) {
	one := clockStep{do: []string{"rule", "hold", "decide", "decide", "decide too"}[s.n/6%5], n: s.n / 30}
	one.who = map[bool]string{
		true:  []string{string(policy.Propagate), string(policy.Approve), string(policy.KeepCopy)}[s.n%3],
		false: []string{held.ActionApprove, held.ActionRefuse, held.ActionClose}[s.n%3]}[one.do == "rule"]
	if err := w.step(one); err != nil {
		w.fault("meanwhile, %s: %v", one, err)
	}
}

// decideAgain makes a decision about a list that was decided about: of an operator who does not know that, or who
// approves what was closed.
func (w *heldWorld) decideAgain(s clockStep) error {
	var lists []held.List
	for _, l := range w.spaces() {
		for n, d := range w.made[l] {
			if l.Number = n + 1; s.do == "decide too" || d.action == held.ActionClose {
				lists = append(lists, l)
			}
			l.Number = 0
		}
	}
	if len(lists) == 0 {
		return nil
	}
	l := lists[s.n%len(lists)]
	if d := w.made[listWithout(l)][l.Number-1]; s.do == "approve after" {
		return w.decide(l, held.ActionApprove, 0, len(w.admin), d.id)
	}
	read := slices.IndexFunc(w.admin, func(a heldAction) bool { of, _ := held.ListOf(a.AdminAction); return of == l })
	return w.decide(l, s.who, len(w.results.records)-s.n/13%4, read, "")
}

// checkList checks that an operator sees on an open list what the results say: of each item the newest effect.
func (w *heldWorld) checkList(l held.List) {
	want, got := map[string]string{}, map[string]string{}
	for item, effects := range w.waitsOn(l) {
		newest := slices.MaxFunc(effects, func(a, b *heldEffect) int {
			return cmp.Compare(a.held[l.Kind][len(a.held[l.Kind])-1], b.held[l.Kind][len(b.held[l.Kind])-1])
		})
		want[item] = newest.id
	}
	for item, r := range w.results.listed(&w.decisions, l) {
		got[item] = r.GetEffect()
	}
	if !maps.Equal(got, want) {
		w.fault("list %s of store %s has %v, want %v", l.Name(), l.Space.Store, got, want)
	}
}

// deliver lets all commands end, and waits for those that are not due, but not for the end of a hold, nor for tables.
func (w *heldWorld) deliver() error {
	const most = 1000
	for n := range most {
		first := -1
		for i, d := range w.open {
			of, _ := d.Body.(interface{ GetList() string })
			waits := d.due.After(time.Now()) && (w.results.emptied || len(w.rules.Holds) > 0 && of.GetList() != "")
			if !waits && (first < 0 || d.due.Before(w.open[first].due)) {
				first = i
			}
		}
		if first < 0 {
			w.lookAgain()
			return nil
		}
		if wait := time.Until(w.open[first].due); wait > 0 {
			w.lookAgain()
			time.Sleep(wait)
		}
		if err := w.execute(first, n%2, heldEnds, 0); err != nil {
			return err
		}
	}
	return fmt.Errorf("no rest after %d messages; next is %v", most, w.open[0].Body)
}

// rest lets all that is under way end, with sweeps, and operators who decide about all that is open, until nothing is.
func (w *heldWorld) rest(dice *rand.Rand) (err error) {
	for len(w.suspended) > 0 {
		err = errors.Join(err, w.resume(0))
	}
	w.rules.Holds, w.meanwhile = nil, nil
	w.fill()
	var open []held.List
	for range 20 {
		for range 2 {
			err = errors.Join(err, w.deliver(), w.sweep(), w.deliver())
		}
		open = w.openLists()
		if err != nil || len(w.broken) > 0 {
			return err
		}
		if len(open) == 0 {
			w.checkRest()
			return nil
		}
		for _, l := range open {
			w.checkList(l)
			action := []string{held.ActionApprove, held.ActionRefuse, held.ActionClose}[dice.IntN(3)]
			err = errors.Join(err, w.decide(l, action, len(w.results.records), len(w.admin), ""))
		}
		time.Sleep([]time.Duration{time.Minute, 2 * hour}[dice.IntN(2)])
	}
	return fmt.Errorf("operators decide again and again; open were at last %v", open)
}

// checkRest checks the promises at rest.
func (w *heldWorld) checkRest() {
	for list, i := range w.incidents {
		if i.open {
			w.fault("the incident of list %s of store %s stays open", list.Name(), list.Space.Store)
		}
	}
	for _, e := range w.effects {
		w.checkEffect(e)
	}
	for _, p := range w.rules.Pairs {
		for _, item := range append(heldItems, "") {
			w.checkCopy(w.at(p.Destination, item))
		}
	}
	for _, l := range w.spaces() {
		for n, d := range w.made[l] {
			if l.Number = n + 1; d.action == held.ActionRefuse {
				w.checkRefused(l)
			}
		}
	}
}

// checkEffect checks an effect that would still be done, since source and copy are as they were and the rule does not
// keep the copy: it is decided, unless a later look has found something else, and not approved.
func (w *heldWorld) checkEffect(e *heldEffect) {
	if !w.isSame(e) || !e.rewrite && w.ruleFor(e.at) == policy.KeepCopy {
		return
	}
	approved, keeps := w.decided(e)
	for k := range e.held {
		l := w.listOf(e, k)
		if !keeps && w.last[e.at].GetEffect() == e.id && l.Number > len(w.made[listWithout(l)]) {
			w.fault("%s waits on list %s: %s", e, l.Name(), w.end(e.at))
		}
	}
	if approved {
		w.fault("%s was approved, and is not done: %s", e, w.end(e.at))
	}
}

// isAsHeld reports whether source and copy have the versions that they had when an effect was held.
func (w *heldWorld) isAsHeld(e *heldEffect) bool {
	from := e.at.In("1")
	there, present := w.look(from)
	over, ok := w.look(e.at)
	if ok != (e.over != "" || e.at.Item == "") || over.Version != e.over || e.at.Item == "" && w.items(e.at.Store) > 0 {
		return false
	}
	if e.rewrite {
		return present && there.Version == e.from
	}
	m := fold(w.facts[from], from).GetManifest()
	return !present && m.GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE &&
		m.GetTime().AsTime().Truncate(time.Millisecond).Equal(e.deleted.Truncate(time.Millisecond))
}

// items counts the items of a store.
func (w *heldWorld) items(store string) (n int) {
	for _, item := range heldItems {
		if _, is := w.look(w.at(store, item)); is {
			n++
		}
	}
	return n
}

// end returns how the last command of a copy ended.
func (w *heldWorld) end(at schemas.Copy) string {
	r := w.last[at]
	return fmt.Sprintf("the last result is %q of a command with reason %s and list %q, list %q: %s", r.GetResult(),
		strings.TrimPrefix(r.GetReason().String(), "DUPLICATION_REASON_"), r.GetCause(), r.GetList(), r.GetDetail())
}

// checkCopy checks that a copy that is not as its source was left so for a reason that somebody has given.
func (w *heldWorld) checkCopy(at schemas.Copy) {
	if w.text(at.In("1")) == w.text(at) {
		return
	}
	switch r := w.last[at]; r.GetResult() {
	case "copy-differs", "if-absent", "kept-newer": // no client has reported it
	case "destination-suspect": // a check follows
	case "not-empty": // some copies are kept, and so is their space
		if w.items(at.Store) == 0 {
			w.fault("space %s is empty, and stays: %s", at, w.end(at))
		}
	case "kept":
		keeps := r.GetEffect() == "" && w.ruleFor(at) == policy.KeepCopy
		if r.GetEffect() != "" {
			_, keeps = w.decided(cmp.Or(w.effects[r.GetEffect()], &heldEffect{id: r.GetEffect()}))
		}
		if !keeps {
			w.fault("%s is kept, and nobody has decided so: %s", at, w.end(at))
		}
	default:
		w.fault("%s differs from the source: %s", at, w.end(at))
	}
}

// text returns what a store holds of an item, or that it has the space; "" if it has nothing.
func (w *heldWorld) text(at schemas.Copy) string {
	if _, present := w.look(at); !present || at.Item == "" {
		return map[bool]string{true: "present"}[present]
	}
	r, _, err := w.stores[at.Store].Open(context.Background(), at.Space, at.Item, "")
	if err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(r)
	return fmt.Sprint(string(b), errors.Join(err, r.Close()))
}

// checkRefused checks that the source of each item of a refused list is back, or that a result says why not.
func (w *heldWorld) checkRefused(l held.List) {
	for item := range w.waitsOn(l) {
		var end *pb.DuplicationResult
		for _, r := range w.results.records {
			from, to := schemas.CopiesOf(r)
			if r.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_RESTORE && r.GetCause() == l.Name() &&
				from.WithoutItem() == l.Space && to.Store == "1" && r.GetItem() == item {
				end = r
			}
		}
		switch end.GetResult() {
		case "restored", "already-restored":
			brought := slices.ContainsFunc(factsOf(w.facts[w.at("1", item)], w.at("1", item)), func(f fact) bool {
				return f.isContent() && fmt.Sprint(f.GetDigests()) == fmt.Sprint(end.GetDigests())
			})
			if !brought {
				w.fault("list %s of store %s: %s is back, and is not on record", l.Name(), l.Space.Store, item)
			}
		default:
			if end.GetDetail() == "" {
				w.fault("list %s of store %s was refused, and %s is not back: %q", l.Name(), l.Space.Store, item, end.GetResult())
			}
		}
	}
}
