package duplicate

import (
	"regexp"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/rowdoc"
)

// Each row has a constant, a line in docs/decisions-duplication.md with its name and its results, and a named case.
func TestRowsAreDocumented(t *testing.T) {
	names, cases := rowdoc.Constants(t, "row.go"), rowResults(t)
	lines := rowdoc.Lines(t, "../../docs/decisions-duplication.md",
		regexp.MustCompile(`(?m)^\| (superseded|[CS]\d+[a-z]?) \| ([a-z ]+) \|.*$`))
	for row, name := range names {
		line, ok := lines[row]
		if !ok || line[2] != name {
			t.Errorf("row %s: the document has %q, its constant is %q", row, line, name)
			continue
		}
		if len(cases[Row(row)]) == 0 {
			t.Errorf("row %s has no named case", row)
		}
		for result := range cases[Row(row)] {
			if result != "" && !strings.Contains(line[0], "`"+result+"`") {
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

// rowResults returns the results of each row, from the cases that are named after the row that they decide.
func rowResults(t *testing.T) map[Row]map[string]bool {
	t.Helper()
	results := map[Row]map[string]bool{
		RowSuperseded: {"superseded": true}, // TestSuperseded: Handle decides it
		// TestDecideReturned in streams/deletion
		RowRepairDelete: {"deleted": true, "repair-moot": true, "repair-refused": true, "held": true},
		// TestDecideRemoval and TestRemoval in streams/deletion
		RowAsked: {"awaiting-approval": true, "deleted": true, "kept": true, "held": true, "delete-moot": true},
		// TestRepairOfProperties: the store decides it
		RowRepairProperties: {"properties-unsupported": true},
	}
	add := func(name string, d Decision) {
		if row, _, ok := strings.Cut(name, ":"); !ok || Row(row) != d.Row {
			return // it decides what the row needs first, such as records
		}
		if results[d.Row] == nil {
			results[d.Row] = map[string]bool{}
		}
		results[d.Row][d.Result] = true
	}
	for _, cases := range []map[string]decisionCase{copyCases(), olderCases(), deleteCases(), policyCases()} {
		for name, tt := range cases {
			add(name, tt.want)
		}
	}
	for name, tt := range repairCases() {
		add("C0: "+name, tt.want)
	}
	for name, tt := range repairPropertiesCases() {
		add("C0p: "+name, tt.want)
	}
	for name, tt := range restoreCases() {
		add("C0r: "+name, tt.want)
	}
	for name, tt := range spaceCases() {
		add(name, tt.want)
	}
	return results
}
