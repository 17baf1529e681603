package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// wantedTables returns the tables and views that exist after all migrations.
func wantedTables() (map[string]wantedTable, error) {
	all, err := migrations.All()
	if err != nil {
		return nil, err
	}
	wanted := map[string]wantedTable{}
	for _, m := range all {
		w, err := parse(m)
		if err != nil {
			return nil, err
		}
		wanted[w.name] = w
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
	differences := append(compareTables(wanted, tables), compareColumns(clickhouse.WrittenColumns(), columns)...)
	if len(differences) == 0 {
		return nil
	}
	return fmt.Errorf("check database %s: %w: %s", db.Config().Database, ErrAltered, strings.Join(differences, "; "))
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

func compareColumns(written map[string]map[string]string, columns []actualColumn) []string {
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
