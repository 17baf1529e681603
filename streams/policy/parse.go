package policy

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/nearest"
)

// maxDepth is the largest nesting depth of a document. A policy needs five levels.
const maxDepth = 16

// The keys of a document.
const (
	keySpaces  = "spaceDuplicationStorePolicies"
	keyDefault = "defaultPolicies"
	keyIgnore  = "spacesToIgnore"
	keyOptions = "spaces"
)

// Parse parses a document: as JSON if it begins with a brace or bracket, else as YAML. JSON may have a trailing comma
// before a closing bracket, as the sample of the DuraCloud Mill has. Unknown keys, duplicate keys and wrong types are
// faults. The error is Faults, with line numbers.
func Parse(b []byte) (Document, error) {
	d, _, err := parse(b)
	if err != nil {
		return Document{}, err
	}
	return d, nil
}

// parse is like Parse, but also returns the line of each key and list entry by path. With an error, it returns the
// parts of the document without faults; if the syntax is wrong, there are none and lines is nil.
func parse(b []byte) (Document, map[string]int, error) {
	root, err := read(b)
	if err != nil {
		return Document{}, nil, err
	}
	r := reader{lines: map[string]int{}}
	d := r.document(root)
	return d, r.lines, r.faults.err()
}

// read parses the syntax of JSON or YAML.
func read(b []byte) (*node, error) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		return nil, documentFault(0, "is not text in UTF-8")
	}
	trimmed := bytes.TrimSpace(b)
	if len(trimmed) == 0 {
		return nil, documentFault(0, "is empty")
	}
	if trimmed[0] == '{' || trimmed[0] == '[' {
		return readJSON(b)
	}
	return readYAML(b)
}

// A node is one value of a document, in JSON or YAML.
type node struct {
	line    int
	kind    kind
	text    string // the value of a scalar
	entries []entry
	items   []*node
}

type entry struct {
	key   string
	line  int
	value *node
}

type kind string

const (
	object kind = "an object"
	list   kind = "a list"
	text   kind = "text"
	number kind = "a number"
	other  kind = "something else"
)

// A reader converts nodes to a Document.
type reader struct {
	faults Faults
	lines  map[string]int // lines of keys and list entries, by path
}

// A setter reads the value n of the key at path.
type setter func(path string, n *node)

func (r *reader) document(n *node) (d Document) {
	r.fields(n, "", map[string]setter{
		keySpaces: func(path string, n *node) {
			r.each(n, path, func(space, path string, n *node) {
				put(&d.Spaces, space, append([]Pair{}, r.pairs(n, path)...)) // Parse would reject null
			})
		},
		keyDefault: func(path string, n *node) { d.Default = r.pairs(n, path) },
		keyIgnore:  func(path string, n *node) { d.Ignore = r.texts(n, path) },
		keyOptions: func(path string, n *node) {
			r.each(n, path, func(space, path string, n *node) { put(&d.Options, space, r.options(n, path)) })
		},
	})
	return d
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

func (r *reader) options(n *node, path string) (o options) {
	r.fields(n, path, map[string]setter{
		"deletes":  func(path string, n *node) { o.Deletes = Deletes(r.text(n, path)) },
		"exclude":  func(path string, n *node) { o.Exclude = r.texts(n, path) },
		"maxSize":  func(path string, n *node) { o.MaxSize = r.number(n, path) },
		"priority": func(path string, n *node) { o.Priority = r.text(n, path) },
		"copies": func(path string, n *node) {
			o.Copies = &copies{}
			r.fields(n, path, map[string]setter{
				"min":   func(path string, n *node) { o.Copies.Min = int(r.number(n, path)) },
				"among": func(path string, n *node) { o.Copies.Among = r.texts(n, path) },
			})
		},
	})
	return o
}

func (r *reader) fields(n *node, path string, known map[string]setter) {
	r.each(n, path, func(key, at string, v *node) {
		set := known[key]
		if set == nil {
			hint := "; known here: " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			if meant := nearest.Of(key, slices.Collect(maps.Keys(known))); meant != "" {
				hint = "; did you mean " + meant + "?"
			}
			r.faults.add(r.lines[at], at, "unknown key%s", hint)
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
			r.faults.add(e.line, at, "is there twice, first in line %d", first)
			continue
		}
		seen[e.key], r.lines[at] = e.line, e.line
		if e.value.kind == object || e.value.kind == list {
			e.value.line = e.line
		}
		do(e.key, at, e.value)
	}
}

func (r *reader) list(n *node, path string) []*node {
	if n.kind != list {
		r.wrong(n, path, list)
	}
	for i, item := range n.items {
		r.lines[index(path, i)] = item.line
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
		r.faults.add(n.line, path, "want a whole number of 64 bits, got %s", n.text)
	}
	return v
}

func (r *reader) wrong(n *node, path string, want kind) {
	r.faults.add(n.line, path, "want %s, got %s", want, n.kind)
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
