// Package converge checks the state of stores, records and the audit log after a run in which clients changed items
// while faults were injected.
//
// It has no side effects. A Model records the mutations and faults, an Observation is the state after the run has come
// to rest, and Compare lists the deviations from the expected state. Ops and Events generate the work of clients and
// the faults. Both are functions of a seed.
package converge

import (
	"maps"
	"slices"
	"sync"
)

// ItemRef identifies an item in a space.
type ItemRef struct{ Space, Item string }

// Copy identifies an item in one store.
type Copy struct {
	Store string
	ItemRef
}

// Content is the content of an item.
type Content struct {
	SHA256    string
	MediaType string
	User      map[string]string // properties
}

func (c Content) sameProperties(o Content) bool {
	return c.MediaType == o.MediaType && maps.Equal(c.User, o.User)
}

// Kind is the kind of a mutation.
type Kind string

// The kinds.
const (
	Put           Kind = "put"
	Delete        Kind = "delete"
	SetProperties Kind = "set properties"
)

// Mutation is a change of an item that a client made and that has certainly taken effect.
type Mutation struct {
	ItemRef
	Kind    Kind
	User    string
	Content Content // for Put; for SetProperties without SHA256
	// NoDigests is set if the audit row of the mutation has no digests.
	NoDigests bool
}

// Pair is a duplication from one store to another.
type Pair struct{ From, To string }

// Rule is the policy of a space.
type Rule struct {
	Pairs []Pair
	Keep  bool // copies are kept when their source is deleted
}

// destinations returns the stores with copies.
func (r Rule) destinations() (all []string) {
	for _, p := range r.Pairs {
		all = append(all, p.To)
	}
	return all
}

// item is the expected state of an item.
type item struct {
	live        bool
	content     Content             // the latest
	everPut     map[string]bool     // SHA256 of everything that clients put
	kept        map[string]struct{} // stores that had the latest content when the item was deleted under a rule with Keep
	lost        map[string]struct{} // stores where the copy was removed without millrace
	goneByGuess bool                // a guessed delete of the source was published
	mayRemain   bool                // deleted before a gap in the rule for deletes, so copies may remain
}

// Model records what clients and faults did. It is safe for concurrent use.
type Model struct {
	source    string // the store that clients use
	rules     map[string]Rule
	immutable []string // stores that cannot change the properties of an existing item

	mu        sync.Mutex // guards what follows
	items     map[ItemRef]*item
	mutations []Mutation
	losses    map[Copy]int // how often a copy was removed without millrace
	faults    map[faultTarget]bool
	decisions []Decision
}

// faultTarget is a fault and its target.
type faultTarget struct {
	fault Fault
	what  string
}

// NewModel returns a Model of spaces with rules. Clients write to the store source. Stores in fixed cannot change the
// properties of an existing item, so their properties are not compared.
func NewModel(source string, rules map[string]Rule, fixed ...string) *Model {
	return &Model{
		source: source, rules: rules, immutable: fixed,
		items: map[ItemRef]*item{}, losses: map[Copy]int{}, faults: map[faultTarget]bool{},
	}
}

// RecordMutation records a mutation. A Put or Delete clears losses, guesses and allowed leftovers of the item.
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

// RecordKept records that a store had the latest content of an item when it was deleted under a rule that keeps copies.
func (m *Model) RecordKept(c Copy) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.items[c.ItemRef]
	if i.kept == nil {
		i.kept = map[string]struct{}{}
	}
	i.kept[c.Store] = struct{}{}
}

// RecordLoss records that a copy was removed without millrace.
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

// AllowLeftCopies records that the rule for deletes is in force again after a gap in which copies were kept. Copies of
// items that are deleted now may remain.
func (m *Model) AllowLeftCopies() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.items {
		i.mayRemain = !i.live
	}
}

// RecordFault records a fault and its target, for faults that no later mutation of an item ends.
func (m *Model) RecordFault(f Fault, what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[faultTarget{f, what}] = true
}

// RecordDecision records an operator's decision about an incident.
func (m *Model) RecordDecision(d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decisions = append(m.decisions, d)
}

// RecordGuess records that a guessed delete of the item in the source was published.
func (m *Model) RecordGuess(p ItemRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.items[p].goneByGuess = true
	m.faults[faultTarget{LoseAndGuess, p.Space}] = true
}

// Content returns the expected content of an item. It returns false if the item was deleted or never put.
func (m *Model) Content(p ItemRef) (Content, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.items[p]
	if i == nil || !i.live {
		return Content{}, false
	}
	return i.content, true
}

// Rule returns the policy of a space.
func (m *Model) Rule(space string) Rule { return m.rules[space] }

// Items returns every item that a client ever put, sorted.
func (m *Model) Items() []ItemRef {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.items), compareItems)
}

// Mutations returns the number of recorded mutations.
func (m *Model) Mutations() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mutations)
}
