package duplicate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each row has a constant, a line in docs/decisions-duplication.md with its name and its results, and a named case.
func TestRowsAreDocumented(t *testing.T) {
	names, lines, cases := rowNames(t), documentedRows(t), rowResults(t)
	for row, name := range names {
		line, ok := lines[row]
		if !ok || line.name != name {
			t.Errorf("row %s: the document calls it %q, its constant %q", row, line.name, name)
		}
		if len(cases[row]) == 0 {
			t.Errorf("row %s has no named case", row)
		}
		for result := range cases[row] {
			if result != "" && !strings.Contains(line.text, "`"+result+"`") {
				t.Errorf("row %s: its line in the document does not have the result `%s`", row, result)
			}
		}
	}
	for row := range lines {
		if names[row] == "" {
			t.Errorf("row %s is documented and has no constant", row)
		}
	}
}

// rowNames returns the rows of row.go, with the name of each constant in words: RowInSync is "in sync".
func rowNames(t *testing.T) map[Row]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "row.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[Row]string{}
	boundary := regexp.MustCompile(`([a-z])([A-Z])`)
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.ValueSpec); ok {
			value, err := strconv.Unquote(c.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			words := boundary.ReplaceAllString(strings.TrimPrefix(c.Names[0].Name, "Row"), "$1 $2")
			names[Row(value)] = strings.ToLower(words)
		}
		return true
	})
	return names
}

// A documentedRow is a line of a table in docs/decisions-duplication.md.
type documentedRow struct{ name, text string }

func documentedRows(t *testing.T) map[Row]documentedRow {
	t.Helper()
	page, err := os.ReadFile("../../docs/decisions-duplication.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[Row]documentedRow{}
	line := regexp.MustCompile(`(?m)^\| (superseded|[CS]\d+[a-z]?) \| ([a-z ]+) \|.*$`)
	for _, m := range line.FindAllStringSubmatch(string(page), -1) {
		if _, twice := lines[Row(m[1])]; twice {
			t.Errorf("row %s is documented twice", m[1])
		}
		lines[Row(m[1])] = documentedRow{m[2], m[0]}
	}
	return lines
}

// rowResults returns the results of each row, from the cases that are named after the row that they decide.
func rowResults(t *testing.T) map[Row]map[string]bool {
	t.Helper()
	results := map[Row]map[string]bool{RowSuperseded: {"superseded": true}} // TestSuperseded: Handle decides it
	add := func(name string, d Decision) {
		if row, _, ok := strings.Cut(name, ":"); !ok || Row(row) != d.Row {
			return // it decides what the row needs first, such as records
		}
		if results[d.Row] == nil {
			results[d.Row] = map[string]bool{}
		}
		results[d.Row][d.Result] = true
	}
	for _, cases := range []map[string]decisionCase{copyCases(), deleteCases()} {
		for name, tt := range cases {
			add(name, tt.want)
		}
	}
	for name, tt := range repairCases() {
		add("C0: "+name, tt.want)
	}
	for name, tt := range spaceCases() {
		add(name, tt.want)
	}
	return results
}
