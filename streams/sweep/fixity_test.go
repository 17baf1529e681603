package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// Of a round whose tasks were all handled.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		p     Progress
		late  bool
		quiet time.Duration
		want  bool
	}{
		"all are final":                           {Progress{Final: 5}, false, 0, true},
		"more than are known":                     {Progress{Final: 6}, false, 0, true},
		"one has no result":                       {Progress{Final: 4}, false, 59 * time.Minute, false},
		"one has none for an hour":                {Progress{Final: 4}, false, time.Hour, true},
		"one has none, and the next round is due": {Progress{Final: 4}, true, 0, true},
		"one is repeated":                         {Progress{Final: 4, Pending: 1}, false, 2 * time.Hour, false},
		"one of more than are known is repeated":  {Progress{Final: 5, Pending: 1}, false, 0, false},
		"one is repeated, and the next round due": {Progress{Final: 4, Pending: 1}, true, 0, true},
	} {
		if got := ends(tt.p, 5, tt.late, tt.quiet); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// A round waits for its results, and its report says what is missing.
func TestRoundWaitsForResults(t *testing.T) {
	const never = 10_000
	hours := func(n float64) time.Duration { return time.Duration(n * float64(time.Hour)) }
	for name, tt := range map[string]struct {
		queued, missing, repeated float64 // hours until all tasks are handled, have a result, and have a final one
		interval                  float64 // of the rounds, in hours
		waited                    float64 // hours
		outstanding               int
	}{
		"at once":                              {0, 0, 0, 0, 0, 0},
		"an hour":                              {1, 1, 1, 0, 1, 0},
		"a queue of two days":                  {48, 48, 0, 24, 48, 0},
		"a queue that never ends":              {never, never, 0, 24, 7 * 24, 1},
		"a check that is lost":                 {0.1, never, 0, 24, 1, 1},
		"a check that waits for its store":     {0, 0.5, 0, 24, 0.5, 0},
		"repeated before the next round":       {0, 0, 4, 5, 4, 0},
		"repeated beyond the next round":       {0, 0, 6, 5, 4.5, 1},
		"repeated for ever, without schedule":  {0, 0, never, 0, 7 * 24, 1},
		"queued and repeated, beyond the next": {6, 6, 8, 5, 6, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHarness(t)
				for item := range 5 {
					w.add("photos", fmt.Sprint(item), 0)
				}
				w.begun = time.Now()
				begun, c := w.begun, w.config()
				c.Next = nil
				if tt.interval > 0 {
					c.Next = func(_ schemas.Copy, started time.Time) time.Time { return started.Add(hours(tt.interval)) }
				}
				w.handled = func() bool { return time.Since(begun) >= hours(tt.queued) }
				c.Results = resultsFunc{w, func() {
					w.missing, w.pending = 0, 0
					if time.Since(begun) < hours(tt.missing) {
						w.missing = 1
					}
					if time.Since(begun) < hours(tt.repeated) {
						w.pending = 1
					}
				}}
				s, err := w.run(c, nil)
				if err != nil || s.Finished.IsZero() {
					t.Fatalf("got %+v, %v", s, err)
				}
				want := hours(tt.waited)
				if waited := time.Since(begun); waited < want || waited > want+want/20+time.Minute {
					t.Errorf("it waited for %v, want %v", waited, want)
				}
				w.wantReport(5, tt.outstanding)
			})
		})
	}
}

// wantReport checks that there is one report, of as many requests and outstanding copies.
func (w *harness) wantReport(requested int64, outstanding int) {
	w.t.Helper()
	detail := ""
	if outstanding > 0 {
		detail = fmt.Sprintf("%d checks have no final result", outstanding)
	}
	reports := of[*pb.Report](w)
	if len(reports) != 1 || reports[0].GetComplete() != (detail == "") || reports[0].GetDetail() != detail ||
		reports[0].GetCounts()[Requested] != requested {
		w.t.Errorf("reported %v, want %d requests and %q", reports, requested, detail)
	}
}

// A resultsFunc is the results of a harness, which are set before each call.
type resultsFunc struct {
	*harness
	set func()
}

