package clickhouse_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

func TestColumns(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for table, want := range clickhouse.WrittenColumns() {
		t.Run(table, func(t *testing.T) {
			lines, err := clickhousetest.Strings(t.Context(), db,
				"SELECT name || ' ' || type FROM system.columns WHERE table = ? AND database = "+
					"(SELECT name FROM system.databases WHERE name = trim(BOTH '`' FROM '{db}'))", table)
			must(t, err)
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

// Every topic is compared with every table that stores it.
func TestRowMatchers(t *testing.T) {
	t.Parallel()
	got, want := clickhouse.MatchedTables(), clickhouse.TopicTables()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("compared are %v, want %v", got, want)
	}
	if n := len(slices.Collect(maps.Keys(got))); n != 10 {
		t.Errorf("%d topics", n)
	}
}
