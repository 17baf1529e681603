package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/streams/held"
	"github.com/millrace/millrace/streams/incident"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A restored is a site with tables that are emptied and restored.
type restored struct {
	*verified
	app *App
}

func newRestored(t *testing.T) *restored {
	v := newVerified(t)
	p, err := kafka.NewProducer(v.b.Config(), "test")
	must(t, err)
	t.Cleanup(p.Close)
	log := slog.New(slog.DiscardHandler)
	return &restored{v, &App{admin: v.admin, db: v.db, producer: p, log: log, incidentBoard: incident.NewBoard(p, log),
		watermark: v.watermark, kafka: v.b.Config(), cfg: &config.Config{}}}
}

// work publishes and stores n changes and their checks, and an unreadable record.
func (r *restored) work(from, n int) {
	r.t.Helper()
	for i := from; i < from+n; i++ {
		c := someChange(i)
		r.send(c)
		r.b.Send(schemas.Message{Topic: schemas.FixityResults, Body: &pb.FixityResult{
			Id: schemas.ID("result", c.GetId()), Account: c.GetAccount(), Store: c.GetStore(), Space: c.GetSpace(),
			Item:    c.GetItem(),
			Verdict: pb.Verdict_VERDICT_PASS, Row: 1, Final: true, EvidenceLevel: 4,
			Started:  timestamppb.New(c.GetTime().AsTime().Add(time.Hour)),
			Finished: timestamppb.New(c.GetTime().AsTime().Add(time.Hour)),
		}})
	}
	r.b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Changes, Key: []byte("k"),
		Value: []byte("no change")}})
	r.sink(schemas.RoleSink, schemas.RoleState)
}

// lacking returns the gaps by table.
func (r *restored) lacking() string {
	r.t.Helper()
	gaps, err := r.Gaps(r.t.Context())
	must(r.t, err)
	var tables []string
	for _, g := range gaps {
		tables = append(tables, g.Table)
	}
	return strings.Join(slices.Compact(tables), " ")
}

func (r *restored) empty(tables ...string) {
	for _, table := range tables {
		r.exec("TRUNCATE TABLE {db}." + table)
	}
}

func (r *restored) rebuild(ctx context.Context, progress func(step string, done, total int64)) (RebuildResult, error) {
	return r.app.Rebuild(ctx, Actor{Who: "ann", From: "cli"}, progress)
}

// whole reports the differences between topics and tables.
func (r *restored) whole(changes int) {
	r.t.Helper()
	if got := r.lacking(); got != "" {
		r.t.Errorf("%s lack records", got)
	}
	proofs, err := r.Topics(r.t.Context(), []schemas.Topic{schemas.Changes, schemas.FixityResults})
	must(r.t, err)
	for _, p := range proofs {
		if p.Findings() > 0 || p.Pending.Messages > 0 || p.Rows != int64(changes) {
			r.t.Errorf("%s has %d rows, want %d, and %d findings", p.Table, p.Rows, changes, p.Findings())
		}
	}
	m, err := r.Manifest(r.t.Context())
	if err != nil || m.Copies != int64(changes) || len(m.Differ) > 0 {
		r.t.Errorf("the manifest: %+v, %v, want %d copies", m, err, changes)
	}
}

func quiet(string, int64, int64) {}

