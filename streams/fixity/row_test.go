package fixity

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/rowdoc"
)

// Each row has a constant, a line in docs/decisions-fixity.md with its name and its finding, and a named case.
func TestRowsAreDocumented(t *testing.T) {
	names, cases := rowdoc.Constants(t, "row.go"), map[string]bool{}
	lines := rowdoc.Lines(t, "../../docs/decisions-fixity.md",
		regexp.MustCompile("(?m)^\\| (\\d+) \\| ([a-z ]+) \\| `([a-z-]+)` \\|"))
	for name, tt := range rowCases() {
		number, _, _ := strings.Cut(name, " ")
		if number != strconv.Itoa(int(tt.row)) {
			t.Errorf("case %q is of row %d", name, tt.row)
		}
		cases[number] = true
	}
	for row := RowPass; row <= RowResurrected; row++ {
		number := strconv.Itoa(int(row))
		if line := lines[number]; line == nil || line[2] != names[number] || line[3] != row.String() {
			t.Errorf("row %d: the document has %q, its constant is %q, its finding %q", row, line, names[number], row)
		}
		if !cases[number] {
			t.Errorf("row %d has no named case", row)
		}
	}
	if len(names) != len(lines) || len(names) != int(RowResurrected) {
		t.Errorf("%d constants, %d documented rows", len(names), len(lines))
	}
}
