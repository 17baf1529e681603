package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/millrace/millrace/internal/bytesize"
	"github.com/millrace/millrace/internal/nearest"
)

// A Document is the policy of one account. Its JSON is that of the DuraCloud Mill with the fields Account, Defaults and
// Options added; keys that are written in another way are converted when a document is parsed. A Document is immutable
// after it has been read.
type Document struct {
	// Account is the name of the account; empty if the document does not have it.
	Account string `json:"account,omitempty"`
	// Spaces holds the pairs of spaces, by space.
	Spaces map[string][]Pair `json:"spaceDuplicationStorePolicies,omitempty"`
	// Default holds the pairs of all other spaces.
	Default []Pair `json:"defaultPolicies,omitempty"`
	// Ignore lists the spaces that are not copied.
	Ignore []string `json:"spacesToIgnore,omitempty"`
	// Defaults holds the options of all spaces; those in Options precede them.
	Defaults *options `json:"defaults,omitempty"`
	// Options holds further options by space, both for spaces in Spaces and for others.
	Options map[string]options `json:"spaces,omitempty"`
}

// options are the options of one space, or of all. The zero value of a field means that it is not set. A set field of a
// space replaces that of Document.Defaults, except for Holds, which are added.
type options struct {
	// Deletes is the rule for deletes; the default is Propagate.
	Deletes Deletes `json:"deletes,omitempty"`
	// Exclude holds globs on item ids: * within a segment, ** across segments.
	Exclude      []string      `json:"exclude,omitzero"`
	ExcludeLists []ExcludeList `json:"excludeLists,omitzero"`
	// MaxSize and MinSize are in bytes. Larger and smaller items are not copied. 0 means no limit.
	MaxSize *int64 `json:"maxSize,omitempty"`
	MinSize *int64 `json:"minSize,omitempty"`
	// Priority is high or low; the default is high.
	Priority string `json:"priority,omitempty"`
	// Start is the time of the oldest content that is copied.
	Start time.Time `json:"start,omitzero"`
	Holds []Hold    `json:"hold,omitempty"`
	Brake *brake    `json:"brake,omitempty"`
	// Copies is parsed and then rejected, because it is not implemented.
	Copies *minCopies `json:"copies,omitempty"`
}

type brake struct {
	Deletes  brakeLimits `json:"deletes,omitzero"`
	Rewrites brakeLimits `json:"rewrites,omitzero"`
}

// brakeLimits are the limits of one brake; nil means the default.
type brakeLimits struct {
	MaxShare *float64 `json:"maxShare,omitempty"`
	MaxCount *int64   `json:"maxCount,omitempty"`
}

// minCopies requests a number of copies instead of pairs.
type minCopies struct {
	Min   int      `json:"min,omitempty"`
	Among []string `json:"among,omitempty"`
}

// empty reports whether no option is set.
func (o options) empty() bool { return reflect.ValueOf(o).IsZero() }

// normalize removes the options that have no effect: those that set an option to nothing where the defaults have
// nothing. So documents with the same effect of these are equal.
func (d *Document) normalize() {
	if d.Defaults != nil {
		if d.Defaults.strip(options{}); d.Defaults.empty() {
			d.Defaults = nil
		}
	}
	for space, o := range d.Options {
		o.strip(d.defaults())
		d.Options[space] = o
	}
}

// strip removes options that are set to nothing, unless that replaces something in defaults.
func (o *options) strip(defaults options) {
	if len(o.Exclude) == 0 && len(defaults.Exclude) == 0 {
		o.Exclude = nil
	}
	if len(o.ExcludeLists) == 0 && len(defaults.ExcludeLists) == 0 {
		o.ExcludeLists = nil
	}
	if valueOf(o.MaxSize) == 0 && valueOf(defaults.MaxSize) == 0 {
		o.MaxSize = nil
	}
	if valueOf(o.MinSize) == 0 && valueOf(defaults.MinSize) == 0 {
		o.MinSize = nil
	}
}

// valueOf returns what p points to; zero if it is nil.
func valueOf[V any](p *V) (v V) {
	if p != nil {
		v = *p
	}
	return v
}

// or returns p, or another if p is nil.
func or[V any](p, another *V) *V {
	if p != nil {
		return p
	}
	return another
}

func (d Document) defaults() options { return valueOf(d.Defaults) }

// options returns the options of a space, those in Defaults included.
func (d Document) options(space string) options {
	o, defaults := d.Options[space], d.defaults()
	o.Deletes = cmp.Or(o.Deletes, defaults.Deletes)
	if o.Exclude == nil {
		o.Exclude = defaults.Exclude
	}
	if o.ExcludeLists == nil {
		o.ExcludeLists = defaults.ExcludeLists
	}
	o.MaxSize, o.MinSize = or(o.MaxSize, defaults.MaxSize), or(o.MinSize, defaults.MinSize)
	o.Priority = cmp.Or(o.Priority, defaults.Priority)
	if o.Start.IsZero() {
		o.Start = defaults.Start
	}
	o.Holds = append(slices.Clip(defaults.Holds), o.Holds...)
	if own := o.Brake; own == nil {
		o.Brake = defaults.Brake
	} else if others := defaults.Brake; others != nil {
		o.Brake = &brake{own.Deletes.or(others.Deletes), own.Rewrites.or(others.Rewrites)}
	}
	return o
}