// Emptied or restored tables are filled, in addition to the rows that the sink has stored since.
func TestRebuild(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	all := []string{"audit_log", "bit_log", "copy_state"}
	r.work(0, 30)
	if got := r.lacking(); got != "" {
		t.Fatalf("at first %s lack records", got)
	}
	for _, table := range all {
		r.exec("CREATE TABLE {db}." + table + "_saved AS {db}." + table)
		r.exec("INSERT INTO {db}." + table + "_saved SELECT * FROM {db}." + table)
	}
	r.work(30, 10)
	losses := map[string]func(){
		"emptied": func() { r.empty(all...) },
		"restored": func() {
			r.empty(all...)
			for _, table := range all {
				r.exec("INSERT INTO {db}." + table + " SELECT * FROM {db}." + table + "_saved")
			}
		},
	}
	if need.Amount(0, 1, 1) > 0 {
		losses["the state alone is emptied"] = func() { r.empty("copy_state") }
	}
	n := 40
	for name, lose := range losses {
		lose()
		lost := r.lacking()
		if lost == "" {
			t.Fatalf("%s: nothing is lacking", name)
		}
		r.work(n, 5) // the sink goes on, and hides nothing
		n += 5
		if got := r.lacking(); got != lost {
			t.Errorf("%s: lacking is %q once the sink has gone on, want %q", name, got, lost)
		}
		ctx, stop := context.WithCancel(t.Context())
		if _, err := r.rebuild(ctx, func(_ string, done, total int64) { stop() }); err == nil && ctx.Err() != nil &&
			r.lacking() != "" {
			t.Errorf("%s: a rebuild that was stopped says that it is done", name)
		}
		stop()
		done, err := r.rebuild(t.Context(), quiet)
		if err != nil || len(done.Lost) > 0 {
			t.Fatalf("%s: Rebuild = %+v, %v", name, done, err)
		}
		r.whole(n)
		if done, err := r.rebuild(t.Context(), quiet); err != nil || len(done.Gaps) > 0 {
			t.Errorf("%s: Rebuild of what is whole = %+v, %v", name, done, err)
		}
	}
}

// A lateSink commits without moving a position, as a sink does that read the position before a gap
// was filled.
type lateSink struct{ topicSink }

func (lateSink) Mark(context.Context, []schemas.Progress) error { return nil }

// Commits of a sink after the last search for gaps, without a moved position, are filled too:
// without further records the sink would not read the position again.
func TestRebuildWaitsForCommits(t *testing.T) {
	t.Parallel()
	need.Integration(t)
	r := newRestored(t)
	r.work(0, 20)
	r.empty("audit_log", "copy_state")
	waits := 0
	done, err := r.rebuild(t.Context(), func(step string, done, _ int64) {
		if step != stepWaitForCommits || done > 0 {
			return
		}
		if waits++; waits > 2 {
			return
		}
		for i := range 5 {
			r.send(someChange(20*waits + i))
		}
		r.store(schemas.RoleSink, lateSink{clickhouse.NewSink(r.db)})
		r.store(schemas.RoleState, lateSink{clickhouse.NewState(r.db)})
	})
	if err != nil || waits != 3 {
		t.Fatalf("Rebuild = %+v, %v, and waited %d times, want 3", done, err, waits)
	}
	if got := r.lacking(); got != "" {
		t.Errorf("%s lack records", got)
	}
	if done, err := r.rebuild(t.Context(), func(step string, _, _ int64) {
		if step == stepWaitForCommits {
			t.Error("it waits though nothing was lacking")
		}
	}); err != nil || len(done.Gaps) > 0 {
		t.Errorf("Rebuild of what is whole = %+v, %v", done, err)
	}
}

// Tables without positions are filled from the starts of their topics, once, up to the committed
// offsets.
func TestRebuildOfTablesWithoutPositions(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	act := func(n int) {
		for i := range n {
			r.b.Send(schemas.Message{Topic: schemas.Admin, Body: &pb.AdminAction{Id: schemas.NewID(), Who: "ann", Action: "test",
				Target: fmt.Sprint(i), Time: timestamppb.Now()}})
		}
	}
	whole := func(after string, rows int64) {
		proofs, err := r.Topics(t.Context(), []schemas.Topic{schemas.Admin})
		must(t, err)
		for _, p := range proofs {
			if p.Findings() > 0 || p.Rows != rows {
				t.Errorf("after %s %s has %d rows, want %d, and %d findings", after, p.Table, p.Rows, rows, p.Findings())
			}
		}
	}
	act(20)
	r.sink(schemas.RoleSink)
	whole("the start", 20)
	for after, lose := range map[string]func(){
		"emptied": func() { r.empty("admin_log") },
		"half of it": func() {
			r.exec("ALTER TABLE {db}.admin_log DELETE WHERE toUInt8(target) % 2 = 0 SETTINGS mutations_sync = 2")
		},
		"nothing is lost": func() {},
	} {
		lose()
		for range 2 {
			if done, err := r.rebuild(t.Context(), quiet); err != nil || len(done.Lost)+len(done.Gaps) > 0 {
				t.Fatalf("after %s: Rebuild = %+v, %v", after, done, err)
			}
			whole(after, 20)
		}
	}
	act(5) // not committed: the sink will store them
	r.empty("admin_log")
	if _, err := r.rebuild(t.Context(), quiet); err != nil {
		t.Fatal(err)
	}
	whole("what is not committed", 20)
}

