package clickhouse_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
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

var update = flag.Bool("update", false, "write testdata/summed_columns.txt")

// A column that is in the sums stays in them. An added column follows hash, within trim.
func TestSummedColumns(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	summed := clickhouse.RowBinarySQL()
	for _, table := range slices.Sorted(maps.Keys(summed)) {
		fmt.Fprintf(&b, "%s: %s\n", table, summed[table])
	}
	const name = "testdata/summed_columns.txt"
	if *update {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("summed are\n%s\nwant\n%s", b.String(), want)
	}
}

// Rows that were stored before columns were added keep their sums and are not altered. The sums of later rows cover
// the added columns: a value that is changed, removed, moved or put into an earlier row is detected.
func TestAddedColumns(t *testing.T) {
	t.Parallel()
	for table, tc := range map[string]struct {
		topic schemas.Topic
		// added is the first migration that adds a column.
		added   string
		records []schemas.Body
		// before inserts record 0 as it was stored before the columns were added, without its sum.
		before string
		// damage is SQL that replaces a column of one row.
		damage map[string]string
	}{
		"admin_log": {
			topic: schemas.Admin, added: "0081_admin_log_incident",
			records: []schemas.Body{
				&pb.AdminAction{Id: id1, Time: clickhousetest.At(0), Who: "ann", Action: "approve-repair", Account: "acme",
					After: "a"},
				&pb.AdminAction{Id: id2, Time: clickhousetest.At(0), Who: "ann", Action: "approve-repair", Account: "acme",
					Incident: "in",
					Seen:     "se"},
				&pb.AdminAction{Id: schemas.ID("3"), Time: clickhousetest.At(0), Who: "ann", Action: "approve-repair",
					Account:  "acme",
					Incident: "in"},
				&pb.AdminAction{Id: schemas.ID("4"), Time: clickhousetest.At(0), Who: "ann", Action: "redrive", Account: "acme"},
				&pb.AdminAction{Id: schemas.ID("5"), Time: clickhousetest.At(0), Who: "ann", Action: "redrive", Account: "acme",
					Seen: "se\x00"},
			},
			before: "who, action, account, after, hash) SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC'), " +
				"'admin', 7, 3, 0, 'ann', 'approve-repair', 'acme', 'a', ?",
			damage: map[string]string{
				"an incident put into an earlier row":    "if(off = 0, 'in', incident) AS incident",
				"an incident put into a row without one": "if(off = 3, 'in', incident) AS incident",
				"an incident removed":                    "if(off = 2, '', incident) AS incident",
				"both removed":                           "if(off = 1, '', incident) AS incident, if(off = 1, '', seen) AS seen",
				"another seen":                           "if(off = 1, 'eve', seen) AS seen",
				"moved to another column":                "if(off = 2, '', incident) AS incident, if(off = 2, 'in', seen) AS seen",
				"a zero byte added":                      "if(off = 2, 'in\\0', incident) AS incident",
				"a zero byte removed":                    "if(off = 4, 'se', seen) AS seen",
				"both hashes removed":                    "if(off = 1, 0, hash) AS hash, if(off = 1, 0, sum) AS sum",
				"an earlier column of an earlier row":    "if(off = 0, 'eve', who) AS who",
			},
		},
		"duplication_log": {
			topic: schemas.DuplicationResults, added: "0100_duplication_log_list",
			records: []schemas.Body{
				&pb.DuplicationResult{Id: id1, Finished: clickhousetest.At(0), Command: "c", Account: "acme",
					Outcome: pb.Outcome_OUTCOME_HANDED_ON},
				&pb.DuplicationResult{Id: id2, Finished: clickhousetest.At(0), Command: "c", Account: "acme",
					Outcome: pb.Outcome_OUTCOME_HANDED_ON, List: "brake-1"},
				&pb.DuplicationResult{Id: schemas.ID("3"), Finished: clickhousetest.At(0), Command: "c", Account: "acme",
					Outcome: pb.Outcome_OUTCOME_HANDED_ON, List: "rewrites-1", SourceVersion: "v2"},
				&pb.DuplicationResult{Id: schemas.ID("4"), Finished: clickhousetest.At(0), Command: "c", Account: "acme",
					Outcome: pb.Outcome_OUTCOME_NOTHING, Result: "dry-run", WouldBe: "copied"},
			},
			before: "command, account, outcome, hash) SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC'), " +
				"'duplication.results', 7, 3, 0, 'c', 'acme', 'handed_on', ?",
			damage: map[string]string{
				"a list put into an earlier row": "if(off = 0, 'brake-1', list) AS list",
				"a list removed":                 "if(off = 1, '', list) AS list",
				"a version put into a row":       "if(off = 1, 'v1', source_version) AS source_version",
				"a version removed":              "if(off = 2, '', source_version) AS source_version",
				"a dry run taken for a fact":     "if(off = 3, '', would_be) AS would_be",
				"a fact taken for a dry run":     "if(off = 1, 'copied', would_be) AS would_be",
			},
		},
		"policy_history": {
			topic: schemas.Policies, added: "0080_policy_history_file",
			records: []schemas.Body{
				&pb.Policy{Id: id1, Time: clickhousetest.At(0), Account: "acme", Document: "{}", By: "ann"},
				&pb.Policy{Id: id2, Time: clickhousetest.At(0), Account: "acme", Base: 1, Document: "{}", By: "ann",
					FileSha256: sha},
				&pb.Policy{Id: schemas.ID("3"), Time: clickhousetest.At(0), Account: "acme", Base: 2, Document: "{}", By: "ann"},
				&pb.Policy{Id: schemas.ID("4"), Time: clickhousetest.At(0), Account: "acme", Base: 3, Document: "{}", By: "ann",
					From: "import", Location: "/srv/old"},
			},
			before: "account, document, by, hash) SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC'), 'policies', 7, 3, 0, " +
				"'acme', '{}', 'ann', ?",
			damage: map[string]string{
				"a file put into an earlier row":    "if(off = 0, '" + sha + "', file_sha256) AS file_sha256",
				"a file put into a row without one": "if(off = 2, '" + sha + "', file_sha256) AS file_sha256",
				"a file removed":                    "if(off = 1, '', file_sha256) AS file_sha256",
				"an interface put into a row":       "if(off = 1, 'cli', came_from) AS came_from",
				"an interface removed":              "if(off = 3, '', came_from) AS came_from",
				"another location":                  "if(off = 3, '/srv/new', location) AS location",
				"both hashes removed":               "if(off = 1, 0, hash) AS hash, if(off = 1, 0, sum) AS sum",
			},
		},
		"reports": {
			topic: schemas.Reports, added: "0140_reports_destination",
			records: []schemas.Body{
				&pb.Report{Id: id1, Finished: clickhousetest.At(0), Kind: "fixity", Account: "acme", Store: "1"},
				&pb.Report{Id: id2, Finished: clickhousetest.At(0), Kind: "pair", Account: "acme", Store: "1",
					DestinationStore: "2"},
			},
			before: "kind, account, store, hash) SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC'), 'reports', 7, 3, 0, " +
				"'fixity', 'acme', '1', ?",
			damage: map[string]string{
				"a destination put into an earlier row": "if(off = 0, '2', destination_store) AS destination_store",
				"a destination removed":                 "if(off = 1, '', destination_store) AS destination_store",
				"another destination":                   "if(off = 1, '3', destination_store) AS destination_store",
			},
		},
		"incidents": {
			topic: schemas.Incidents, added: "0150_incidents_last_event",
			records: []schemas.Body{
				&pb.Incident{Id: id1, Opened: clickhousetest.At(0), Account: "acme", Kind: "replaced"},
				&pb.Incident{Id: id2, Opened: clickhousetest.At(0), Account: "acme", Kind: "replaced",
					LastEvent: clickhousetest.At(0)},
			},
			before: "account, kind, hash) SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC'), 'incidents', 7, 3, 0, " +
				"'acme', 'replaced', ?",
			damage: map[string]string{
				"an event put into an earlier row": "if(off = 0, '2026-03-04T05:06:07Z', last_event) AS last_event",
				"an event removed":                 "if(off = 1, '', last_event) AS last_event",
			},
		},
		"audit_log": {
			topic: schemas.Changes, added: "0092_audit_log_properties_unknown",
			records: []schemas.Body{
				&pb.Change{Id: id1, Time: clickhousetest.At(0), Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos",
					Item: "a"},
				&pb.Change{Id: id2, Time: clickhousetest.At(0), Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos",
					Item:        "b",
					SizeUnknown: true, PropertiesUnknown: true},
			},
			before: "ingested, op, account, store, space, item, hash) SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC')," +
				" 'changes', 7, 3, 0, " +
				"'2026-03-04 06:06:07.891', 'add', 'acme', '1', 'photos', 'a', ?",
			damage: map[string]string{
				"properties of an earlier row made unknown": "off = 0 OR properties_unknown AS properties_unknown",
				"unknown properties made none":              "false AS properties_unknown",
				"an unknown size made 0":                    "0::Int64 AS size",
			},
		},
		"bit_log": {
			topic: schemas.FixityResults, added: "0093_bit_log_metadata",
			records: []schemas.Body{
				&pb.FixityResult{Id: id1, Started: clickhousetest.At(0), Finished: clickhousetest.At(0), Account: "acme",
					Verdict: pb.Verdict_VERDICT_PASS},
				&pb.FixityResult{Id: id2, Started: clickhousetest.At(0), Finished: clickhousetest.At(0), Account: "acme",
					Verdict:  pb.Verdict_VERDICT_PASS,
					Metadata: pb.Metadata_METADATA_DAMAGED, MetadataDetail: "media type image/png"},
			},
			before: "finished, account, verdict, hash) SELECT unhex(?), fromUnixTimestamp64Milli(?, 'UTC')," +
				" 'fixity.results', 7, 3, 0, " +
				"'2026-03-04 05:06:07.891', 'acme', 'pass', ?",
			damage: map[string]string{
				"damage put into an earlier row": "if(off = 0, 'damaged', metadata) AS metadata",
				"damage removed":                 "if(off = 1, 'intact', metadata) AS metadata",
			},
		},
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.OpenEmpty(t)
			plan, err := migrate.NewPlan(t.Context(), db, false)
			if err != nil {
				t.Fatal(err)
			}
			added := slices.IndexFunc(plan.Steps, func(s migrate.Step) bool { return s.Name == tc.added })
			if added < 0 {
				t.Fatal("the migration is not there")
			}
			if _, err := migrate.Apply(t.Context(), db,
				migrate.Plan{Prepare: plan.Prepare, Steps: plan.Steps[:added]}); err != nil {
				t.Fatal(err)
			}
			records := clickhousetest.Deliver(tc.topic, 0, tc.records...)
			if err := db.Exec(t.Context(), "INSERT INTO {db}."+table+" (id, ts, topic, inc, part, off, "+tc.before,
				id1, clickhousetest.At(0).AsTime().UnixMilli(), records[0].Hash); err != nil {
				t.Fatal(err)
			}
			exec := func(t *testing.T, statements ...string) {
				t.Helper()
				for _, statement := range statements {
					if err := db.Exec(t.Context(), statement); err != nil {
						t.Fatal(err)
					}
				}
			}
			// Only the columns that existed before.
			summed, _, _ := strings.Cut(strings.TrimPrefix(clickhouse.RowBinarySQL()[table], "concat("), ", trim(")
			exec(t, "ALTER TABLE {db}."+table+" UPDATE sum = xxHash64("+summed+") WHERE off = 0 SETTINGS mutations_sync = 2")
			if _, err := migrate.Run(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			if err := clickhouse.NewSink(db).Store(t.Context(), records[1:]); err != nil {
				t.Fatal(err)
			}
			altered := func(t *testing.T, want int64) {
				t.Helper()
				n := int64(len(records))
				got, err := clickhousetest.Verify(t, db, tc.topic,
					clickhousetest.KafkaTopic{Records: records, End: n, Committed: n})
				if err != nil {
					t.Fatal(err)
				}
				if p := got[0]; p.Altered.Messages != want || p.Findings() != want || p.Rows != n || p.Unhashed != 0 {
					t.Errorf("got %s, want %d altered", clickhousetest.Describe(p), want)
				}
			}
			altered(t, 0)
			exec(t, "CREATE TABLE {db}.whole AS {db}."+table, "INSERT INTO {db}.whole SELECT * FROM {db}."+table)
			for name, damage := range tc.damage {
				t.Run(name, func(t *testing.T) {
					exec(t, "TRUNCATE TABLE {db}."+table+" SYNC",
						"INSERT INTO {db}."+table+" SELECT * REPLACE ("+damage+") FROM {db}.whole")
					altered(t, 1)
				})
			}
		})
	}
}
