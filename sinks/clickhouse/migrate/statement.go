package migrate

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// The forms of statement that a migration may use. Each can be run again without harm.
var (
	comments    = regexp.MustCompile(`(?m)^--.*\n`)
	createTable = regexp.MustCompile(`(?s)^CREATE TABLE IF NOT EXISTS \{db\}\.(\w+) \(.*\n\) ENGINE = (\w+)(.*)$`)
	createView  = regexp.MustCompile(`(?s)^CREATE OR REPLACE VIEW \{db\}\.(\w+) AS\s`)
	sortingKey  = regexp.MustCompile(`(?m)^ORDER BY (?:\(([^()]*)\)|(\w+))`)
)

// A wantedTable is what a migration makes: a table or a view.
type wantedTable struct {
	name   string
	engine string // View for a view; compared without the prefix Replicated
	key    string // a prefix of the sorting key
}

// parse returns what a migration makes. A form that cannot be run again is an error.
func parse(m migrations.Migration) (wantedTable, error) {
	text := strings.TrimSpace(comments.ReplaceAllString(m.Statement, ""))
	if g := createTable.FindStringSubmatch(text); g != nil {
		w := wantedTable{name: g[1], engine: g[2]}
		if k := sortingKey.FindStringSubmatch(g[3]); k != nil {
			w.key = k[1] + k[2]
		}
		return w, nil
	}
	if g := createView.FindStringSubmatch(text); g != nil {
		return wantedTable{name: g[1], engine: "View"}, nil
	}
	return wantedTable{}, fmt.Errorf("migration %s is neither CREATE TABLE IF NOT EXISTS nor CREATE OR REPLACE VIEW, "+
		"which can be run again", m)
}