// Dead letters have two tables, and one position: both tables are filled.
func TestRebuildOfDeadLetters(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	r.work(0, 2)
	rows := func(after string) (all []int64) {
		t.Helper()
		proofs, err := r.Topics(t.Context(), []schemas.Topic{schemas.Dead})
		must(t, err)
		for _, p := range proofs {
			all = append(all, p.Rows)
			if p.Findings() > 0 {
				t.Errorf("after %s there are %d findings in %s", after, p.Findings(), p.Table)
			}
		}
		return all
	}
	before := rows("the start")
	if before[0] == 0 {
		t.Fatal("there is no dead letter")
	}
	for _, table := range []string{"dead_letters", "duplication_log"} {
		r.empty(table)
		if _, err := r.rebuild(t.Context(), quiet); err != nil {
			t.Fatal(err)
		}
		if got := rows(table); !slices.Equal(got, before) || r.lacking() != "" {
			t.Errorf("after %s the tables have %v rows of dead letters, want %v", table, got, before)
		}
	}
}

// Removed dead letters that are not commands have no row in duplication_log; they are lost only if
// dead_letters lacks them too.
func TestRebuildOfTrimmedDeadLetters(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	command, err := schemas.Encode(schemas.Message{Topic: schemas.DuplicationHigh, Body: &pb.DuplicationCommand{
		Id: schemas.ID("command"), Account: "acme", Space: "maps", Item: "i", SourceStore: "1", DestinationStore: "2",
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
	}})
	must(t, err)
	letter := func(origin schemas.Topic, value []byte) {
		t.Helper()
		rec := command
		rec.Topic, rec.Value = schemas.Dead, value
		rec.Headers = append(slices.Clone(rec.Headers), schemas.Header{Key: schemas.HeaderOriginTopic, Value: []byte(origin)},
			schemas.Header{Key: schemas.HeaderRole, Value: []byte(schemas.RoleCopier)})
		r.b.Write(kafkatest.Record{Record: rec, Partition: 0})
	}
	letter(schemas.DuplicationHigh, []byte("no command"))
	letter(schemas.DuplicationResults, []byte("no result"))
	r.work(0, 2) // with a dead letter of the sink
	trim := func() {
		for id, next := range r.b.Committed(schemas.RoleSink, schemas.Dead) {
			r.b.Trim(schemas.Dead, id, next)
		}
	}
	trim()
	lost := func(when string, want ...int64) {
		t.Helper()
		done, err := r.rebuild(t.Context(), quiet)
		must(t, err)
		var got []int64 // lacking of each range
		for _, l := range done.Lost {
			if l.Table != "duplication_log" || l.Topic != schemas.Dead {
				t.Errorf("%s: lost is %+v", when, l)
			}
			got = append(got, l.To-l.From-l.Held)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || r.lacking() != "" {
			t.Errorf("%s: lost are %v (%+v), want %v; %q lack records", when, got, done.Lost, want, r.lacking())
		}
	}
	r.empty("duplication_log")
	lost("letters that are no commands")

	letter(schemas.DuplicationHigh, command.Value)
	r.sink(schemas.RoleSink)
	trim()
	r.empty("duplication_log")
	lost("a command among them", 1)
}

// A table that cannot be filled does not block the others.
func TestRebuildOfWhatCanBeRead(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	r.b.Send(schemas.Message{Topic: schemas.Admin,
		Body: &pb.AdminAction{Id: schemas.NewID(), Who: "ann", Action: "test", Time: timestamppb.Now()}})
	r.work(0, 4)
	r.empty("audit_log", "copy_state")
	mend := r.b.FailFetch(schemas.Admin, kafkatest.Refused, -1)
	done, err := r.rebuild(t.Context(), quiet)
	mend()
	if err == nil || !strings.Contains(err.Error(), "admin_log") || len(done.Gaps) == 0 {
		t.Errorf("Rebuild = %+v, %v, want the gaps filled, and an error", done, err)
	}
	r.whole(4)
}

// Removed records of the state are restored from the logs. Those of a log are lost, which is a
// finding until an operator accepts it.
func TestRebuildWithoutKafka(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	r.work(0, 20)
	for id, next := range r.b.Committed(schemas.RoleSink, schemas.FixityResults) {
		r.b.Trim(schemas.FixityResults, id, next/2)
	}
	r.empty("copy_state")
	done, err := r.rebuild(t.Context(), quiet)
	if err != nil || len(done.Lost) > 0 || len(done.Gaps) == 0 {
		t.Fatalf("Rebuild of the state = %+v, %v", done, err)
	}
	r.whole(20)

	r.empty("bit_log")
	done, err = r.rebuild(t.Context(), quiet)
	if err != nil || len(done.Lost) != 1 {
		t.Fatalf("Rebuild of the bit log = %+v, %v", done, err)
	}
	if got := r.lacking(); got != "" {
		t.Errorf("%s lack records", got)
	}
	findings, err := r.Lost(t.Context())
	if err != nil || fmt.Sprint(findings) != fmt.Sprint(done.Lost) {
		t.Errorf("Lost = %v, %v, want %v", findings, err, done.Lost)
	}
	for _, l := range findings {
		if l.Table != "bit_log" || l.From != 0 || l.To == 0 || l.Held != 0 {
			t.Errorf("lost is %+v", l)
		}
	}
	accepted, err := r.app.AcceptLoss(t.Context(), Actor{Who: "ann", Reason: "a disk died", From: "cli"})
	if err != nil || len(accepted) != 1 {
		t.Errorf("AcceptLoss = %v, %v", accepted, err)
	}
	if findings, err := r.Lost(t.Context()); err != nil || len(findings) > 0 {
		t.Errorf("Lost once it is accepted = %v, %v", findings, err)
	}
	actions := map[string]int{}
	for _, b := range r.b.Bodies(schemas.Admin) {
		a := b.(*pb.AdminAction)
		actions[a.GetAction()+" by "+a.GetWho()+": "+a.GetReason()]++
	}
	if want := map[string]int{"records-lost by ann: ": 1,
		"accept-loss by ann: a disk died": 1}; fmt.Sprint(actions) != fmt.Sprint(want) {
		t.Errorf("actions on record are %v, want %v", actions, want)
	}
}

// Records of a table without positions that were removed before the sink read them are a finding
// until an operator accepts it, even if the group has moved past them. They are one finding,
// independently of restarts of the sink and of partial acknowledgements.
func TestRecordsRemovedBeforeTheSinkRead(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	jobs := func(n int) {
		for i := range n {
			rec, err := schemas.Encode(schemas.Message{Topic: schemas.Jobs,
				Body: &pb.Job{Id: schemas.NewID(), Name: fmt.Sprint(i),
					Started: timestamppb.Now(), Finished: timestamppb.Now()}})
			must(t, err)
			r.b.Write(kafkatest.Record{Record: rec, Partition: 0})
		}
	}
	jobs(5)
	r.work(0, 2)
	jobs(5)
	r.b.Trim(schemas.Jobs, 0, 8)
	sink := func() error {
		t.Helper()
		g, err := kafka.NewBatchGroup(r.b.Config(),
			kafka.BatchConfig{Role: schemas.RoleSink, Topics: clickhouse.NewSink(r.db).Topics(),
				RecordLoss: r.app.recordRemoved}, clickhouse.NewSink(r.db))
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return g.Run(ctx)
	}
	for _, topic := range []schemas.Topic{schemas.Admin, schemas.Incidents} { // not on record, or nothing is said of it
		mend := r.b.FailProduce(topic, kafkatest.Refused, -1)
		if err := sink(); err == nil || !strings.Contains(err.Error(), "open incident") {
			t.Errorf("%s refused: %v", topic, err)
		}
		mend()
	}
	for range 2 {
		if err := sink(); err == nil || strings.Contains(err.Error(), "open incident") {
			t.Errorf("Run = %v", err)
		}
	}
	r.b.ReplaceMembers(schemas.RoleSink, schemas.Jobs, map[int32]int64{0: 8}) // as the error says
	r.sink(schemas.RoleSink)
	lost, err := r.Lost(t.Context())
	if err != nil || len(lost) != 1 || lost[0].String() != "job_log lacks offsets 5 to 7 of jobs, partition 0" ||
		lost[0].Incarnation == 0 {
		t.Fatalf("Lost = %v, %v, want offsets 5 to 7 of jobs", lost, err)
	}
	if _, err := r.app.AcceptLoss(t.Context(), Actor{Who: "ann", Reason: "known", From: "cli"}); err != nil {
		t.Fatal(err)
	}
	if lost, err := r.Lost(t.Context()); err != nil || len(lost) > 0 {
		t.Errorf("Lost once it is accepted = %v, %v", lost, err)
	}
}

// A loss names the lists that keep copies because of what was held in it: they keep nothing any more.
func TestLossNamesListsThatKeep(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	for i := range 4 {
		r.b.Send(schemas.Message{Topic: schemas.DuplicationResults, Body: &pb.DuplicationResult{
			Id: schemas.NewID(), Command: schemas.NewID(), Account: "acme", Space: "maps", Item: fmt.Sprint(i),
			SourceStore: "1", DestinationStore: "2", Decision: "C2", Result: "awaiting-approval", List: "brake-1",
			Outcome: pb.Outcome_OUTCOME_NOTHING, Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE,
			Started: timestamppb.Now(), Finished: timestamppb.Now()}})
	}
	r.sink(schemas.RoleSink)
	e, err := r.admin.Extent(t.Context(), schemas.DuplicationResults)
	must(t, err)
	list := held.List{Space: schemas.Copy{Account: "acme", Store: "2", Space: "maps"}, Kind: held.Limit, Number: 1}
	decided := Actor{Who: "ann", Reason: "keep", From: "cli"}.action(held.ActionClose, listSubject(list).Key())
	decided.Account, decided.Space, decided.Store = "acme", "maps", "2"
	decided.After = schemas.Seen{Incarnation: e.Incarnation, Ends: e.Ends}.String()
	r.b.Send(schemas.Message{Topic: schemas.Admin, Body: decided})
	for id, end := range e.Ends {
		r.b.Trim(schemas.DuplicationResults, id, end)
	}
	r.empty("duplication_log")
	done, err := r.rebuild(t.Context(), quiet)
	if err != nil || len(done.Lost) == 0 {
		t.Fatalf("Rebuild = %+v, %v, want losses", done, err)
	}
	for _, l := range done.Lost {
		if fmt.Sprint(l.Lists) != "[brake-1 of acme/2/maps]" {
			t.Errorf("%s is a loss of %v", l, l.Lists)
		}
	}
}

// An accepted loss that grows, or is found again, is a finding again.
func TestLossThatGrowsAfterItWasAccepted(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	r.work(0, 20)
	for id, next := range r.b.Committed(schemas.RoleSink, schemas.FixityResults) {
		r.b.Trim(schemas.FixityResults, id, next/2)
	}
	for _, tt := range []struct {
		name string
		lose func()
		held int64
	}{
		{"a row", func() {
			r.exec("ALTER TABLE {db}.bit_log DELETE WHERE position != 0 OR off = 0 SETTINGS mutations_sync = 2")
		}, 9},
		{"the table", func() { r.empty("bit_log") }, 0},
		{"the table once more", func() { r.empty("bit_log") }, 0},
	} {
		tt.lose()
		done, err := r.rebuild(t.Context(), quiet)
		if err != nil || len(done.Lost) != 1 || done.Lost[0].Held != tt.held {
			t.Fatalf("%s: Rebuild = %+v, %v, want a loss of which %d are held", tt.name, done, err, tt.held)
		}
		if findings, err := r.Lost(t.Context()); err != nil || fmt.Sprint(findings) != fmt.Sprint(done.Lost) {
			t.Errorf("%s: Lost = %v, %v, want %v", tt.name, findings, err, done.Lost)
		}
		if _, err := r.app.AcceptLoss(t.Context(), Actor{Who: "ann", Reason: "a disk died", From: "cli"}); err != nil {
			t.Fatal(err)
		}
		if findings, err := r.Lost(t.Context()); err != nil || len(findings) > 0 {
			t.Errorf("%s: Lost once it is accepted = %v, %v", tt.name, findings, err)
		}
	}
}

// A state from a log with missing rows is incomplete, and the missing part is lost.
func TestRebuildOfTheStateFromALogThatLacksRows(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	r.work(0, 20) // a change that is a dead letter among them
	for _, topic := range []schemas.Topic{schemas.Changes, schemas.FixityResults} {
		for id, next := range r.b.Committed(schemas.RoleSink, topic) {
			r.b.Trim(topic, id, next)
		}
	}
	r.exec("ALTER TABLE {db}.bit_log DELETE WHERE position = 0 AND off < 5 SETTINGS mutations_sync = 2")
	r.empty("copy_state")
	stopped, stop := context.WithCancel(t.Context())
	_, _ = r.rebuild(stopped, func(string, int64, int64) { stop() })
	stop()
	done, err := r.rebuild(t.Context(), quiet)
	if err != nil || len(done.Lost) != 1 {
		t.Fatalf("Rebuild = %+v, %v, want one range of the state lost", done, err)
	}
	if l := done.Lost[0]; l.Table != "copy_state" || l.Topic != schemas.FixityResults || l.From != 0 || l.To != 20 ||
		l.Held != 15 {
		t.Errorf("lost is %+v", l)
	}
	if got := r.lacking(); got != "" {
		t.Errorf("%s lack records", got)
	}
}

// Rebuild returns a loss until it is accepted.
func TestRebuildReturnsWhatIsLostUntilItIsAccepted(t *testing.T) {
	t.Parallel()
	need.Integration(t)
	r := newRestored(t)
	r.work(0, 4)
	for id, next := range r.b.Committed(schemas.RoleSink, schemas.FixityResults) {
		r.b.Trim(schemas.FixityResults, id, next)
	}
	r.empty("bit_log")
	for n := range 2 {
		if done, err := r.rebuild(t.Context(), quiet); err != nil || len(done.Lost) != 1 {
			t.Errorf("Rebuild %d = %+v, %v, want one range lost", n, done, err)
		}
	}
	if _, err := r.app.AcceptLoss(t.Context(), Actor{Who: "ann", Reason: "a disk died", From: "cli"}); err != nil {
		t.Fatal(err)
	}
	if done, err := r.rebuild(t.Context(), quiet); err != nil || len(done.Lost) > 0 {
		t.Errorf("Rebuild once it is accepted = %+v, %v", done, err)
	}
}

// Records that Kafka removes during a rebuild are lost like those removed before, whenever the
// rebuild is killed.
func TestRebuildWhileKafkaRemovesRecords(t *testing.T) {
	t.Parallel()
	need.Full(t)
	r := newRestored(t)
	r.work(0, 20)
	for id, next := range r.b.Committed(schemas.RoleSink, schemas.FixityResults) {
		r.b.Trim(schemas.FixityResults, id, next/4)
	}
	for _, tt := range []struct {
		name  string
		upTo  int64 // is removed once the rebuild knows where the log starts
		kills int
	}{{"some of it", 10, 0}, {"killed twice", 16, 2}, {"all of it", 20, 0}} {
		r.empty("bit_log", "copy_state")
		lost := map[int64]bool{}
		for kill := range tt.kills + 1 {
			ctx, stop := context.WithCancel(t.Context())
			steps := 0
			done, err := r.rebuild(ctx, func(string, int64, int64) {
				r.b.Trim(schemas.FixityResults, 0, tt.upTo)
				if steps++; kill < tt.kills && steps > kill {
					stop()
				}
			})
			stop()
			if kill == tt.kills && err != nil {
				t.Fatalf("%s: Rebuild = %v", tt.name, err)
			}
			for _, l := range done.Lost {
				for off := l.From; off < l.To; off++ {
					lost[off] = true
				}
			}
		}
		if got := r.lacking(); got != "" {
			t.Errorf("%s: %s lack records", tt.name, got)
		}
		if len(lost) != int(tt.upTo) {
			t.Errorf("%s: %d offsets are named as lost, want %d", tt.name, len(lost), tt.upTo)
		}
	}
}

// Rows of a deleted topic that the tables lack are restored from the logs, or reported as lost.
func TestRebuildAfterATopicWasMadeAnew(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after, positions bool // there are records in the new log; the tables had positions when the old one was there
		kill             bool
	}{
		"with records":                    {after: true, positions: true},
		"with records, killed on the way": {after: true, positions: true, kill: true},
		"with records, older":             {after: true},
		"without records":                 {positions: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRestored(t)
			r.t = t
			r.work(0, 10)
			want := 10
			r.b.Recreate(schemas.Changes, 1)
			if !tt.positions {
				r.exec("DELETE FROM {db}.audit_log WHERE position > 0")
				r.exec("DELETE FROM {db}.copy_state WHERE position > 0 AND store = 'changes'")
			}
			if tt.after {
				r.work(10, 5)
				want = 15
			}
			if got := r.lacking(); got != "" {
				t.Errorf("at first %s lack records", got)
			}
			r.empty("copy_state")
			if got := r.lacking(); got != "copy_state" {
				t.Errorf("%q lack records, want copy_state", got)
			}
			kept, err := r.app.gapStarts(t.Context())
			if err != nil || len(kept[schemas.Changes]) > 0 != tt.after {
				t.Errorf("the trimmer keeps %v, %v: Kafka has nothing of the former log", kept[schemas.Changes], err)
			}
			if tt.kill {
				ctx, stop := context.WithCancel(t.Context())
				_, _ = r.rebuild(ctx, func(string, int64, int64) { stop() })
				stop()
			}
			done, err := r.rebuild(t.Context(), quiet)
			if err != nil || len(done.Lost) > 0 {
				t.Fatalf("Rebuild = %+v, %v", done, err)
			}
			m, err := r.Manifest(t.Context())
			if err != nil || m.Copies != int64(want) || len(m.Differ) > 0 || r.lacking() != "" {
				t.Errorf("the manifest: %+v, %v, want %d copies", m, err, want)
			}
			if !tt.positions {
				return
			}
			r.empty("audit_log")
			done, err = r.rebuild(t.Context(), quiet)
			if err != nil || len(done.Lost) != 1 || done.Lost[0].To != 11 || r.lacking() != "" {
				t.Errorf("Rebuild of the log = %+v, %v, want offsets 0 to 10 of the former log lost", done, err)
			}
		})
	}
}