func (r resultsFunc) Progress(ctx context.Context, q RoundQuery) (Progress, error) {
	r.set()
	return r.harness.Progress(ctx, q)
}

// A round whose number of requests is too low, as after an interruption, does not end while its tasks are queued, and
// one whose number is too high ends all the same.
func TestRoundWithAWrongNumberOfRequests(t *testing.T) {
	for _, requested := range []int64{1, 9} {
		synctest.Test(t, func(t *testing.T) {
			w := newHarness(t)
			begun := time.Now()
			w.begun = begun
			w.handled = func() bool { return time.Since(begun) > 2*time.Hour }
			w.published = append(w.published, []schemas.Message{
				{Topic: schemas.FixityLow, Body: &pb.FixityTask{Id: "a"}},
				{Topic: schemas.FixityLow, Body: &pb.FixityTask{Id: "b"}}})
			cursor, err := json.Marshal(fixityCursor{Requested: requested, Waiting: begun,
				Selection: selection{AttemptedBefore: begun}})
			must(t, err)
			s, err := w.run(w.config(), &pb.Checkpoint{Sweep: "fixity", Split: "acme/2/photos", Round: "r",
				Started: timestamppb.New(begun), Cursor: cursor, Counts: map[string]int64{Requested: requested}})
			waited := time.Since(begun)
			if err != nil || s.Finished.IsZero() || waited < 2*time.Hour || waited > 4*time.Hour {
				t.Errorf("of %d requests: %+v, %v after %v", requested, s, err, waited)
			}
			w.wantReport(requested, int(max(0, requested-2)))
		})
	}
}

// With copies of any age a copy may have two tasks: then no check is outstanding if all copies have a final result.
func TestOutstandingOfTwoTasks(t *testing.T) {
	for name, tt := range map[string]struct {
		all                  bool
		requested            int64
		live, moot           int64
		final, pending, want int64
	}{
		"each once":                      {true, 5, 5, 0, 5, 0, 0},
		"one twice":                      {true, 6, 5, 0, 5, 0, 0},
		"one is lost":                    {true, 5, 5, 0, 4, 0, 1},
		"one is repeated":                {true, 6, 5, 0, 4, 1, 1},
		"one was deleted":                {true, 5, 4, 1, 5, 0, 0},
		"one was deleted, and made":      {true, 5, 5, 1, 5, 0, 0},
		"two are lost, and five deleted": {true, 10, 5, 5, 8, 0, 2},
		"due, and one is lost":           {false, 6, 5, 0, 5, 0, 1},
		"due, and more are done":         {false, 5, 9, 0, 6, 0, 0},
	} {
		c := RoundCounts{Progress: Progress{Final: tt.final, Pending: tt.pending}, Live: tt.live,
			Counts: map[string]int64{"moot": tt.moot}}
		if got := Unanswered(c, tt.requested, tt.all); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

// A round does not end before the records of the copies have what the log of checks has.
func TestRoundWaitsForTheRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.fill()
		w.behind = 3
		begun := time.Now()
		if s, err := w.run(w.config(), nil); err != nil || s.Finished.IsZero() || len(w.counted) != 1 ||
			time.Since(begun) < 2*time.Second {
			t.Errorf("got %+v, %v after %v", s, err, time.Since(begun))
		}
	})
}

// The report of a round says of how many of the copies the bytes are read, if not of all.
func TestReportOfASample(t *testing.T) {
	for name, tt := range map[string]struct {
		asserts, all bool
		percent      int
		want         int64 // -1: it says nothing
	}{
		"always":          {false, false, 100, -1},
		"sampled":         {true, false, 5, 5},
		"sampled, by all": {true, true, 5, -1},
		"never":           {true, false, 0, 0},
		"never, by all":   {true, true, 0, 0},
	} {
		w := newHarness(t)
		w.fill()
		c := w.config()
		c.Asserts, c.All, c.ReadPercent = tt.asserts, tt.all, tt.percent
		if _, err := w.run(c, nil); err != nil {
			t.Fatal(err)
		}
		reports := of[*pb.Report](w)
		if len(reports) != 1 {
			t.Fatalf("%s: reports %v", name, reports)
		}
		if got, ok := reports[0].GetCounts()[ReadPercent]; ok != (tt.want >= 0) || ok && got != tt.want {
			t.Errorf("%s: %d, %v; want %d", name, got, ok, tt.want)
		}
	}
}

