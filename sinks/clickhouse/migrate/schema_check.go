package migrate

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// A wantedTable is what the migrations make of a table or view.
type wantedTable struct {
	engine string // View or MaterializedView for a view; compared without the prefix Replicated
	key    string // a prefix of the sorting key
}

// wantedTables returns the tables and views that exist after all migrations.
func wantedTables() (map[string]wantedTable, error) {
	all, err := migrations.All()
	if err != nil {
		return nil, err
	}
	wanted := map[string]wantedTable{}
	for _, m := range all {
		s, err := parse(m)
		if err != nil {
			return nil, err
		}
		switch s.verb {
		case makeTable:
			wanted[s.name] = wantedTable{s.engine, s.key}
		case makeView:
			wanted[s.name] = wantedTable{engine: "View"}
		case makeMaterializedView:
			wanted[s.name] = wantedTable{engine: "MaterializedView"}
		case drop:
			delete(wanted, s.name)
		case alter: // a migration only ever extends the sorting key
			if s.key != "" {
				w := wanted[s.name]
				w.key = s.key
				wanted[s.name] = w
			}
		}
	}
	return wanted, nil
}

type actualTable struct {
	Name   string `ch:"name"`
	Engine string `ch:"engine"`
	Key    string `ch:"sorting_key"`
}

type actualColumn struct {
	Table string `ch:"table"`
	Name  string `ch:"name"`
	Type  string `ch:"type"`
	Kind  string `ch:"default_kind"`
}

// checkSchema compares the tables with the migrations, and their columns with those that sinks write. The error
// lists all differences.
func checkSchema(ctx context.Context, db *clickhouse.DB) error {
	wanted, err := wantedTables()
	if err != nil {
		return err
	}
	tables, err := clickhouse.Query[actualTable](ctx, db, "read system.tables",
		"SELECT name, engine, sorting_key FROM system.tables WHERE database = ?", db.Config().Database)
	if err != nil {
		return err
	}
	columns, err := clickhouse.Query[actualColumn](ctx, db, "read system.columns",
		"SELECT table, name, type, default_kind FROM system.columns WHERE database = ?", db.Config().Database)
	if err != nil {
		return err
	}
	differences := compareTables(withLocalTables(db, wanted), tables)
	added, err := addedColumns()
	if err != nil {
		return err
	}
	written := clickhouse.WrittenColumns()
	if db.Config().Cluster != "" {
		for name, c := range maps.Clone(written) {
			written[name+"_local"] = c
		}
	}
	differences = append(differences, compareColumns(added, written, columns)...)
	if len(differences) == 0 {
		return nil
	}
	return fmt.Errorf("check database %s: %w: %s", db.Config().Database, ErrAltered, strings.Join(differences, "; "))
}

// withLocalTables adds, on a cluster, the local table behind each Distributed table.
func withLocalTables(db *clickhouse.DB, wanted map[string]wantedTable) map[string]wantedTable {
	if db.Config().Cluster == "" {
		return wanted
	}
	both := map[string]wantedTable{}
	for name, w := range wanted {
		both[name+"_local"] = w
		if w.engine != "MaterializedView" {
			both[name] = wantedTable{engine: "Distributed"}
		}
	}
	return both
}

func compareTables(wanted map[string]wantedTable, tables []actualTable) []string {
	actual := map[string]actualTable{}
	for _, t := range tables {
		actual[t.Name] = t
	}
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		w, is := wanted[name], actual[name]
		switch {
		case is.Name == "":
			differences = append(differences,
				fmt.Sprintf("%s is missing (millrace migrate --again creates it, empty)", name))
		case strings.TrimPrefix(is.Engine, "Replicated") != strings.TrimPrefix(w.engine, "Replicated"):
			differences = append(differences,
				fmt.Sprintf("table %s has the engine %s, wanted is %s", name, is.Engine, w.engine))
		case is.Key != w.key && !strings.HasPrefix(is.Key, w.key+","):
			differences = append(differences,
				fmt.Sprintf("table %s is sorted by (%s), wanted is (%s)", name, is.Key, w.key))
		}
	}
	return differences
}

// addedColumn matches a column that a migration adds to a table.
var addedColumn = regexp.MustCompile(`ADD COLUMN IF NOT EXISTS (\w+)`)

// addedColumns returns the columns that migrations have added to existing tables, as table.column.
func addedColumns() (map[string]bool, error) {
	all, err := migrations.All()
	if err != nil {
		return nil, err
	}
	added := map[string]bool{}
	for _, m := range all {
		s, err := parse(m)
		if err != nil {
			return nil, err
		}
		if s.verb == alter {
			for _, c := range addedColumn.FindAllStringSubmatch(m.Statement, -1) {
				added[s.name+"."+c[1]] = true
			}
		}
	}
	return added, nil
}

func compareColumns(added map[string]bool, written map[string]map[string]string, columns []actualColumn) []string {
	actual := map[string]map[string]actualColumn{}
	for _, c := range columns {
		if actual[c.Table] == nil {
			actual[c.Table] = map[string]actualColumn{}
		}
		actual[c.Table][c.Name] = c
	}
	var differences []string
	for _, table := range slices.Sorted(maps.Keys(written)) {
		if actual[table] == nil {
			continue // compareTables reports the missing table
		}
		for _, name := range slices.Sorted(maps.Keys(written[table])) {
			typ, is := written[table][name], actual[table][name]
			switch {
			case is.Name == "" && added[strings.TrimSuffix(table, "_local")+"."+name]:
				differences = append(differences, fmt.Sprintf("table %s: column %s is missing, wanted is %s"+
					" (millrace migrate --again adds it, for example to a table restored from an old backup)", table, name, typ))
			case is.Name == "":
				differences = append(differences,
					fmt.Sprintf("table %s: column %s is missing, wanted is %s", table, name, typ))
			case is.Type != typ:
				differences = append(differences,
					fmt.Sprintf("table %s: column %s is %s, wanted is %s", table, name, is.Type, typ))
			case is.Kind != "" && is.Kind != "DEFAULT":
				differences = append(differences,
					fmt.Sprintf("table %s: column %s is computed (%s), wanted is one that is stored as written", table, name, is.Kind))
			}
		}
	}
	return differences
}
