package clickhouse_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/read"
	"github.com/millrace/millrace/streams/retry"
)

// progress returns the Progress of partition 3 of a log, read from an offset on.
func progress(topic schemas.Topic, inc uint32, from, next int64) schemas.Progress {
	return schemas.Progress{Topic: topic, Incarnation: inc, Partition: 3, From: from, Next: next}
}

// committed returns the committed offset of both groups in changes.
func committed(inc uint32, next int64) map[schemas.Role][]schemas.Progress {
	p := []schemas.Progress{progress(schemas.Changes, inc, 0, next)}
	return map[schemas.Role][]schemas.Progress{schemas.RoleSink: p, schemas.RoleState: p}
}

// gapsOf returns the gaps of the tables if changes are committed up to next.
func gapsOf(t testing.TB, db *clickhouse.DB, inc uint32, next int64) (all []string) {
	t.Helper()
	gaps, err := clickhouse.Gaps(t.Context(), db, committed(inc, next))
	must(t, err)
	for _, g := range gaps {
		all = append(all, fmt.Sprintf("%s %d-%d", g.Table, g.From, g.To))
	}
	return all
}

// A process has two sinks that read changes from an offset on.
type process struct {
	t     testing.TB
	logs  *clickhouse.Sink
	state *clickhouse.State
	inc   uint32
	from  int64
	next  int64 // committed offset
}

func newProcess(t testing.TB, db *clickhouse.DB, inc uint32, from int64) *process {
	return &process{t, clickhouse.NewSink(db), clickhouse.NewState(db), inc, from, from}
}

// mark calls Mark up to next. If that fails, it stores everything again that is not committed, and marks it.
func (g *process) mark(next int64) {
	g.t.Helper()
	all := func() error {
		p := []schemas.Progress{progress(schemas.Changes, g.inc, g.from, next)}
		return errors.Join(g.logs.Mark(g.t.Context(), p), g.state.Mark(g.t.Context(), p))
	}
	err := all()
	if retry.ClassOf(err) == retry.ClassUnavailable {
		g.logs.Forget(schemas.Changes, 3)
		g.state.Forget(schemas.Changes, 3)
		g.from = g.next
		err = all()
	}
	must(g.t, err)
	g.next = next
}

// A backup holds the positions of one log in all tables. The positions stand for the rows that are lost and restored
// with them.
type backup struct {
	t   testing.TB
	db  *clickhouse.DB
	inc uint32
}

