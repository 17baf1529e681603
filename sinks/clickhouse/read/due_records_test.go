package read_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// recordedChanges turn an add of an item into other changes.
var recordedChanges = []func(*pb.Change){
	func(*pb.Change) {},
	func(c *pb.Change) { c.Provenance = pb.Provenance_PROVENANCE_CLAIMED },
	func(c *pb.Change) { // described
		c.Op, c.MediaType, c.Properties = pb.Op_OP_UPDATE, "text/plain", map[string]string{"of": c.GetVersion(), "b": ""}
	},
	func(c *pb.Change) { // copied
		c.Op, c.Origin, c.SourceVersion, c.Etag = pb.Op_OP_COPY, pb.Origin_ORIGIN_DUPLICATION, "source", "tag"
		c.SourceTime = clickhousetest.At(-time.Hour)
	},
	func(c *pb.Change) { // of which little is known
		c.Size, c.SizeUnknown, c.Version, c.MediaType, c.Digests = 0, true, "", "", nil
		c.Provenance = pb.Provenance_PROVENANCE_UNSPECIFIED
	},
	func(c *pb.Change) { c.Origin, c.Version = pb.Origin_ORIGIN_FIXITY, "corrected" },
	func(c *pb.Change) { c.Op, c.Digests, c.Size, c.Version = pb.Op_OP_DELETE, nil, 0, "" },
	func(c *pb.Change) {
		c.Op, c.Digests, c.Size, c.Version, c.Origin = pb.Op_OP_DELETE, nil, 0, "", pb.Origin_ORIGIN_SWEEP
	},
	func(c *pb.Change) {
		c.Op, c.MediaType, c.Properties = pb.Op_OP_SET_PROPERTIES, "image/png", map[string]string{"c": c.GetVersion()}
	},
	func(c *pb.Change) { c.Op, c.MediaType = pb.Op_OP_SET_PROPERTIES, "" },
}

// randomRecord returns a change or a check of an item at one of four times.
func randomRecord(random *rand.Rand, item string) schemas.Body {
	hours := func() time.Duration { return time.Duration(random.IntN(4)) * time.Hour }
	c := clickhousetest.Change(item, hours())
	switch n := random.IntN(len(recordedChanges) + 4); n {
	case len(recordedChanges):
		r := clickhousetest.Result(c, hours()+time.Minute)
		r.Verdict = pb.Verdict_VERDICT_FAIL
		return r
	case len(recordedChanges) + 1, len(recordedChanges) + 2, len(recordedChanges) + 3:
		return clickhousetest.Result(c, hours()+time.Minute)
	default:
		recordedChanges[n](c)
		c.Id = schemas.ChangeID(c)
		return c
	}
}

// What a Due reads of the state, unmerged and merged, is what all other queries read.
func TestRecordsInSpace(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	if err := db.Exec(t.Context(), "SYSTEM STOP MERGES {db}.copy_state"); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same in each run
	var copies []schemas.Copy
	for i := range 500 {
		c := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: fmt.Sprintf("it'em-%03d", i)}
		copies = append(copies, c)
	}
	for part := range int64(5) {
		var changes, results []schemas.Body
		for i, c := range copies[1:] { // the first one is nowhere
			for range 1 + i%2 {
				switch b := randomRecord(random, c.Item).(type) {
				case *pb.Change:
					changes = append(changes, b)
				case *pb.FixityResult:
					results = append(results, b)
				}
			}
		}
		clickhousetest.StoreBoth(t, db, schemas.Changes, part*10_000, changes...)
		clickhousetest.StoreBoth(t, db, schemas.FixityResults, part*10_000, results...)
		elsewhere := clickhousetest.Change(copies[0].Item, 0)
		elsewhere.Space = "other"
		clickhousetest.StoreBoth(t, db, schemas.Changes, part*10_000+9_000, elsewhere)
		compareRecords(t, db, copies)
	}
	for _, statement := range []string{"SYSTEM START MERGES {db}.copy_state", "OPTIMIZE TABLE {db}.copy_state FINAL"} {
		if err := db.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	states := compareRecords(t, db, copies)
	for _, state := range []string{"RECORD_STATE_NONE", "RECORD_STATE_LIVE", "RECORD_STATE_TOMBSTONE",
		"passed", "described"} {
		if states[state] == 0 {
			t.Errorf("%s: no copy is in this state", state)
		}
	}
}

// compareRecords compares the records of copies with those that Records returns, and counts their states.
func compareRecords(t *testing.T, db *clickhouse.DB, copies []schemas.Copy) map[string]int {
	t.Helper()
	want, err := read.Records(t.Context(), db, copies)
	if err != nil {
		t.Fatal(err)
	}
	got, err := read.RecordsInSpace(t.Context(), db, copies)
	if err != nil || len(got) != len(want) {
		t.Fatalf("got %d records, %v, want %d", len(got), err, len(want))
	}
	states := map[string]int{}
	for i, c := range copies {
		clickhousetest.Compare(t, c.Item, got[i], want[i])
		m := want[i].GetManifest()
		states[m.GetState().String()]++
		if want[i].GetLastPass() != nil {
			states["passed"]++
		}
		if len(m.GetProperties()) > 0 {
			states["described"]++
		}
	}
	return states
}
