// Package heldtest keeps lists in memory, for tests: a topic duplication.results of one partition, the decisions, and
// the incidents of the lists.
package heldtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/retry"
)

// Lists holds effects in memory. Its exported fields are set and read while no process runs.
type Lists struct {
	// Fail is the error of opening an incident, Unknown that of reading the results.
	Fail, Unknown error
	// Held has the name and the cause of each effect that was held.
	Held []string
	// Results are the records of duplication.results.
	Results []*pb.DuplicationResult
	// Open are the names of the lists whose incidents are open, by space. Closed are those that were closed.
	Open, Closed map[held.List]bool

	decided held.Decisions
	number  int // of decisions
	mu      sync.Mutex
}

var _ held.Lists = (*Lists)(nil)

// New returns Lists without anything.
func New() *Lists { return &Lists{Open: map[held.List]bool{}, Closed: map[held.List]bool{}} }

// Hold implements held.Lists.
func (l *Lists) Hold(_ context.Context, at schemas.Copy, k held.Kind, cause string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.decided.Open(at, k)
	if l.Fail == nil {
		l.Open[list] = true
	}
	l.Held = append(l.Held, list.Name()+": "+cause)
	return list.Name(), l.Fail
}

// Wait implements held.Lists.
func (l *Lists) Wait(_ context.Context, at schemas.Copy, k held.Kind) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.decided.Open(at, k)
	if list.Number > 1 && len(l.on(list)) > 0 {
		l.Open[list] = true
	}
	return l.Open[list], nil
}

// Decided implements held.Lists.
func (l *Lists) Decided(_ context.Context, at schemas.Copy, act held.Act, effect string) (held.Standing, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.decided.Matter(at, act) {
		return held.Standing{}, nil
	}
	var where []held.Place
	done := false
	for n, r := range l.Results {
		switch {
		case r.GetResult() == "awaiting-approval" && held.ReasonOf(r.GetEffect()) == held.ReasonOf(effect):
			where = append(where, held.Place{Coordinates: coordinates(n), Kind: held.KindOf(r.GetList()), Effect: r.GetEffect()})
		case r.GetEffect() == effect && r.GetOutcome() == pb.Outcome_OUTCOME_DONE:
			done = true
		}
	}
	return l.decided.Standing(at, effect, where, done), l.Unknown
}

func (l *Lists) isClosed(list held.List) bool { return l.Closed[list] }

// Refused implements held.Lists.
func (l *Lists) Refused(at schemas.Copy) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if list, ok := l.decided.Refused(at, l.isClosed); ok {
		return retry.UnavailableFor("refused list", fmt.Errorf("the copies are needed for list %s", list.Name()))
	}
	return nil
}

func coordinates(n int) schemas.Coordinates {
	return schemas.Coordinates{Incarnation: 1, Offset: int64(n)}
}

// Decide makes a decision about a list, of an operator who has seen all results. It returns the id.
func (l *Lists) Decide(list held.List, action string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	a := &pb.AdminAction{Id: fmt.Sprint("decision ", l.number), Action: action, Who: "ann", Reason: "why",
		Target: schemas.Key(list.Space.Account, list.Space.Store, list.Space.Space, "",
			list.Kind.Act().IncidentKind(), list.Name()),
		After: schemas.Seen{Incarnation: 1, Ends: map[int32]int64{0: int64(len(l.Results))}}.String()}
	l.decided.Apply(a, time.Now())
	if action == held.ActionClose {
		l.Closed[list] = true
	}
	return a.GetId()
}

// Decision returns the decision about a list, and what had been seen before for those about earlier lists.
func (l *Lists) Decision(list held.List) (d held.Decision, before []schemas.Seen, decided bool) {
	return l.decided.About(list)
}

// On returns the newest result of each item that is on a list and that has no result since the decision, in the order
// of items.
func (l *Lists) On(list held.List) []*pb.DuplicationResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on(list)
}

// on is On. The caller holds mu.
func (l *Lists) on(list held.List) (all []*pb.DuplicationResult) {
	name := list.Name()
	d, before, decided := l.decided.About(list)
	earlier, on, ended := map[string]bool{}, map[string]*pb.DuplicationResult{}, map[string]bool{}
	for n, r := range l.Results {
		from, at := schemas.CopiesOf(r)
		if r.GetReason() == pb.DuplicationReason_DUPLICATION_REASON_RESTORE {
			at = from
		}
		if at.WithoutItem() == list.Space && r.GetCause() == name {
			ended[r.GetItem()] = true
		}
		switch {
		case r.GetResult() != "awaiting-approval" || held.KindOf(r.GetList()) != list.Kind || at.WithoutItem() != list.Space:
		case slices.ContainsFunc(before, func(s schemas.Seen) bool { return s.Has(coordinates(n)) }):
			earlier[r.GetEffect()] = true
		case earlier[r.GetEffect()]:
		case !decided || d.Seen.Has(coordinates(n)):
			on[r.GetItem()] = r
		}
		if at.WithoutItem() == list.Space && r.GetCause() != name && r.GetWouldBe() == "" &&
			r.GetReason() != pb.DuplicationReason_DUPLICATION_REASON_RESTORE &&
			(!decided || d.Seen.Has(coordinates(n))) && slices.Contains(schemas.Mooting(string(list.Kind)), r.GetResult()) {
			delete(on, r.GetItem())
		}
	}
	for item, r := range on {
		if !ended[item] {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *pb.DuplicationResult) int { return cmp.Compare(a.GetItem(), b.GetItem()) })
	return all
}