func (b backup) exec(statements ...string) {
	b.t.Helper()
	for _, s := range statements {
		if err := b.db.Exec(b.t.Context(), strings.ReplaceAll(s, "{inc}", fmt.Sprint(b.inc))); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b backup) save() {
	b.t.Helper()
	b.exec("CREATE TABLE {db}.log_{inc} AS {db}.audit_log",
		"INSERT INTO {db}.log_{inc} SELECT * FROM {db}.audit_log WHERE inc = {inc}",
		"CREATE TABLE {db}.state_{inc} AS {db}.copy_state",
		"INSERT INTO {db}.state_{inc} SELECT * FROM {db}.copy_state WHERE space = '{inc}'")
}

func (b backup) empty() {
	b.t.Helper()
	b.exec("DELETE FROM {db}.audit_log WHERE inc = {inc}", "DELETE FROM {db}.copy_state WHERE space = '{inc}'")
}

func (b backup) restore() {
	b.t.Helper()
	b.empty()
	b.exec("INSERT INTO {db}.audit_log SELECT * FROM {db}.log_{inc}",
		"INSERT INTO {db}.copy_state SELECT * FROM {db}.state_{inc}")
}

// swap restores the backup, and then the newer tables again.
func (b backup) swap() {
	b.t.Helper()
	for table, saved := range map[string]string{"audit_log": "log_{inc}", "copy_state": "state_{inc}"} {
		b.exec("EXCHANGE TABLES {db}." + table + " AND {db}." + saved)
	}
}

// A position moves only if everything since the start was stored in the table as it is now, and never back.
func TestPositions(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	var inc uint32
	for name, tt := range map[string]struct {
		do   func(b backup, begin func(from int64) *process)
		next int64 // committed offset
		want []string
	}{
		"nothing was stored":       {func(backup, func(int64) *process) {}, 0, nil},
		"all was marked":           {func(_ backup, begin func(int64) *process) { begin(0).mark(4) }, 4, nil},
		"killed before the mark":   {func(_ backup, begin func(int64) *process) { begin(0) }, 0, nil},
		"killed before the commit": {func(_ backup, begin func(int64) *process) { begin(0).mark(4) }, 0, nil},
		"marked again, in one piece": {func(_ backup, begin func(int64) *process) { g := begin(0); g.mark(4); g.mark(4) },
			4, nil},
		"killed before the commit, and all done again": {func(_ backup, begin func(int64) *process) {
			begin(0).mark(4)
			begin(0).mark(6)
		}, 6, nil},
		"another process continues": {func(_ backup, begin func(int64) *process) {
			begin(0).mark(4)
			begin(4).mark(12)
		}, 12, nil},
		"a replay from the start": {func(_ backup, begin func(int64) *process) {
			begin(0).mark(4)
			begin(0).mark(2)
		}, 4, nil},
		"a replay from the start, further than before": {func(_ backup, begin func(int64) *process) {
			begin(0).mark(4)
			g := begin(0)
			g.mark(2)
			g.mark(9)
		}, 9, nil},
		"a zombie": {func(_ backup, begin func(int64) *process) {
			zombie := begin(0)
			zombie.mark(4)
			begin(4).mark(12)
			zombie.mark(6)
		}, 12, nil},
		"emptied": {func(b backup, begin func(int64) *process) {
			begin(0).mark(4)
			b.empty()
		}, 4, []string{"audit_log 0-4", "copy_state 0-4"}},
		"emptied, and the same process continues": {func(b backup, begin func(int64) *process) {
			g := begin(0)
			g.mark(4)
			b.empty()
			g.mark(8)
			g.mark(12)
		}, 12, []string{"audit_log 0-12", "copy_state 0-12"}},
		"emptied, and another process continues": {func(b backup, begin func(int64) *process) {
			begin(0).mark(4)
			b.empty()
			begin(4).mark(12)
		}, 12, []string{"audit_log 0-12", "copy_state 0-12"}},
		"emptied, and all read again": {func(b backup, begin func(int64) *process) {
			begin(0).mark(4)
			b.empty()
			begin(0).mark(12)
		}, 12, nil},
		"restored": {func(b backup, begin func(int64) *process) {
			g := begin(0)
			g.mark(4)
			b.save()
			g.mark(8)
			b.restore()
		}, 8, []string{"audit_log 4-8", "copy_state 4-8"}},
		"restored, and the same process continues": {func(b backup, begin func(int64) *process) {
			g := begin(0)
			g.mark(4)
			b.save()
			g.mark(8)
			b.restore()
			g.mark(10)
			g.mark(12)
		}, 12, []string{"audit_log 4-12", "copy_state 4-12"}},
		"restored, and another process continues": {func(b backup, begin func(int64) *process) {
			g := begin(0)
			g.mark(4)
			b.save()
			g.mark(8)
			b.restore()
			begin(8).mark(12)
		}, 12, []string{"audit_log 4-12", "copy_state 4-12"}},
		"restored, and filled beside the same process": {func(b backup, begin func(int64) *process) {
			g := begin(0)
			g.mark(4)
			b.save()
			g.mark(8)
			b.restore()
			g.mark(10)
			filling := begin(4)
			filling.mark(7)
			filling.mark(10)
			g.mark(12)
		}, 12, nil},
		"a replica that lags answers once": {func(b backup, begin func(int64) *process) {
			g := begin(0)
			g.mark(4)
			b.save()
			g.mark(8)
			b.swap()
			g.mark(10)
			b.swap()
			g.mark(12)
		}, 12, nil},
		"filled, but not up to where the process stores": {func(b backup, begin func(int64) *process) {
			begin(0).mark(4)
			b.empty()
			g := begin(8)
			g.mark(10)
			begin(0).mark(7)
			g.mark(12)
		}, 12, []string{"audit_log 7-12", "copy_state 7-12"}},
	} {
		inc++
		t.Run(name, func(t *testing.T) {
			tt.do(backup{t, db, inc}, func(from int64) *process { return newProcess(t, db, inc, from) })
			if got := gapsOf(t, db, inc, tt.next); !slices.Equal(got, tt.want) {
				t.Errorf("the tables lack %q, want %q", got, tt.want)
			}
		})
	}
	for _, from := range []string{"audit_log_v", "copy_merged"} {
		if got := clickhousetest.Count(t, db, from); got != "0" {
			t.Errorf("%s shows %s positions", from, got)
		}
	}
}

// A recreated topic has positions of its own.
func TestPositionsOfRecreatedTopic(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	s := clickhouse.NewSink(db)
	if err := errors.Join(s.Mark(t.Context(), []schemas.Progress{progress(schemas.Changes, 7, 0, 40)}),
		s.Mark(t.Context(), []schemas.Progress{progress(schemas.Changes, 8, 0, 2)})); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		p    schemas.Progress
		want int
	}{
		"the old one":          {progress(schemas.Changes, 7, 0, 40), 0},
		"the new one":          {progress(schemas.Changes, 8, 0, 2), 0},
		"the new one, further": {progress(schemas.Changes, 8, 0, 3), 1},
	} {
		gaps, err := clickhouse.Gaps(t.Context(), db, map[schemas.Role][]schemas.Progress{schemas.RoleSink: {tt.p}})
		if err != nil || len(gaps) != tt.want {
			t.Errorf("%s: gaps %v, %v, want %d", name, gaps, err, tt.want)
		}
	}
}

