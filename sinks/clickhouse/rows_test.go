package clickhouse_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

const (
	id1 = "00112233445566778899aabbccddeeff"
	id2 = "ffeeddccbbaa99887766554433221100"
	md5 = "d41d8cd98f00b204e9800998ecf8427e"
	sha = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// Every field of every message is returned as it was stored.
func TestRows(t *testing.T) {
	t.Parallel()
	when, later := timestamppb.New(time.Date(1999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)), clickhousetest.At(0)
	long := "é\x01\n'\"\\\t`\U0001F600"
	object := &pb.Identity{Version: "v1", Etag: "e", Modified: when, Size: 1 << 40}
	const head = `{"id":"` + id1 + `","ts":"1999-12-31 23:59:59.999","ns":999999,"topic":"`
	const place = `","inc":7,"part":3,"off":9223372036854775806,`
	const longJSON = `é\u0001\n'\"\\\t` + "`\U0001F600"
	tests := map[schemas.Topic]struct {
		body schemas.Body
		view string
		want string
	}{
		schemas.Changes: {
			&pb.Change{
				Id: id1, Op: pb.Op_OP_SET_PROPERTIES, Account: "acme", Store: "1", Space: "s", Item: long, SourceSpace: "ss",
				SourceItem: "si",
				Version:    "v", Etag: "e", Size: 1 << 50,
				Digests: map[string]string{"md5": md5, "sha256": sha}, Provenance: pb.Provenance_PROVENANCE_CLAIMED,
				MediaType: "text/plain", Properties: map[string]string{"": long}, Acl: map[string]string{"ann": "rw"}, Time: when,
				Sequence: "q",
				User:     "u", Agent: "a", Origin: pb.Origin_ORIGIN_IMPORT, Cause: "c", SourceTime: later, SourceVersion: "sv",
				Approved: "bob",
				Evidence: map[string]string{"C": "x"}, Modified: timestamppb.New(time.Date(2446, 5, 1, 2, 3, 4, 5e6, time.UTC)),
			},
			"audit_log_v",
			`"ingested":"2026-03-04 06:06:07.891","op":"set_properties","account":"acme","store":"1","space":"s",` +
				`"item":"` + longJSON +
				`","source_space":"ss","source_item":"si","version":"v","etag":"e","size":1125899906842624,` +
				`"digests":{"md5":"` + md5 + `","sha256":"` + sha +
				`"},"provenance":"claimed","media_type":"text\/plain",` +
				`"properties":{"":"` + longJSON + `"},"acl":{"ann":"rw"},"properties_unknown":false,"sequence":"q",` +
				`"user":"u","agent":"a",` +
				`"origin":"import","cause":"c","source_time":"2026-03-04 05:06:07.891","source_ns":234567,` +
				`"modified":"2446-05-01T02:03:04.005Z",` +
				`"source_version":"sv","approved":"bob","evidence":{"C":"x"},"richness":5,` +
				`"first":"2026-03-04 06:06:07.891","newest":39618916960410627304880865287}`,
		},
		schemas.DuplicationResults: {
			&pb.DuplicationResult{
				Id: id1, Command: id2, Cause: "c", Account: "acme", Space: "s", Item: "i", SourceStore: "1", DestinationStore: "2",
				Reason: pb.DuplicationReason_DUPLICATION_REASON_REPAIR, Decision: "C0", Result: "repaired",
				Outcome: pb.Outcome_OUTCOME_HANDED_ON,
				Bytes:   5, Digests: map[string]string{"md5": md5}, Started: later, Finished: when, Attempt: 2,
				ErrorClass: "transient", Error: "e",
				Detail: "d", ChangeTime: later, Planned: when, Newer: true, Worker: "w", Host: "h", Software: "sw", Incident: "in",
				List: "li", Effect: "ef", SourceVersion: "sv", WouldBe: "wb",
			},
			"duplication_log_v",
			`"command":"` + id2 + `","cause":"c","account":"acme","space":"s","item":"i","source_store":"1",` +
				`"destination_store":"2","reason":"repair",` +
				`"decision":"C0","result":"repaired","outcome":"handed_on","bytes":5,` +
				`"digests":{"md5":"` + md5 + `"},"started":"2026-03-04 05:06:07.891",` +
				`"attempt":2,"error_class":"transient","error":"e","detail":"d","change_time":"2026-03-04 05:06:07.891",` +
				`"planned":"1999-12-31 23:59:59.999","newer":true,"worker":"w","host":"h",` +
				`"software":"sw","incident":"in","list":"li","effect":"ef","source_version":"sv","would_be":"wb"}`,
		},
		schemas.FixityResults: {
			&pb.FixityResult{
				Id: id1, Task: id2, Cause: "c", Account: "acme", Store: "1", Space: "s", Item: "i", StoreKind: "file",
				Reason: pb.FixityReason_FIXITY_REASON_AFTER_COPY, Verdict: pb.Verdict_VERDICT_NOT_CAPTURED, Row: 9,
				Finding: "not-captured", Final: true,
				EvidenceLevel: 4,
				Content: &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS,
					Digests: map[string]string{"md5": md5, "sha256": sha}, Provenance: pb.Provenance_PROVENANCE_VERIFIED},
				Stored:    &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: map[string]string{"md5": md5}},
				Manifest:  &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_NONE},
				Audit:     &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_UNKNOWN},
				Confirmed: &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: map[string]string{"md5": id1}},
				BytesRead: 7, Recheck: 1, Attempt: 2, Worker: "w", Host: "h", Software: "sw", Round: "r", Started: when,
				Finished: later, Detail: "d",
				Object: object, Next: later, Baseline: true, Overtaken: true,
				Metadata: pb.Metadata_METADATA_DAMAGED, MetadataDetail: "md",
				// no columns: audit_log has the correction, and the incident the end of the acceptance
				Correction: "c", LastEvent: later, Accept: &pb.AcceptOrder{}, AcceptResult: "ar", AcceptDetail: "ad",
			},
			"bit_log_v",
			`"task":"` + id2 + `","cause":"c","account":"acme","store":"1","space":"s","item":"i","store_kind":"file",` +
				`"reason":"after_copy",` +
				`"verdict":"not_captured","row":9,"finding":"not-captured","final":true,"level":4,"content_state":"digests",` +
				`"stored_state":"digests",` +
				`"manifest_state":"none","audit_state":"unknown","confirmed_state":"digests","content_provenance":"verified",` +
				`"stored_provenance":"",` +
				`"manifest_provenance":"","audit_provenance":"","confirmed_provenance":"","digest.algorithm":["md5","sha256",` +
				`"md5"],"digest.value":["` +
				md5 + `","` + sha + `","` + id1 + `"],"digest.places":[3,1,16],"bytes_read":7,"recheck":1,"attempt":2,` +
				`"worker":"w","host":"h","software":"sw",` +
				`"round":"r","finished":"2026-03-04 05:06:07.891","detail":"d","object_version":"v1","object_etag":"e",` +
				`"object_modified":"1999-12-31 23:59:59.999",` +
				`"object_ns":999999,"object_size":1099511627776,"next":"2026-03-04 05:06:07.891","baseline":true,` +
				`"overtaken":true,"metadata":"damaged","metadata_detail":"md"}`,
		},
		schemas.Incidents: {
			&pb.Incident{
				Id: id1, Account: "acme", Store: "1", Space: "s", Item: "i", Kind: "replaced",
				State:  pb.IncidentState_INCIDENT_STATE_AWAITING_APPROVAL,
				Opened: when, Updated: later, Closed: later, Checked: later, Row: 13, Expected: map[string]string{"md5": md5},
				Found: map[string]string{"md5": id2},
				// no column: object_size nearly says Size
				Object: object, Repairs: 3, StepCount: 5, Subject: "t/0@7", Size: 1 << 40, LastEvent: later,
				Steps: []*pb.IncidentStep{{Time: later, Action: "a1", Ref: "r1", By: "b1", Detail: "d1"},
					{Time: when, Action: "a2", Detail: long}},
			},
			"incidents_v",
			`"account":"acme","store":"1","space":"s","item":"i","kind":"replaced","state":"awaiting_approval",` +
				`"updated":"2026-03-04 05:06:07.891",` +
				`"closed":"2026-03-04 05:06:07.891","checked":"2026-03-04 05:06:07.891","row":13,` +
				`"expected":{"md5":"` + md5 + `"},"found":{"md5":"` + id2 +
				`"},"object_version":"v1","object_etag":"e","object_modified":"1999-12-31 23:59:59.999","object_ns":999999,` +
				`"object_size":1099511627776,` +
				`"repairs":3,"step_count":5,"revision":1772600767891,"first_step":3,` +
				`"step.time":["2026-03-04 05:06:07.891","1999-12-31 23:59:59.999"],` +
				`"step.action":["a1","a2"],"step.ref":["r1",""],"step.by":["b1",""],` +
				`"step.detail":["d1","` + longJSON + `"],"subject":"t\/0@7","last_event":"2026-03-04T05:06:07.891234567Z"}`,
		},
		schemas.Reports: {
			&pb.Report{Id: id1, Kind: "fixity", Account: "acme", Store: "1", Space: "s", Round: "r", Started: later,
				Finished: when,
				Counts:   map[string]int64{"listed": 1 << 40, "failed": -1}, Complete: true, Detail: "d",
				DestinationStore: "2"},
			"reports_v",
			`"kind":"fixity","account":"acme","store":"1","destination_store":"2","space":"s","round":"r",` +
				`"started":"2026-03-04 05:06:07.891","counts":{"failed":-1,"listed":1099511627776},"complete":true,"detail":"d"}`,
		},
		schemas.Jobs: {
			&pb.Job{Id: id1, Name: "n", Started: when, Finished: later, Counts: map[string]int64{"a": 1}, Error: "e"},
			"job_log_v", `"name":"n","finished":"2026-03-04 05:06:07.891","counts":{"a":1},"error":"e"}`,
		},
		schemas.Policies: {
			&pb.Policy{Id: id1, Account: "acme", Base: 4, Document: `{"a": 1}`, Removed: true, By: "b", Reason: "r", Time: when,
				FileSha256: "f", From: "folder", Location: "policies"},
			"policy_history_v",
			`"account":"acme","base":4,"document":"{\"a\": 1}","removed":true,"by":"b","reason":"r","file_sha256":"f",` +
				`"came_from":"folder","location":"policies"}`,
		},
		schemas.Accounts: {
			&pb.Account{Id: id1, Account: "acme", Base: 4, Document: `{"a": 1}`, Removed: true, By: "b", Reason: "r", Time: when,
				From: "cli"},
			"account_history_v",
			`"account":"acme","base":4,"document":"{\"a\": 1}","removed":true,"by":"b","reason":"r","came_from":"cli"}`,
		},
		schemas.Admin: {
			&pb.AdminAction{Id: id1, Time: when, Who: "ann", Action: "approve-repair", Account: "acme", Store: "1", Space: "s",
				Item:   "i",
				Target: "t", Reason: "r", From: "cli", Before: "b", After: "a",
				Incident: "in", Seen: "se"},
			"admin_log_v",
			`"who":"ann","action":"approve-repair","account":"acme","store":"1","space":"s","item":"i","target":"t",` +
				`"reason":"r",` +
				`"came_from":"cli","before":"b","after":"a","incident":"in","seen":"se"}`,
		},
	}
	db := clickhousetest.Open(t)
	s := clickhouse.NewSink(db)
	for _, topic := range s.Topics() {
		if topic == schemas.Dead {
			continue // TestDeadLetters
		}
		t.Run(string(topic), func(t *testing.T) {
			tc, ok := tests[topic]
			if !ok {
				t.Fatal("no case for the topic")
			}
			// A case must set every field.
			for i := range tc.body.ProtoReflect().Descriptor().Fields().Len() {
				f := tc.body.ProtoReflect().Descriptor().Fields().Get(i)
				if f.Name() == "size_unknown" || f.Name() == "properties_unknown" {
					continue // flags for unset fields: TestReportsOfUnknownValues
				}
				if !tc.body.ProtoReflect().Has(f) {
					t.Errorf("the case does not set %s", f.Name())
				}
			}
			must(t, s.Store(t.Context(), clickhousetest.Deliver(topic, 1<<63-2, tc.body)))
			got := clickhousetest.Value(t, db, "SELECT formatRowNoNewline('JSONEachRow', *) FROM {db}."+tc.view)
			if want := head + string(topic) + place + tc.want; got != want {
				t.Errorf("the row is\n%s, want\n%s", got, want)
			}
			checkSum(t, db, strings.TrimSuffix(tc.view, "_v"))
		})
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	command := &pb.DuplicationCommand{
		Id: id2, Account: "acme", Space: "s", Item: "i", SourceStore: "1", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
		Cause:  "c", ChangeTime: clickhousetest.At(0), Time: clickhousetest.At(0),
	}
	rec, err := schemas.Encode(schemas.Message{Topic: schemas.DuplicationHigh, Body: command})
	must(t, err)
	dry, err := schemas.Encode(schemas.Message{Topic: schemas.Deletions, Body: &pb.DeletionCommand{
		Id: id1, Account: "acme", Space: "s", Item: "i", SourceStore: "1", DestinationStore: "2", DryRun: true,
		Command: "co",
	}})
	must(t, err)
	trail := func(topic string) []schemas.Header {
		return []schemas.Header{
			{Key: schemas.HeaderOriginTopic, Value: []byte(topic)}, {Key: schemas.HeaderOriginPartition, Value: []byte("5")},
			{Key: schemas.HeaderOriginOffset, Value: []byte("77")},
			{Key: schemas.HeaderOriginTimestamp, Value: []byte("1772600767891")},
			{Key: schemas.HeaderRole, Value: []byte("copier")}, {Key: schemas.HeaderClass, Value: []byte("permanent")},
			{Key: schemas.HeaderError, Value: []byte("no such store \xff")}, {Key: schemas.HeaderAttempts, Value: []byte("2")},
			{Key: schemas.HeaderWaits, Value: []byte("3")}, {Key: schemas.HeaderUnavailable, Value: []byte("4")},
			{Key: schemas.HeaderHistory, Value: []byte("[]")},
		}
	}
	letter := func(offset int64, headers []schemas.Header, value []byte) *schemas.Delivery {
		d := clickhousetest.Deliver(schemas.Dead, offset, nil)[0]
		d.Key, d.Value, d.Headers, d.Body = rec.Key, value, headers, nil
		return d
	}
	batch := []*schemas.Delivery{
		letter(0, append(rec.Headers, trail("duplication.high")...), rec.Value),
		letter(1, trail("changes"), []byte("\x00garbage\xff")),
		letter(2, nil, nil),
		letter(3, append(dry.Headers, trail("deletions")...), dry.Value),
	}
	for range 2 { // twice, as after a restart
		must(t, clickhouse.NewSink(db).Store(t.Context(), batch))
	}
	got, err := clickhousetest.Strings(t.Context(), db,
		"SELECT concat(toString(off), ' ', origin_topic, '/', toString(origin_part), '@', toString(origin_off),"+
			" ' ', role, ' ', class, ' ', error, ' ', toString(attempts), toString(waits), toString(unavailable), ' ', message,"+
			" ' ', account, '/', space, '/', item, ' ', hex(value), ' ',"+
			" toString(length(header.name))) FROM {db}.dead_letters_v ORDER BY off")
	if err != nil || len(got) != 4 {
		t.Fatalf("got %q, %v, want four letters", got, err)
	}
	checkSum(t, db, "dead_letters")
	if want := "1 changes/5@77 copier permanent no such store � 234  // 0067617262616765FF 11"; got[1] != want {
		t.Errorf("the letter is %q, want %q", got[1], want)
	}
	if want := "2 /-1@-1    000  //  0"; got[2] != want {
		t.Errorf("the letter is %q, want %q", got[2], want)
	}
	rows, err := clickhousetest.Strings(t.Context(), db,
		"SELECT concat(command, ' ', cause, ' ', account, '/', space, '/', item, ' ', source_store,"+
			" destination_store, ' ', reason, ' ', decision, ' ', result, ' ', would_be,"+
			" ' ', outcome, ' ', error_class, ' ', toString(attempt), ' ', ifNull(toString(change_time), ''))"+
			" FROM {db}.duplication_log_v ORDER BY off")
	if want := []string{id2 + " c acme/s/i 12 change dead dead  failed permanent 2 2026-03-04 05:06:07.891",
		id1 + " co acme/s/i 12  dead dry-run dead failed permanent 2 "}; err != nil || !slices.Equal(rows, want) {
		t.Errorf("the rows of commands are %q, %v, want %q", rows, err, want)
	}
}
