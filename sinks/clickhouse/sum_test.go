package clickhouse_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

// otherValues are SQL for another value of a column, by its type; %s is the value.
var otherValues = map[string]string{
	"String":                              "'eve'",
	"LowCardinality(String)":              "'eve'",
	"Bool":                                "NOT %s",
	"Int64":                               "%s + 1",
	"Int32":                               "%s + 1",
	"UInt8":                               "%s + 1",
	"UInt16":                              "%s + 1",
	"UInt32":                              "%s + 1",
	"UInt64":                              "%s + 1",
	"DateTime64(3, 'UTC')":                "%s + 1",
	"Nullable(DateTime64(3, 'UTC'))":      "ifNull(%s, toDateTime64(0, 3, 'UTC')) + 1",
	"FixedString(16)":                     "reverse(%s)",
	"Map(LowCardinality(String), String)": "map('md5', 'x')",
	"Map(String, String)":                 "map('eve', 'x')",
	"Map(String, Int64)":                  "map('eve', 1)",
	"Array(String)":                       "arrayConcat(%s, ['eve'])",
	"Array(LowCardinality(String))":       "arrayConcat(%s, ['eve'])",
	"Array(UInt8)":                        "arrayConcat(%s, [1])",
	"Array(DateTime64(3, 'UTC'))":         "arrayConcat(%s, [now64(3)])",
}

// checkSum checks the sum of the first row of a table against the engine's: for the row itself, and with one column
// after the other altered.
func checkSum(t *testing.T, db *clickhouse.DB, table string) {
	t.Helper()
	summed := clickhouse.RowBinarySQL()[table]
	columns, fits := []string{""}, []string{"toString(sum = xxHash64(" + summed + "))"}
	for column, typ := range clickhouse.WrittenColumns()[table] {
		if column == "sum" || column == "position" { // position is 0 except in rows of its own
			continue
		}
		name := "`" + column + "`"
		if otherValues[typ] == "" || !strings.Contains(summed, name) {
			t.Fatalf("%s: column %s is not summed, or of type %s there is no other value", table, column, typ)
		}
		other := "CAST(" + strings.ReplaceAll(otherValues[typ], "%s", name) + ", '" +
			strings.ReplaceAll(typ, "'", "\\'") + "')"
		columns, fits = append(columns, column), append(fits, "toString(sum = xxHash64("+
			strings.Replace(summed, name, other, 1)+"))")
	}
	got := clickhousetest.Value(t, db, "SELECT concat("+strings.Join(fits, ", ")+") FROM {db}."+
		table+" ORDER BY off LIMIT 1")
	for i, column := range columns {
		switch {
		case i == 0 && got[i] != '1':
			t.Errorf("%s: the sum is not that of the row", table)
		case i > 0 && got[i] != '0':
			t.Errorf("%s: with another %s the row has the same sum", table, column)
		}
	}
}
