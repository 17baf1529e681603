package app

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/sweep"
)

const oneMD5 = "00112233445566778899aabbccddeeff"

// swept is an App that can sweep store acme/1, with an in-memory broker, a real ClickHouse, and
// recorded copies.
type swept struct {
	*verified
	a     *App
	begun time.Time
}

func newSwept(t *testing.T, copies int) *swept {
	v := newVerified(t)
	cfg := config.Default()
	cfg.Accounts = []config.Account{{ID: "acme",
		Stores: []config.Store{{ID: "1", Driver: "file", Root: t.TempDir(), Primary: true}}}}
	log := slog.New(slog.DiscardHandler)
	stores, err := newStores(&cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	producer, err := kafka.NewProducer(v.b.Config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	controls, err := kafka.NewControls(v.b.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)
	s := &swept{v, &App{cfg: &cfg, log: log, db: v.db, kafka: v.b.Config(), producer: producer, admin: v.admin,
		stores: stores, controls: controls,
		watermark: v.admin.NewWatermark(schemas.Changes, positionTopics())},
		time.Now().UTC().Truncate(time.Millisecond)}
	for i := range copies {
		c := someChange(i)
		c.Digests, c.Provenance = map[string]string{"md5": oneMD5}, pb.Provenance_PROVENANCE_VERIFIED
		v.send(c)
	}
	v.sink(schemas.RoleSink, schemas.RoleState)
	return s
}

// sweep runs a round that starts some time after the first, and returns the tasks that it
// published.
func (s *swept) sweep(after time.Duration, demand bool) (sweep.Result, []*pb.FixityTask) {
	s.t.Helper()
	n := len(s.b.Bodies(schemas.FixityLow))
	r, err := s.a.SweepFixity(s.t.Context(),
		sweep.Request{Account: "acme", Store: "1", Begun: s.begun.Add(after), Period: 90 * 24 * time.Hour, All: demand})
	if err != nil {
		s.t.Fatal(err)
	}
	var tasks []*pb.FixityTask
	for _, b := range s.b.Bodies(schemas.FixityLow)[n:] {
		tasks = append(tasks, b.(*pb.FixityTask))
	}
	return r, tasks
}

// pass records passed checks of tasks.
func (s *swept) pass(tasks []*pb.FixityTask, at time.Time) {
	s.t.Helper()
	var batch []*schemas.Delivery
	for i, task := range tasks {
		e := &pb.Evidence{State: pb.EvidenceState_EVIDENCE_STATE_DIGESTS, Digests: map[string]string{"md5": oneMD5},
			Provenance: pb.Provenance_PROVENANCE_VERIFIED}
		batch = append(batch, &schemas.Delivery{Topic: schemas.FixityResults, From: schemas.FixityResults, Incarnation: 1,
			Offset: int64(i), Attempt: 1,
			Timestamp: at, Body: &pb.FixityResult{
				Id: schemas.ID("result", task.GetId()), Task: task.GetId(), Account: task.GetAccount(), Store: task.GetStore(),
				Space: task.GetSpace(), Item: task.GetItem(), Reason: task.GetReason(), Verdict: pb.Verdict_VERDICT_PASS, Row: 1,
				Finding: "pass",
				Final:   true, EvidenceLevel: 4, Content: e, Stored: e, Manifest: e, Audit: e, Round: task.GetRound(),
				Started: timestamppb.New(at), Finished: timestamppb.New(at),
			}})
	}
	for _, store := range []kafka.BatchSink{clickhouse.NewSink(s.db), clickhouse.NewState(s.db)} {
		if err := store.Store(s.t.Context(), batch); err != nil {
			s.t.Fatal(err)
		}
	}
}

func baselines(tasks []*pb.FixityTask) (n int) {
	for _, task := range tasks {
		if task.GetBaseline() {
			n++
		}
	}
	return n
}

// A round on demand requests checks of every copy, and is separate from the periodic rounds:
// neither resumes or replaces the other.
func TestSweepOnDemand(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	due, tasks := s.sweep(0, false)
	if len(tasks) != 3 || tasks[0].GetReason() != pb.FixityReason_FIXITY_REASON_SWEEP {
		t.Fatalf("the round that is due asks for %v", tasks)
	}
	s.pass(tasks, s.begun.Add(time.Second))
	for _, after := range []time.Duration{time.Minute, 2 * time.Minute} {
		if r, tasks := s.sweep(after, false); len(tasks) != 0 || r.ID == due.ID {
			t.Errorf("the next round that is due, %v, asks for %v", r, tasks)
		}
	}
	// The process is killed during a periodic round, and one on demand.
	half := func(sweep string, begun time.Time) string {
		id := schemas.ID("half", sweep)
		s.b.Send(schemas.Message{Topic: schemas.Checkpoints,
			Body: &pb.Checkpoint{Id: id, Sweep: sweep, Split: "acme/1", Round: id,
				Started: timestamppb.New(begun), Cursor: []byte(`{"Space":"photos","Item":"item-001"}`),
				Counts: map[string]int64{"1/photos": 2}}})
		return id
	}
	halfDue, halfAsked := half("fixity", s.begun.Add(150*time.Second)), half("fixity.demand", s.begun.Add(-24*time.Hour))
	asked, tasks := s.sweep(3*time.Minute, true)
	if len(tasks) != 3 || asked.Emitted != 3 || asked.ID == halfDue || asked.ID == halfAsked {
		t.Errorf("asked for %+v with %d tasks, want all 3 copies", asked, len(tasks))
	}
	for _, task := range tasks {
		if task.GetReason() != pb.FixityReason_FIXITY_REASON_DEMAND || task.GetRound() != asked.ID {
			t.Errorf("got %v", task)
		}
	}
	again, tasks := s.sweep(3*time.Minute, true)
	if again.ID != asked.ID || again.Emitted != asked.Emitted || len(tasks) != 0 {
		t.Errorf("the same round once more: %+v with %d tasks, want %+v", again, len(tasks), asked)
	}
	if on, _ := s.sweep(4*time.Minute, false); on.ID != halfDue {
		t.Errorf("the round that was due goes on as %+v", on)
	}
}

// empty is a finished round without checks.
func (s *swept) empty(sweep string, after time.Duration) {
	id, begun := schemas.ID("empty", sweep), timestamppb.New(s.begun.Add(after))
	s.b.Send(schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
		Id: id, Sweep: sweep, Split: "acme/1", Round: id, Started: begun, Finished: begun, Baseline: true}})
}