// A round keeps its selection when the settings change while it goes on.
func TestSettingsChangeDuringARound(t *testing.T) {
	w := newHarness(t)
	w.fill()
	c := w.config()
	c.Detach, w.missing = true, 1
	if _, err := w.run(c, nil); err != nil {
		t.Fatal(err)
	}
	points := of[*pb.Checkpoint](w)
	w.missing, c.Detach, c.Asserts, c.Period = 0, false, true, 1000*time.Hour
	if _, err := w.run(c, points[len(points)-1]); err != nil {
		t.Fatal(err)
	}
	want := w.queries[0]
	if len(w.counted) != 1 || w.counted[0].First != want {
		t.Fatalf("counted what is due by %+v, want %+v", w.counted, want)
	}
	if got, want := w.counted[0].VerifiedSince, start.Add(-1000*time.Hour); !got.Equal(want) { // the period in force
		t.Errorf("counted as verified what has passed since %v, want %v", got, want)
	}
}

// The clock is set back by a year while a round waits: it waits no longer than others from then on, and looks for
// results since then.
func TestClockIsSetBackDuringARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.fill()
		w.handled = func() bool { return false }
		begun := time.Now().UTC()
		cursor, err := json.Marshal(fixityCursor{Requested: 5, Waiting: begun.AddDate(1, 0, 0),
			Queued: Offsets{schemas.FixityLow: {0: 5}}})
		must(t, err)
		s, err := w.run(w.config(), &pb.Checkpoint{Sweep: "fixity", Split: "acme/2/photos", Round: "r",
			Started: timestamppb.New(begun.AddDate(1, 0, 0)), Cursor: cursor, Counts: map[string]int64{Requested: 5}})
		waited := time.Since(begun)
		if err != nil || s.Finished.IsZero() || waited < 7*24*time.Hour || waited > 8*24*time.Hour {
			t.Errorf("got %+v, %v after %v", s, err, waited)
		}
		if len(w.counted) != 1 || !w.counted[0].Since.Equal(begun) {
			t.Errorf("counted %+v, want the results since %v", w.counted, begun)
		}
	})
}

// A detached round ends the call when it only waits, and goes on in another one.
func TestDetachedRound(t *testing.T) {
	w := newSwept(t)
	w.fill()
	w.missing = 1
	r := Request{Begun: start, All: true, Detach: true}
	first, tasks := w.sweep(r)
	if first.Emitted != 7 || len(tasks) != 7 || !first.Finished.IsZero() || len(of[*pb.Report](w.harness)) != 0 {
		t.Errorf("detached: %+v with %d tasks and reports %v", first, len(tasks), of[*pb.Report](w.harness))
	}
	points := of[*pb.Checkpoint](w.harness)
	if !OnlyWaits(points[len(points)-1]) {
		t.Errorf("the round does not wait: %v", points[len(points)-1])
	}
	w.missing, r.Detach = 0, false
	last, tasks := w.sweep(r)
	if last.ID != first.ID || len(tasks) != 0 || last.Finished.IsZero() || len(of[*pb.Report](w.harness)) != 1 {
		t.Errorf("then: %+v with %d tasks and reports %v", last, len(tasks), of[*pb.Report](w.harness))
	}
}

// Results that cannot be counted fail the round: they are not taken for missing ones.
func TestResultsFail(t *testing.T) {
	w := newHarness(t)
	w.fill()
	w.results = errors.New("engine unavailable")
	if _, err := w.run(w.config(), nil); !errors.Is(err, w.results) || len(of[*pb.Report](w)) != 0 {
		t.Errorf("got %v and reports %v", err, of[*pb.Report](w))
	}
}

