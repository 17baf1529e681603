// Package converge says how stores, records and the audit log must be once nothing is under way any more, given what
// clients did and what was broken meanwhile.
//
// It is pure: a Model is told what happened, a Sight is what was found at rest, and Compare lists what is not as it must
// be. Ops and Events make the work of clients and the faults of a run, both functions of one seed.
package converge

import (
	"maps"
	"slices"
	"sync"
)

// A Place is an item of a space.
type ItemRef struct{ Space, Item string }

// A Copy is an item in one store.
type Copy struct {
	Store string
	ItemRef
}

// Content is what an item holds.
type Content struct {
	SHA256    string
	MediaType string
	User      map[string]string // properties
}

func (c Content) sameProperties(o Content) bool {
	return c.MediaType == o.MediaType && maps.Equal(c.User, o.User)
}

// A Kind is what a client does to an item.
type Kind string

// The kinds.
const (
	Put           Kind = "put"
	Delete        Kind = "delete"
	SetProperties Kind = "set properties"
)

// An Act is a mutation that was made for certain.
type Mutation struct {
	ItemRef
	Kind    Kind
	User    string
	Content Content // of a Put; of SetProperties without SHA256
	// Bare: the client's record of it has no digests.
	NoDigests bool
}

// A Pair carries items from one store to another.
type Pair struct{ From, To string }

// A Rule is what the policy says of a space.
type Rule struct {
	Pairs []Pair
	Keep  bool // copies stay when their source is deleted
}

// destinations returns the stores that hold copies.
func (r Rule) destinations() (all []string) {
	for _, p := range r.Pairs {
		all = append(all, p.To)
	}
	return all
}

// An item is what is known of one.
type item struct {
	live        bool
	content     Content             // the last
	everPut     map[string]bool     // SHA256 of all that clients put
	kept        map[string]struct{} // stores that held the last content when it was deleted under the rule Keep
	lost        map[string]struct{} // stores whose copy was removed without millrace
	goneByGuess bool                // a guess says that it is gone from the source
	mayRemain   bool                // it was deleted before a gap in the rule for deletes: copies of it may stay
}

// A Model knows what clients did. It is safe for concurrent use.
type Model struct {
	source    string // the store that clients use
	rules     map[string]Rule
	immutable []string // stores that cannot give other properties to an item that they hold

	mu        sync.Mutex // guards what follows
	items     map[ItemRef]*item
	mutations []Mutation
	losses    map[Copy]int // how often a copy was removed without millrace
	faults    map[faultTarget]bool
	decisions []Decision
}

// A befallen is a fault and what it befell.
type faultTarget struct {
	fault Fault
	what  string
}

// NewModel returns a Model of spaces with these rules, whose clients use one store. Fixed are stores that cannot give other
// properties to an item that they hold: there they are not compared.
func NewModel(source string, rules map[string]Rule, fixed ...string) *Model {
	return &Model{
		source: source, rules: rules, immutable: fixed,
		items: map[ItemRef]*item{}, losses: map[Copy]int{}, faults: map[faultTarget]bool{},
	}
}

// Did records an act. A put or a delete ends what was lost, guessed or spared before it.
func (m *Model) RecordMutation(a Mutation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mutations = append(m.mutations, a)
	i := m.items[a.ItemRef]
	if i == nil {
		i = &item{everPut: map[string]bool{}}
		m.items[a.ItemRef] = i
	}
	switch a.Kind {
	case Put:
		i.live, i.content, i.kept, i.lost, i.goneByGuess, i.mayRemain = true, a.Content, nil, nil, false, false
		i.everPut[a.Content.SHA256] = true
	case Delete:
		i.live, i.kept, i.lost, i.goneByGuess, i.mayRemain = false, nil, nil, false, false
	case SetProperties:
		i.content.MediaType, i.content.User = a.Content.MediaType, a.Content.User
	}
}

// Kept records that a store held the last content of an item that has just been deleted, under a rule that keeps copies.
func (m *Model) RecordKept(c Copy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.items[c.ItemRef]
	if i.kept == nil {
		i.kept = map[string]struct{}{}
	}
	i.kept[c.Store] = struct{}{}
}

// Lost records that a copy was removed without millrace.
func (m *Model) RecordLoss(c Copy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.items[c.ItemRef]
	if i.lost == nil {
		i.lost = map[string]struct{}{}
	}
	i.lost[c.Store] = struct{}{}
	m.losses[c]++
}

// Spare records that the rule for deletes has just come into force once more after a gap, in which it was to keep: copies
// of items that are deleted by now may stay.
func (m *Model) AllowLeftCopies() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.items {
		i.mayRemain = !i.live
	}
}

// Befell records a fault that is neither of an item nor ended by an act, and what it befell.
func (m *Model) RecordFault(f Fault, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[faultTarget{f, what}] = true
}

// Decided records what a person decided about an incident.
func (m *Model) RecordDecision(d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decisions = append(m.decisions, d)
}

// Guessed records that a guess was published which says that the item is gone from the source.
func (m *Model) RecordGuess(p ItemRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.items[p].goneByGuess = true
	m.faults[faultTarget{LoseAndGuess, p.Space}] = true
}

// Content returns what the item holds by the last act; false if it was deleted or never put.
func (m *Model) Content(p ItemRef) (Content, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.items[p]
	if i == nil || !i.live {
		return Content{}, false
	}
	return i.content, true
}

// Rule returns what the policy says of a space.
func (m *Model) Rule(space string) Rule { return m.rules[space] }

// Places returns every item that a client ever put, sorted.
func (m *Model) Items() []ItemRef {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.items), compareItems)
}

// Acts returns how many acts were recorded.
func (m *Model) Mutations() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mutations)
}
