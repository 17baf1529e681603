// Package preview computes what a policy would do to the copies on record: which items would be copied, updated or
// deleted, and which copies would be managed no longer. It has no effects and looks at no store: what differs from the
// record is not known to it.
//
// Items are added one by one, and the memory that it takes depends only on the numbers of spaces and pairs.
package preview

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/millrace/millrace/streams/policy"
)

// A Config selects the policies. All fields but Before, Lists and Has are required.
type Config struct {
	// Rules returns the rules of a space in the policy to preview, and Before those in force; nil: no policy is.
	Rules, Before func(space string) policy.Rules
	// Lists returns the exclusion lists of rules; it may be nil if no rules have any.
	Lists func([]policy.ExcludeList) ([]*policy.List, error)
	// Primary is the account's primary store; empty if it has none.
	Primary string
	// Has reports whether the account has a store: copies in others are unmanaged; nil: it has all.
	Has func(store string) bool
	Now time.Time
}

// A Count is a number of items.
type Count struct {
	Items   int64
	Bytes   int64 // of the items with a known size
	Unsized int64 // items with an unknown size
}

func (c *Count) add(size int64) {
	c.Items++
	if size < 0 {
		c.Unsized++
		return
	}
	c.Bytes += size
}

// Plus returns the sum.
func (c Count) Plus(o Count) Count {
	return Count{c.Items + o.Items, c.Bytes + o.Bytes, c.Unsized + o.Unsized}
}

// A Change is how a pair differs from the policy in force.
type Change string

// The changes of a pair.
const (
	Same    Change = "unchanged"
	Added   Change = "added"
	Removed Change = "removed"
	Altered Change = "changed" // the pair stays, and other rules of the space change
)

// A Space is the preview of one pair in one space.
type Space struct {
	Space  string
	Pair   policy.Pair
	Change Change
	// Counts of the items by outcome. The bytes are those of the source for Copy, Update, Compare, Excluded and
	// Unchanged, and else those of the copy at the destination. A removed pair has none.
	Counts [outcomes]Count
	// Waiting counts the items of Copy and Update with a content that is on record at the source and newer than the pair:
	// a command for it was published, or will be. Oldest is the time of the oldest of these contents; zero: there is none.
	Waiting Count
	Oldest  time.Time
}

// Commands returns the number of commands that the items need.
func (s Space) Commands() (n int64) {
	for o := range outcomes {
		if o.commands() {
			n += s.Counts[o].Items
		}
	}
	return n
}

// Copies are live copies of one space in one store.
type Copies struct {
	Store, Space string
	Count
}

// A Stored is what is on record of an item in one store.
type Stored struct {
	Store string
	Record
}

// A Preview adds up what a policy would do.
type Preview struct {
	cfg    Config
	spaces map[string]*space
	last   *space // the space of the item before
}

// A space is what a Preview knows of one space.
type space struct {
	name   string
	rules  policy.Rules
	lists  []*policy.List
	pairs  []pair   // each after the pair that it continues as a chain
	stores []string // of pairs
	places []place  // of all stores with live copies

	known []Record // of the item, by the index of its store in stores
}

type pair struct {
	from, to int // indexes in stores
	result   Space
}

// A place counts the live copies of a store.
type place struct {
	store        string
	managed, was bool // by the policy to preview, and by the one in force
	live         Count
}

// New returns an empty Preview.
func New(c Config) *Preview {
	if c.Before == nil {
		c.Before = func(string) policy.Rules { return policy.Rules{Deletes: policy.KeepCopy} }
	}
	return &Preview{cfg: c, spaces: map[string]*space{}}
}

// Add adds an item. copies has at most one entry for each store. An error is one of Config.Lists.
func (p *Preview) Add(spaceName, item string, copies []Stored) error {
	s, err := p.space(spaceName)
	if err != nil {
		return err
	}
	clear(s.known)
	for _, c := range copies {
		if i := slices.Index(s.stores, c.Store); i >= 0 {
			s.known[i] = c.Record
		}
		if c.Live {
			p.placeOf(s, c.Store).live.add(c.Size)
		}
	}
	for i := range s.pairs {
		s.count(&s.pairs[i], item, p.cfg.Now)
	}
	return nil
}

// Seed adds a space without items, so that its pairs appear in Spaces. The space "" stands for spaces that no document
// names.
func (p *Preview) Seed(space string) error {
	_, err := p.space(space)
	return err
}

// count counts an item for a pair, and sets what is on record of the destination when its command has ended.
func (s *space) count(p *pair, item string, now time.Time) {
	from, to := s.known[p.from], s.known[p.to]
	if !from.Live && !to.Live {
		return
	}
	outcome := Decide(Case{Item: item, Pair: p.result.Pair, Rules: &s.rules, Lists: s.lists, From: from, To: to, Now: now})
	size := from.Size
	if !from.Live {
		size = to.Size
	}
	p.result.Counts[outcome].add(size)
	switch outcome {
	case Copy, Update, Compare:
		if outcome != Compare {
			p.wait(from, s.rules.Added[p.result.Pair])
		}
		s.known[p.to] = Record{Live: true, Size: from.Size, Time: now, SourceTime: from.Time, Digests: from.Digests,
			expected: true}
	case Delete:
		s.known[p.to] = Record{Time: now.Add(time.Millisecond), expected: true} // later than the policy
	}
}

