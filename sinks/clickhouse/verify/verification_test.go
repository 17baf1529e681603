package verify_test

import (
	"errors"
	"regexp"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
)

const (
	firstID  = "00112233445566778899aabbccddeeff"
	secondID = "ffeeddccbbaa99887766554433221100"
)

// withOtherUser returns a record of the same message with another user.
func withOtherUser(d *schemas.Delivery) []*schemas.Delivery {
	other, change := *d, proto.CloneOf(d.Body.(*pb.Change))
	change.User = "eve"
	other.Body = change
	return []*schemas.Delivery{&other}
}

// sentUnder returns Changes as they are read after a producer has published all of them under one id.
func sentUnder(t *testing.T, id string, changes []schemas.Body) (read []schemas.Body) {
	for _, b := range changes {
		b.(*pb.Change).Id = id
		r, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: b})
		must(t, err)
		body, err := schemas.Decode(r.Topic, r.Headers, r.Value)
		must(t, err)
		read = append(read, body)
	}
	return read
}

// Records that Kafka removed before they were stored are findings. The offsets of the group show which were stored
// or, if they are lost, the position of the table.
func TestKnownLoss(t *testing.T) {
	t.Parallel()
	batch := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(60)...)
	for name, tc := range map[string]struct {
		stored    int // number of stored records, of the 50 that Kafka removed
		committed int64
		position  int64
		want      int64
	}{
		"the group is behind the start":                   {stored: 20, committed: 20, want: 30},
		"the group is behind the start, its rows are not": {stored: 50, committed: 20},
		"the group is at the start":                       {stored: 20, committed: 50},
		"the group never committed":                       {want: 50},
		"the group lost its offsets":                      {stored: 20, position: 50},
		"the group lost its offsets, behind the start":    {stored: 45, position: 40, want: 5},
		"the table was restored":                          {stored: 40, committed: 60, position: 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			sink := clickhouse.NewSink(db)
			must(t, sink.Store(t.Context(), append(slices.Clone(batch[:tc.stored]), batch[50:]...)))
			if tc.position > 0 {
				at := schemas.Progress{Topic: schemas.Changes, Incarnation: 7, Partition: 3, Next: tc.position}
				must(t, sink.Mark(t.Context(), []schemas.Progress{at}))
			}
			got, err := clickhousetest.Verify(t, db, schemas.Changes,
				clickhousetest.KafkaTopic{Records: batch[50:], Start: 50, End: 60, Committed: tc.committed})
			if err != nil || got[0].Findings() != tc.want {
				t.Errorf("%d findings, %v, want %d: %s", got[0].Findings(), err, tc.want, clickhousetest.Describe(got[0]))
			}
		})
	}
}

// A record below the position of the table is missing if it has no row, even if the group has lost its offsets.
func TestMissingOfAGroupWithoutOffsets(t *testing.T) {
	t.Parallel()
	batch := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(20)...)
	db := clickhousetest.Open(t)
	sink := clickhouse.NewSink(db)
	must(t, sink.Store(t.Context(), batch[5:15]))
	at := schemas.Progress{Topic: schemas.Changes, Incarnation: 7, Partition: 3, Next: 15}
	must(t, sink.Mark(t.Context(), []schemas.Progress{at}))
	got, err := clickhousetest.Verify(t, db, schemas.Changes, clickhousetest.KafkaTopic{Records: batch, End: 20})
	want := "audit_log: 20 records, 20 messages, 10 rows; missing 5 7/3@0-4; pending 5 7/3@15-19"
	if err != nil || clickhousetest.Describe(got[0]) != want {
		t.Errorf("got  %s, %v\nwant %s", clickhousetest.Describe(got[0]), err, want)
	}
}