// Nothing is reported of a round without checks.
func TestEmptyRoundHasNoReport(t *testing.T) {
	w := newHarness(t)
	if s, err := w.run(w.config(), nil); err != nil || s.Finished.IsZero() || len(of[*pb.Report](w)) != 0 {
		t.Errorf("got %+v, %v and reports %v", s, err, of[*pb.Report](w))
	}
}

// What becomes due before the next round is due now.
func TestDueBeforeTheNextRound(t *testing.T) {
	const day = 24 * time.Hour
	for name, tt := range map[string]struct{ interval, period, want time.Duration }{
		"no rounds":                {0, day, day},
		"a day of 90":              {day, 90 * day, 89 * day},
		"a period as long":         {day, day, 0},
		"longer than the period":   {4 * day, day, 0},
		"of any age, as on demand": {day, 0, 0},
	} {
		w := newHarness(t)
		c := w.config()
		c.Period = tt.period
		if tt.interval > 0 {
			c.Next = func(_ schemas.Copy, started time.Time) time.Time { return started.Add(tt.interval) }
		}
		if _, err := w.run(c, nil); err != nil {
			t.Fatal(name, err)
		}
		if got := start.Sub(w.queries[0].PassedBefore); got != tt.want {
			t.Errorf("%s: asked for what passed %v before, want %v", name, got, tt.want)
		}
		if w.queries[0].AttemptedBefore.IsZero() != (tt.period == 0) {
			t.Errorf("%s: asked for what was attempted before %v", name, w.queries[0].AttemptedBefore)
		}
	}
}

// A round that waits is neither blocked, as by a window, nor held up by the lag.
func TestWaitingIsNotBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.fill()
		w.missing = 1
		begun := time.Now()
		c := w.config()
		c.Results = resultsFunc{w, func() {
			if time.Since(begun) > time.Minute {
				w.missing = 0
			}
		}}
		m, err := c.Split(c.Request)
		must(t, err)
		m.Blocked = func(context.Context) error {
			if len(of[*pb.FixityTask](w)) == 5 {
				w.lags = []int64{1 << 20}
				return ErrNotNow
			}
			return nil
		}
		if s, err := w.rounds(t.Context(), m, nil); err != nil || s.Finished.IsZero() {
			t.Errorf("got %+v, %v", s, err)
		}
	})
}

// Only the round of an id goes on: nothing begins in its place.
func TestOnlyOneRound(t *testing.T) {
	other := &pb.Checkpoint{Sweep: "fixity", Split: "acme/2/photos", Round: "other", Started: timestamppb.New(start)}
	ended := &pb.Checkpoint{Sweep: "fixity", Split: "acme/2/photos", Round: "r", Started: timestamppb.New(start),
		Finished: timestamppb.New(start), Counts: map[string]int64{Requested: 3}}
	under := &pb.Checkpoint{Sweep: "fixity", Split: "acme/2/photos", Round: "r",
		Started: timestamppb.New(start.Add(-time.Hour))}
	for name, tt := range map[string]struct {
		last *pb.Checkpoint
		want int // tasks
		id   string
	}{
		"there is none": {nil, 0, ""}, "another": {other, 0, ""}, "it has ended": {ended, 0, "r"},
		"it is under way": {under, 5, "r"},
	} {
		for _, all := range []bool{false, true} {
			w := newHarness(t)
			w.fill()
			c := w.config()
			c.Only, c.All = "r", all
			s, err := w.run(c, tt.last)
			tasks := of[*pb.FixityTask](w)
			if err != nil || s.ID != tt.id || (len(tasks) > 0) != (tt.want > 0) {
				t.Errorf("%s: %+v, %v with %d tasks", name, s, err, len(tasks))
			}
		}
	}
}

