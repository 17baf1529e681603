package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/schedule"
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

func newSwept(t *testing.T, copies int) *swept { return newSweptBehind(t, copies, 0) }

// newSweptBehind is newSwept with a broker whose clock is behind.
func newSweptBehind(t *testing.T, copies int, behind time.Duration) *swept {
	v := newVerifiedBehind(t, behind)
	cfg := config.Default()
	cfg.Accounts = []config.Account{{ID: "acme",
		Stores: []config.Store{{ID: "1", Driver: "file", Root: t.TempDir(), Primary: true}}}}
	log := slog.New(slog.DiscardHandler)
	stores, err := newStores(&cfg, log)
	must(t, err)
	producer, err := kafka.NewProducer(v.b.Config(), "test")
	must(t, err)
	controls, err := kafka.NewControls(v.b.Config())
	must(t, err)
	t.Cleanup(producer.Close)
	if err := stores.init(t.Context(), StoreName{"acme", "1"}); err != nil {
		t.Fatal(err)
	}
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

// sweep runs a round that starts some time after the first until it waits for results, and returns the tasks that it
// published.
func (s *swept) sweep(after time.Duration, demand bool) (FixityRound, []*pb.FixityTask) {
	s.t.Helper()
	topic := schemas.FixityLow
	if demand {
		topic = schemas.FixityHigh
	}
	n := len(s.b.Bodies(topic))
	all, err := s.a.SweepFixity(s.t.Context(), FixityRequest{Account: "acme", Store: "1", Begun: s.begun.Add(after),
		All: demand, Detach: true})
	if err != nil || len(all) != 1 {
		s.t.Fatal(all, err)
	}
	var tasks []*pb.FixityTask
	for _, b := range s.b.Bodies(topic)[n:] {
		tasks = append(tasks, b.(*pb.FixityTask))
	}
	return all[0], tasks
}

// pass records passed checks of tasks, which the checker has handled.
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
				Cause: task.GetCause(), BytesRead: task.GetKnown().GetManifest().GetSize(),
				Started: timestamppb.New(at), Finished: timestamppb.New(at),
			}})
	}
	for _, store := range []kafka.BatchSink{clickhouse.NewSink(s.db), clickhouse.NewState(s.db)} {
		must(s.t, store.Store(s.t.Context(), batch))
	}
	for _, topic := range []schemas.Topic{schemas.FixityHigh, schemas.FixityLow, schemas.FixityLarge} {
		ends, err := s.a.admin.EndOffsets(s.t.Context(), topic)
		must(s.t, err)
		s.b.ReplaceMembers(schemas.RoleChecker, topic, ends) // the checker has handled the tasks
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
	for range 2 { // once more, it does nothing
		if err := s.a.EndFixity(t.Context(), []FixityRound{due}, false); err != nil {
			t.Fatal(err)
		}
	}
	reports := s.b.Bodies(schemas.Reports)
	r, _ := reports[0].(*pb.Report)
	if c := r.GetCounts(); len(reports) != 1 || r.GetRound() != due.ID || !r.GetComplete() || c["pass"] != 3 ||
		c["live"] != 3 || c["verified"] != 3 {
		t.Errorf("with all results: reported %v", reports)
	}
	for _, after := range []time.Duration{time.Minute, 2 * time.Minute} {
		if r, tasks := s.sweep(after, false); len(tasks) != 0 || r.ID == due.ID {
			t.Errorf("the next round that is due, %v, asks for %v", r, tasks)
		}
	}
	// The process is killed during a periodic round, and one on demand.
	half := func(sweep string, begun time.Time) string {
		id := schemas.ID("half", sweep)
		s.b.Send(schemas.Message{Topic: schemas.Checkpoints,
			Body: &pb.Checkpoint{Id: id, Sweep: sweep, Split: "acme/1/photos", Round: id,
				Started: timestamppb.New(begun), Cursor: []byte(`{"Item":"item-001","Requested":2}`),
				Counts: map[string]int64{"requested": 2}}})
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

// ended is a round that has ended, with a number of checks.
func (s *swept) ended(sweep string, after time.Duration, checks int64) {
	id, begun := schemas.ID("ended", sweep), timestamppb.New(s.begun.Add(after))
	s.b.Send(schemas.Message{Topic: schemas.Checkpoints, Body: &pb.Checkpoint{
		Id: id, Sweep: sweep, Split: "acme/1/photos", Round: id, Started: begun, Finished: begun, Baseline: true,
		Counts: map[string]int64{"requested": checks}}})
}

// The first round with checks is the baseline, also when it resumes after a kill. A lost checkpoint
// does not make another one.
func TestBaselineIsTheFirstRound(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(*swept)
		want   int // of 3 tasks
	}{
		"the first one":                                  {func(*swept) {}, 3},
		"the second":                                     {func(s *swept) { s.ended("fixity", -time.Minute, 3) }, 0},
		"after one that was asked for":                   {func(s *swept) { s.sweep(-time.Minute, true) }, 0},
		"after one that found nothing":                   {func(s *swept) { s.ended("fixity", -time.Minute, 0) }, 3},
		"after one that was asked for and found nothing": {func(s *swept) { s.ended("fixity.demand", -time.Minute, 0) }, 3},
		"after one that found nothing, all is checked": {func(s *swept) {
			_, tasks := s.sweep(-2*time.Minute, false)
			s.pass(tasks, s.begun.Add(-100*24*time.Hour))
			s.ended("fixity", -time.Minute, 0)
		}, 0},
		"its checkpoint is lost": {func(s *swept) {
			_, tasks := s.sweep(-time.Minute, false)
			s.pass(tasks[:1], s.begun.Add(-100*24*time.Hour))
			s.b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints,
				Key: []byte(schemas.Key("fixity", "acme/1/photos"))}, Partition: -1})
		}, 0},
		"killed in its midst": {func(s *swept) {
			mend := s.b.FailProduce(schemas.FixityLow, kafkatest.Refused, -1)
			defer mend()
			if _, err := s.a.SweepFixity(s.t.Context(),
				FixityRequest{Account: "acme", Store: "1", Begun: s.begun.Add(-time.Minute)}); err == nil {
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

// The status of a fixity round has its bytes and, once all checks are requested, the share of those with a result.
func TestStatusOfAFixityRound(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	of := func() (got SplitStatus) {
		all, err := s.a.SweepStatus(t.Context())
		must(t, err)
		for _, split := range all {
			if split.Sweep == "fixity" && split.Space == "photos" {
				got = split
			}
		}
		return got
	}
	_, tasks := s.sweep(-time.Minute, false)
	if got := of(); got.Bytes != 21 || got.Compared != 3 || got.Share != 0 || !got.End(time.Now()).IsZero() ||
		!got.Next.After(time.Now()) {
		t.Errorf("without results: got %+v", got)
	}
	s.pass(tasks[:1], time.Now())
	if got := of(); got.Share != 1./3 || !got.End(time.Now()).After(time.Now()) {
		t.Errorf("with one result: got %+v", got)
	}
}

// A checkpoint that is lost after a round is missed: the next round says so, and is no second baseline.
func TestSweepWithoutItsCheckpoint(t *testing.T) {
	t.Parallel()
	s, lines := newSwept(t, 3), &logtest.Lines{}
	s.a.log = lines.Log()
	first, tasks := s.sweep(-time.Minute, false)
	s.pass(tasks, s.begun.Add(-30*time.Second))
	if err := s.a.EndFixity(t.Context(), []FixityRound{first}, false); err != nil {
		t.Fatal(err)
	}
	s.sink(schemas.RoleSink)
	if n := lines.Count("the checkpoint is lost"); n != 0 || !first.Baseline {
		t.Errorf("the first round is %+v: %v", first, lines)
	}
	s.b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints,
		Key: []byte(schemas.Key("fixity", "acme/1/photos"))}, Partition: -1})
	if second, _ := s.sweep(0, false); second.Baseline || lines.Count("the checkpoint is lost") != 1 {
		t.Errorf("the second round is %+v: %v", second, lines)
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
			o := FixityRequest{Account: "acme", Store: "1", Begun: s.begun}
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
	if _, err := s.a.SweepFixity(t.Context(), FixityRequest{Account: "acme", Store: "9", Begun: s.begun}); !errors.Is(err,
		precondition.Err) {
		t.Errorf("got %v, want a precondition", err)
	}
}

// An unfinished round that an operator skips ends when somebody would continue it, and the next one is another.
func TestSkipRounds(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	first, _ := s.sweep(0, false)
	by := Actor{Who: "ann", Reason: "a test", From: "cli"}
	if skipped, err := s.a.SkipRounds(t.Context(), SkipRequest{Sweep: "reconcile"}, by); err != nil || len(skipped) != 0 {
		t.Errorf("of another sweep: %v, %v", skipped, err)
	}
	skipped, err := s.a.SkipRounds(t.Context(), SkipRequest{Sweep: "fixity", Store: "1", Space: "photos"}, by)
	if err != nil || len(skipped) != 1 || skipped[0].Round != first.ID {
		t.Fatalf("skipped %v, %v", skipped, err)
	}
	if ended, tasks := s.sweep(time.Minute, false); ended.ID != first.ID || len(tasks) != 0 || ended.Finished.IsZero() {
		t.Errorf("goes on as %+v with %d tasks", ended, len(tasks))
	}
	if n := len(s.b.Bodies(schemas.Reports)); n != 0 {
		t.Errorf("%d reports", n)
	}
	if next, tasks := s.sweep(2*time.Minute, false); next.ID == first.ID || len(tasks) != 3 {
		t.Errorf("the next round is %+v with %d tasks", next, len(tasks))
	}
}

// A round that is not scheduled goes on while it waits for results, and is ended when it was abandoned or skipped.
func TestOtherRounds(t *testing.T) {
	s := newSwept(t, 0)
	s.a.skippedRounds.apply(&pb.AdminAction{Action: actionSkipRound, Target: "skipped", Who: "ann", Reason: "a test"})
	const waits, requests = `{"Item":"a","Requested":2,"Waiting":"2026-03-01T12:00:00Z"}`, `{"Item":"a","Requested":2}`
	for name, tt := range map[string]struct {
		sweep, store, round, cursor string
		age                         int // of the checkpoint, in hours
		// off: the sweep has no schedule; excluded: the space is not selected; ended: so has the round
		off, excluded, ended bool
		want                 string // "", waits or ends
	}{
		"scheduled, waits":             {"fixity", "1", "r", waits, 1, false, false, false, "waits"},
		"scheduled, requests":          {"fixity", "1", "r", requests, 1000, false, false, false, ""},
		"scheduled, skipped":           {"fixity", "1", "skipped", requests, 1, false, false, false, "ends"},
		"of another sweep, skipped":    {"reconcile.demand", "1", "skipped", requests, 0, false, false, false, "ends"},
		"by hand, waits":               {"fixity.demand", "1", "r", waits, 1, false, false, false, "waits"},
		"by hand, requests":            {"fixity.demand", "1", "r", requests, 1, false, false, false, ""},
		"by hand, abandoned":           {"fixity.demand", "1", "r", requests, 25, false, false, false, "ends"},
		"by hand, skipped":             {"fixity.demand", "1", "skipped", requests, 0, false, false, false, "ends"},
		"schedule off, waits":          {"fixity", "1", "r", waits, 1, true, false, false, "waits"},
		"schedule off, abandoned":      {"fixity", "1", "r", requests, 25, true, false, false, "ends"},
		"space excluded, abandoned":    {"fixity", "1", "r", requests, 25, false, true, false, "ends"},
		"of a removed store, requests": {"fixity", "9", "r", requests, 25, false, false, false, "ends"},
		"has ended":                    {"fixity.demand", "1", "r", waits, 25, false, false, true, ""},
		"of another sweep":             {"reconcile", "1", "r", requests, 25, true, false, false, ""},
	} {
		now := time.Now()
		s.a.cfg.Sweep.Fixity, s.a.cfg.Sweep.Spaces.Fixity.Exclude = config.Default().Sweep.Fixity, nil
		if tt.off {
			s.a.cfg.Sweep.Fixity = schedule.Schedule{}
		}
		if tt.excluded {
			s.a.cfg.Sweep.Spaces.Fixity.Exclude = []string{"*/1/ph*"}
		}
		at := timestamppb.New(now.Add(-time.Duration(tt.age) * time.Hour))
		c := &pb.Checkpoint{Sweep: tt.sweep, Split: schemas.Key("acme", tt.store, "photos"), Round: tt.round,
			Cursor: []byte(tt.cursor), Started: at, Time: at}
		if tt.ended {
			c.Finished = timestamppb.Now()
		}
		splits, err := s.a.otherRounds([]*pb.Checkpoint{c}, now)
		got := ""
		for _, m := range splits {
			if got = "waits"; m.Skip != "" {
				got = "ends"
			}
			if m.Only != tt.round || m.Due(c, now) {
				t.Errorf("%s: another round may begin: %+v", name, m)
			}
		}
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
}

// A schedule that an operator has set to off ends no round under way, however long it is off. One of the settings does.
func TestSetOffEndsNoRound(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 0)
	now := time.Now()
	at := timestamppb.New(now.Add(-10 * abandonedAge))
	c := &pb.Checkpoint{Sweep: sweep.FixitySweep, Split: schemas.Key("acme", "1", "photos"), Round: "r",
		Cursor: []byte(`{"Item":"a","Requested":2}`), Started: at, Time: at}
	for n, tt := range []struct {
		set, configured string // set: "" is none
		ended           bool
	}{
		{"off", "every 1d", false}, {"off", "off", false}, {"every 1d", "off", false}, {"", "every 1d", false},
		{"", "off", true},
	} {
		s.a.cfg.Sweep.Fixity = schedule.MustParse(tt.configured)
		s.a.applySchedule(&pb.AdminAction{Id: tt.set, Action: actionSetSchedule, Target: sweep.FixitySweep,
			After: tt.set}, now.Add(time.Duration(n)))
		if splits, err := s.a.otherRounds([]*pb.Checkpoint{c}, now); err != nil || (len(splits) > 0) != tt.ended {
			t.Errorf("%+v: got %v, %v", tt, splits, err)
		}
	}
}

// Spaces that sweep.spaces leaves out have no scheduled rounds, and their splits are listed as excluded.
func TestSweepSpaces(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 1)
	s.a.cfg.Sweep.Spaces.Fixity.Exclude = []string{"*/1/ph*"}
	s.a.cfg.Sweep.Spaces.Groups.Exclude = []string{"acme"}
	w := sweeping{controls: s.a.controls, budgets: s.a.newBudgets(nil)}
	list := func() ([]sweep.Split, error) {
		return s.a.spaceSplits(w, s.a.fixitySweep(w, newSpaceLists()))(t.Context())
	}
	if splits, err := list(); err != nil || len(splits) != 0 {
		t.Errorf("got %v, %v, want none", splits, err)
	}
	all, err := s.a.SweepStatus(t.Context())
	must(t, err)
	states := map[string]string{}
	for _, split := range all {
		states[split.Sweep+" "+split.Space] = split.State
	}
	if states["fixity photos"] != SplitExcluded || states["groups photos"] != SplitExcluded ||
		states["reconcile photos"] != SplitNever {
		t.Errorf("got %v", states)
	}
	s.a.cfg.Sweep.Spaces.Fixity.Exclude = nil
	if splits, err := list(); err != nil || len(splits) != 1 ||
		splits[0].Name != "acme/1/photos" {
		t.Errorf("without a filter: got %v, %v", splits, err)
	}
}