func TestVerification(t *testing.T) {
	t.Parallel()
	batch := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(100)...)
	twice := append(slices.Clone(batch[:20]),
		clickhousetest.Deliver(schemas.Changes, 20, batch[4].Body, batch[5].Body, batch[5].Body)...)
	other := clickhousetest.Deliver(schemas.Changes, 50, clickhousetest.Change("other", 0))
	other[0].Incarnation = 6
	client, notified, checked := clickhousetest.Reported("reported")
	reports := clickhousetest.Deliver(schemas.Changes, 0, client, notified, checked)
	resent := append(slices.Clone(batch[:20]), clickhousetest.Deliver(schemas.Changes, 20, batch[4].Body)...)
	reused := clickhousetest.Deliver(schemas.Changes, 0, sentUnder(t, firstID, clickhousetest.Changes(2))...)
	const insert = "INSERT INTO {db}.audit_log SELECT "
	tests := map[string]struct {
		stored []*schemas.Delivery // nil: batch
		damage []string
		kept   clickhousetest.KafkaTopic
		want   string
	}{
		"all is there": {kept: clickhousetest.KafkaTopic{Records: batch}, want: "100 records, 100 messages, 100 rows"},
		"rows removed": {
			damage: []string{"ALTER TABLE {db}.audit_log DELETE WHERE off IN (7, 8, 9, 60) SETTINGS mutations_sync = 2"},
			kept:   clickhousetest.KafkaTopic{Records: batch},
			want:   "100 records, 100 messages, 96 rows; missing 4 7/3@7-9 7/3@60-60",
		},
		"a row doubled under another id": {
			damage: []string{insert + "* REPLACE (unhex('" + firstID + "') AS id) FROM {db}.audit_log WHERE off = 42"},
			kept:   clickhousetest.KafkaTopic{Records: batch},
			want:   "100 records, 100 messages, 101 rows; extra 1 7/3@42-42",
		},
		"a row of another year": {
			damage: []string{insert + "* REPLACE (ts + INTERVAL 1 YEAR AS ts) FROM {db}.audit_log WHERE off = 42"},
			kept:   clickhousetest.KafkaTopic{Records: batch},
			want: "100 records, 100 messages, 101 rows; doubled 1 7/3@42-42; altered 1" +
				" 7/3@42-42",
		},
		"a row moved to another year": {
			damage: []string{insert + "* REPLACE (ts + INTERVAL 1 YEAR AS ts) FROM {db}.audit_log WHERE off = 42",
				"ALTER TABLE {db}.audit_log DELETE WHERE off = 42 AND toYear(ts) = 2026 SETTINGS mutations_sync = 2"},
			kept: clickhousetest.KafkaTopic{Records: batch},
			want: "100 records, 100 messages, 100 rows; altered 1 7/3@42-42",
		},
		"a row stored twice is one in the view": {
			damage: []string{insert + "* FROM {db}.audit_log WHERE off = 42"},
			kept:   clickhousetest.KafkaTopic{Records: batch}, want: "100 records, 100 messages, 100 rows",
		},
		"an id at several offsets": {stored: twice, kept: clickhousetest.KafkaTopic{Records: twice, End: 23},
			want: "23 records, 20 messages, 20 rows"},
		"an id at several offsets, and no row": {
			stored: twice, damage: []string{
				"ALTER TABLE {db}.audit_log DELETE WHERE off IN (5, 21, 22) SETTINGS mutations_sync = 2",
			},
			kept: clickhousetest.KafkaTopic{Records: twice,
				End: 23}, want: "23 records, 20 messages, 19 rows; missing 3 7/3@5-5 7/3@21-22",
		},
		"a lost report": {
			stored: reports, damage: []string{
				"ALTER TABLE {db}.audit_log DELETE WHERE off = 0 SETTINGS mutations_sync = 2",
			},
			kept: clickhousetest.KafkaTopic{Records: reports, End: 3},
			want: "3 records, 1 messages, 1 rows; missing 1 7/3@0-0",
		},
		"a report that is not stored yet": {
			stored: reports[:2], kept: clickhousetest.KafkaTopic{Records: reports, End: 3, Committed: 2},
			want: "3 records, 1 messages, 1 rows; pending 1 7/3@2-2",
		},
		"a report that is a dead letter beside its stored repeat": {
			stored: reports[1:], kept: clickhousetest.KafkaTopic{Records: reports, End: 3, Dead: []int64{0}},
			want: "3 records, 1 messages, 1 rows",
		},
		"an id reused by a producer": {stored: reused, kept: clickhousetest.KafkaTopic{Records: reused, End: 2},
			want: "2 records, 2 messages, 2 rows"},
		"a row under a reused id": {
			damage: []string{insert + "* REPLACE ((SELECT id FROM {db}.audit_log WHERE off = 41) AS id)" +
				" FROM {db}.audit_log WHERE off = 42",
				"ALTER TABLE {db}.audit_log DELETE WHERE off = 42 AND id != (SELECT id FROM {db}.audit_log WHERE off = 41)" +
					" SETTINGS mutations_sync = 2"},
			kept: clickhousetest.KafkaTopic{Records: batch},
			want: "100 records, 100 messages, 100 rows; missing 1 7/3@42-42; doubled 1 7/3@41-42; extra 1 7/3@42-42",
		},
		"an offset that holds another message now": {
			stored: batch, damage: nil,
			kept: clickhousetest.KafkaTopic{Records: append(clickhousetest.Deliver(schemas.Changes, 0,
				clickhousetest.Change("new", 0)), batch[1:]...)},
			want: "100 records, 100 messages, 100 rows; missing 1 7/3@0-0; extra 1 7/3@0-0",
		},
		"not yet committed": {
			stored: batch[:90], kept: clickhousetest.KafkaTopic{Records: batch, Committed: 88},
			want: "100 records, 100 messages, 90 rows; pending 10 7/3@90-99",
		},
		"dead letters": {
			stored: append(slices.Clone(batch[:10]), batch[12:]...),
			kept: clickhousetest.KafkaTopic{Records: batch, Unreadable: map[int64]error{10: errors.New("garbage")},
				Dead: []int64{10, 11, 12}},
			want: "100 records, 100 messages, 98 rows; dead 2 7/3@10-11",
		},
		"a dead letter that was sent again, and its row lost": {
			stored: batch[:10], kept: clickhousetest.KafkaTopic{Records: resent, Dead: []int64{4}},
			damage: []string{"ALTER TABLE {db}.audit_log DELETE WHERE off = 4 SETTINGS mutations_sync = 2"},
			want:   "21 records, 20 messages, 9 rows; missing 11 7/3@10-20",
		},
		"a dead letter that was sent again, and refused again": {
			stored: append(slices.Clone(batch[:4]), batch[5:20]...), kept: clickhousetest.KafkaTopic{Records: resent,
				Dead: []int64{4, 20}},
			want: "21 records, 20 messages, 19 rows; dead 1 7/3@4-4",
		},
		"a dead letter that was sent again, and is not stored yet": {
			stored: append(slices.Clone(batch[:4]), batch[5:20]...),
			kept:   clickhousetest.KafkaTopic{Records: resent, Dead: []int64{4}, Committed: 20},
			want:   "21 records, 20 messages, 19 rows; pending 1 7/3@20-20",
		},
		"unreadable, and no dead letter": {
			stored: append(slices.Clone(batch[:10]), batch[11:]...),
			kept:   clickhousetest.KafkaTopic{Records: batch, Unreadable: map[int64]error{10: errors.New("garbage")}},
			want:   "100 records, 100 messages, 99 rows; missing 1 7/3@10-10",
		},
		"trimmed": {
			kept: clickhousetest.KafkaTopic{Records: batch[30:], Start: 30},
			want: "70 records, 70 messages, 100 rows; gone {Retention:30 Compaction:0 Incarnations:0 Later:0};" +
				" trimmed 3 before 30, 30 rows, 0 unread",
		},
		"trimmed while it was read": {
			kept: clickhousetest.KafkaTopic{Records: batch[30:], Start: 50},
			want: "70 records, 70 messages, 100 rows; gone {Retention:30 Compaction:0 Incarnations:0 Later:0};" +
				" trimmed 3 before 50, 30 rows, 0 unread",
		},
		"trimmed before it was stored": {
			stored: batch[50:], kept: clickhousetest.KafkaTopic{Records: batch[50:], Start: 50, Committed: 20},
			want: "50 records, 50 messages, 50 rows; trimmed 3 before 50, 0 rows, 30 unread",
		},
		"gaps": { // control records, and records of an aborted transaction
			stored: append(slices.Clone(batch[:30]), batch[40:]...),
			kept:   clickhousetest.KafkaTopic{Records: append(slices.Clone(batch[:30]), batch[40:]...)},
			want:   "90 records, 90 messages, 90 rows",
		},
		"a row in a gap": {
			kept: clickhousetest.KafkaTopic{Records: append(slices.Clone(batch[:30]), batch[31:]...)},
			want: "99 records, 99 messages, 100 rows; extra 1 7/3@30-30",
		},
		"rows of a topic of the same name": {
			stored: append(slices.Clone(batch), other...), kept: clickhousetest.KafkaTopic{Records: batch},
			want: "100 records, 100 messages, 101 rows; gone {Retention:0 Compaction:0 Incarnations:1 Later:0}",
		},
		"rows that came later": {
			kept: clickhousetest.KafkaTopic{Records: batch[:80], End: 80, Committed: 80, Now: 100},
			want: "80 records, 80 messages, 100 rows; gone {Retention:0 Compaction:0 Incarnations:0 Later:20}",
		},
		"the log lost its end": {
			kept: clickhousetest.KafkaTopic{Records: batch[:80], End: 80, Committed: 80, Now: 99},
			want: "80 records, 80 messages, 100 rows; extra 1 7/3@99-99;" +
				" gone {Retention:0 Compaction:0 Incarnations:0 Later:19}",
		},
		"a column altered": {
			damage: []string{"ALTER TABLE {db}.audit_log UPDATE user = 'eve' WHERE off IN (42, 43) SETTINGS mutations_sync = 2"},
			kept:   clickhousetest.KafkaTopic{Records: batch}, want: "100 records, 100 messages, 100 rows; altered 2 7/3@42-43",
		},
		"a row replaced by an altered one": {
			damage: []string{"ALTER TABLE {db}.audit_log DELETE WHERE off = 42 SETTINGS mutations_sync = 2",
				insert + "* REPLACE (42 AS off) FROM (SELECT * FROM {db}.audit_log WHERE off = 41)"},
			kept: clickhousetest.KafkaTopic{Records: batch},
			want: "100 records, 100 messages, 99 rows; missing 1 7/3@42-42; extra 1 7/3@42-42",
		},
		"an altered row beside the true one": {
			damage: []string{insert + "* REPLACE ('eve' AS user) FROM {db}.audit_log WHERE off = 42"},
			kept:   clickhousetest.KafkaTopic{Records: batch}, want: "100 records, 100 messages, 100 rows; altered 1 7/3@42-42",
		},
		"a column altered, and the record trimmed": {
			damage: []string{"ALTER TABLE {db}.audit_log UPDATE user = 'eve' WHERE off = 7 SETTINGS mutations_sync = 2"},
			kept:   clickhousetest.KafkaTopic{Records: batch[30:], Start: 30},
			want: "70 records, 70 messages, 100 rows; altered 1 7/3@7-7;" +
				" gone {Retention:30 Compaction:0 Incarnations:0 Later:0}; trimmed 3 before 30, 30 rows, 0 unread",
		},
		"another record, and a sum that fits": {
			kept: clickhousetest.KafkaTopic{Records: append(slices.Clone(batch[:42]),
				append(withOtherUser(batch[42]), batch[43:]...)...)},
			want: "100 records, 100 messages, 100 rows; altered 1 7/3@42-42",
		},
		"a column altered, and the sum taken out": {
			damage: []string{
				"ALTER TABLE {db}.audit_log UPDATE user = 'eve', sum = 0 WHERE off IN (42, 43) SETTINGS mutations_sync = 2",
			},
			kept: clickhousetest.KafkaTopic{Records: batch}, want: "100 records, 100 messages, 100 rows; altered 2 7/3@42-43",
		},
		"a column altered, and its sum with it": {
			damage: []string{"ALTER TABLE {db}.audit_log UPDATE user = 'eve' WHERE off = 42 SETTINGS mutations_sync = 2",
				"ALTER TABLE {db}.audit_log UPDATE sum = xxHash64(" + clickhouse.Matchers()[schemas.Changes][0].RowBinary +
					") WHERE off = 42 SETTINGS mutations_sync = 2"},
			kept: clickhousetest.KafkaTopic{Records: batch}, want: "100 records, 100 messages, 100 rows; altered 1 7/3@42-42",
		},
		"a row that calls itself a position": {
			damage: []string{"ALTER TABLE {db}.audit_log UPDATE position = 1 WHERE off = 42 SETTINGS mutations_sync = 2"},
			kept:   clickhousetest.KafkaTopic{Records: batch}, want: "100 records, 100 messages, 100 rows; altered 1 7/3@42-42",
		},
		"reports of one change that differ": {stored: reports, kept: clickhousetest.KafkaTopic{Records: reports, End: 3},
			want: "3 records, 1 messages, 1 rows"},
		"an altered report that the view does not show": {
			stored: reports, damage: []string{
				"ALTER TABLE {db}.audit_log UPDATE agent = 'eve' WHERE off = 1 SETTINGS mutations_sync = 2",
			},
			kept: clickhousetest.KafkaTopic{Records: reports, End: 3}, want: "3 records, 1 messages, 1 rows; altered 1 7/3@1-1",
		},
		"a row of no topic, and one of a partition that is not there": {
			damage: []string{insert + "* REPLACE ('somewhere' AS topic) FROM {db}.audit_log WHERE off = 42",
				"ALTER TABLE {db}.audit_log DELETE WHERE off = 42 AND topic = 'changes' SETTINGS mutations_sync = 2",
				insert + "* REPLACE ('nowhere' AS topic, unhex('" + firstID + "') AS id) FROM {db}.audit_log WHERE off = 43",
				insert + "* REPLACE (9 AS part, unhex('" + secondID + "') AS id) FROM {db}.audit_log WHERE off = 44"},
			kept: clickhousetest.KafkaTopic{Records: batch},
			want: "100 records, 100 messages, 102 rows; extra 2 7/3@43-43 7/9@44-44; altered 1 7/3@42-42",
		},
	}
	db := clickhousetest.Open(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			must(t, db.Exec(t.Context(), "TRUNCATE TABLE {db}.audit_log SYNC"))
			if tc.stored == nil {
				tc.stored = batch
			}
			must(t, clickhouse.NewSink(db).Store(t.Context(), tc.stored))
			for _, statement := range tc.damage {
				must(t, db.Exec(t.Context(), statement))
			}
			if tc.kept.End == 0 {
				tc.kept.End = 100
			}
			if tc.kept.Committed == 0 {
				tc.kept.Committed = tc.kept.End
			}
			got, err := clickhousetest.Verify(t, db, schemas.Changes, tc.kept)
			must(t, err)
			if len(got) != 1 || clickhousetest.Describe(got[0]) != "audit_log: "+tc.want {
				t.Fatalf("got  %s\nwant audit_log: %s", clickhousetest.Describe(got[0]), tc.want)
			}
			wrong := regexp.MustCompile("missing|doubled|extra|altered|[1-9][0-9]* unread").MatchString(tc.want)
			if n := got[0].Findings(); n > 0 != wrong {
				t.Errorf("%d findings in: %s", n, tc.want)
			}
		})
	}
}