// A process that waits for the results of a round leaves it when a later round by hand has begun.
func TestReplacedRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.fill()
		w.missing = 1
		var newest atomic.Pointer[pb.Checkpoint]
		s, err := NewSweeper(SweeperConfig{}, SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler),
			CatchUp: func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint {
				if own := of[*pb.Checkpoint](w); newest.Load() == nil && len(own) > 0 {
					return own[len(own)-1]
				}
				return newest.Load()
			}})
		must(t, err)
		c := w.config()
		c.All = true
		m, err := c.Split(c.Request)
		must(t, err)
		time.AfterFunc(time.Minute, func() {
			newest.Store(&pb.Checkpoint{Sweep: DemandSweep, Split: m.Name, Round: "later",
				Started: timestamppb.New(start.Add(time.Minute))})
		})
		if _, err := s.Rounds(t.Context(), []Split{m}); !errors.Is(err, errLost) {
			t.Errorf("got %v, want that it is lost", err)
		}
		for _, p := range of[*pb.Checkpoint](w) {
			if p.GetFinished() != nil {
				t.Errorf("it has ended: %v", p)
			}
		}
	})
}

// Copies that are not selected get no check. The pages after them are read all the same.
func TestCopiesThatAreExcluded(t *testing.T) {
	w := newHarness(t)
	w.fill()
	c := w.config()
	c.Items = func(item string) bool { return item == "z" || item == "a" }
	s, err := w.run(c, nil)
	got := items(of[*pb.FixityTask](w))
	if err != nil || !slices.Equal(got, []string{"a", "z"}) || s.Counts[Requested] != 2 {
		t.Errorf("got %q, %v, %v", got, s.Counts, err)
	}
}

// A round over the items with a prefix has no checkpoint, and does not count as the first one. Its report says so, and
// has the same id if it is published again.
func TestRoundOfAPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.fill()
		c := w.config()
		c.All, c.Some, c.Prefix = true, true, "a/b"
		m, err := c.Split(c.Request)
		must(t, err)
		s, err := NewSweeper(SweeperConfig{}, SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler),
			CatchUp:    func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint { return nil }})
		must(t, err)
		m.Detach = true
		w.missing = 1
		once, err := s.Once(t.Context(), m, Once{})
		if err != nil || once.Counts[Requested] == 0 || !once.Finished.IsZero() {
			t.Fatalf("got %+v, %v", once, err)
		}
		m.Detach = false
		time.AfterFunc(time.Minute, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.missing = 0
		})
		before, broken := w.calls, errors.New("the broker is away")
		w.publish = func(n int) (bool, error) {
			if n == before+1 { // the report: published, and the answer is lost
				return true, retry.Permanent(broken)
			}
			return true, nil
		}
		if once, err = s.Once(t.Context(), m, once); !errors.Is(err, broken) || !once.Finished.IsZero() {
			t.Errorf("without its report: %+v, %v", once, err)
		}
		again, err := s.Once(t.Context(), m, once)
		if err != nil || again.ID != once.ID || again.Finished.IsZero() || again.Counts["pass"] != once.Counts[Requested] {
			t.Errorf("to its end: %+v, %v", again, err)
		}
		for _, q := range w.queries {
			if q.Prefix != "a/b" {
				t.Errorf("asked for the prefix %q", q.Prefix)
			}
		}
		reports := of[*pb.Report](w)
		for _, r := range reports {
			if r.GetId() != reports[0].GetId() || r.GetKind() != PrefixReport || r.GetRound() != once.ID || !r.GetComplete() ||
				r.GetCounts()["pass"] != once.Counts[Requested] || !strings.Contains(r.GetDetail(), `begin with "a/b"`) {
				t.Errorf("report %v", r)
			}
		}
		if len(reports) != 2 {
			t.Errorf("%d reports, want the one that was published twice", len(reports))
		}
		for _, call := range w.published {
			for _, msg := range call {
				if msg.Topic == schemas.Reports {
					continue
				}
				task, ok := msg.Body.(*pb.FixityTask)
				if !ok || msg.Topic == schemas.FixityLow || task.GetReason() != pb.FixityReason_FIXITY_REASON_DEMAND ||
					task.GetCause() == task.GetRound() || task.GetRound() != once.ID || task.GetBaseline() {
					t.Errorf("published %v to %s", msg.Body, msg.Topic)
				}
			}
		}
		c.All = false
		if _, err := c.Split(c.Request); err == nil {
			t.Error("a periodic round has a prefix")
		}
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
