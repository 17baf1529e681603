package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// A Document is the policy of one account. Its JSON is that of the DuraCloud Mill with the field Options added. A
// Document is immutable after it has been read.
type Document struct {
	// Spaces holds the pairs of spaces, by space.
	Spaces map[string][]Pair `json:"spaceDuplicationStorePolicies,omitempty"`
	// Default holds the pairs of all other spaces.
	Default []Pair `json:"defaultPolicies,omitempty"`
	// Ignore lists the spaces that are not copied.
	Ignore []string `json:"spacesToIgnore,omitempty"`
	// Options holds further options by space, both for spaces in Spaces and for others.
	Options map[string]options `json:"spaces,omitempty"`
}

// options are the options of one space.
type options struct {
	// Deletes is the rule for deletes; empty means Propagate.
	Deletes Deletes `json:"deletes,omitempty"`
	// Exclude holds globs on item ids: * within a segment, ** across segments.
	Exclude []string `json:"exclude,omitempty"`
	// MaxSize is in bytes. Larger items are not copied. 0 means no limit.
	MaxSize int64 `json:"maxSize,omitempty"`
	// Priority is high or low; empty means high.
	Priority string `json:"priority,omitempty"`
	// Copies is parsed and then rejected, because it is not implemented.
	Copies *copies `json:"copies,omitempty"`
}

// copies requests a number of copies instead of pairs.
type copies struct {
	Min   int      `json:"min,omitempty"`
	Among []string `json:"among,omitempty"`
}

// rules returns the rules for a space. Ignored spaces, and spaces with a name that starts with x-, have no pairs;
// others have the pairs in Spaces, or else those in Default. An unknown rule for deletes counts as KeepCopy.
func (d Document) rules(space string) Rules {
	r := Rules{Deletes: Propagate}
	if strings.HasPrefix(space, "x-") || slices.Contains(d.Ignore, space) {
		return r
	}
	r.Pairs = d.Default
	if own := d.Spaces[space]; len(own) > 0 {
		r.Pairs = own
	}
	o := d.Options[space]
	switch o.Deletes {
	case "":
	case Propagate, KeepCopy, Approve:
		r.Deletes = o.Deletes
	default:
		r.Deletes = KeepCopy
	}
	r.Exclude, r.MaxSize, r.Low = o.Exclude, o.MaxSize, o.Priority == "low"
	return r
}

// Excludes reports whether the rules exclude an item with the given size in bytes from being copied.
func (r Rules) Excludes(item string, size int64) bool {
	if r.MaxSize > 0 && size > r.MaxSize {
		return true
	}
	return slices.ContainsFunc(r.Exclude, func(glob string) bool { return doublestar.MatchUnvalidated(glob, item) })
}

// Validate returns Faults with all reasons not to publish the document for an account with these stores; nil if there
// are none.
func (d Document) Validate(stores []string) error {
	v := validator{stores: stores}
	for _, space := range slices.Sorted(maps.Keys(d.Spaces)) {
		path := below(keySpaces, space)
		if space == "" {
			v.faults.add(0, path, "the space has no name")
		}
		v.pairs(path, d.Spaces[space])
	}
	v.pairs(keyDefault, d.Default)
	for i, space := range d.Ignore {
		if space == "" {
			v.faults.add(0, index(keyIgnore, i), "the space has no name")
		}
	}
	for _, space := range slices.Sorted(maps.Keys(d.Options)) {
		path := below(keyOptions, space)
		if space == "" {
			v.faults.add(0, path, "the space has no name")
		}
		v.options(path, d.Options[space])
	}
	return v.faults.err()
}

// A validator collects the faults of a parsed document.
type validator struct {
	stores []string // the stores of the account
	faults Faults
}

func (v *validator) pairs(path string, pairs []Pair) {
	seen := map[Pair]bool{}
	first := map[string]int{} // index of the first pair with a destination
	next := map[string][]string{}
	for i, p := range pairs {
		at := index(path, i)
		v.store(at, "srcStoreId", p.Source)
		v.store(at, "destStoreId", p.Destination)
		switch {
		case p.Source == "" || p.Destination == "": // v.store has added the fault
		case p.Source == p.Destination:
			v.faults.add(0, at, "source and destination are the same store %q", p.Source)
		case seen[p]:
			v.faults.add(0, at, "is there twice: %s to %s", p.Source, p.Destination)
		default:
			next[p.Source] = append(next[p.Source], p.Destination)
			if j, ok := first[p.Destination]; ok {
				v.faults.add(0, at, "store %q has two sources: %q in %s, and %q",
					p.Destination, pairs[j].Source, index("", j), p.Source)
			} else {
				first[p.Destination] = i
			}
		}
		seen[p] = true
	}
	for _, loop := range cycles(next) {
		v.faults.add(0, path, "the pairs form a cycle: %s", strings.Join(loop, " to "))
	}
}

func (v *validator) store(path, key, store string) {
	switch {
	case store == "":
		v.faults.add(0, path, "%s is missing", key)
	case !slices.Contains(v.stores, store):
		hint := ""
		if len(v.stores) > 0 {
			hint = "; the account has " + strings.Join(v.stores, ", ")
		}
		v.faults.add(0, below(path, key), "unknown store %q%s", store, hint)
	}
}

// cycles returns the stores of each cycle that a depth-first search finds, with the first store again at the end. It
// returns nil only if there is no cycle.
func cycles(next map[string][]string) (loops [][]string) {
	done := map[string]bool{}
	var path []string
	var walk func(store string)
	walk = func(store string) {
		if i := slices.Index(path, store); i >= 0 {
			loops = append(loops, append(slices.Clone(path[i:]), store))
			return
		}
		if done[store] {
			return
		}
		path = append(path, store)
		for _, n := range next[store] {
			walk(n)
		}
		path = path[:len(path)-1]
		done[store] = true
	}
	for _, store := range slices.Sorted(maps.Keys(next)) {
		walk(store)
	}
	return loops
}

func (v *validator) options(path string, o options) {
	if o.Copies != nil {
		v.faults.add(0, path+".copies", "is not implemented; name pairs instead")
	}
	switch o.Deletes {
	case "", Propagate, KeepCopy:
	case Approve: // a document in force may have it: it keeps the copies
		v.faults.add(0, path+".deletes", "approve is not implemented; keep the copies instead")
	default:
		v.faults.add(0, path+".deletes", "want propagate or keep, got %q", o.Deletes)
	}
	for i, glob := range o.Exclude {
		if glob == "" || !doublestar.ValidatePattern(glob) {
			v.faults.add(0, index(path+".exclude", i), "malformed glob %q", glob)
		}
	}
	if o.MaxSize < 0 {
		v.faults.add(0, path+".maxSize", "want 0, for no bound, or more, got %d", o.MaxSize)
	}
	switch o.Priority {
	case "", "high", "low":
	default:
		v.faults.add(0, path+".priority", "want high or low, got %q", o.Priority)
	}
}
