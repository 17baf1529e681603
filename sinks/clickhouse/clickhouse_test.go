package clickhouse_test

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(killedAddr) != "" {
		os.Exit(migrateToBeKilled())
	}
	clickhousetest.Main(m)
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := clickhousetest.OpenEmpty(t)
	err := clickhouse.CheckDatabase(t.Context(), db)
	if !errors.Is(err, clickhouse.ErrMigration) || !strings.Contains(err.Error(), "0001_audit_log") {
		t.Errorf("Check before Migrate = %v, want a missing 0001_audit_log", err)
	}
	applied, err := clickhouse.Migrate(t.Context(), db)
	if err != nil || len(applied) < 20 || applied[0] != "0001_audit_log" {
		t.Fatalf("Migrate = %v, %v", applied, err)
	}
	if err := clickhouse.CheckDatabase(t.Context(), db); err != nil {
		t.Errorf("Check after Migrate: %v", err)
	}
	if again, err := clickhouse.Migrate(t.Context(), db); err != nil || len(again) != 0 {
		t.Errorf("Migrate again = %v, %v, want nothing", again, err)
	}
	if err := db.Exec(t.Context(), "INSERT INTO {db}.schema_migrations (version, name) SELECT 9999, 'newer'"); err != nil {
		t.Fatal(err)
	}
	if err := clickhouse.CheckDatabase(t.Context(), db); err != nil {
		t.Errorf("Check with a newer migration: %v", err)
	}
	if err := db.Exec(t.Context(), "TRUNCATE TABLE {db}.schema_migrations"); err != nil {
		t.Fatal(err)
	}
	if again, err := clickhouse.Migrate(t.Context(), db); err != nil || !slices.Equal(again, applied) {
		t.Errorf("Migrate with its ledger lost = %v, %v, want all of them again", again, err)
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for table, want := range clickhouse.TableColumns() {
		t.Run(table, func(t *testing.T) {
			lines, err := clickhousetest.Strings(t.Context(), db, "SELECT name || ' ' || type FROM system.columns WHERE table = ? AND database = "+
				"(SELECT name FROM system.databases WHERE name = trim(BOTH '`' FROM '{db}'))", table)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, l := range lines {
				name, typ, _ := strings.Cut(l, " ")
				got[name] = typ
			}
			if !maps.Equal(got, want) {
				t.Errorf("system.columns has\n%v\nwant\n%v", got, want)
			}
		})
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Connect(t, clickhouse.Config{Addresses: []string{"unused.test:9000"}})
	for role, topics := range map[schemas.Role][]schemas.Topic{
		schemas.RoleSink:  clickhouse.NewSink(db).Topics(),
		schemas.RoleState: clickhouse.NewState(db).Topics(),
	} {
		var want []schemas.Topic
		for _, e := range schemas.Catalogue() {
			if e.Reads(role) {
				want = append(want, e.Topic)
			}
		}
		if !slices.Equal(topics, want) {
			t.Errorf("topics of %s = %v, want those that the catalogue says it reads: %v", role, topics, want)
		}
	}
}
