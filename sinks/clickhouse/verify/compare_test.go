package verify_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
)

func checkManifest(t testing.TB, db *clickhouse.DB, c verify.ManifestConfig) *verify.ManifestReport {
	t.Helper()
	got, err := verify.Manifest(t.Context(), db, c)
	must(t, err)
	if left := clickhousetest.Value(t, db, "SELECT toString(count()) FROM system.tables WHERE startsWith(name,"+
		" 'copy_state_rebuilt_') AND database = ?", db.Config().Database); left != "0" {
		t.Errorf("%s tables were left behind", left)
	}
	return got
}

// A drawnRecord is one record of one copy.
type drawnRecord struct {
	topic  schemas.Topic
	offset int64
	body   schemas.Body
}

// drawRecords draws records of one copy, of every kind that the state distinguishes. Times collide often.
func drawRecords(t *rapid.T, item string) (all []drawnRecord) {
	for i := range rapid.IntRange(1, 6).Draw(t, "records") {
		c := clickhousetest.Change(item, time.Duration(rapid.IntRange(0, 3).Draw(t, "time"))*time.Millisecond)
		// equal versions are reports of the same change
		c.Version = fmt.Sprint("v", rapid.IntRange(0, 3).Draw(t, "version"))
		if rapid.Bool().Draw(t, "poor") {
			c.Provenance, c.Digests, c.User = pb.Provenance_PROVENANCE_CLAIMED, map[string]string{"md5": c.Digests["md5"]}, "bob"
		}
		switch rapid.IntRange(0, 11).Draw(t, "kind") {
		case 0:
			c.Op, c.Digests = pb.Op_OP_DELETE, nil
		case 1:
			c.Op, c.Digests, c.Acl = pb.Op_OP_SET_ACL, nil, map[string]string{"n": fmt.Sprint(i)}
		case 2:
			c.Op, c.Digests, c.Properties = pb.Op_OP_SET_PROPERTIES, nil, map[string]string{"n": fmt.Sprint(i)}
		case 3:
			c.Op, c.Item = pb.Op_OP_DELETE_SPACE, ""
		case 4:
			c.Acl, c.SourceTime, c.SourceVersion = map[string]string{"ann": "rw"}, clickhousetest.At(time.Hour), "sv"
		case 5:
			c.Properties = map[string]string{"z": "1", "a": "{'x':'y'}, \n"}
		case 6:
			c.Origin = pb.Origin_ORIGIN_FIXITY
		case 10:
			c.Digests, c.Provenance = nil, pb.Provenance_PROVENANCE_UNSPECIFIED
		case 11:
			if len(all) > 0 {
				if done := clickhousetest.Complete(all[0].body, fmt.Sprint(i)); done != nil {
					c = done
				}
			}
		case 7, 8:
			r := clickhousetest.Result(c, time.Duration(rapid.IntRange(0, 2).Draw(t, "started"))*time.Millisecond)
			r.Id = schemas.ID(item, fmt.Sprint(i))
			r.Verdict = rapid.SampledFrom([]pb.Verdict{pb.Verdict_VERDICT_PASS, pb.Verdict_VERDICT_PASS,
				pb.Verdict_VERDICT_FAIL, pb.Verdict_VERDICT_MISSING,
				pb.Verdict_VERDICT_NOT_CAPTURED, pb.Verdict_VERDICT_UNKNOWN, pb.Verdict_VERDICT_SKIPPED}).Draw(t, "verdict")
			r.EvidenceLevel = rapid.Int32Range(3, 4).Draw(t, "level")
			r.Overtaken, r.Final = rapid.IntRange(0, 4).Draw(t, "overtaken") == 0, rapid.Bool().Draw(t, "final")
			all = append(all, drawnRecord{schemas.FixityResults, int64(i), r})
			continue
		}
		if rapid.IntRange(0, 3).Draw(t, "unknown size") == 0 {
			c.Size, c.SizeUnknown = 0, true
		}
		if rapid.IntRange(0, 3).Draw(t, "unknown properties") == 0 {
			c.MediaType, c.Properties, c.PropertiesUnknown = "", nil, true
		}
		c.Id = schemas.ChangeID(c)
		all = append(all, drawnRecord{schemas.Changes, int64(i), c})
	}
	return all
}

// A state made from the logs equals the state that State.Store makes from the same records, for every history of a
// copy, also with repeated reports and after merges.
func TestRebuild(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	must(t, db.Exec(t.Context(), "SYSTEM STOP MERGES {db}.audit_log"))
	n, batches := 0, map[schemas.Topic][]*schemas.Delivery{}
	need.Check(t, func(rt *rapid.T) {
		n++
		history := drawRecords(rt, fmt.Sprint("item-", n))
		for _, h := range history {
			d := clickhousetest.Deliver(h.topic, int64(n)*100+h.offset, h.body)
			if n%2 == 0 { // the clocks of producers are ahead
				d[0].Timestamp = clickhousetest.Epoch.Add(time.Duration(h.offset-3) * time.Millisecond)
			}
			batches[h.topic] = append(batches[h.topic], d...)
		}
	})
	for _, batch := range batches {
		must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
		must(t, clickhouse.NewState(db).Store(t.Context(), batch))
	}
	for _, when := range []string{"as it was stored", "after merges"} {
		got := checkManifest(t, db, verify.ManifestConfig{})
		if len(got.Differ) > 0 || got.Copies == 0 {
			t.Errorf("%s, %d copies: %+v", when, got.Copies, got.Differ)
		}
		for _, statement := range []string{"SYSTEM START MERGES {db}.audit_log", "OPTIMIZE TABLE {db}.audit_log FINAL",
			"OPTIMIZE TABLE {db}.bit_log FINAL", "OPTIMIZE TABLE {db}.copy_state FINAL"} {
			must(t, db.Exec(t.Context(), statement))
		}
	}
}