// A Change that the view does not show is missing, even if the table has its row.
func TestVerificationReadsTheView(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	batch := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(9)...)
	must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
	if err := db.Exec(t.Context(), "CREATE OR REPLACE VIEW {db}.audit_log_v AS"+
		" SELECT * REPLACE (lower(hex(id)) AS id) FROM {db}.audit_log WHERE off != 5"); err != nil {
		t.Fatal(err)
	}
	got, err := clickhousetest.Verify(t, db, schemas.Changes,
		clickhousetest.KafkaTopic{Records: batch, End: 9, Committed: 9})
	want := "audit_log: 9 records, 9 messages, 8 rows; missing 1 7/3@5-5"
	if err != nil || clickhousetest.Describe(got[0]) != want {
		t.Errorf("got  %s, %v\nwant %s", clickhousetest.Describe(got[0]), err, want)
	}
}

// A finding has examples, so that they can be looked up in Kafka and in ClickHouse.
func TestVerificationExamples(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	batch := clickhousetest.Deliver(schemas.Changes, 0, clickhousetest.Changes(30)...)
	must(t, clickhouse.NewSink(db).Store(t.Context(), batch[:10]))
	proofs, err := clickhousetest.Verify(t, db, schemas.Changes,
		clickhousetest.KafkaTopic{Records: batch, Unreadable: map[int64]error{12: errors.New("garbage")}, End: 30,
			Committed: 30})
	must(t, err)
	got := proofs[0].Missing
	if len(got.Examples) != 10 || got.Messages != 20 || proofs[0].Findings() != 20 {
		t.Fatalf("got %+v", got)
	}
	for _, x := range got.Examples {
		want := batch[x.Offset].Body.(*pb.Change).GetId()
		if x.Offset == 12 {
			want = ""
		}
		if x.ID != want || x.Incarnation != 7 || x.Partition != 3 {
			t.Errorf("got %+v, want id %s", x, want)
		}
	}
}