// wait counts an item as waiting if its content is newer than the pair.
func (p *pair) wait(from Record, added time.Time) {
	if from.expected || !from.Time.After(added) {
		return
	}
	p.result.Waiting.add(from.Size)
	if p.result.Oldest.IsZero() || from.Time.Before(p.result.Oldest) {
		p.result.Oldest = from.Time
	}
}

// space returns a space. All spaces are kept: their number is small.
func (p *Preview) space(name string) (*space, error) {
	if p.last != nil && p.last.name == name {
		return p.last, nil
	}
	s := p.spaces[name]
	if s == nil {
		var err error
		if s, err = p.newSpace(name); err != nil {
			return nil, err
		}
		p.spaces[name] = s
	}
	p.last = s
	return s, nil
}

func (p *Preview) newSpace(name string) (*space, error) {
	s := &space{name: name, rules: p.cfg.Rules(name)}
	if len(s.rules.ExcludeLists) > 0 {
		var err error
		if s.lists, err = p.cfg.Lists(s.rules.ExcludeLists); err != nil {
			return nil, err
		}
	}
	before := p.cfg.Before(name)
	altered := !sameRules(s.rules, before)
	for _, of := range inChainOrder(s.rules.Pairs) {
		change := Added
		switch {
		case !slices.Contains(before.Pairs, of):
		case altered:
			change = Altered
		default:
			change = Same
		}
		s.pairs = append(s.pairs, pair{s.store(of.Source), s.store(of.Destination),
			Space{Space: name, Pair: of, Change: change}})
	}
	s.known = make([]Record, len(s.stores))
	return s, nil
}

// store returns the index of a store of the pairs.
func (s *space) store(id string) int {
	if i := slices.Index(s.stores, id); i >= 0 {
		return i
	}
	s.stores = append(s.stores, id)
	return len(s.stores) - 1
}

// inChainOrder returns pairs so that each comes after the one that writes to its source.
func inChainOrder(pairs []policy.Pair) []policy.Pair {
	depth := func(p policy.Pair) (n int) {
		for n < len(pairs) {
			i := slices.IndexFunc(pairs, func(o policy.Pair) bool { return o.Destination == p.Source })
			if i < 0 {
				return n
			}
			p, n = pairs[i], n+1
		}
		return n
	}
	sorted := slices.Clone(pairs)
	slices.SortStableFunc(sorted, func(a, b policy.Pair) int { return cmp.Compare(depth(a), depth(b)) })
	return sorted
}

// sameRules reports whether rules are the same for items, apart from the pairs.
func sameRules(a, b policy.Rules) bool {
	for _, r := range []*policy.Rules{&a, &b} {
		r.Revision, r.Pairs, r.Since, r.Added = 0, nil, time.Time{}, nil
		r.Brake, r.Low = policy.Brake{}, false
	}
	return reflect.DeepEqual(a, b)
}

func (p *Preview) placeOf(s *space, store string) *place {
	i := slices.IndexFunc(s.places, func(a place) bool { return a.store == store })
	if i < 0 {
		has, primary := p.cfg.Has == nil || p.cfg.Has(store), store == p.cfg.Primary
		s.places = append(s.places, place{store: store, managed: has && (primary || s.rules.Manages(store)),
			was: has && (primary || p.cfg.Before(s.name).Manages(store))})
		i = len(s.places) - 1
	}
	return &s.places[i]
}

// Spaces returns the pairs of all spaces that have items, also those that the policy removes, ordered by space.
func (p *Preview) Spaces() (all []Space) {
	for _, s := range p.sorted() {
		for _, one := range s.pairs {
			all = append(all, one.result)
		}
		for _, of := range p.cfg.Before(s.name).Pairs {
			if !slices.Contains(s.rules.Pairs, of) {
				all = append(all, Space{Space: s.name, Pair: of, Change: Removed})
			}
		}
	}
	return all
}

// Unmanaged returns the live copies that the policy does not manage, ordered by space and store. became selects those
// that the policy in force manages.
func (p *Preview) Unmanaged(became bool) (all []Copies) {
	for _, s := range p.sorted() {
		slices.SortFunc(s.places, func(a, b place) int { return cmp.Compare(a.store, b.store) })
		for _, at := range s.places {
			if !at.managed && (at.was || !became) {
				all = append(all, Copies{at.store, s.name, at.live})
			}
		}
	}
	return all
}

func (p *Preview) sorted() []*space {
	return slices.SortedFunc(maps.Values(p.spaces), func(a, b *space) int { return cmp.Compare(a.name, b.name) })
}
