package policy

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/bytesize"
	"github.com/millrace/millrace/internal/nearest"
)

// The keys of a document. A Document is encoded with those of the DuraCloud Mill; people may write the others instead.
const (
	keySpaces   = "spaceDuplicationStorePolicies" // or spaces.SPACE.copy
	keyDefault  = "defaultPolicies"               // or defaults.copy
	keyIgnore   = "spacesToIgnore"                // or ignore
	keyAccount  = "account"
	keyDefaults = "defaults"
	keyOptions  = "spaces"

	keyIgnoreOurs = "ignore"
	keyCopy       = "copy"
)

// Parse parses a document in YAML, of which JSON is a part, also with a comma before a closing bracket. Unknown keys,
// duplicate keys and wrong types are faults. The error is Faults, with lines and columns.
func Parse(b []byte) (Document, error) {
	p := parse(b)
	if err := p.faults.err(); err != nil {
		return Document{}, err
	}
	return p.document, nil
}

// A parsed document: its parts without faults, the faults of syntax and form, and where things are in the file.
type parsed struct {
	document  Document
	malformed bool // in its syntax: there are no parts
	faults    Faults
	places    map[string]place // of keys and entries of lists, by path
	// names are the paths in the file of what has another path in the encoded Document.
	names map[string]string
}

func parse(b []byte) parsed {
	root, faults := read(b)
	r := reader{faults: faults, places: map[string]place{}, names: map[string]string{}}
	p := parsed{malformed: root == nil, places: r.places, names: r.names}
	if root != nil {
		p.document = r.document(root)
	}
	p.faults = r.faults
	return p
}

// nameOf returns the path in the file of a path in the encoded Document.
func nameOf(names map[string]string, path string) string {
	for outer := path; outer != ""; outer = around(outer) {
		if name, ok := names[outer]; ok {
			return name + path[len(outer):]
		}
	}
	return path
}

// place returns the place of a path in the file, or of the innermost object or list around it; zero if none is known.
func (p parsed) place(path string) place {
	for ; path != ""; path = around(path) {
		if at, ok := p.places[path]; ok {
			return at
		}
	}
	return place{}
}

