package config

import (
	"errors"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// A position is a place in a YAML document; both count from 1.
type position struct{ line, column int }

// parseYAML parses one document. It returns its values, and the position of every key and list entry by
// path. The Origin of the fault is only the line, as ":12".
func parseYAML(data []byte) (map[string]any, map[string]position, *Fault) {
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
	positions := map[string]position{}
	recordPositions(body, "", positions)
	return values, positions, nil
}

func yamlFault(err error) *Fault {
	var e yaml.Error
	if errors.As(err, &e) && e.GetToken() != nil {
		return &Fault{Reason: "is not YAML: " + e.GetMessage(), Origin: ":" + strconv.Itoa(e.GetToken().Position.Line)}
	}
	return &Fault{Reason: "is not YAML: " + err.Error()}
}

func at(n ast.Node) string { return ":" + strconv.Itoa(n.GetToken().Position.Line) }

// recordPositions records the position of each key and list entry. For an alias or merge key it is that
// of the reference.
func recordPositions(n ast.Node, path string, all map[string]position) {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			recordPositions(v, path, all)
		}
	case *ast.MappingValueNode:
		at := n.Key.GetToken().Value
		if path != "" {
			at = path + "." + at
		}
		all[at] = positionOf(n.Key)
		recordPositions(n.Value, at, all)
	case *ast.SequenceNode:
		for i, v := range n.Values {
			at := path + "[" + strconv.Itoa(i) + "]"
			all[at] = positionOf(v)
			recordPositions(v, at, all)
		}
	case *ast.AnchorNode:
		recordPositions(n.Value, path, all)
	}
}

func positionOf(n ast.Node) position {
	p := n.GetToken().Position
	return position{p.Line, p.Column}
}