func (l brakeLimits) or(defaults brakeLimits) brakeLimits {
	return brakeLimits{or(l.MaxShare, defaults.MaxShare), or(l.MaxCount, defaults.MaxCount)}
}

// limits returns the limits; zero for those that are not set or out of range.
func (l brakeLimits) limits() Limits {
	r := Limits{valueOf(l.MaxShare), max(valueOf(l.MaxCount), 0)}
	if !validShare(r.MaxShare) {
		r.MaxShare = 0
	}
	return r
}

func validShare(s float64) bool { return s > 0 && s <= 1 }

// Rules returns the rules for a space that the document defines, without the revision and the times. Ignored spaces,
// and spaces with a name that starts with x-, have no pairs; others have the pairs in Spaces, or else those in Default.
// An unknown rule for deletes counts as KeepCopy.
func (d Document) Rules(space string) Rules {
	r := Rules{Deletes: Propagate}
	if strings.HasPrefix(space, "x-") || slices.Contains(d.Ignore, space) {
		return r
	}
	r.Pairs = d.Default
	if own := d.Spaces[space]; len(own) > 0 {
		r.Pairs = own
	}
	o := d.options(space)
	switch o.Deletes {
	case "":
	case Propagate, KeepCopy, Approve:
		r.Deletes = o.Deletes
	default:
		r.Deletes = KeepCopy
	}
	r.Exclude, r.ExcludeLists = o.Exclude, o.ExcludeLists
	r.MaxSize, r.MinSize, r.Start = valueOf(o.MaxSize), valueOf(o.MinSize), o.Start
	r.Holds, r.Low = o.Holds, o.Priority == "low"
	if o.Brake != nil {
		r.Brake = Brake{o.Brake.Deletes.limits(), o.Brake.Rewrites.limits()}
	}
	return r
}

// Validate returns Faults with all reasons not to publish the document for an account with these stores; nil if there
// are none.
func (d Document) Validate(stores []string) error { return d.validate(validator{stores: stores}).err() }

// validate returns the faults that v finds.
func (d Document) validate(v validator) Faults {
	for _, space := range slices.Sorted(maps.Keys(d.Spaces)) {
		path := below(keySpaces, space)
		v.space(path, space)
		v.pairs(path, d.Spaces[space])
	}
	v.pairs(keyDefault, d.Default)
	for i, space := range d.Ignore {
		v.space(index(keyIgnore, i), space)
	}
	defaults := d.defaults()
	v.options(keyDefaults, defaults, defaults)
	for _, space := range slices.Sorted(maps.Keys(d.Options)) {
		path := below(keyOptions, space)
		v.space(path, space)
		v.options(path, d.Options[space], d.options(space))
	}
	return v.faults
}

// A validator collects the faults of a parsed document.
type validator struct {
	stores []string          // of the account
	any    bool              // the stores are not known
	names  map[string]string // the paths of the file, by those of the encoded document
	faults Faults
}

func (v *validator) add(path, format string, a ...any) {
	v.faults.add(place{}, nameOf(v.names, path), format, a...)
}

func (v *validator) space(path, space string) {
	if space == "" {
		v.add(path, "the space has no name")
	}
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
			v.add(at, "source and destination are the same store %q", p.Source)
		case seen[p]:
			v.add(at, "is there twice: %s to %s", p.Source, p.Destination)
		default:
			next[p.Source] = append(next[p.Source], p.Destination)
			if j, ok := first[p.Destination]; ok {
				at, other := at, index(path, j)
				if nameOf(v.names, other) == other {
					other = index("", j)
				}
				v.add(at, "store %q has two sources: %q in %s, and %q",
					p.Destination, pairs[j].Source, nameOf(v.names, other), p.Source)
			} else {
				first[p.Destination] = i
			}
		}
		seen[p] = true
	}
	for _, loop := range cycles(next) {
		v.add(path, "the pairs form a cycle: %s", strings.Join(loop, " to "))
	}
}