// One incident is open for each table that lacks records, from the time when a sink or a reader
// finds that until they are stored.
func TestIncidentOfTablesBehind(t *testing.T) {
	t.Parallel()
	r := newRestored(t)
	r.work(0, 4)
	ctx := t.Context()
	open := func() (tables []string) {
		for _, s := range r.app.incidentBoard.OpenOf(incident.RecordsBehind) {
			tables = append(tables, s.Name)
		}
		return tables
	}
	look := func() {
		t.Helper()
		gaps, err := r.app.findGaps(ctx)
		must(t, err)
		r.app.reportAllGaps(ctx, gaps)
	}
	if look(); len(open()) > 0 {
		t.Errorf("%v are behind at first", open())
	}
	r.empty("audit_log")
	look()
	look()
	if got := open(); !slices.Equal(got, []string{"audit_log"}) {
		t.Errorf("%v are behind, want audit_log", got)
	}
	if _, err := r.rebuild(ctx, quiet); err != nil {
		t.Fatal(err)
	}
	if look(); len(open()) > 0 {
		t.Errorf("%v are behind after a rebuild", open())
	}
	var steps []string
	for _, b := range r.b.Bodies(schemas.Incidents) {
		i := b.(*pb.Incident)
		steps = append(steps, i.GetSteps()[len(i.GetSteps())-1].GetAction())
	}
	if !slices.Equal(steps, []string{"opened", "closed"}) {
		t.Errorf("the incident's records are %q", steps)
	}
}