// A partition with records that begin after the start of the log has no gap before them.
func TestPositionsFromTheStartOfTheLog(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	for partition, tt := range map[int32]struct {
		start, from int64
		gap         bool
	}{1: {500, 500, false}, 2: {0, 500, true}, 4: {0, 0, false}} {
		s := clickhouse.NewSink(db)
		p := schemas.Progress{Topic: schemas.FixityResults, Incarnation: 7, Partition: partition, Start: tt.start,
			From: tt.from, Next: 600}
		must(t, s.Mark(t.Context(), []schemas.Progress{p}))
		gaps, err := clickhouse.Gaps(t.Context(), db, map[schemas.Role][]schemas.Progress{schemas.RoleSink: {p}})
		if err != nil || len(gaps) > 0 != tt.gap {
			t.Errorf("partition %d: gaps %v, %v", partition, gaps, err)
		}
	}
}

// A position that could not be moved, or that was moved although an error was reported, is moved by the next mark.
func TestMarkFails(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]int32{"not persisted": failedNotPersisted, "but persisted": failedButPersisted} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := clickhousetest.Open(t)
			p := newProxy(t, clickhousetest.Addr(t))
			cfg := direct.Config()
			cfg.Addresses = []string{p.addr}
			db := clickhousetest.Connect(t, cfg)
			s := clickhouse.NewSink(db)
			var many []schemas.Progress // enough bytes for the proxy to take them for an insert
			for partition := range int32(900) {
				many = append(many, schemas.Progress{Topic: schemas.Changes, Incarnation: 7, Partition: partition, Next: 4})
			}
			p.fail(mode)
			if err := s.Mark(t.Context(), many); retry.ClassOf(err) != retry.ClassUnavailable {
				t.Fatalf("Mark = %v, want class unavailable", err)
			}
			p.fail(passing)
			for i := range many {
				many[i].Next = 6
			}
			must(t, s.Mark(t.Context(), many))
			if gaps, err := clickhouse.Gaps(t.Context(), direct,
				map[schemas.Role][]schemas.Progress{schemas.RoleSink: many}); err != nil ||
				len(gaps) > 0 {
				t.Errorf("gaps %v, %v", gaps, err)
			}
			must(t, direct.Exec(t.Context(), "OPTIMIZE TABLE {db}.audit_log FINAL"))
			if gaps, err := clickhouse.Gaps(t.Context(), direct,
				map[schemas.Role][]schemas.Progress{schemas.RoleSink: many}); err != nil ||
				len(gaps) > 0 {
				t.Errorf("after merges: gaps %v, %v", gaps, err)
			}
		})
	}
}

// A fresh read of tables with gaps is unknown, and succeeds once the gaps are filled.
func TestFreshOfEmptiedTables(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	all := clickhousetest.Changes(4)
	c := schemas.CopyOf(all[0].(*pb.Change))
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
	newProcess(t, db, 7, 0).mark(4)
	found := make(chan int, 10)
	cfg := read.ReaderConfig{Gaps: func(_ context.Context, gaps []clickhouse.Gap) { found <- len(gaps) }}
	r := clickhousetest.ReaderOf(t, db, progressMark(committed(7, 4)), cfg)
	ask := func(what string, gaps int) {
		t.Helper()
		got, err := r.Fresh(t.Context(), []schemas.Copy{c})
		if gaps > 0 && retry.ClassOf(err) != retry.ClassUnavailable || gaps == 0 && err != nil {
			t.Errorf("%s: Fresh = %v, %v", what, got, err)
		}
		if gaps == 0 && got[0].GetManifest().GetChangeId() != all[0].(*pb.Change).GetId() {
			t.Errorf("%s: the record is %v", what, got[0])
		}
		if n := <-found; n != gaps {
			t.Errorf("%s: %d gaps were reported, want %d", what, n, gaps)
		}
	}
	ask("at first", 0)
	for _, table := range []string{"audit_log", "copy_state"} {
		must(t, db.Exec(t.Context(), "TRUNCATE TABLE {db}."+table))
	}
	ask("emptied", 2)
	clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
	newProcess(t, db, 7, 0).mark(4)
	ask("filled", 0)
}

