package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// A Document is the policy of one account. Its JSON is that of the older tools, with
// Options added. A Document is not changed once it has been read.
type Document struct {
	// Spaces holds the pairs of the spaces that have their own.
	Spaces map[string][]Pair `json:"spaceDuplicationStorePolicies,omitempty"`
	// Default holds the pairs of all other spaces.
	Default []Pair `json:"defaultPolicies,omitempty"`
	// Ignore names spaces that are carried nowhere.
	Ignore []string `json:"spacesToIgnore,omitempty"`
	// Options says more about single spaces, whichever pairs are theirs.
	Options map[string]Options `json:"spaces,omitempty"`
}

// Options say how the items of one space are carried.
type Options struct {
	// Deletes is Propagate where it is empty.
	Deletes Deletes `json:"deletes,omitempty"`
	// Exclude holds globs on item ids: * within a segment, ** across them.
	Exclude []string `json:"exclude,omitempty"`
	// MaxSize is in bytes; greater items are not carried. 0: no bound.
	MaxSize int64 `json:"maxSize,omitempty"`
	// Priority is high, which is the same as empty, or low.
	Priority string `json:"priority,omitempty"`
	// Copies is read and refused: it is not implemented.
	Copies *Copies `json:"copies,omitempty"`
}

// Copies asks for a number of copies instead of naming pairs.
type Copies struct {
	Min   int      `json:"min,omitempty"`
	Among []string `json:"among,omitempty"`
}

// Faults are all that is wrong with a document, one line each.
type Faults []string

// Error returns the faults, one a line.
func (f Faults) Error() string { return strings.Join(f, "\n") }

func (f *Faults) add(format string, a ...any) { *f = append(*f, fmt.Sprintf(format, a...)) }

func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// Rules returns what the document says of a space: nothing for spaces whose name
// starts with x- and those that are ignored, else the space's own pairs, else the default.
func (d Document) Rules(space string) Rules {
	r := Rules{Deletes: Propagate}
	if strings.HasPrefix(space, "x-") || slices.Contains(d.Ignore, space) {
		return r
	}
	r.Pairs = d.Default
	if own := d.Spaces[space]; len(own) > 0 {
		r.Pairs = own
	}
	o := d.Options[space]
	if o.Deletes != "" {
		r.Deletes = o.Deletes
	}
	r.Exclude, r.MaxSize, r.Low = o.Exclude, o.MaxSize, o.Priority == "low"
	return r
}

// Excludes reports whether the rules keep an item of this size (in bytes) from being carried.
func (r Rules) Excludes(item string, size int64) bool {
	if r.MaxSize > 0 && size > r.MaxSize {
		return true
	}
	return slices.ContainsFunc(r.Exclude, func(glob string) bool { return doublestar.MatchUnvalidated(glob, item) })
}

// Validate returns Faults with all that keeps the document from being put in force for
// an account that has these stores; nil where nothing does.
func (d Document) Validate(stores []string) error {
	var f Faults
	for _, space := range slices.Sorted(maps.Keys(d.Spaces)) {
		where := fmt.Sprintf("spaceDuplicationStorePolicies of space %q", space)
		if space == "" {
			f.add("%s: the space has no name", where)
		}
		f.pairs(where, d.Spaces[space], stores)
	}
	f.pairs("defaultPolicies", d.Default, stores)
	for _, space := range d.Ignore {
		if space == "" {
			f.add("spacesToIgnore: a space has no name")
		}
	}
	for _, space := range slices.Sorted(maps.Keys(d.Options)) {
		f.options(space, d.Options[space])
	}
	return f.err()
}

func (f *Faults) pairs(where string, pairs []Pair, stores []string) {
	seen := map[Pair]bool{}
	next := map[string][]string{}
	for i, p := range pairs {
		at := fmt.Sprintf("%s: pair %d", where, i+1)
		for _, side := range []struct{ key, store string }{{"srcStoreId", p.Source}, {"destStoreId", p.Destination}} {
			switch {
			case side.store == "":
				f.add("%s: %s is missing", at, side.key)
			case !slices.Contains(stores, side.store):
				f.add("%s: %s: unknown store %q", at, side.key, side.store)
			}
		}
		switch {
		case p.Source == p.Destination:
			if p.Source != "" {
				f.add("%s: source and destination are the same store %q", at, p.Source)
			}
		case seen[p]:
			f.add("%s: %s to %s stands there twice", at, p.Source, p.Destination)
		default:
			next[p.Source] = append(next[p.Source], p.Destination)
		}
		seen[p] = true
	}
	if loop := cycle(next); loop != nil {
		f.add("%s: changes would go round in a cycle: %s", where, strings.Join(loop, " to "))
	}
}

// cycle returns the stores along one cycle, the first of them again at the end; nil where there is none.
func cycle(next map[string][]string) []string {
	done := map[string]bool{}
	var path []string
	var walk func(store string) []string
	walk = func(store string) []string {
		if i := slices.Index(path, store); i >= 0 {
			return append(slices.Clone(path[i:]), store)
		}
		if done[store] {
			return nil
		}
		path = append(path, store)
		for _, n := range next[store] {
			if loop := walk(n); loop != nil {
				return loop
			}
		}
		path = path[:len(path)-1]
		done[store] = true
		return nil
	}
	for _, store := range slices.Sorted(maps.Keys(next)) {
		if loop := walk(store); loop != nil {
			return loop
		}
	}
	return nil
}

func (f *Faults) options(space string, o Options) {
	where := fmt.Sprintf("spaces: %q", space)
	if space == "" {
		f.add("%s: the space has no name", where)
	}
	if o.Copies != nil {
		f.add("%s: copies: is not implemented yet; name pairs instead", where)
	}
	switch o.Deletes {
	case "", Propagate, KeepCopy, Approve:
	default:
		f.add("%s: deletes: %q is none of propagate, keep, approve", where, o.Deletes)
	}
	for _, glob := range o.Exclude {
		if glob == "" || !doublestar.ValidatePattern(glob) {
			f.add("%s: exclude: malformed glob %q", where, glob)
		}
	}
	if o.MaxSize < 0 {
		f.add("%s: maxSize: %d is negative", where, o.MaxSize)
	}
	switch o.Priority {
	case "", "high", "low":
	default:
		f.add("%s: priority: %q is none of high, low", where, o.Priority)
	}
}