// While a store does not answer, the scheduled rounds request nothing of it. Those by hand do: the host of the command
// may have no access to it.
func TestSweepWhileAStoreIsAway(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	w := sweeping{controls: s.a.controls, budgets: s.a.newBudgets(nil)}
	scheduled, err := s.a.spaceSplits(w, s.a.fixitySweep(w, newSpaceLists()))(t.Context())
	if err != nil || len(scheduled) != 1 {
		t.Fatalf("%d splits, %v", len(scheduled), err)
	}
	by := FixityRequest{Account: "acme", Store: "1", Begun: s.begun.Add(time.Hour), All: true, Detach: true}
	root := s.a.cfg.Accounts[0].Stores[0].Root
	for _, tt := range []struct {
		name     string
		from, to string
		want     error
		tasks    int
	}{
		{"away", root, root + ".away", sweep.ErrNotNow, 3},
		{"back", root + ".away", root, nil, 3},
	} {
		must(t, os.Rename(tt.from, tt.to))
		err := errors.New("not asked")
		// The breaker opens, and closes.
		for begun := time.Now(); !errors.Is(err, tt.want) && time.Since(begun) < time.Minute; {
			s.a.answers.byStore = nil // what the store has answered is too old
			err = scheduled[0].Blocked(t.Context())
			<-time.After(100 * time.Millisecond)
		}
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: a scheduled round: %v, want %v", tt.name, err, tt.want)
		}
		if _, err := s.a.SweepFixity(t.Context(), by); err != nil {
			t.Errorf("%s: a round by hand: %v", tt.name, err)
		}
		if got := len(s.b.Bodies(schemas.FixityHigh)) + len(s.b.Bodies(schemas.FixityLow)); got != tt.tasks {
			t.Errorf("%s: %d tasks, want %d", tt.name, got, tt.tasks)
		}
	}
	if jobs := s.b.Bodies(schemas.Jobs); len(jobs) > 0 {
		t.Errorf("the absence is a failure: %v", jobs)
	}
}