func TestVerificationOfRecreatedTopic(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	if _, err := clickhousetest.Verify(t, db, schemas.Changes,
		clickhousetest.KafkaTopic{Recreated: true}); !errors.Is(err, verify.ErrRecreated) {
		t.Errorf("got %v, want %v", err, verify.ErrRecreated)
	}
	if _, err := verify.NewTopic(db, schemas.Checkpoints, nil); err == nil {
		t.Error("a topic that feeds no table can be proved")
	}
}

// An incident has many records with the same id, and the older ones are compacted away.
func TestVerificationOfIncidents(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	incident := func(id string, step int32) *pb.Incident {
		return &pb.Incident{Id: id, Account: "acme", Store: "1", Space: "s", Item: id, Kind: "lost",
			State:  pb.IncidentState_INCIDENT_STATE_OPEN,
			Opened: clickhousetest.At(0), Updated: clickhousetest.At(time.Duration(step) * time.Second), StepCount: step}
	}
	batch := clickhousetest.Deliver(schemas.Incidents, 0, incident(firstID, 1), incident(firstID, 2),
		incident(secondID, 1), incident(firstID, 3),
		incident(firstID, 3))
	must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
	compacted := []*schemas.Delivery{batch[2], batch[4]}
	k := clickhousetest.KafkaTopic{Records: compacted, End: 5, Committed: 5}
	check := func(when, want string) {
		t.Helper()
		got, err := clickhousetest.Verify(t, db, schemas.Incidents, k)
		if err != nil || len(got) != 1 || clickhousetest.Describe(got[0]) != want {
			t.Errorf("%s: %v\n got %s\nwant %s", when, err, clickhousetest.Describe(got[0]), want)
		}
	}
	check("compacted", "incidents: 2 records, 2 messages, 4 rows; gone {Retention:0 Compaction:2 Incarnations:0 Later:0}")
	k.Records = batch
	check("not compacted", "incidents: 5 records, 4 messages, 4 rows")
	if err := db.Exec(t.Context(),
		"INSERT INTO {db}.incidents SELECT * REPLACE (unhex(?) AS id) FROM {db}.incidents WHERE off = 2",
		schemas.ID("x")); err != nil {
		t.Fatal(err)
	}
	if err := db.Exec(t.Context(),
		"ALTER TABLE {db}.incidents DELETE WHERE step_count = 2 SETTINGS mutations_sync = 2"); err != nil {
		t.Fatal(err)
	}
	k.Records = compacted
	check("damaged", "incidents: 2 records, 2 messages, 4 rows; extra 1 7/3@2-2; "+
		"gone {Retention:0 Compaction:1 Incarnations:0 Later:0}")
}