// The first round with checks is the baseline, also when it resumes after a kill. A lost checkpoint
// does not make another one.
func TestBaselineIsTheFirstRound(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(*swept)
		want   int // of 3 tasks
	}{
		"the first one":                                  {func(*swept) {}, 3},
		"the second":                                     {func(s *swept) { s.sweep(-time.Minute, false) }, 0},
		"after one that was asked for":                   {func(s *swept) { s.sweep(-time.Minute, true) }, 0},
		"after one that found nothing":                   {func(s *swept) { s.empty("fixity", -time.Minute) }, 3},
		"after one that was asked for and found nothing": {func(s *swept) { s.empty("fixity.demand", -time.Minute) }, 3},
		"after one that found nothing, all is checked": {func(s *swept) {
			_, tasks := s.sweep(-2*time.Minute, false)
			s.pass(tasks, s.begun.Add(-100*24*time.Hour))
			s.empty("fixity", -time.Minute)
		}, 0},
		"its checkpoint is lost": {func(s *swept) {
			_, tasks := s.sweep(-time.Minute, false)
			s.pass(tasks[:1], s.begun.Add(-100*24*time.Hour))
			s.b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints,
				Key: []byte(schemas.Key("fixity", "acme/1"))}, Partition: -1})
		}, 0},
		"killed in its midst": {func(s *swept) {
			mend := s.b.FailProduce(schemas.FixityLow, kafkatest.Refused, -1)
			defer mend()
			if _, err := s.a.SweepFixity(s.t.Context(),
				sweep.Request{Account: "acme", Store: "1", Begun: s.begun.Add(-time.Minute)}); err == nil {
				s.t.Error("nothing failed")
			}
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSwept(t, 3)
			tt.before(s)
			_, tasks := s.sweep(0, false)
			if got := baselines(tasks); len(tasks) != 3 || got != tt.want {
				t.Errorf("%d of %d tasks are of the baseline, want %d of 3", got, len(tasks), tt.want)
			}
		})
	}
}

// A round over emptied tables fails because they lack records, instead of finding nothing due. It
// resumes when they are filled.
func TestSweepOfEmptiedTables(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"copy_state", "audit_log"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			s := newSwept(t, 3)
			s.exec("TRUNCATE TABLE {db}." + table)
			o := sweep.Request{Account: "acme", Store: "1", Begun: s.begun, Period: 90 * 24 * time.Hour}
			_, err := s.a.SweepFixity(t.Context(), o)
			if retry.ClassOf(err) != retry.ClassUnavailable || !strings.Contains(err.Error(), "millrace rebuild") {
				t.Fatalf("got %v, want that the tables lack records", err)
			}
			if n := len(s.b.Bodies(schemas.FixityLow)); n > 0 {
				t.Errorf("%d tasks before the tables are whole", n)
			}
			if _, err := s.a.Rebuild(t.Context(), Actor{Who: "ann", From: "cli"}, quiet); err != nil {
				t.Fatal(err)
			}
			if _, tasks := s.sweep(0, false); len(tasks) != 3 {
				t.Errorf("%d tasks, want 3", len(tasks))
			}
		})
	}
}

func TestSweepOfAnUnknownStore(t *testing.T) {
	s := newSwept(t, 0)
	if _, err := s.a.SweepFixity(t.Context(), sweep.Request{Account: "acme", Store: "9", Begun: s.begun}); !errors.Is(err,
		precondition.Err) {
		t.Errorf("got %v, want a precondition", err)
	}
}
