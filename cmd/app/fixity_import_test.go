package app

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/fixity"
	"github.com/millrace/millrace/streams/inventory"
)

// reportLine returns a line of a completion report.
func reportLine(key, version, sum, kind string) string {
	return fmt.Sprintf(`bucket,archive/photos/%s,%s,succeeded,200,,"{""etag"":""e"",""checksumAlgorithm"":""MD5"",`+
		`""checksumType"":""%s"",""checksum_hex"":""%s""}"`+"\n", key, version, kind, sum)
}

// A report becomes passes at E3, and checks of what differs. Importing it again publishes the same messages, and does
// not count as a reading of the bytes.
func TestImportComputed(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 5)
	s.a.cfg.Accounts[0].Stores[0] = config.Store{ID: "1", Driver: "s3", Endpoint: "https://s3.example", Bucket: "bucket",
		Prefix: "archive", Primary: true}
	stores, err := newStores(s.a.cfg, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { stores.close() })
	s.a.stores = stores
	other := strings.Repeat("0", 32)
	report := reportLine("item-000", "v", oneMD5, "FULL_OBJECT") + reportLine("item%2D001", "", oneMD5, "FULL_OBJECT") +
		reportLine("item-002", "v", other, "FULL_OBJECT") + reportLine("item-003", "w", oneMD5, "FULL_OBJECT") +
		reportLine("item-004", "v", oneMD5, "COMPOSITE") + reportLine("none", "v", oneMD5, "FULL_OBJECT") +
		"elsewhere,item-000,v,failed,404,PermanentFailure,not found\n"
	since := time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC)
	load := func(text string) (ComputedImport, error) {
		return s.a.ImportComputed(t.Context(), inventory.ComputedRows("r", strings.NewReader(text)), since)
	}
	want := map[fixity.Comparison]int64{fixity.ComputedAgrees: 2, fixity.ComputedDiffers: 1,
		fixity.ComputedNotCurrent: 1, fixity.ComputedIncomparable: 1, fixity.ComputedUnknown: 1}
	for range 2 {
		done, err := load(report)
		if err != nil || done.Rows != 7 || done.Failed != 1 || !maps.Equal(done.Compared, want) || len(done.Named) != 4 {
			t.Fatalf("got %+v, %v, want %v", done, err, want)
		}
	}
	results, tasks := s.b.Bodies(schemas.FixityResults), s.b.Bodies(schemas.FixityHigh)
	if len(results) != 4 || len(tasks) != 2 {
		t.Fatalf("published %v and %v", results, tasks)
	}
	ids := map[string]string{} // of results, by item
	for _, b := range results {
		r := b.(*pb.FixityResult)
		if ids[r.GetItem()] == "" {
			ids[r.GetItem()] = r.GetId()
		}
		if r.GetId() != ids[r.GetItem()] || r.GetEvidenceLevel() != 3 || r.GetVerdict() != pb.Verdict_VERDICT_PASS {
			t.Errorf("got %v", r)
		}
	}
	if len(ids) != 2 || ids["item-000"] == "" || ids["item-001"] == "" {
		t.Errorf("results are of %v", ids)
	}
	first, again := tasks[0].(*pb.FixityTask), tasks[1].(*pb.FixityTask)
	if first.GetId() != again.GetId() || first.GetItem() != "item-002" ||
		first.GetReason() != pb.FixityReason_FIXITY_REASON_SUSPECT {
		t.Errorf("got %v, then %v", first, again)
	}
	s.sink(schemas.RoleSink, schemas.RoleState)
	all, err := s.a.FixityStatus(t.Context(), schemas.Copy{Account: "acme"}, since.Add(time.Hour))
	if err != nil || len(all) != 1 || all[0].Overdue != 5 || all[0].Verified != 0 {
		t.Errorf("the passes count as readings: %+v, %v", all, err)
	}
	of := schemas.Copy{Account: "acme", Store: "1", Space: "photos", Item: "item-000"}
	if checks, err := read.ResultsOf(t.Context(), s.db, of); err != nil || len(checks) != 1 || checks[0].Level != 3 {
		t.Errorf("on record are %+v, %v, want one check at E3", checks, err)
	}
	if done, err := load(report + "b,k\n"); !errors.Is(err, inventory.ErrInvalid) || done.Rows != 0 {
		t.Errorf("a damaged report: %+v, %v", done, err)
	}
}

// A key is that of one item, decoded or as it is: if both are on record it is comparable with neither.
func TestKeyOfTwoItems(t *testing.T) {
	spaced := schemas.Copy{Account: "acme", Store: "1", Space: "s", Item: "a b"}
	plain := schemas.Copy{Account: "acme", Store: "1", Space: "s", Item: "a+b"}
	m := &pb.Record{State: pb.RecordState_RECORD_STATE_LIVE, Digests: map[string]string{"md5": oneMD5}}
	r := &pb.CopyRecord{Manifest: m, Audit: m}
	row := inventory.ComputedRow{Bucket: "b", Keys: []string{"s/a b", "s/a+b"}, Digests: map[string]string{"md5": oneMD5}}
	at := [][]schemas.Copy{{spaced}, {plain}}
	for name, tt := range map[string]struct {
		known map[schemas.Copy]*pb.CopyRecord
		want  fixity.Comparison
		of    schemas.Copy
	}{
		"decoded":  {map[schemas.Copy]*pb.CopyRecord{spaced: r}, fixity.ComputedAgrees, spaced},
		"as it is": {map[schemas.Copy]*pb.CopyRecord{plain: r}, fixity.ComputedAgrees, plain},
		"both":     {map[schemas.Copy]*pb.CopyRecord{plain: r, spaced: r}, fixity.ComputedIncomparable, schemas.Copy{}},
		"none":     {nil, fixity.ComputedUnknown, schemas.Copy{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := compareComputed(row, at, tt.known, time.Now())
			if len(got) != 1 || got[0].What != string(tt.want) || got[0].Copy != tt.of {
				t.Errorf("got %+v, want %s of %v", got, tt.want, tt.of)
			}
		})
	}
}
