package config

import (
	"errors"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// parseYAML parses one document. It returns its values, and the line of every key and list entry by
// path. The Origin of the fault is only the line, as ":12".
func parseYAML(data []byte) (map[string]any, map[string]int, *Fault) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, nil, yamlFault(err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.CommentType:
		case body != nil:
			return nil, nil, &Fault{Reason: "holds more than one document", Origin: at(doc.Body)}
		default:
			body = doc.Body
		}
	}
	if body == nil || body.Type() == ast.NullType {
		return map[string]any{}, nil, nil
	}
	var v any
	if err := yaml.NodeToValue(body, &v); err != nil {
		return nil, nil, yamlFault(err)
	}
	values, ok := v.(map[string]any)
	if !ok {
		return nil, nil, &Fault{Reason: "want a table of settings", Origin: at(body)}
	}
	lines := map[string]int{}
	recordLines(body, "", lines)
	return values, lines, nil
}

func yamlFault(err error) *Fault {
	var e yaml.Error
	if errors.As(err, &e) && e.GetToken() != nil {
		return &Fault{Reason: "is not YAML: " + e.GetMessage(), Origin: ":" + strconv.Itoa(e.GetToken().Position.Line)}
	}
	return &Fault{Reason: "is not YAML: " + err.Error()}
}

func at(n ast.Node) string { return ":" + strconv.Itoa(n.GetToken().Position.Line) }

// recordLines records the line of each key and list entry. For an alias or merge key it is the line
// of the reference.
func recordLines(n ast.Node, path string, lines map[string]int) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			recordLines(v, path, lines)
		}
	case *ast.MappingValueNode:
		at := n.Key.GetToken().Value
		if path != "" {
			at = path + "." + at
		}
		lines[at] = n.Key.GetToken().Position.Line
		recordLines(n.Value, at, lines)
	case *ast.SequenceNode:
		for i, v := range n.Values {
			at := path + "[" + strconv.Itoa(i) + "]"
			lines[at] = v.GetToken().Position.Line
			recordLines(v, at, lines)
		}
	case *ast.AnchorNode:
		recordLines(n.Value, path, lines)
	}
}