// around returns the path of what contains path; empty for the document.
func around(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

// A reader converts nodes to a Document.
type reader struct {
	faults Faults
	places map[string]place
	names  map[string]string
}

// A setter reads the value n of the key at path.
type setter func(path string, n *node)

func (r *reader) document(n *node) (d Document) {
	r.fields(n, "", map[string]setter{
		keyAccount: func(path string, n *node) { d.Account = r.text(n, path) },
		keySpaces: func(path string, n *node) {
			r.each(n, path, func(space, path string, n *node) {
				if r.once(path, below(below(keyOptions, space), keyCopy)) {
					put(&d.Spaces, space, append([]Pair{}, r.pairs(n, path)...)) // Parse would reject null
				}
			})
		},
		keyDefault: func(path string, n *node) {
			if r.once(path, below(keyDefaults, keyCopy)) {
				d.Default = r.pairs(n, path)
			}
		},
		keyIgnore: func(path string, n *node) {
			if r.once(path, keyIgnoreOurs) {
				d.Ignore = r.texts(n, path)
			}
		},
		keyIgnoreOurs: func(path string, n *node) {
			if r.once(path, keyIgnore) {
				d.Ignore, r.names[keyIgnore] = r.texts(n, path), path
			}
		},
		keyDefaults: func(path string, n *node) {
			o := r.options(n, path, func(path string, n *node) {
				if r.once(path, keyDefault) {
					d.Default = r.copies(n, path, keyDefault)
				}
			})
			if !o.empty() {
				d.Defaults = &o
			}
		},
		keyOptions: func(path string, n *node) {
			r.each(n, path, func(space, path string, n *node) {
				copies := false
				o := r.options(n, path, func(path string, n *node) {
					old := below(keySpaces, space)
					if copies = r.once(path, old); copies {
						put(&d.Spaces, space, r.copies(n, path, old))
					}
				})
				if !copies || !o.empty() {
					put(&d.Options, space, o)
				}
			})
		},
	})
	d.normalize()
	return d
}

// once reports whether the document does not have the same under another key. Which key counts would be a guess.
func (r *reader) once(path, other string) bool {
	at, twice := r.places[other]
	if twice {
		r.faults.add(r.places[path], path, "is in line %d too, as %s: remove one of them", at.line, other)
	}
	return !twice
}

// put sets a key of *m. It allocates the map only when needed, so that an empty one is nil, as it is after the document
// was encoded and parsed again.
func put[V any](m *map[string]V, key string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[key] = v
}

func (r *reader) pairs(n *node, path string) (pairs []Pair) {
	for i, item := range r.list(n, path) {
		var p Pair
		r.fields(item, index(path, i), map[string]setter{
			"srcStoreId":  func(path string, n *node) { p.Source = r.text(n, path) },
			"destStoreId": func(path string, n *node) { p.Destination = r.text(n, path) },
		})
		pairs = append(pairs, p)
	}
	return pairs
}

// copies reads a list of sources with their destinations. old is the path of its pairs in the encoded Document.
func (r *reader) copies(n *node, path, old string) []Pair {
	pairs := []Pair{}
	items := r.list(n, path)
	if n.kind == list && len(items) == 0 {
		r.faults.add(n.place, path, "has no stores; to copy nothing, add the space to %s", keyIgnoreOurs)
	}
	r.names[old] = path
	for i, item := range items {
		at, before := index(path, i), len(r.faults)
		var source string
		var destinations, paths []string
		r.fields(item, at, map[string]setter{
			"from": func(path string, n *node) { source = r.text(n, path) },
			"to": func(path string, n *node) {
				if n.kind != list {
					destinations, paths = append(destinations, r.text(n, path)), append(paths, path)
					return
				}
				for i, text := range r.texts(n, path) {
					destinations, paths = append(destinations, text), append(paths, index(path, i))
				}
			},
		})
		missing := ""
		switch {
		case len(r.faults) > before:
		case source == "":
			missing = "from"
		case len(destinations) == 0 || slices.Contains(destinations, ""):
			missing = "to"
		}
		if missing != "" {
			r.faults.add(item.place, at, "%s is missing", missing)
		}
		for j, destination := range destinations {
			if source == "" || destination == "" {
				continue
			}
			pair := index(old, len(pairs))
			r.names[pair] = paths[j]
			r.names[below(pair, "srcStoreId")], r.names[below(pair, "destStoreId")] = below(at, "from"), paths[j]
			pairs = append(pairs, Pair{source, destination})
		}
	}
	return pairs
}

// options reads the options of a space, or those of all spaces. copies reads the key copy.
func (r *reader) options(n *node, path string, copies setter) (o options) {
	r.fields(n, path, map[string]setter{
		keyCopy:        copies,
		"deletes":      func(path string, n *node) { o.Deletes = Deletes(r.text(n, path)) },
		"exclude":      func(path string, n *node) { o.Exclude = append([]string{}, r.texts(n, path)...) },
		"excludeLists": func(path string, n *node) { o.ExcludeLists = r.lists(n, path) },
		"maxSize":      func(path string, n *node) { o.MaxSize = r.size(n, path) },
		"minSize":      func(path string, n *node) { o.MinSize = r.size(n, path) },
		"priority":     func(path string, n *node) { o.Priority = r.text(n, path) },
		"start":        func(path string, n *node) { o.Start = r.time(n, path) },
		"hold":         func(path string, n *node) { o.Holds = r.holds(n, path) },
		"brake":        func(path string, n *node) { o.Brake = r.brake(n, path) },
		"copies": func(path string, n *node) {
			o.Copies = &minCopies{}
			r.fields(n, path, map[string]setter{
				"min":   func(path string, n *node) { o.Copies.Min = int(r.number(n, path)) },
				"among": func(path string, n *node) { o.Copies.Among = r.texts(n, path) },
			})
		},
	})
	return o
}

func (r *reader) lists(n *node, path string) []ExcludeList {
	lists := []ExcludeList{}
	for i, item := range r.list(n, path) {
		var l ExcludeList
		r.fields(item, index(path, i), map[string]setter{
			"url":    func(path string, n *node) { l.URL = r.text(n, path) },
			"sha256": func(path string, n *node) { l.SHA256 = strings.ToLower(r.text(n, path)) },
			"of":     func(path string, n *node) { l.Of = r.text(n, path) },
		})
		lists = append(lists, l)
	}
	return lists
}

func (r *reader) holds(n *node, path string) (holds []Hold) {
	for i, item := range r.list(n, path) {
		var h Hold
		r.fields(item, index(path, i), map[string]setter{
			"prefix": func(path string, n *node) { h.Prefix = r.text(n, path) },
			"until":  func(path string, n *node) { h.Until = r.time(n, path) },
			"reason": func(path string, n *node) { h.Reason = r.text(n, path) },
		})
		holds = append(holds, h)
	}
	return holds
}

func (r *reader) brake(n *node, path string) *brake {
	b := &brake{}
	limits := func(l *brakeLimits) setter {
		return func(path string, n *node) {
			r.fields(n, path, map[string]setter{
				"maxShare": func(path string, n *node) { l.MaxShare = r.share(n, path) },
				"maxCount": func(path string, n *node) { l.MaxCount = new(r.number(n, path)) },
			})
		}
	}
	r.fields(n, path, map[string]setter{"deletes": limits(&b.Deletes), "rewrites": limits(&b.Rewrites)})
	if *b == (brake{}) {
		return nil
	}
	return b
}

func (r *reader) fields(n *node, path string, known map[string]setter) {
	r.each(n, path, func(key, at string, v *node) {
		set := known[key]
		if set == nil {
			hint := "; known here: " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			if meant := nearest.Of(key, slices.Collect(maps.Keys(known))); meant != "" {
				hint = "; did you mean " + meant + "?"
			}
			r.faults.add(r.places[at], at, "unknown key%s", hint)
			return
		}
		set(at, v)
	})
}

func (r *reader) each(n *node, path string, do func(key, path string, n *node)) {
	if n.kind != object {
		r.wrong(n, path, object)
		return
	}
	seen := map[string]int{}
	for _, e := range n.entries {
		at := below(path, e.key)
		if first, ok := seen[e.key]; ok {
			r.faults.add(e.place, at, "is there twice, first in line %d", first)
			continue
		}
		seen[e.key], r.places[at] = e.line, e.place
		if e.value.kind == object || e.value.kind == list {
			e.value.place = e.place
		}
		do(e.key, at, e.value)
	}
}

func (r *reader) list(n *node, path string) []*node {
	if n.kind != list {
		r.wrong(n, path, list)
	}
	for i, item := range n.items {
		r.places[index(path, i)] = item.place
	}
	return n.items
}

func (r *reader) texts(n *node, path string) (texts []string) {
	for i, item := range r.list(n, path) {
		texts = append(texts, r.text(item, index(path, i)))
	}
	return texts
}

// text also accepts numbers, because ids of stores are often written without quotes in YAML.
func (r *reader) text(n *node, path string) string {
	if n.kind != text && n.kind != number {
		r.wrong(n, path, text)
	}
	return n.text
}

func (r *reader) number(n *node, path string) int64 {
	v, err := strconv.ParseInt(n.text, 10, 64)
	if n.kind != number {
		r.wrong(n, path, number)
	} else if err != nil {
		r.faults.add(n.place, path, "want a whole number of 64 bits, got %s", n.text)
	}
	return v
}

// size reads a number of bytes, with or without a unit. Documents are encoded without.
func (r *reader) size(n *node, path string) *int64 {
	if n.kind != text {
		return new(r.number(n, path))
	}
	v, err := bytesize.Parse(n.text)
	if err != nil {
		r.faults.add(n.place, path, "want a number of bytes, with or without a unit, such as 5GiB; got %q", n.text)
	}
	return &v
}

// share reads a share: 10%, or 0.1. Documents are encoded with the latter.
func (r *reader) share(n *node, path string) *float64 {
	digits, percent := strings.CutSuffix(n.text, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	switch {
	case n.kind != text && n.kind != number:
		r.wrong(n, path, number)
	case err != nil || math.IsNaN(v) || math.IsInf(v, 0):
		r.faults.add(n.place, path, "want a share such as 10%% or 0.1, got %q", n.text)
		v = 0
	case percent:
		v /= 100
	}
	return &v
}

// The years of times. Times outside of them are taken for mistakes; some cannot be encoded.
const firstYear, lastYear = 1900, 9000

// time reads a date, which is the time at which it begins in UTC, or a time with a time zone.
func (r *reader) time(n *node, path string) time.Time {
	if n.kind != text {
		r.wrong(n, path, text)
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, n.text)
	if err != nil {
		t, err = time.Parse(time.DateOnly, n.text)
	}
	if t = t.UTC(); err != nil || t.Year() < firstYear || t.Year() > lastYear {
		r.faults.add(n.place, path, "want a date such as 2026-01-31, or a time such as 2026-01-31T12:00:00Z, got %q", n.text)
		return time.Time{}
	}
	return t
}

func (r *reader) wrong(n *node, path string, want kind) {
	if n.kind == faulty {
		r.faults.add(n.place, path, "%s", n.text)
		return
	}
	r.faults.add(n.place, path, "want %s, got %s", want, n.kind)
}

var plainKey = regexp.MustCompile(`^[\pL\pN_-]+$`)

// below returns the path of a key of the object at path.
func below(path, key string) string {
	if !plainKey.MatchString(key) {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// index returns the path of an entry of the list at path.
func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
