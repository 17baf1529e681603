package read_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// A change with several reports is one change. Its user is that of the client's report or, without one, of the first
// report. Its digests are those of the richest report.
func TestReportsOfOneChange(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var bodies []schemas.Body
	wants := map[string]*pb.Change{}
	tests := map[string]struct {
		reports string // in the order of Kafka: client, notification, check
		who     string
		digests string
	}{
		"a client, then a check":                {"ck", "c", "k"},
		"a check, then a client":                {"kc", "c", "k"},
		"a client, a notification, a check":     {"cnk", "c", "k"},
		"a check, a notification, a client":     {"knc", "c", "k"},
		"a client between two notifications":    {"ncn", "c", "n"},
		"a client, published again last":        {"cnkc", "c", "k"},
		"many checks, and a client before them": {"nckkkkkkkkkk", "c", "k"},
		"a notification, then a check":          {"nk", "n", "k"},
		"a check, then a notification":          {"kn", "k", "k"},
		"a client alone":                        {"c", "c", "c"},
	}
	for name, tc := range tests {
		client, notified, checked := clickhousetest.Reported(name)
		of := map[rune]*pb.Change{'c': client, 'n': notified, 'k': checked}
		want := proto.CloneOf(of[rune(tc.who[0])])
		want.Digests, want.Provenance = of[rune(tc.digests[0])].GetDigests(), of[rune(tc.digests[0])].GetProvenance()
		for _, r := range tc.reports {
			c := of[r]
			bodies = append(bodies, c)
			// Values that only some of them have.
			want.Etag = cmp.Or(want.GetEtag(), c.GetEtag())
			if want.Properties == nil {
				want.Properties = c.GetProperties()
			}
			if want.Approved == "" {
				want.Approved, want.Evidence = c.GetApproved(), c.GetEvidence()
			}
		}
		wants[name] = want
	}
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, bodies...)
	check := func(when string) {
		t.Helper()
		changes, err := changesOf(t.Context(), db, "acme", "photos")
		if err != nil || len(changes) != len(wants) {
			t.Fatalf("%s: the space's history has %d changes, %v, want %d", when, len(changes), err, len(wants))
		}
		var copies []schemas.Copy
		for _, c := range changes {
			copies = append(copies, schemas.CopyOf(c))
		}
		records, err := clickhousetest.Reader(t, db, clickhousetest.Reached,
			read.ReaderConfig{}.WithBatch(0, time.Millisecond)).Fresh(t.Context(), copies)
		must(t, err)
		known, err := read.Records(t.Context(), db, copies)
		must(t, err)
		for i, c := range changes {
			name, want := c.GetItem(), wants[c.GetItem()]
			tc := tests[name]
			clickhousetest.Compare(t, when+", "+name+": in the space's history", c, want)
			clickhousetest.Compare(t, when+", "+name+": on record", known[i].GetAudit(), clickhousetest.RecordOf(want))
			clickhousetest.Compare(t, when+", "+name+": read afresh", records[i].GetAudit(),
				clickhousetest.EvidenceOf(clickhousetest.RecordOf(want)))
			events, err := read.Timeline(t.Context(), db, "acme", "photos", name)
			if by := map[string]string{"c": "ann", "n": "notification/s3", "k": "checker"}[tc.who]; err != nil ||
				len(events) != 1 || events[0].By != by {
				t.Errorf("%s, %s: the item's timeline is %+v, %v, want one event by %s", when, name, events, err, by)
			}
			count := clickhousetest.Value(t, db, "SELECT toString(count()) FROM {db}.audit_log WHERE item = ?", name)
			if got, want := count, fmt.Sprint(len(tc.reports)); got != want {
				t.Errorf("%s, %s: the table has %s reports, want %s", when, name, got, want)
			}
			user := clickhousetest.Value(t, db, "SELECT user FROM {db}.manifest WHERE item = ?", name)
			if !strings.Contains(tc.reports, "n") && user != want.GetUser() {
				t.Errorf("%s, %s: the state's user is %s, want %s", when, name, user, want.GetUser())
			}
		}
	}
	check("as it was stored")
	must(t, clickhouse.NewSink(db).Store(t.Context(),
		clickhousetest.Deliver(schemas.Changes, 0, bodies...)))
	check("stored again, as after a kill")
	must(t, db.Exec(t.Context(), "OPTIMIZE TABLE {db}.audit_log FINAL"))
	check("merged")
}

// Of reports in two incarnations of the topic, the one that was stored first is the first, although its offset is
// larger.
func TestReportsOfRecreatedTopic(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	_, notified, checked := clickhousetest.Reported("a")
	store := func(inc uint32, offset int64, after time.Duration, c *pb.Change) {
		t.Helper()
		d := clickhousetest.Deliver(schemas.Changes, offset, c)
		d[0].Incarnation, d[0].Timestamp = inc, clickhousetest.Epoch.Add(after)
		must(t, clickhouse.NewSink(db).Store(t.Context(), d))
	}
	check := func(when string) {
		t.Helper()
		want := "notification/s3 notification 7 100000 update"
		if got := clickhousetest.Value(t, db,
			"SELECT concat(agent, ' ', origin, ' ', toString(inc), ' ', toString(off), ' ', op)"+
				" FROM {db}.audit_log_v"); got != want {
			t.Errorf("%s: the first is %s, want %s", when, got, want)
		}
	}
	store(7, 100_000, 0, notified)
	check("as it was reported")
	store(8, 3, time.Hour, checked)
	check("corrected in a recreated topic")
	store(8, 3, time.Hour, checked)
	check("stored again")
	if got := clickhousetest.Value(t, db, "SELECT provenance FROM {db}.audit_log_v"); got != "verified" {
		t.Errorf("the digests are %s", got)
	}
}

// A value that no report of a change has is unknown. A value that one of them has is known, in any order.
func TestReportsOfUnknownValues(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	whole := clickhousetest.Change("", time.Hour)
	whole.Properties = map[string]string{"k": "v"}
	empty := proto.CloneOf(whole)
	empty.Size = 0
	unknown := proto.CloneOf(whole)
	unknown.Size, unknown.SizeUnknown = 0, true
	unknown.MediaType, unknown.Properties, unknown.PropertiesUnknown = "", nil, true
	var offset int64
	for name, tc := range map[string]struct {
		reports []*pb.Change
		want    *pb.Change
	}{
		"unknown": {[]*pb.Change{unknown, unknown}, unknown},
		"later":   {[]*pb.Change{unknown, whole}, whole},
		"before":  {[]*pb.Change{whole, unknown}, whole},
		"empty":   {[]*pb.Change{unknown, empty}, empty},
	} {
		of := func(c *pb.Change) *pb.Change {
			c = proto.CloneOf(c)
			c.Space, c.Item = name, "a"
			c.Id = schemas.ChangeID(c)
			return c
		}
		for _, c := range tc.reports {
			clickhousetest.StoreBoth(t, db, schemas.Changes, offset, of(c))
			offset++
		}
		got, err := changesOf(t.Context(), db, "acme", name)
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		clickhousetest.Compare(t, name, got[0], of(tc.want))
		events, err := read.Timeline(t.Context(), db, "acme", name, "a")
		size := fmt.Sprintf("%d bytes ", got[0].GetSize())
		if got[0].GetSizeUnknown() {
			size = "unknown size "
		}
		if err != nil || len(events) != 1 || !strings.HasPrefix(events[0].Detail, size) {
			t.Errorf("%s: the timeline is %+v (%v), want %q", name, events, err, size)
		}
	}
}
