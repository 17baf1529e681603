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
	createTable = regexp.MustCompile(
		`(?s)^CREATE TABLE IF NOT EXISTS \{db\}\.(\w+) \((.*)\n\) ENGINE = (\w+)(?:\(([^()]*)\))?(.*)$`)
	createView             = regexp.MustCompile(`(?s)^CREATE OR REPLACE VIEW \{db\}\.(\w+) AS(.*)$`)
	createMaterializedView = regexp.MustCompile(
		`(?s)^CREATE MATERIALIZED VIEW IF NOT EXISTS \{db\}\.(\w+) TO \{db\}\.(\w+) AS(.*)$`)
	alterTable    = regexp.MustCompile(`(?s)^ALTER TABLE \{db\}\.(\w+)\s(.*)$`)
	dropOne       = regexp.MustCompile(`(?s)^DROP (?:TABLE|VIEW) IF EXISTS \{db\}\.(\w+)(?: SYNC)?$`)
	columnName    = regexp.MustCompile(`(?m)^  (\w+) `)
	sortingKey    = regexp.MustCompile(`(?m)^ORDER BY (?:\(([^()]*)\)|(\w+))`)
	newSortingKey = regexp.MustCompile(`,\s*MODIFY ORDER BY \(([^()]*)\)`)
	reference     = regexp.MustCompile(`\{db\}\.(\w+)`)
)

type verb int

const (
	makeTable verb = iota + 1
	makeView
	makeMaterializedView // inserts into another table
	alter
	drop
)

// A statement is a parsed migration.
type statement struct {
	verb verb
	name string
	text string // without comments
	key  string // the sorting key that the statement sets
	// Of a table:
	columns map[string]bool
	engine  string
	args    string // of the engine
	rest    string // behind the engine
	body    string // the columns of a table, the query of a view, or the changes of an ALTER
	target  string // the table that a materialized view inserts into
}

// parse parses a migration. A form that cannot be run again is an error.
func parse(m migrations.Migration) (statement, error) {
	text := strings.TrimSpace(comments.ReplaceAllString(m.Statement, ""))
	s := statement{text: text}
	if g := createTable.FindStringSubmatch(text); g != nil {
		s.verb, s.name, s.body, s.engine, s.args, s.rest = makeTable, g[1], g[2], g[3], g[4], g[5]
		s.columns = map[string]bool{}
		for _, c := range columnName.FindAllStringSubmatch(s.body, -1) {
			s.columns[c[1]] = true
		}
		if k := sortingKey.FindStringSubmatch(s.rest); k != nil {
			s.key = k[1] + k[2]
		}
	} else if g := createView.FindStringSubmatch(text); g != nil {
		s.verb, s.name, s.body = makeView, g[1], g[2]
	} else if g := createMaterializedView.FindStringSubmatch(text); g != nil {
		s.verb, s.name, s.target, s.body = makeMaterializedView, g[1], g[2], g[3]
	} else if g := alterTable.FindStringSubmatch(text); g != nil {
		s.verb, s.name, s.body = alter, g[1], g[2]
		if k := newSortingKey.FindStringSubmatch(s.body); k != nil {
			s.key = k[1]
		}
	} else if g := dropOne.FindStringSubmatch(text); g != nil {
		s.verb, s.name = drop, g[1]
	} else {
		return s, fmt.Errorf("migration %s cannot be run again; the forms that can are CREATE TABLE IF NOT EXISTS, "+
			"CREATE OR REPLACE VIEW, "+
			"CREATE MATERIALIZED VIEW IF NOT EXISTS ... TO, ALTER TABLE, DROP ... IF EXISTS", m)
	}
	return s, nil
}
