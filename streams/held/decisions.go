package held

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The actions of an operator about a list. The target is the key of the incident of the list, and After says how far
// the operator has seen duplication.results, by Seen.String of schemas.
const (
	ActionApprove = "approve-list" // its effects are done
	ActionRefuse  = "refuse-list"  // the sources of its items come back
	// ActionClose keeps the copies. An approval whose Before is the id of this action takes its place within Final.
	ActionClose = "close-list"
)

// Final is the time after which the decision to keep the copies of a list is final.
const Final = 30 * 24 * time.Hour

// A Decision is that of an operator about a list.
type Decision struct {
	ID, Action string
	By, Reason string
	Seen       schemas.Seen
	At         time.Time // by Kafka's clock
}

// Keeps reports whether the copies of the list are kept.
func (d Decision) Keeps() bool { return d.Action != ActionApprove }

// Decisions are the decisions about lists, as the topic admin has them: of two about one list the first counts. It is
// safe for concurrent use. The zero value has none.
type Decisions struct {
	mu   sync.RWMutex
	made map[List][]Decision // by the list without a number, in the order of lists; guarded by mu
}

// Apply applies a record of the topic admin with Kafka's time. It ignores other actions, and decisions that lose.
func (d *Decisions) Apply(a *pb.AdminAction, at time.Time) {
	switch a.GetAction() {
	case ActionApprove, ActionRefuse, ActionClose:
	default:
		return
	}
	l, ok := ListOf(a)
	seen, err := schemas.ParseSeen(a.GetAfter())
	if !ok || err != nil || a.GetAction() == ActionRefuse && !l.Kind.CanRefuse() {
		return
	}
	one := Decision{a.GetId(), a.GetAction(), a.GetWho(), a.GetReason(), seen, at}
	d.mu.Lock()
	defer d.mu.Unlock()
	all := l.all()
	made := d.made[all]
	switch n := l.Number - 1; {
	case n == len(made):
		if d.made == nil {
			d.made = map[List][]Decision{}
		}
		d.made[all] = append(made, one)
	case n < len(made) && made[n].givesWay(a, at):
		one.Seen = made[n].Seen
		made[n] = one
	}
}

// givesWay reports whether a, an action of a time, takes the place of d.
func (d Decision) givesWay(a *pb.AdminAction, at time.Time) bool {
	return d.Action == ActionClose && a.GetAction() == ActionApprove && a.GetBefore() == d.ID && at.Sub(d.At) < Final
}

// ListOf returns the list that an action is about; false if it is about none.
func ListOf(a *pb.AdminAction) (List, bool) {
	parts := schemas.SplitKey(a.GetTarget()) // account, store, space, no item, kind of the incident, list
	if len(parts) != 6 || parts[3] != "" {
		return List{}, false
	}
	return Named(schemas.Copy{Account: parts[0], Store: parts[1], Space: parts[2]}, parts[5])
}

// all returns l without its number.
func (l List) all() List { l.Number = 0; return l }

// Open returns the list of a kind that takes what is held in a space now.
func (d *Decisions) Open(space schemas.Copy, k Kind) List {
	l := List{Space: space.WithoutItem(), Kind: k}
	d.mu.RLock()
	defer d.mu.RUnlock()
	l.Number = len(d.made[l]) + 1
	return l
}

// About returns the decision about a list, and what had been seen for the decisions about the lists before it.
func (d *Decisions) About(l List) (_ Decision, before []schemas.Seen, decided bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	made := d.made[l.all()]
	for _, earlier := range made[:min(l.Number-1, len(made))] {
		before = append(before, earlier.Seen)
	}
	if l.Number > len(made) {
		return Decision{}, before, false
	}
	return made[l.Number-1], before, true
}

// Of returns the list that has an effect, which was held at the given coordinates on lists of a kind, and the decision
// about it; false if it was not decided about.
func (d *Decisions) Of(space schemas.Copy, k Kind, at []schemas.Coordinates) (List, Decision, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := List{Space: space.WithoutItem(), Kind: k}
	for n, one := range d.made[all] {
		if slices.ContainsFunc(at, one.Seen.Has) {
			return List{all.Space, k, n + 1}, one, true
		}
	}
	return List{}, Decision{}, false
}

// Standing returns what was decided about an effect. The parameter at has the places where it was held, and where other
// effects with the same reason were. If a list of one kind keeps it, the approval of another one has no effect. An
// approval is used up by the act: done is true if the effect was done.
func (d *Decisions) Standing(space schemas.Copy, effect string, at []Place, done bool) (s Standing) {
	where := map[Kind]map[string][]schemas.Coordinates{}
	for _, h := range at {
		if where[h.Kind] == nil {
			where[h.Kind] = map[string][]schemas.Coordinates{}
		}
		where[h.Kind][h.Effect] = append(where[h.Kind][h.Effect], h.Coordinates)
	}
	other := "" // why a copy is kept from an effect on another object
	for _, k := range Kinds() {
		for _, of := range slices.Sorted(maps.Keys(where[k])) {
			switch l, one, ok := d.Of(space, k, where[k][of]); {
			case !ok:
			case one.Keeps():
				why := fmt.Sprintf("kept by the decision of %s about list %s: %s", one.By, l.Name(), one.Reason)
				if of == effect {
					return Standing{Kept: why}
				}
				other = why
			case of == effect && !done:
				s.Approved = l.Name()
			}
		}
	}
	if s.Approved == "" {
		s.Kept = other
	}
	return s
}

// Matter reports whether there is a decision about such effects in a space.
func (d *Decisions) Matter(space schemas.Copy, act Act) bool {
	for l := range d.of(space) {
		if l.Kind.Act() == act {
			return true
		}
	}
	return false
}

// Refused returns a list of a space that was refused and is not closed yet; false if there is none.
func (d *Decisions) Refused(space schemas.Copy, closed func(List) bool) (List, bool) {
	for l, one := range d.of(space) {
		if one.Action == ActionRefuse && !closed(l) {
			return l, true
		}
	}
	return List{}, false
}

// of returns the lists of a space that were decided about, with the decisions.
func (d *Decisions) of(space schemas.Copy) iter.Seq2[List, Decision] {
	return func(yield func(List, Decision) bool) {
		d.mu.RLock()
		defer d.mu.RUnlock()
		for _, k := range Kinds() {
			l := List{Space: space.WithoutItem(), Kind: k}
			for n, one := range d.made[l] {
				if !yield(List{l.Space, k, n + 1}, one) {
					return
				}
			}
		}
	}
}

// Decided returns the lists about which there is a decision, since a time.
func (d *Decisions) Decided(since time.Time) (all []List) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for l, made := range d.made {
		for n, one := range made {
			if !one.At.Before(since) {
				l.Number = n + 1
				all = append(all, l)
			}
		}
	}
	return all
}

// Keeping returns the lists, as text, that keep copies because of effects that were held in a range of a partition of
// duplication.results: from the record at from to before the offset to.
func (d *Decisions) Keeping(from schemas.Coordinates, to int64) (names []string) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for l, made := range d.made {
		at := from
		for n, one := range made {
			l.Number = n + 1
			if at.Offset < to && one.Seen.Has(at) {
				if one.Keeps() {
					names = append(names, l.Name()+" of "+schemas.Key(l.Space.Account, l.Space.Store, l.Space.Space))
				}
				at.Offset = one.Seen.Ends[at.Partition] // the next list begins there
			}
		}
	}
	slices.Sort(names)
	return names
}
