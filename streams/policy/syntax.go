package policy

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

func readJSON(b []byte) (*node, error) {
	b = stripTrailingCommas(b)
	var raw json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		var syntax *json.SyntaxError
		line := 0
		if errors.As(err, &syntax) {
			line = lineAt(b, syntax.Offset)
		}
		return nil, documentFault(line, "%v", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	r := jsonReader{d, b}
	return r.value(0)
}

// stripTrailingCommas replaces each comma before a closing bracket by a blank, which keeps line numbers.
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

func lineAt(b []byte, offset int64) int {
	return 1 + bytes.Count(b[:min(max(offset, 0), int64(len(b)))], []byte("\n"))
}

type jsonReader struct {
	d *json.Decoder
	b []byte
}

func (r jsonReader) value(depth int) (*node, error) {
	t, err := r.d.Token()
	if err != nil {
		return nil, documentFault(r.line(), "%v", err)
	}
	n := &node{line: r.line(), kind: other}
	if depth > maxDepth {
		return nil, tooDeep(n.line)
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
			if err := r.member(n, depth); err != nil {
				return nil, err
			}
		}
		if _, err := r.d.Token(); err != nil {
			return nil, documentFault(r.line(), "%v", err)
		}
	}
	return n, nil
}

func (r jsonReader) member(n *node, depth int) error {
	var e entry
	if n.kind == object {
		t, err := r.d.Token()
		if err != nil {
			return documentFault(r.line(), "%v", err)
		}
		e.key, _ = t.(string)
		e.line = r.line()
	}
	v, err := r.value(depth + 1)
	if err != nil {
		return err
	}
	if n.kind == list {
		n.items = append(n.items, v)
		return nil
	}
	e.value = v
	n.entries = append(n.entries, e)
	return nil
}

func (r jsonReader) line() int { return lineAt(r.b, r.d.InputOffset()) }

func tooDeep(line int) error { return documentFault(line, "is nested too deep") }

func readYAML(b []byte) (*node, error) {
	file, err := parser.ParseBytes(b, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) && e.GetToken() != nil && e.GetToken().Position != nil {
			return nil, documentFault(e.GetToken().Position.Line, "%s", e.GetMessage())
		}
		return nil, documentFault(0, "%v", err)
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return nil, documentFault(0, "want one YAML document, got %d", len(file.Docs))
	}
	return fromYAML(file.Docs[0].Body, 0)
}

func fromYAML(in ast.Node, depth int) (*node, error) {
	n := &node{line: yamlLine(in), kind: other}
	if depth > maxDepth {
		return nil, tooDeep(n.line)
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
			child, err := fromYAML(item, depth+1)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, child)
		}
	case *ast.MappingValueNode:
		n.kind = object
		return n, n.yamlEntry(v, depth)
	case *ast.MappingNode:
		n.kind = object
		for _, e := range v.Values {
			if err := n.yamlEntry(e, depth); err != nil {
				return nil, err
			}
		}
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return nil, documentFault(n.line, "anchors, aliases, merges and tags are not supported")
	}
	return n, nil
}

func (n *node) yamlEntry(in *ast.MappingValueNode, depth int) error {
	key, err := fromYAML(in.Key, depth+1)
	if err != nil {
		return err
	}
	if key.kind != text && key.kind != number {
		return documentFault(key.line, "want a key, got %s", key.kind)
	}
	value, err := fromYAML(in.Value, depth+1)
	if err != nil {
		return err
	}
	n.entries = append(n.entries, entry{key.text, key.line, value})
	return nil
}

func yamlLine(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}
