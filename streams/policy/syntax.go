package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxDepth is the largest nesting depth of a document. A policy needs six levels.
const maxDepth = 16

// A node is one value of a document, in JSON or YAML.
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

// read parses the syntax of JSON or YAML. With faults, it returns the parts of the document before and between them:
// containers that a fault cuts off are kept, but not an entry of a list that it cuts off. If there are none, the node
// is nil.
func read(b []byte) (*node, Faults) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		return nil, documentFault(place{}, "is not text in UTF-8")
	}
	trimmed := bytes.TrimSpace(b)
	if len(trimmed) == 0 {
		return nil, documentFault(place{}, "is empty")
	}
	if trimmed[0] == '{' || trimmed[0] == '[' {
		return readJSON(b)
	}
	return readYAML(b)
}

func readJSON(b []byte) (*node, Faults) {
	b = stripTrailingCommas(b)
	r := jsonReader{d: json.NewDecoder(bytes.NewReader(b)), b: b, limit: int64(len(b))}
	r.d.UseNumber()
	var raw json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		at := place{}
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = (&lines{b: b}).at(max(syntax.Offset-1, 0))
			if syntax.Offset < r.limit { // else the text ends too early
				r.limit = syntax.Offset - 1
			}
		}
		r.faults = documentFault(at, "%v", err)
	}
	r.lines.b = b
	n, _ := r.value(0)
	if r.deep {
		return nil, r.faults
	}
	return n, r.faults
}

// stripTrailingCommas replaces each comma before a closing bracket by a blank, which keeps positions.
func stripTrailingCommas(b []byte) []byte {
	out := bytes.Clone(b)
	comma, inText := -1, false
	before := byte(0)
	for i := 0; i < len(out); i++ {
		c := out[i]
		switch {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
			comma, before = -1, c
		case inText, c == ' ', c == '\t', c == '\r', c == '\n':
		case c == ',':
			comma = -1
			if before != ',' && before != '[' && before != '{' && before != ':' {
				comma = i
			}
			before = c
		case (c == ']' || c == '}') && comma >= 0:
			out[comma] = ' '
			comma, before = -1, c
		default:
			comma, before = -1, c
		}
	}
	return out
}

// lines converts offsets to places. It is fast for growing offsets.
type lines struct {
	b     []byte
	line  int   // complete lines before start
	start int64 // of a line
}

func (l *lines) at(offset int64) place {
	offset = min(offset, int64(len(l.b)))
	for {
		n := int64(bytes.IndexByte(l.b[l.start:max(offset, l.start)], '\n'))
		if n < 0 {
			break
		}
		l.line, l.start = l.line+1, l.start+n+1
	}
	return place{1 + l.line, 1 + utf8.RuneCount(l.b[l.start:max(offset, l.start)])}
}

// A jsonReader makes nodes of tokens. It stops at the first error or token that ends after limit.
type jsonReader struct {
	d      *json.Decoder
	b      []byte
	limit  int64
	lines  lines
	faults Faults
	deep   bool // nested too deep
}

// token returns the next token and its place; false if there is none to be read.
func (r *jsonReader) token() (json.Token, place, bool) {
	from := r.d.InputOffset()
	t, err := r.d.Token()
	if err != nil || r.d.InputOffset() > r.limit {
		if r.faults == nil { // tokens are read less strictly than whole documents, so there is a fault already
			r.faults = documentFault(r.lines.at(from), "%v", err)
		}
		return nil, place{}, false
	}
	for from < int64(len(r.b)) && strings.IndexByte(" \t\r\n,:", r.b[from]) >= 0 {
		from++
	}
	return t, r.lines.at(from), true
}

// value reads a value. whole is false if it is cut off; then the node is nil unless it is a container.
func (r *jsonReader) value(depth int) (n *node, whole bool) {
	t, at, ok := r.token()
	if !ok {
		return nil, false
	}
	n = &node{place: at, kind: other}
	if depth > maxDepth {
		r.faults, r.deep = tooDeep(at), true
		return nil, false
	}
	switch t := t.(type) {
	case string:
		n.kind, n.text = text, t
	case json.Number:
		n.kind, n.text = number, t.String()
	case json.Delim:
		n.kind = object
		if t == '[' {
			n.kind = list
		}
		for r.d.More() {
			if !r.member(n, depth) {
				return n, false
			}
		}
		if _, _, ok := r.token(); !ok {
			return n, false
		}
	}
	return n, true
}