// A dead letter has a row in dead_letters, and one in duplication_log if it is a command.
func TestVerificationOfDeadLetters(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	command := &pb.DuplicationCommand{Id: firstID, Account: "acme", Space: "s", Item: "i", SourceStore: "1",
		DestinationStore: "2",
		Reason:           pb.DuplicationReason_DUPLICATION_REASON_CHANGE}
	rec, err := schemas.Encode(schemas.Message{Topic: schemas.DuplicationHigh, Body: command})
	must(t, err)
	batch := make([]*schemas.Delivery, 3)
	for i := range batch {
		batch[i] = &schemas.Delivery{Topic: schemas.Dead, From: schemas.Dead, Incarnation: 7, Partition: 3, Offset: int64(i),
			Timestamp: clickhousetest.Epoch, Value: rec.Value, Headers: append([]schemas.Header{
				{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.DuplicationHigh)},
			}, rec.Headers...)}
	}
	batch[1].Value = []byte("garbage")
	must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
	results := clickhousetest.Deliver(schemas.DuplicationResults, 0,
		&pb.DuplicationResult{Id: secondID, Account: "acme", Finished: timestamppb.New(clickhousetest.Epoch)})
	must(t, clickhouse.NewSink(db).Store(t.Context(), results))
	check := func(topic schemas.Topic, records []*schemas.Delivery, want ...string) {
		t.Helper()
		proofs, err := clickhousetest.Verify(t, db, topic,
			clickhousetest.KafkaTopic{Records: records, End: int64(len(records)), Committed: int64(len(records))})
		must(t, err)
		var got []string
		for _, p := range proofs {
			got = append(got, clickhousetest.Describe(p))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", topic, got, want)
		}
	}
	check(schemas.DuplicationResults, results, "duplication_log: 1 records, 1 messages, 1 rows")
	check(schemas.Dead, batch, "dead_letters: 3 records, 3 messages, 3 rows",
		"duplication_log: 2 records, 2 messages, 2 rows")
	if err := db.Exec(t.Context(),
		"ALTER TABLE {db}.duplication_log DELETE WHERE decision = 'dead' AND off = 2"+
			" SETTINGS mutations_sync = 2"); err != nil {
		t.Fatal(err)
	}
	check(schemas.Dead, batch, "dead_letters: 3 records, 3 messages, 3 rows",
		"duplication_log: 2 records, 2 messages, 1 rows; missing 1 7/3@2-2")
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
