// Package rowdoc reads the rows of a decision table for tests that compare the constants with the document.
package rowdoc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Constants returns the rows that a Go file declares, by value: the name of each constant in words. RowInSync is
// "in sync".
func Constants(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names, boundary := map[string]string{}, regexp.MustCompile(`([a-z])([A-Z])`)
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.ValueSpec); ok {
			words := boundary.ReplaceAllString(strings.TrimPrefix(c.Names[0].Name, "Row"), "$1 $2")
			names[strings.Trim(c.Values[0].(*ast.BasicLit).Value, `"`)] = strings.ToLower(words)
		}
		return true
	})
	return names
}

// Lines returns the matches of line in a document, with their groups, by the first group: the row.
func Lines(t *testing.T, name string, line *regexp.Regexp) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string][]string{}
	for _, m := range line.FindAllStringSubmatch(string(page), -1) {
		if lines[m[1]] != nil {
			t.Errorf("row %s is documented twice", m[1])
		}
		lines[m[1]] = m
	}
	return lines
}