// While incident store-unavailable is open, no round by hand begins. One with All, or over some items, that has begun
// waits until the store answers: no other command would continue it.
func TestSweepByHandWhileAStoreIsAway(t *testing.T) {
	t.Parallel()
	stores := openTestStores(t, t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		a := &App{stores: stores, log: slog.New(slog.DiscardHandler)}
		w := sweeping{board: incident.NewBoard(new(publishedIncidents), a.log), controls: new(client.Controls)}
		about := incident.Subject{Account: "acme", Store: "a", Kind: incident.StoreUnavailable}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		for name, tt := range map[string]struct {
			all, some, waits bool
		}{"scheduled": {}, "all": {true, false, true}, "some": {false, true, true}} {
			r := sweep.Request{Account: "acme", Store: "a", All: tt.all, Some: tt.some}
			blocked := a.availableByHand(w, r, new(atomic.Bool))
			must(w.board.Open(t.Context(), about, "it is away"))
			if err := blocked(t.Context()); !errors.Is(err, sweep.ErrNotNow) {
				t.Errorf("%s: it begins: %v", name, err)
			}
			must(w.board.Close(t.Context(), about, "it is back"))
			must(blocked(t.Context()))
			must(w.board.Open(t.Context(), about, "it is away"))
			begun := time.Now()
			time.AfterFunc(time.Hour, func() { _ = w.board.Close(t.Context(), about, "it is back") })
			err := blocked(t.Context())
			waited := time.Since(begun) >= time.Hour
			if waited != tt.waits || errors.Is(err, sweep.ErrNotNow) == tt.waits || tt.waits && err != nil {
				t.Errorf("%s: after %v: %v", name, time.Since(begun), err)
			}
			time.Sleep(2 * time.Hour)
			must(w.board.Open(t.Context(), about, "it is away"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := blocked(ctx); err == nil || errors.Is(err, sweep.ErrNotNow) == tt.waits {
				t.Errorf("%s: interrupted: %v", name, err)
			}
			cancel()
			must(w.board.Close(t.Context(), about, "it is back"))
		}
	})
}

// What a store has answered counts for all of its splits for a while, also an error. An answer that was not waited for
// does not count.
func TestAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, away := StoreName{"acme", "1"}, errors.New("away")
		m, l := &countedMarker{err: away}, &answers{}
		ask := func(ctx context.Context, want error, asked int) {
			t.Helper()
			if err := l.of(ctx, n, m); !errors.Is(err, want) || m.asked != asked {
				t.Errorf("got %v after %d requests, want %v after %d", err, m.asked, want, asked)
			}
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		ask(cancelled, away, 1)
		ask(t.Context(), away, 2)
		m.err = nil
		time.Sleep(markerAge - time.Millisecond)
		ask(t.Context(), away, 2)
		time.Sleep(time.Millisecond)
		ask(t.Context(), nil, 3)
		m.err = away
		ask(t.Context(), nil, 3)
	})
}