func (v *validator) store(path, key, store string) {
	switch {
	case store == "":
		v.add(path, "%s is missing", key)
	case !v.any && !slices.Contains(v.stores, store):
		hint := ""
		if len(v.stores) > 0 {
			hint = "; the account has " + strings.Join(v.stores, ", ")
		}
		if meant := nearest.Of(store, v.stores); meant != "" && len(store) > 2 { // others are near to all
			hint = "; did you mean " + meant + "?"
		}
		v.add(below(path, key), "unknown store %q%s", store, hint)
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

// options validates the options of a space, or of all. merged has the defaults too.
func (v *validator) options(path string, o, merged options) {
	at := func(key string) string { return path + "." + key }
	if o.Copies != nil {
		v.add(at("copies"), "is not implemented; name the stores in %s instead", keyCopy)
	}
	switch o.Deletes {
	case "", Propagate, KeepCopy, Approve:
	default:
		v.add(at("deletes"), "want propagate, keep or approve, got %q%s", o.Deletes,
			suggest(string(o.Deletes), string(Propagate), string(KeepCopy), string(Approve)))
	}
	for i, glob := range o.Exclude {
		if glob == "" || !doublestar.ValidatePattern(glob) {
			v.add(index(at("exclude"), i), "malformed glob %q", glob)
		}
	}
	for i, l := range o.ExcludeLists {
		v.list(index(at("excludeLists"), i), l)
	}
	v.sizes(path, o, merged)
	switch o.Priority {
	case "", "high", "low":
	default:
		v.add(at("priority"), "want high or low, got %q", o.Priority)
	}
	for i, h := range o.Holds {
		if h.Until.IsZero() {
			v.add(index(at("hold"), i), "until is missing")
		}
		if strings.TrimSpace(h.Reason) == "" {
			v.add(index(at("hold"), i), "reason is missing")
		}
	}
	if o.Brake != nil {
		v.limits(at("brake.deletes"), o.Brake.Deletes)
		v.limits(at("brake.rewrites"), o.Brake.Rewrites)
	}
}

func (v *validator) sizes(path string, o, merged options) {
	bound := func(key string, size *int64) {
		if valueOf(size) < 0 {
			v.add(path+"."+key, "want 0, for no bound, or more, got %d", *size)
		}
	}
	bound("maxSize", o.MaxSize)
	bound("minSize", o.MinSize)
	most, least := valueOf(merged.MaxSize), valueOf(merged.MinSize)
	if most <= 0 || least <= most || o.MaxSize == nil && o.MinSize == nil {
		return
	}
	key := "minSize"
	if o.MinSize == nil {
		key = "maxSize"
	}
	v.add(path+"."+key, "minSize %s is above maxSize %s: nothing would be copied",
		bytesize.Format(least), bytesize.Format(most))
}

func (v *validator) list(path string, l ExcludeList) {
	if reason := urlFault(l.URL); reason != "" {
		v.add(path+".url", "%s", reason)
	}
	if b, err := hex.DecodeString(l.SHA256); err != nil || len(b) != sha256.Size {
		v.add(path+".sha256", "want the SHA-256 of the list as %d hex digits, got %q", 2*sha256.Size, l.SHA256)
	}
	switch l.Of {
	case OfIDs, OfDigests:
	default:
		v.add(path+".of", "want %s or %s, got %q%s", OfIDs, OfDigests, l.Of, suggest(l.Of, OfIDs, OfDigests))
	}
}

// urlFault returns the reason why a list cannot be at a URL; empty if it can.
func urlFault(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "malformed URL"
	case u.Scheme != "https" && u.Scheme != "file":
		return fmt.Sprintf("want a URL that begins with https:// or file:///, got %q", text)
	case u.User != nil:
		return "the URL has a password; policies can be read by all roles"
	case u.Scheme == "https" && u.Host == "":
		return fmt.Sprintf("the URL %q has no host", text)
	case u.Scheme == "file" && (u.Host != "" || !strings.HasPrefix(u.Path, "/")):
		return fmt.Sprintf("want an absolute path, as in file:///srv/lists/list.txt, got %q", text)
	}
	return ""
}

func (v *validator) limits(path string, l brakeLimits) {
	if l.MaxShare != nil && !validShare(*l.MaxShare) {
		v.add(path+".maxShare", "want a share above 0 and at most 1, such as 10%% or 0.1, got %v", *l.MaxShare)
	}
	if l.MaxCount != nil && *l.MaxCount < 1 {
		v.add(path+".maxCount", "want 1 or more, got %d; to approve each delete, write deletes: approve", *l.MaxCount)
	}
}

// suggest returns a question for the word that was meant; empty if none is near.
func suggest(word string, words ...string) string {
	if meant := nearest.Of(word, words); meant != "" {
		return "; did you mean " + meant + "?"
	}
	return ""
}

// Warnings returns what is valid at the time now, and probably not meant. They have no places.
func (d Document) Warnings(now time.Time) Faults { return d.warnings(now, nil).faults }

func (d Document) warnings(now time.Time, names map[string]string) validator {
	v := validator{names: names}
	warn := func(path string, o options) {
		for i, h := range o.Holds {
			if !h.Until.IsZero() && !now.Before(h.Until) {
				v.add(index(path+".hold", i)+".until", "the hold ended at %s", h.Until.Format(time.RFC3339))
			}
		}
		if o.Start.After(now) {
			v.add(path+".start", "nothing is copied that was written before %s", o.Start.Format(time.RFC3339))
		}
	}
	warn(keyDefaults, d.defaults())
	for _, space := range slices.Sorted(maps.Keys(d.Options)) {
		warn(below(keyOptions, space), d.Options[space])
	}
	return v
}