// The tables of one topic may be at different offsets when it is deleted. After it is recreated, the missing end in
// one of them is reported, and fresh reads succeed. They are unknown if a table has no position in the former log,
// or none in the new log: it may have been restored.
func TestFreshOfRecreatedTopic(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		logs, state int64 // positions in the former log
		from        int64 // start of the gap
		unknown     bool
		begins      bool // nothing is committed in the new log
	}{
		"equally far":                            {40, 40, 0, false, false},
		"the state is further":                   {30, 40, 30, false, false},
		"the log is further":                     {40, 30, 30, false, false},
		"the state has nothing of it":            {40, 0, 0, true, false},
		"the log has nothing of it":              {0, 40, 0, true, false},
		"neither has anything of that":           {0, 0, 0, false, false},
		"equally far, at the beginning":          {40, 40, 0, false, true},
		"the state is further, at the beginning": {30, 40, 30, true, true},
		"the log is further, at the beginning":   {40, 30, 30, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			all := clickhousetest.Changes(4)
			clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
			former := func(next int64) []schemas.Progress {
				return []schemas.Progress{progress(schemas.Changes, 6, 0, next)}
			}
			must(t, errors.Join(clickhouse.NewSink(db).Mark(t.Context(), former(tt.logs)),
				clickhouse.NewState(db).Mark(t.Context(), former(tt.state))))
			var next int64
			if !tt.begins {
				next = 4
				newProcess(t, db, 7, 0).mark(next)
			}
			found := make(chan []clickhouse.Gap, 10)
			r := clickhousetest.ReaderOf(t, db, progressMark(committed(7, next)), read.ReaderConfig{
				Gaps: func(_ context.Context, gaps []clickhouse.Gap) { found <- gaps }})
			got, err := r.Fresh(t.Context(), []schemas.Copy{schemas.CopyOf(all[0].(*pb.Change))})
			if tt.unknown && retry.ClassOf(err) != retry.ClassUnavailable {
				t.Errorf("Fresh = %v, %v, want class unavailable", got, err)
			}
			if !tt.unknown && (err != nil || got[0].GetManifest().GetChangeId() != all[0].(*pb.Change).GetId()) {
				t.Errorf("Fresh = %v, %v, want the record", got, err)
			}
			gaps := <-found
			if tt.logs == tt.state {
				if len(gaps) > 0 {
					t.Errorf("%v were reported, want none", gaps)
				}
				return
			}
			if len(gaps) != 1 || !gaps[0].Former || gaps[0].From != tt.from || gaps[0].To != 40 ||
				gaps[0].MakesUnknown() != tt.unknown {
				t.Errorf("%+v were reported, want the gap from %d to 40 of the former log", gaps, tt.from)
			}
		})
	}
}

// A read of tables with gaps is unknown, even if the gaps are filled by the end of the read.
func TestFreshWhileTablesAreFilled(t *testing.T) {
	t.Parallel()
	need.Integration(t)
	db := clickhousetest.Open(t)
	all := clickhousetest.Changes(4)
	newProcess(t, db, 7, 0).mark(4)
	fill := func() {
		clickhousetest.StoreBoth(t, db, schemas.Changes, 0, all...)
		newProcess(t, db, 7, 0).mark(4)
	}
	for _, table := range []string{"audit_log", "copy_state"} {
		must(t, db.Exec(t.Context(), "TRUNCATE TABLE {db}."+table))
	}
	first := schemas.CopyOf(all[0].(*pb.Change))
	first.Item = ""
	second := first
	second.Space = "read behind the first"
	mark := progressMark(committed(7, 4))
	r := clickhousetest.ReaderOf(t, db, mark, read.ReaderConfig{DeclaredGone: func(_, _, space string) time.Time {
		if space == second.Space {
			fill()
		}
		return time.Time{}
	}})
	if got, err := r.Fresh(t.Context(), []schemas.Copy{first, second}); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("Fresh = %v, %v, want class unavailable", got, err)
	}
	fill()
	got, err := r.Fresh(t.Context(), []schemas.Copy{first})
	if err != nil || got[0].GetManifest().GetState() != pb.RecordState_RECORD_STATE_LIVE {
		t.Errorf("once they are filled: Fresh = %v, %v, want the space", got, err)
	}
}

