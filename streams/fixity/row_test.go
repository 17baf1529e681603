package fixity

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

// Each row has a constant, a line in docs/decisions-fixity.md with its name and its finding, and a named case.
func TestRowsAreDocumented(t *testing.T) {
	names, lines, cases := rowNames(t), documentedRows(t), map[Row]bool{}
	for name, tt := range rowCases() {
		if number, _, _ := strings.Cut(name, " "); number != strconv.Itoa(int(tt.row)) {
			t.Errorf("case %q is of row %d", name, tt.row)
		}
		cases[tt.row] = true
	}
	for row := RowPass; row <= RowResurrected; row++ {
		if got, want := lines[row], (documentedRow{names[row], row.String()}); got != want {
			t.Errorf("row %d: the document says %q, the constant %q", row, got, want)
		}
		if !cases[row] {
			t.Errorf("row %d has no named case", row)
		}
	}
	if len(names) != len(lines) || len(names) != int(RowResurrected) {
		t.Errorf("%d constants, %d documented rows", len(names), len(lines))
	}
}

// rowNames returns the rows of row.go, with the name of each constant in words: RowNoQuorum is "no quorum".
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
			value, err := strconv.Atoi(c.Values[0].(*ast.BasicLit).Value)
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

// A documentedRow is a line of the table in docs/decisions-fixity.md.
type documentedRow struct{ name, finding string }

func documentedRows(t *testing.T) map[Row]documentedRow {
	t.Helper()
	page, err := os.ReadFile("../../docs/decisions-fixity.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := map[Row]documentedRow{}
	line := regexp.MustCompile("(?m)^\\| (\\d+) \\| ([a-z ]+) \\| `([a-z-]+)` \\|")
	for _, m := range line.FindAllStringSubmatch(string(page), -1) {
		number, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := lines[Row(number)]; twice {
			t.Errorf("row %d is documented twice", number)
		}
		lines[Row(number)] = documentedRow{m[2], m[3]}
	}
	return lines
}