type countedMarker struct {
	asked int
	err   error
}

func (m *countedMarker) Marker(context.Context) error {
	m.asked++
	return m.err
}

// A dry run counts what a round would request or find, and publishes nothing.
func TestDryRunOfSweeps(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	if err := InitStore(t.Context(), s.a.cfg, s.a.log, StoreName{"acme", "1"}); err != nil {
		t.Fatal(err)
	}
	published := func() (n int) {
		for _, topic := range []schemas.Topic{schemas.Checkpoints, schemas.Jobs, schemas.Reports, schemas.FixityLow,
			schemas.Changes, schemas.Incidents} {
			n += len(s.b.Read(topic))
		}
		return n
	}
	before := published()
	fixity, err := s.a.SweepFixity(t.Context(), FixityRequest{Account: "acme", Store: "1", Begun: s.begun, DryRun: true})
	if err != nil || len(fixity) != 1 || fixity[0].Emitted != 3 || fixity[0].Counts[sweep.RequestedBytes] != 21 {
		t.Errorf("fixity: %+v, %v", fixity, err)
	}
	reconciled, err := s.a.SweepReconcile(t.Context(),
		ReconcileRequest{SpacesRequest: SpacesRequest{Begun: s.begun, DryRun: true}})
	if err != nil || len(reconciled) != 1 || reconciled[0].Counts["inconclusive"] != 3 {
		t.Errorf("reconcile: %+v, %v", reconciled, err)
	}
	if n := published(); n != before {
		t.Errorf("%d records were published", n-before)
	}
}

// A space may have another period than the rest.
func TestPeriodOfASpace(t *testing.T) {
	t.Parallel()
	s := newSwept(t, 3)
	_, tasks := s.sweep(-time.Minute, true)
	s.pass(tasks, s.begun.Add(-10*24*time.Hour))
	s.ended("fixity", -time.Minute, 3)
	if _, tasks := s.sweep(0, false); len(tasks) != 0 {
		t.Errorf("after ten of 90 days %d copies are due", len(tasks))
	}
	s.a.cfg.Fixity.Periods = []config.SpacePeriod{{Spaces: "acme/2", Period: time.Hour},
		{Spaces: "*/*/photos", Period: 9 * 24 * time.Hour}, {Spaces: "acme", Period: 900 * 24 * time.Hour}}
	if _, tasks := s.sweep(time.Minute, false); len(tasks) != 3 {
		t.Errorf("after ten of nine days %d copies are due", len(tasks))
	}
}
