package policy

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// maxDepth bounds how deep a document may nest; a policy needs five levels.
const maxDepth = 16

// Parse reads a document, in JSON where it begins with a brace, else in YAML. A comma
// too many before a closing bracket is forgiven, as it stands in the older tools'
// sample; anything else that is unknown, doubled or of a wrong type is a fault. The
// error is Faults, with line numbers.
func Parse(b []byte) (Document, error) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	if !utf8.Valid(b) {
		return Document{}, Faults{"the document is not UTF-8"}
	}
	trimmed := bytes.TrimSpace(b)
	if len(trimmed) == 0 {
		return Document{}, Faults{"the document is empty"}
	}
	read := readYAML
	if trimmed[0] == '{' || trimmed[0] == '[' {
		read = readJSON
	}
	root, err := read(b)
	if err != nil {
		return Document{}, err
	}
	var f Faults
	d := f.document(root)
	if len(f) > 0 {
		return Document{}, f
	}
	return d, nil
}

// A node is one value of a document, whichever way it was written.
type node struct {
	line    int
	kind    kind
	text    string // of scalars
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

func (f *Faults) document(n *node) (d Document) {
	f.fields(n, "document", map[string]func(*node){
		"spaceDuplicationStorePolicies": func(n *node) {
			d.Spaces = map[string][]Pair{}
			f.each(n, "spaceDuplicationStorePolicies", func(space string, n *node) { d.Spaces[space] = f.pairList(n, space) })
		},
		"defaultPolicies": func(n *node) { d.Default = f.pairList(n, "defaultPolicies") },
		"spacesToIgnore":  func(n *node) { d.Ignore = f.texts(n, "spacesToIgnore") },
		"spaces": func(n *node) {
			d.Options = map[string]Options{}
			f.each(n, "spaces", func(space string, n *node) { d.Options[space] = f.option(n, space) })
		},
	})
	return d
}

func (f *Faults) pairList(n *node, what string) []Pair {
	var pairs []Pair
	for _, item := range f.list(n, what) {
		var p Pair
		f.fields(item, what, map[string]func(*node){
			"srcStoreId":  func(n *node) { p.Source = f.text(n, "srcStoreId") },
			"destStoreId": func(n *node) { p.Destination = f.text(n, "destStoreId") },
		})
		pairs = append(pairs, p)
	}
	return pairs
}

func (f *Faults) option(n *node, space string) (o Options) {
	f.fields(n, space, map[string]func(*node){
		"deletes":  func(n *node) { o.Deletes = Deletes(f.text(n, "deletes")) },
		"exclude":  func(n *node) { o.Exclude = f.texts(n, "exclude") },
		"maxSize":  func(n *node) { o.MaxSize = f.number(n, "maxSize") },
		"priority": func(n *node) { o.Priority = f.text(n, "priority") },
		"copies": func(n *node) {
			o.Copies = &Copies{}
			f.fields(n, "copies", map[string]func(*node){
				"min":   func(n *node) { o.Copies.Min = int(f.number(n, "min")) },
				"among": func(n *node) { o.Copies.Among = f.texts(n, "among") },
			})
		},
	})
	return o
}

func (f *Faults) fields(n *node, what string, known map[string]func(*node)) {
	f.each(n, what, func(key string, v *node) {
		set := known[key]
		if set == nil {
			f.add("line %d: %s: unknown key %q", v.line, what, key)
			return
		}
		set(v)
	})
}

func (f *Faults) each(n *node, what string, do func(key string, n *node)) {
	if n.kind != object {
		f.wrong(n, what, object)
		return
	}
	seen := map[string]int{}
	for _, e := range n.entries {
		if first, ok := seen[e.key]; ok {
			f.add("line %d: %s: key %q stands there twice, first in line %d", e.line, what, e.key, first)
			continue
		}
		seen[e.key] = e.line
		if e.value.kind == object || e.value.kind == list {
			e.value.line = e.line
		}
		do(e.key, e.value)
	}
}

func (f *Faults) list(n *node, what string) []*node {
	if n.kind != list {
		f.wrong(n, what, list)
	}
	return n.items
}

func (f *Faults) texts(n *node, what string) []string {
	var texts []string
	for _, item := range f.list(n, what) {
		texts = append(texts, f.text(item, what))
	}
	return texts
}

// text takes numbers for text too: in YAML a store's id is written without quotes.
func (f *Faults) text(n *node, what string) string {
	if n.kind != text && n.kind != number {
		f.wrong(n, what, text)
	}
	return n.text
}

func (f *Faults) number(n *node, what string) int64 {
	v, err := strconv.ParseInt(n.text, 10, 64)
	if n.kind != number {
		f.wrong(n, what, number)
	} else if err != nil {
		f.add("line %d: %s: %s is no whole number of 64 bits", n.line, what, n.text)
	}
	return v
}

func (f *Faults) wrong(n *node, what string, want kind) {
	f.add("line %d: %s: found %s where %s belongs", n.line, what, n.kind, want)
}
