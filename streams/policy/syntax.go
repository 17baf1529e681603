package policy

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// A node is one value of a document.
type node struct {
	place
	kind    kind
	text    string // the value of a scalar
	entries []entry
	items   []*node
}

type entry struct {
	place
	key   string
	value *node
}

type kind string

const (
	object kind = "an object"
	list   kind = "a list"
	text   kind = "text"
	number kind = "a number"
	other  kind = "something else"
	faulty kind = "" // the text says why
)

// maxOpen is the number of brackets that may be open at once in the text of a document, those in texts included. The
// time to parse grows with the square of their number.
const maxOpen = 1000

// read parses the syntax of YAML, of which JSON is a part. After a fault of syntax the node is nil.
func read(b []byte) (*node, Faults) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	switch {
	case !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0:
		return nil, documentFault(place{}, "is not text in UTF-8")
	case len(bytes.TrimSpace(b)) == 0:
		return nil, documentFault(place{}, "is empty")
	}
	open := 0
	for _, c := range b {
		switch c {
		case '[', '{':
			if open++; open > maxOpen {
				return nil, documentFault(place{}, "is nested too deep")
			}
		case ']', '}':
			open--
		}
	}
	file, err := parser.ParseBytes(b, 0, parser.AllowDuplicateMapKey())
	var e yaml.Error
	switch {
	case errors.As(err, &e) && e.GetToken() != nil && e.GetToken().Position != nil:
		p := e.GetToken().Position
		return nil, documentFault(place{p.Line, p.Column}, "%s", e.GetMessage())
	case err != nil:
		return nil, documentFault(place{}, "%v", err)
	case len(file.Docs) != 1 || file.Docs[0].Body == nil:
		return nil, documentFault(place{}, "want one YAML document, got %d", len(file.Docs))
	}
	r := yamlReader{}
	n := r.value(file.Docs[0].Body)
	return n, r.faults
}

// A yamlReader makes nodes of parsed YAML.
type yamlReader struct{ faults Faults }

func (r *yamlReader) value(in ast.Node) *node {
	n := &node{place: placeOf(in), kind: other}
	switch v := in.(type) {
	case *ast.StringNode:
		n.kind, n.text = text, v.Value
	case *ast.LiteralNode:
		n.kind, n.text = text, v.Value.Value
	case *ast.IntegerNode:
		n.kind, n.text = number, v.Token.Value
	case *ast.FloatNode:
		n.kind, n.text = number, v.Token.Value
	case *ast.SequenceNode:
		n.kind = list
		for _, item := range v.Values {
			n.items = append(n.items, r.value(item))
		}
	case *ast.MappingValueNode:
		n.kind = object
		r.entry(n, v)
	case *ast.MappingNode:
		n.kind = object
		for _, e := range v.Values {
			r.entry(n, e)
		}
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		n.kind, n.text = faulty, "anchors, aliases, merges and tags are not supported"
	}
	return n
}

func (r *yamlReader) entry(n *node, in *ast.MappingValueNode) {
	key := r.value(in.Key)
	switch key.kind {
	case text, number:
		n.entries = append(n.entries, entry{key.place, key.text, r.value(in.Value)})
	case faulty:
		r.faults.add(key.place, "", "%s", key.text)
	default:
		r.faults.add(key.place, "", "want a key, got %s", key.kind)
	}
}

func placeOf(n ast.Node) place {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return place{t.Position.Line, t.Position.Column}
	}
	return place{}
}
