package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/verify"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// A verified is a Verifier with an in-memory broker and a real ClickHouse.
type verified struct {
	*Verifier
	t        *testing.T
	b        *kafkatest.Broker
	database string
}

func newVerified(t *testing.T) *verified { return newVerifiedBehind(t, 0) }

// newVerifiedBehind is newVerified with a broker whose clock is behind.
func newVerifiedBehind(t *testing.T, behind time.Duration) *verified {
	b := kafkatest.New(t, kafkatest.Options{RealTime: true, Partitions: 1, Behind: behind})
	v := &verified{t: t, b: b, database: "verify_" + schemas.NewID()}
	db, err := clickhouse.Open(clickhouse.Config{Addresses: []string{clickhousetest.Addr(t)}, Database: v.database}, nil)
	must(t, err)
	a, err := admin.New(b.Config())
	must(t, err)
	v.Verifier = &Verifier{admin: a, db: db, watermark: a.NewWatermark(schemas.Changes, positionTopics()),
		log: slog.New(slog.DiscardHandler), progress: func(string, int64, int64) {}}
	t.Cleanup(func() {
		if err := db.Drop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	clickhousetest.Make(t, v.database)
	return v
}

func (v *verified) exec(statement string) {
	v.t.Helper()
	if err := clickhousetest.Exec(v.t.Context(), clickhousetest.Addr(v.t),
		strings.ReplaceAll(statement, "{db}", v.database)); err != nil {
		v.t.Fatal(err)
	}
}

// sink runs sink and state until they have committed all records.
func (v *verified) sink(roles ...schemas.Role) {
	v.t.Helper()
	for _, role := range roles {
		if role == schemas.RoleState {
			v.store(role, clickhouse.NewState(v.db))
		} else {
			v.store(role, clickhouse.NewSink(v.db))
		}
	}
}

// A topicSink is a sink that returns its topics.
type topicSink interface {
	kafka.BatchSink
	Topics() []schemas.Topic
}

// store runs a sink until it has committed all records.
func (v *verified) store(role schemas.Role, to topicSink) {
	v.t.Helper()
	ctx, stop := context.WithTimeout(v.t.Context(), time.Minute)
	defer stop()
	g, err := kafka.NewBatchGroup(v.b.Config(),
		kafka.BatchConfig{Role: role, Topics: to.Topics(), MaxAge: 50 * time.Millisecond}, to)
	must(v.t, err)
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	for _, topic := range to.Topics() {
		if _, err := v.admin.NewWatermark(topic, map[schemas.Role][]schemas.Topic{role: {topic}}).Wait(ctx); err != nil {
			v.t.Fatal(err)
		}
	}
	stop()
	must(v.t, <-ended)
}

func someChange(i int) *pb.Change {
	c := &pb.Change{Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: fmt.Sprintf("item-%03d", i),
		Version: "v", Size: 7,
		Time: timestamppb.New(time.Date(2026, 3, 4, 5, i, 0, 0, time.UTC))}
	c.Id = schemas.ChangeID(c)
	return c
}

func (v *verified) send(cs ...*pb.Change) {
	for _, c := range cs {
		v.b.Send(schemas.Message{Topic: schemas.Changes, Body: c})
	}
}

// prove verifies changes, and returns the only proof as text.
func (v *verified) prove() string {
	v.t.Helper()
	proofs, err := v.Topics(v.t.Context(), []schemas.Topic{schemas.Changes})
	if err != nil || len(proofs) != 1 {
		v.t.Fatalf("%d proofs, %v", len(proofs), err)
	}
	p := proofs[0]
	s := fmt.Sprintf("%d records, %d messages, %d rows", p.Records, p.Messages, p.Rows)
	for i, d := range []verify.Discrepancy{p.Missing, p.Doubled, p.Extra, p.Altered} {
		if d.Messages > 0 {
			s += fmt.Sprintf(", %s %d at %d", []string{"missing", "doubled", "extra", "altered"}[i], d.Messages,
				d.Ranges[0].First)
		}
	}
	return s + fmt.Sprintf(", dead %d, pending %d, trimmed %d", p.Dead.Messages, p.Pending.Messages,
		p.Uncompared.Retention)
}

// Repeated messages, dead letters and transaction markers are no findings; damage is.
func TestVerify(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	check := func(when, want string) {
		t.Helper()
		if got := v.prove(); got != want {
			t.Errorf("%s:\n got %s\nwant %s", when, got, want)
		}
	}
	check("nothing", "0 records, 0 messages, 0 rows, dead 0, pending 0, trimmed 0")
	for i := range 20 {
		v.send(someChange(i))
	}
	check("not stored", "20 records, 20 messages, 0 rows, dead 0, pending 20, trimmed 0")
	garbage := kafkatest.Record{Record: schemas.Record{Topic: schemas.Changes, Value: []byte("garbage")}}
	v.send(someChange(3)) // 20
	v.b.Write(garbage)    // 21
	v.send(someChange(4)) // 22
	rec, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: someChange(23)})
	must(t, err)
	v.b.WriteTransaction(true, kafkatest.Record{Record: rec}) // 23 and 24
	v.b.Write(garbage)                                        // 25
	v.sink(schemas.RoleSink, schemas.RoleState)
	check("stored", "25 records, 23 messages, 21 rows, dead 2, pending 0, trimmed 0")
	v.exec("ALTER TABLE {db}.audit_log DELETE WHERE item = 'item-007' SETTINGS mutations_sync = 2")
	v.exec("INSERT INTO {db}.audit_log SELECT * REPLACE (reverse(id) AS id) FROM {db}.audit_log WHERE item = 'item-008'")
	v.exec("ALTER TABLE {db}.audit_log UPDATE user = 'eve' WHERE item = 'item-011' SETTINGS mutations_sync = 2")
	check("damaged", "25 records, 23 messages, 21 rows, missing 1 at 7, extra 1 at 8, altered 1 at 11, dead 2, "+
		"pending 0, trimmed 0")
	v.b.Trim(schemas.Changes, 0, 10)
	check("trimmed", "15 records, 15 messages, 21 rows, altered 2 at 8, dead 2, pending 0, "+
		"trimmed 10")

	// A recreated topic has none of the table's records, and the dead letters are of the former one.
	// Rows that differ from what was stored are found nevertheless.
	v.b.Recreate(schemas.Changes, 1)
	for i := range 26 {
		v.send(someChange(100 + i))
	}
	proofs, err := v.Topics(t.Context(), []schemas.Topic{schemas.Changes})
	if err != nil || proofs[0].Records != 26 || proofs[0].Uncompared.Incarnations != 23 || proofs[0].Dead.Messages != 0 ||
		proofs[0].Missing.Messages+proofs[0].Pending.Messages != 26 || proofs[0].Altered.Messages != 2 ||
		proofs[0].Findings() != proofs[0].Missing.Messages+2 {
		t.Errorf("made anew: %v, %+v", err, proofs[0])
	}
}