// member reads the next entry of n. It returns false if the entry is cut off.
func (r *jsonReader) member(n *node, depth int) bool {
	var e entry
	if n.kind == object {
		t, at, ok := r.token()
		if !ok {
			return false
		}
		e.key, _ = t.(string)
		e.place = at
	}
	v, whole := r.value(depth + 1)
	switch {
	case n.kind == object && v != nil:
		e.value = v
		n.entries = append(n.entries, e)
	case n.kind == list && whole:
		n.items = append(n.items, v)
	}
	return whole
}

func tooDeep(at place) Faults { return documentFault(at, "is nested too deep") }

func readYAML(b []byte) (*node, Faults) {
	n, faults, syntax := readYAMLText(b, 0)
	if !syntax {
		return n, faults
	}
	// The parts between faults of syntax are the blocks that begin with a key at the start of a line.
	n = &node{place: place{1, 1}, kind: object}
	var others Faults
	for _, block := range yamlBlocks(b) {
		part, more, syntax := readYAMLText(block.text, block.line)
		switch {
		case syntax:
			continue
		case part != nil && part.kind == object:
			n.entries = append(n.entries, part.entries...)
		}
		others = append(others, more...)
	}
	return n, append(faults, others...)
}

// A yamlBlock is a part of a document, with the number of lines before it.
type yamlBlock struct {
	text []byte
	line int
}

// yamlBlocks splits a document before each line that begins with a key.
func yamlBlocks(b []byte) (blocks []yamlBlock) {
	for i, l := range bytes.SplitAfter(b, []byte("\n")) {
		if len(blocks) == 0 || len(l) > 0 && strings.IndexByte(" \t\r\n#-]}", l[0]) < 0 {
			blocks = append(blocks, yamlBlock{line: i})
		}
		last := &blocks[len(blocks)-1]
		last.text = append(last.text, l...)
	}
	return blocks
}

// readYAMLText parses a text that has before lines before it. syntax is true if nothing of it can be read.
func readYAMLText(b []byte, before int) (n *node, faults Faults, syntax bool) {
	file, err := parser.ParseBytes(b, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) && e.GetToken() != nil && e.GetToken().Position != nil {
			p := e.GetToken().Position
			return nil, documentFault(place{before + p.Line, p.Column}, "%s", e.GetMessage()), true
		}
		return nil, documentFault(place{}, "%v", err), true
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, documentFault(place{}, "want one YAML document, got %d", len(file.Docs)), false
	}
	r := yamlReader{before: before}
	n, err = r.value(file.Docs[0].Body, 0)
	if err != nil {
		errors.As(err, &faults)
		return nil, faults, false
	}
	return n, r.faults, false
}

// A yamlReader makes nodes of parsed YAML.
type yamlReader struct {
	before int // lines before the text
	faults Faults
}

// value returns the node of in. The error is that of a document that is nested too deep.
func (r *yamlReader) value(in ast.Node, depth int) (*node, error) {
	n := &node{place: r.at(in), kind: other}
	if depth > maxDepth {
		return nil, tooDeep(n.place)
	}
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
			child, err := r.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, child)
		}
	case *ast.MappingValueNode:
		n.kind = object
		return n, r.entry(n, v, depth)
	case *ast.MappingNode:
		n.kind = object
		for _, e := range v.Values {
			if err := r.entry(n, e, depth); err != nil {
				return nil, err
			}
		}
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		n.kind, n.text = faulty, "anchors, aliases, merges and tags are not supported"
	}
	return n, nil
}

func (r *yamlReader) entry(n *node, in *ast.MappingValueNode, depth int) error {
	key, err := r.value(in.Key, depth+1)
	if err != nil {
		return err
	}
	value, err := r.value(in.Value, depth+1)
	if err != nil {
		return err
	}
	switch key.kind {
	case text, number:
		n.entries = append(n.entries, entry{key.place, key.text, value})
	case faulty:
		r.faults.add(key.place, "", "%s", key.text)
	default:
		r.faults.add(key.place, "", "want a key, got %s", key.kind)
	}
	return nil
}

func (r *yamlReader) at(n ast.Node) place {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return place{r.before + t.Position.Line, t.Position.Column}
	}
	return place{}
}