// Damage to the state or to the logs is reported by copy and column.
func TestManifestDamage(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var bodies []schemas.Body
	for i := range 40 {
		bodies = append(bodies, clickhousetest.Change(fmt.Sprintf("item-%02d", i), time.Duration(i)*time.Minute))
	}
	unsized := bodies[10].(*pb.Change)
	unsized.Size, unsized.SizeUnknown = 0, true
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, bodies...)
	var checks []schemas.Body
	for _, b := range bodies {
		checks = append(checks, clickhousetest.Result(b.(*pb.Change), 2*time.Hour))
	}
	clickhousetest.StoreBoth(t, db, schemas.FixityResults, 0, checks...)
	if got := checkManifest(t, db, verify.ManifestConfig{}); !reflect.DeepEqual(got, &verify.ManifestReport{Copies: 40}) {
		t.Fatalf("before any damage: got %+v", got)
	}

	for _, damage := range []string{
		// The state loses a copy, a check, and a byte of a digest. It gains a size and a copy.
		"ALTER TABLE {db}.copy_state DELETE WHERE item = 'item-07' SETTINGS mutations_sync = 2",
		"ALTER TABLE {db}.copy_state DELETE WHERE item = 'item-08' AND pass.ver > 0 SETTINGS mutations_sync = 2",
		"ALTER TABLE {db}.copy_state UPDATE digests = mapUpdate(digests, map('md5'," +
			" concat(substring(digests['md5'], 1, 33), unhex('00')))) WHERE item = 'item-09' SETTINGS mutations_sync = 2",
		"INSERT INTO {db}.copy_state SELECT account, store, space, item, tuple(content.ver, content.ns, content.change," +
			" content.size + 1, content.version," +
			" content.etag, content.media_type, content.origin, content.user, content.source_time, content.source_ns," +
			" content.source_version)," +
			" deleted, digests, properties, acl, attempt, pass, fail, asserted, position FROM {db}.copy_state" +
			" WHERE item = 'item-10' AND content.ver > 0",
		"INSERT INTO {db}.copy_state (account, store, space, item, content) SELECT account, store, space, 'nobody'," +
			" content FROM {db}.copy_state WHERE item = 'item-11'",
		// The log loses a change.
		"ALTER TABLE {db}.audit_log DELETE WHERE item = 'item-12' SETTINGS mutations_sync = 2",
		// The properties of the same time as a content differ.
		"INSERT INTO {db}.copy_state (account, store, space, item, properties) SELECT account, store, space, item," +
			" tuple(properties.ver, 'text/plain', properties.user) FROM {db}.copy_state" +
			" WHERE item = 'item-13' AND properties.ver > 0",
	} {
		must(t, db.Exec(t.Context(), damage))
	}
	got := checkManifest(t, db, verify.ManifestConfig{})
	names := map[string][]string{}
	for _, d := range got.Differ {
		for _, c := range d.Columns {
			names[d.Item] = append(names[d.Item], c.Column)
		}
	}
	want := map[string][]string{
		"item-07": {"*"},
		"item-08": {"attempt.time", "attempt.verdict", "attempt.row", "pass.time", "pass.digests"},
		"item-09": {"digests"},
		"item-10": {"content.size"},
		"item-12": {"content.time", "content.ns", "content.change", "content.size", "content.version", "content.media_type",
			"content.origin",
			"content.user", "digests", "properties.time", "properties.media_type"},
		"item-13": {"properties.media_type"},
		"nobody":  {"*"},
	}
	if !reflect.DeepEqual(names, want) || got.Copies != 41 || got.Stopped {
		t.Errorf("of %d copies, stopped %v, differ\n%v, want\n%v", got.Copies, got.Stopped, names, want)
	}
	for _, d := range got.Differ {
		if d.Item == "item-10" {
			want := []verify.ColumnDifference{{Column: "content.size", State: "0", Logs: "unknown"}}
			if !reflect.DeepEqual(d.Columns, want) {
				t.Errorf("got %v, want %v", d.Columns, want)
			}
		}
	}
	if got := checkManifest(t, db, verify.ManifestConfig{}.WithMaxDiffer(2)); len(got.Differ) != 2 || !got.Stopped {
		t.Errorf("with two to be named: %d, stopped %v", len(got.Differ), got.Stopped)
	}
}

// Every part of every column of the state is compared.
func TestComparedParts(t *testing.T) {
	t.Parallel()
	got := verify.ComparedParts()
	for column, typ := range clickhouse.WrittenColumns()["copy_state"] {
		_, tuple, ok := strings.Cut(typ, "Tuple(")
		if !ok {
			continue // keys, and digests, which are compared as a whole
		}
		var want []string
		depth, word := 0, true // word: the next token is a name
		name := ""
		for _, r := range tuple {
			switch {
			case r == '(':
				depth++
			case r == ')':
				depth--
			case depth == 0 && r == ',':
				word, name = true, ""
			case depth == 0 && r == ' ' && word && name != "":
				want, word = append(want, name), false
			case depth == 0 && word && r != ' ':
				name += string(r)
			}
		}
		if !slices.Equal(got[column], want) {
			t.Errorf("of %s are compared %v, want %v", column, got[column], want)
		}
	}
	// without the sorting key, and position
	if _, ok := got["digests"]; !ok || len(got) != len(clickhouse.WrittenColumns()["copy_state"])-5 {
		t.Errorf("compared are %d columns of %v", len(got), clickhouse.WrittenColumns()["copy_state"])
	}
}