func TestVerifyEveryTopic(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	v.b.Send(schemas.Message{Topic: schemas.Jobs,
		Body: &pb.Job{Id: schemas.NewID(), Name: "j", Started: timestamppb.Now()}})
	for i := range 3 {
		v.b.Send(schemas.Message{Topic: schemas.Incidents,
			Body: &pb.Incident{Id: schemas.ID("i"), Account: "acme", Store: "1", Space: "s", Item: "i", Kind: "k",
				State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: timestamppb.Now(), Updated: timestamppb.Now(),
				StepCount: int32(i)}})
	}
	v.sink(schemas.RoleSink)
	v.b.Compact()
	proofs, err := v.Topics(t.Context(), SinkTopics())
	must(t, err)
	rows := map[string]int64{}
	for _, p := range proofs {
		if p.Findings() > 0 || p.Pending.Messages > 0 {
			t.Errorf("%s: %+v", p.Topic, p)
		}
		rows[string(p.Topic)+" "+p.Table] = p.Rows
	}
	want := map[string]int64{"changes audit_log": 0, "duplication.results duplication_log": 0,
		"fixity.results bit_log": 0, "incidents incidents": rows["incidents incidents"],
		"reports reports": 0, "jobs job_log": 1, "policies policy_history": 0, "accounts account_history": 0,
		"admin admin_log": 0, "dead dead_letters": 0, "dead duplication_log": 0}
	if !reflect.DeepEqual(rows, want) || rows["incidents incidents"] < 1 {
		t.Errorf("got %v, want %v", rows, want)
	}
}

// Copies that differ only because log or state have not committed all records are reported
// separately.
func TestVerifyManifest(t *testing.T) {
	t.Parallel()
	v := newVerified(t)
	for i := range 10 {
		v.send(someChange(i))
	}
	v.sink(schemas.RoleSink, schemas.RoleState)
	check := func(when string, copies int64, differ, moving []string) {
		t.Helper()
		r, err := v.Manifest(t.Context())
		must(t, err)
		items := func(ds []verify.CopyDifference) (names []string) {
			for _, d := range ds {
				names = append(names, d.Item)
			}
			return names
		}
		if r.Copies != copies || !slices.Equal(items(r.Differ), differ) || !slices.Equal(items(r.InFlight), moving) {
			t.Errorf("%s: of %d copies differ %v and move %v, want of %d %v and %v", when, r.Copies, items(r.Differ),
				items(r.InFlight), copies, differ, moving)
		}
	}
	check("stored", 10, nil, nil)
	gone := someChange(4)
	gone.Op, gone.Time = pb.Op_OP_DELETE, timestamppb.New(time.Date(2026, 3, 5, 0, 0, 0, 0, time.UTC))
	gone.Id = schemas.ChangeID(gone)
	v.send(gone, someChange(10))
	v.sink(schemas.RoleSink)
	check("the state lags", 11, nil, []string{"item-004", "item-010"})
	v.exec("ALTER TABLE {db}.copy_state DELETE WHERE item = 'item-006' SETTINGS mutations_sync = 2")
	check("the state lags, and lost a copy", 11, []string{"item-006"}, []string{"item-004", "item-010"})
	v.sink(schemas.RoleState)
	check("the state has caught up", 11, []string{"item-006"}, nil)
}

// An unavailable server is an error; one with unusable tables is a precondition.
func TestOpenDB(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		addr         string
		precondition bool
	}{
		"unavailable":  {"127.0.0.1:1", false},
		"not migrated": {clickhousetest.Addr(t), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var cfg config.Config
			cfg.ClickHouse.Addresses, cfg.ClickHouse.Database = []string{tt.addr}, "none_"+schemas.NewID()
			db, err := OpenDB(t.Context(), &cfg, nil)
			if db != nil || err == nil || errors.Is(err, precondition.Err) != tt.precondition {
				t.Errorf("OpenDB = %v, want a precondition: %v", err, tt.precondition)
			}
		})
	}
}