// A report that only one of the two tables has when they are read is waited for, and is not taken for a missing row.
// If one of them lacks it for good, the records are returned as they are.
func TestFreshIsConsistent(t *testing.T) {
	t.Parallel()
	late, lacks := clickhousetest.Change("late", 0), clickhousetest.Change("lacks", 0)
	for name, tt := range map[string]struct {
		first, second func(t *testing.T, db *clickhouse.DB) // run before the first and the second read
		looks         int
		want          *pb.CopyRecord
		of            *pb.Change
	}{
		"in the log first": {
			func(t *testing.T, db *clickhouse.DB) { logOnly(t, db, late) },
			func(t *testing.T, db *clickhouse.DB) { stateOnly(t, db, late) },
			2, &pb.CopyRecord{Manifest: clickhousetest.RecordOf(late),
				Audit: clickhousetest.EvidenceOf(clickhousetest.RecordOf(late))}, late,
		},
		"in the state first": {
			func(t *testing.T, db *clickhouse.DB) { stateOnly(t, db, late) },
			func(t *testing.T, db *clickhouse.DB) { logOnly(t, db, late) },
			2, &pb.CopyRecord{Manifest: clickhousetest.RecordOf(late),
				Audit: clickhousetest.EvidenceOf(clickhousetest.RecordOf(late))}, late,
		},
		"never in the state": {
			func(t *testing.T, db *clickhouse.DB) { logOnly(t, db, lacks) }, func(*testing.T, *clickhouse.DB) {},
			2, &pb.CopyRecord{Manifest: clickhousetest.NoRecord(),
				Audit: clickhousetest.EvidenceOf(clickhousetest.RecordOf(lacks))}, lacks,
		},
		"in both": {
			func(t *testing.T, db *clickhouse.DB) { clickhousetest.StoreBoth(t, db, schemas.Changes, 0, late) },
			func(*testing.T, *clickhouse.DB) {},
			1, &pb.CopyRecord{Manifest: clickhousetest.RecordOf(late),
				Audit: clickhousetest.EvidenceOf(clickhousetest.RecordOf(late))}, late,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := clickhousetest.Open(t)
			looks := 0
			r := clickhousetest.Reader(t, db, func(context.Context) error {
				if looks++; looks == 1 {
					tt.first(t, db)
				} else if looks == 2 {
					tt.second(t, db)
				}
				return nil
			}, read.ReaderConfig{})
			got, err := r.Fresh(t.Context(), []schemas.Copy{schemas.CopyOf(tt.of)})
			must(t, err)
			clickhousetest.Compare(t, "the record", got[0], tt.want)
			if looks != tt.looks {
				t.Errorf("the tables were read %d times, want %d", looks, tt.looks)
			}
		})
	}
}

// A copy that changes in one of the tables during each read is unknown.
func TestFreshOfChangingCopy(t *testing.T) {
	t.Parallel()
	db := clickhousetest.Open(t)
	n := 0
	r := clickhousetest.Reader(t, db, func(context.Context) error {
		n++
		c := clickhousetest.Change("a", 0)
		c.Time = clickhousetest.At(0)
		c.Time.Seconds += int64(n)
		c.Id = schemas.ChangeID(c)
		logOnly(t, db, c)
		return nil
	}, read.ReaderConfig{})
	got, err := r.Fresh(t.Context(), []schemas.Copy{schemas.CopyOf(clickhousetest.Change("a", 0))})
	if retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("Fresh = %v, %v, want class unavailable", got, err)
	}
}

func logOnly(t *testing.T, db *clickhouse.DB, c *pb.Change) {
	if err := clickhouse.NewSink(db).Store(t.Context(), clickhousetest.Deliver(schemas.Changes, 0, c)); err != nil {
		t.Error(err)
	}
}

func stateOnly(t *testing.T, db *clickhouse.DB, c *pb.Change) {
	if err := clickhouse.NewState(db).Store(t.Context(), clickhousetest.Deliver(schemas.Changes, 0, c)); err != nil {
		t.Error(err)
	}
}

// A progressMark is a Watermark that is always reached, with committed offsets.
type progressMark map[schemas.Role][]schemas.Progress

func (m progressMark) Wait(context.Context) (map[schemas.Role][]schemas.Progress, error) {
	return m, nil
}
