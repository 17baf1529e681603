package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A world is what several processes with a Sweeper share: the checkpoints, and the pages that they publish.
type world struct {
	t  *testing.T
	mu sync.Mutex // guards what follows

	checkpoints map[string]*pb.Checkpoint
	jobs        []string // names of the rounds that ended, with the time since the start; "!" marks a failure
	reports     int
	pages       []string // splits whose pages were published, in order
	blocked     map[string]error
	owner       map[string]string // process by split; none: all own it
	unread      error             // of the next reads of the checkpoints
	begun       time.Time
}

func newWorld(t *testing.T) *world {
	return &world{t: t, checkpoints: map[string]*pb.Checkpoint{}, blocked: map[string]error{}, owner: map[string]string{},
		begun: time.Now()}
}

// Publish implements schemas.Publisher.
func (w *world) Publish(_ context.Context, messages ...schemas.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range messages {
		switch b := m.Body.(type) {
		case *pb.Checkpoint:
			w.checkpoints[schemas.Key(b.GetSweep(), b.GetSplit())] = b
		case *pb.Job:
			mark := ""
			if b.GetError() != "" {
				mark = "!"
			}
			w.jobs = append(w.jobs, fmt.Sprint(mark, b.GetName(), " ", time.Since(w.begun).Round(time.Second)))
		case *pb.Report:
			w.reports++
		case *pb.FixityTask:
			w.pages = append(w.pages, b.GetSpace())
		}
	}
	return nil
}

// process returns the sweeper of a process.
func (w *world) process(name string, edit ...func(*SweeperConfig, *SweeperDeps)) *Sweeper {
	w.t.Helper()
	c := SweeperConfig{Config: Config{Retry: retry.Policy{Attempts: 2, Wait: time.Millisecond}}, Workers: 2}
	d := SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler),
		CatchUp: func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.unread
		},
		Checkpoint: w.checkpoint,
		Owns: func(_, split string) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			owner, ok := w.owner[split]
			return !ok || owner == name
		},
	}
	for _, e := range edit {
		e(&c, &d)
	}
	s, err := NewSweeper(c, d)
	must(w.t, err)
	return s
}

// split returns a split account/name with so many pages of one message, whose rounds are due every hour.
func (w *world) split(name string, pages int) Split {
	account, _, _ := strings.Cut(name, "/")
	return Split{Sweep: "s", Name: name, Account: account, Start: start,
		Lag: func(context.Context) (int64, error) { return 0, nil },
		Pages: func(_ context.Context, _ Round, cursor []byte) (Page, error) {
			n := len(cursor) + 1
			body := &pb.FixityTask{Space: name}
			return Page{Messages: []schemas.Message{{Topic: schemas.FixityLow, Body: body}}, Emitted: 1,
				Counts: map[string]int64{"n": 1}, Next: make([]byte, n), Last: n >= pages}, nil
		},
		Due: func(last *pb.Checkpoint, now time.Time) bool {
			return last == nil || now.Sub(last.GetStarted().AsTime()) >= time.Hour
		},
		Blocked: func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.blocked[name]
		},
		Report: func(Result) *pb.Report { return &pb.Report{} },
	}
}

func kindOf(splits ...Split) []Kind {
	return []Kind{func(context.Context) ([]Split, error) { return splits, nil }}
}

func (w *world) checkpoint(sweep, split string) *pb.Checkpoint {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checkpoints[schemas.Key(sweep, split)]
}

// checkJobs compares the rounds that ended, in any order.
func (w *world) checkJobs(when string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	got := slices.Sorted(slices.Values(w.jobs))
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: rounds %q, want %q", when, got, want)
	}
}

// swept is a harness with the checkpoints of fixity rounds.
type swept struct {
	*harness
	checked bool // a check is recorded
	known   map[string]*pb.Checkpoint
}

func newSwept(t *testing.T) *swept {
	return &swept{harness: newHarness(t), known: map[string]*pb.Checkpoint{}}
}

func (w *swept) sweep(r Request) (Result, []*pb.FixityTask) {
	w.t.Helper()
	r.Account, r.Store, r.Space = "acme", "2", "photos"
	before := len(of[*pb.FixityTask](w.harness))
	s, err := NewSweeper(SweeperConfig{}, SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler),
		CatchUp: func(context.Context) error { return nil },
		Checkpoint: func(sweep, split string) *pb.Checkpoint {
			newest := w.known[schemas.Key(sweep, split)]
			for _, c := range of[*pb.Checkpoint](w.harness) {
				if c.GetSweep() == sweep && c.GetSplit() == split {
					newest = c
				}
			}
			return newest
		}})
	must(w.t, err)
	f := w.config().FixityRounds
	f.Checked = func(context.Context, schemas.Copy) (bool, error) { return w.checked, nil }
	m, err := f.Split(r)
	must(w.t, err)
	results, err := s.Rounds(w.t.Context(), []Split{m})
	if err != nil || len(results) != 1 {
		w.t.Fatal(results, err)
	}
	return results[0], of[*pb.FixityTask](w.harness)[before:]
}

// A round on demand requests checks of every copy and reports their number. It is separate from the periodic rounds:
// neither resumes or replaces the other. A finished round with the same start is not repeated.
func TestSweepOnDemand(t *testing.T) {
	w := newSwept(t)
	w.fill()
	half := func(sweep string, begun time.Time) string {
		id := schemas.ID("half", sweep)
		w.known[schemas.Key(sweep, "acme/2/photos")] = &pb.Checkpoint{Sweep: sweep, Split: "acme/2/photos", Round: id,
			Started: timestamppb.New(begun), Cursor: []byte(`{"Item":"b","Requested":2}`),
			Counts: map[string]int64{Requested: 2}}
		return id
	}
	halfDue, halfDemand := half("fixity", start.Add(-time.Minute)), half("fixity.demand", start.Add(-24*time.Hour))
	requested := int64(0)
	r := Request{Begun: start, All: true, Period: 24 * time.Hour, OnRequested: func(n int64) { requested += n }}
	result, tasks := w.sweep(r)
	if len(tasks) != 7 || result.Emitted != 7 || requested != 7 || result.ID == halfDue || result.ID == halfDemand {
		t.Errorf("got %+v with %d tasks, %d reported, want all 7 copies", result, len(tasks), requested)
	}
	for _, task := range tasks {
		if task.GetReason() != pb.FixityReason_FIXITY_REASON_DEMAND || task.GetRound() != result.ID {
			t.Errorf("got %v", task)
		}
	}
	again, tasks := w.sweep(r)
	if again.ID != result.ID || again.Emitted != 7 || !again.Finished.Equal(result.Finished) || len(tasks) != 0 {
		t.Errorf("the same round once more: %+v with %d tasks, want %+v", again, len(tasks), result)
	}
	if on, tasks := w.sweep(Request{Begun: start, Period: 24 * time.Hour}); on.ID != halfDue || len(tasks) != 3 {
		t.Errorf("the periodic round continues as %+v with %d tasks, want %s and 3", on, len(tasks), halfDue)
	}
}

// The first round with checks is the baseline, also when it resumes. A lost checkpoint does not make another one.
func TestBaselineIsTheFirstRound(t *testing.T) {
	round := func(sweep string, tasks int64) *pb.Checkpoint {
		at := timestamppb.New(start.Add(-time.Hour))
		return &pb.Checkpoint{Sweep: sweep, Split: "acme/2/photos", Round: "r", Started: at, Finished: at,
			Counts: map[string]int64{Requested: tasks}}
	}
	unfinished := round("fixity", 0)
	unfinished.Finished, unfinished.Baseline = nil, true
	for name, tt := range map[string]struct {
		before  *pb.Checkpoint
		checked bool
		want    bool
	}{
		"the first one":                            {nil, false, true},
		"the second":                               {round("fixity", 3), false, false},
		"after one on demand":                      {round("fixity.demand", 3), false, false},
		"after one that found nothing":             {round("fixity", 0), false, true},
		"after one on demand that found nothing":   {round("fixity.demand", 0), false, true},
		"after one that found nothing, and checks": {round("fixity", 0), true, false},
		"its checkpoint is lost":                   {nil, true, false},
		"it is resumed":                            {unfinished, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSwept(t)
			w.fill()
			w.checked = tt.checked
			if c := tt.before; c != nil {
				w.known[schemas.Key(c.GetSweep(), c.GetSplit())] = c
			}
			result, tasks := w.sweep(Request{Begun: start})
			if len(tasks) == 0 || result.Baseline != tt.want {
				t.Errorf("%d tasks, baseline %t, want %t", len(tasks), result.Baseline, tt.want)
			}
		})
	}
}

// A split without a checkpoint begins anew, and says so if rounds of it are on record. While that is unknown it does
// not begin.
func TestCheckpointIsLost(t *testing.T) {
	away := errors.New("away")
	for name, tt := range map[string]struct {
		known   bool // the checkpoint
		lastEnd time.Time
		err     error
		lines   int
	}{
		"lost":             {false, start, nil, 1},
		"there never was":  {false, time.Time{}, nil, 0},
		"there is":         {true, start, away, 0},
		"that is not read": {false, time.Time{}, away, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w, lines := newWorld(t), &logtest.Lines{}
			m := w.split("a/1", 2)
			if tt.known {
				at := timestamppb.New(start.Add(-time.Hour))
				w.checkpoints[schemas.Key("s", "a/1")] = &pb.Checkpoint{Sweep: "s", Split: "a/1", Round: "r", Started: at,
					Finished: at}
			}
			s := w.process("1", func(_ *SweeperConfig, d *SweeperDeps) {
				d.Log = lines.Log()
				d.LastEnd = func(_ context.Context, sweep, split string) (time.Time, error) {
					if sweep != "s" || split != "a/1" {
						t.Errorf("asked for %s of %s", split, sweep)
					}
					return tt.lastEnd, tt.err
				}
			})
			results, err := s.Rounds(t.Context(), []Split{m})
			fails := tt.err != nil && !tt.known
			if errors.Is(err, away) != fails || !fails && (len(results) != 1 || results[0].Emitted != 2) {
				t.Errorf("got %v, %v", results, err)
			}
			if n := lines.Count("the checkpoint is lost"); n != tt.lines {
				t.Error(lines)
			}
		})
	}
}

// Rounds are run at once and then as they are due. A paused one begins when the pause has ended.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.blocked["a/3"] = ErrPaused
		changed := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- w.process("1").Run(ctx, kindOf(w.split("a/1", 3), w.split("b/2", 1), w.split("a/3", 1)), changed)
		}()
		done := []string{"s/a/1 0s", "s/b/2 0s"}
		w.checkJobs("at the start", done...)
		time.Sleep(6 * time.Minute)
		w.checkJobs("after looks", done...)
		w.mu.Lock()
		w.blocked["a/3"] = nil
		w.mu.Unlock()
		changed <- struct{}{}
		done = append(done, "s/a/3 6m0s")
		w.checkJobs("after the pause", done...)
		w.mu.Lock()
		w.unread = errors.New("no broker")
		w.mu.Unlock()
		time.Sleep(55 * time.Minute)
		w.checkJobs("the checkpoints cannot be read", done...)
		w.mu.Lock()
		w.unread = nil
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		done = append(done, "s/a/1 1h2m0s", "s/b/2 1h2m0s")
		w.checkJobs("after an hour", done...)
		if w.reports != 5 {
			t.Errorf("%d reports", w.reports)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A round stops after the page at work when its time is over, without a failure, and goes on when there is time again.
// It ends later than the next one is due, which is logged.
func TestNotNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, lines := newWorld(t), &logtest.Lines{}
		s := w.process("1", func(_ *SweeperConfig, d *SweeperDeps) { d.Log = lines.Log() })
		m, rounds := w.split("a/1", 5), map[string]int{}
		pages := m.Pages
		m.Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
			rounds[r.ID]++
			time.Sleep(9*time.Minute + 10*time.Second) // no page ends at a look
			return pages(ctx, r, cursor)
		}
		m.Blocked = func(context.Context) error {
			if since := time.Since(w.begun); 20*time.Minute <= since && since < 3*time.Hour {
				return ErrNotNow
			}
			return nil
		}
		m.Next = func(started time.Time) time.Time { return started.Add(time.Hour) }
		other := w.split("b/2", 1)
		other.Next = func(time.Time) time.Time { return time.Time{} }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, kindOf(m, other), nil) }()
		time.Sleep(3*time.Hour - time.Second)
		w.checkJobs("outside of the time", "s/b/2 0s", "s/b/2 1h0m0s", "s/b/2 2h0m0s")
		if c := w.checkpoint("s", "a/1"); len(c.GetCursor()) != 3 {
			t.Errorf("the checkpoint is %v, want that after the page at work", c)
		}
		time.Sleep(18*time.Minute + 22*time.Second)
		w.checkJobs("in time again", "s/b/2 0s", "s/b/2 1h0m0s", "s/b/2 2h0m0s", "s/b/2 3h0m0s", "s/a/1 3h18m20s")
		c := w.checkpoint("s", "a/1")
		if c.GetFinished() == nil || rounds[c.GetRound()] != 5 || len(rounds) != 1 {
			t.Errorf("pages of rounds %v, the checkpoint is %v", rounds, c)
		}
		if lines.Count("WARN") != 1 || lines.Count("ERROR") != 0 || lines.Count("pause sweep") != 0 ||
			lines.Count("sweep overran its period") != 1 || !strings.Contains(lines.String(), "next=2000-01-01T01:00:00") {
			t.Error(lines)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Accounts take turns, and so do the splits of an account: a giant delays nobody.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.process("1", func(c *SweeperConfig, _ *SweeperDeps) { c.Workers = 1 })
		splits := []Split{w.split("a/giant", 1000), w.split("a/1", 2), w.split("a/2", 1), w.split("b/1", 3)}
		results, err := s.Rounds(t.Context(), splits)
		if err != nil || len(results) != 4 || results[0].Emitted != 1000 || results[3].Emitted != 3 {
			t.Fatal(results, err)
		}
		early := map[string]int{}
		for _, p := range w.pages[:10] {
			early[p]++
		}
		if early["a/1"] != 2 || early["a/2"] != 1 || early["b/1"] != 3 {
			t.Errorf("the first pages are %q", w.pages[:10])
		}
	})
}

// A page that waits for items to settle lets others work. Together, those that wait hold no more items than allowed.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var holding, most atomic.Int64
		s := w.process("1", func(c *SweeperConfig, _ *SweeperDeps) { c.Workers, c.Held = 1, 25 })
		var splits []Split
		for i := range 6 {
			m := w.split(fmt.Sprintf("a/%d", i), 1)
			pages := m.Pages
			m.Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
				if i > 0 { // the first one does not wait
					if err := s.Settle(ctx, time.Minute, 10); err != nil {
						return Page{}, err
					}
					most.Store(max(most.Load(), holding.Add(10)))
					holding.Add(-10)
				}
				return pages(ctx, r, cursor)
			}
			splits = append(splits, m)
		}
		if _, err := s.Rounds(t.Context(), splits); err != nil {
			t.Fatal(err)
		}
		// Two at a time wait: 5 splits take three minutes, and the next two may find room only at their next attempt.
		if took := time.Since(w.begun); took < 3*time.Minute || took > 3*time.Minute+2*noRoomWait {
			t.Errorf("took %v", took)
		}
	})
}

// A round moves with its split: the next owner continues it from its checkpoint. A zombie only repeats a page.
func TestOwnership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.owner["a/1"], w.owner["a/2"] = "1", "2"
		hold := make(chan struct{})
		m := w.split("a/1", 5)
		pages := m.Pages
		m.Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
			if len(cursor) == 2 && w.ownedBy("a/1") == "1" {
				<-hold // the zombie
			}
			return pages(ctx, r, cursor)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		for _, name := range []string{"1", "2"} {
			ended.Go(func() { _ = w.process(name).Run(ctx, kindOf(m, w.split("a/2", 1)), nil) })
		}
		w.checkJobs("the first owner is stuck", "s/a/2 0s")
		w.mu.Lock()
		w.owner["a/1"] = "2"
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.checkJobs("the next owner has ended the round", "s/a/2 0s", "s/a/1 1m0s")
		close(hold)
		time.Sleep(10 * time.Minute)
		w.mu.Lock()
		n := 0
		for _, p := range w.pages {
			if p == "a/1" {
				n++
			}
		}
		w.mu.Unlock()
		if n > 2*5-2 {
			t.Errorf("%d pages for 5, the checkpoint is %v", n, w.checkpoint("s", "a/1"))
		}
		cancel()
		ended.Wait()
	})
}

func (w *world) ownedBy(split string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owner[split]
}

// A round that fails is tried again later and later, and delays no other one.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		m, asked := w.split("a/1", 1), 0
		m.Pages = func(context.Context, Round, []byte) (Page, error) {
			asked++
			return Page{}, retry.Permanent(errors.New("the listing failed"))
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.process("1").Run(ctx, kindOf(m, w.split("a/2", 1)), nil) }()
		time.Sleep(24*time.Hour - time.Minute)
		synctest.Wait()
		failed, done := 0, 0
		for _, j := range w.jobs {
			if strings.HasPrefix(j, "!") {
				failed++
			} else {
				done++
			}
		}
		if failed < 24 || failed > 55 || done != 24 { // an attempt each half to whole hour, and six before
			t.Errorf("in a day %d attempts failed, and the other split had %d rounds", failed, done)
		}
		if c := w.checkpoint("s", "a/1"); c == nil || c.GetFinished() != nil {
			t.Errorf("the checkpoint is %v", c)
		}
		cancel()
		<-ended
	})
}

// A page that does not move is cancelled and counts as failed.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var looking atomic.Int64
		s := w.process("1", func(_ *SweeperConfig, d *SweeperDeps) { d.Looking = func(n int) { looking.Add(int64(n)) } })
		m := w.split("a/1", 1)
		m.Pages = func(ctx context.Context, _ Round, _ []byte) (Page, error) {
			for range 3 {
				time.Sleep(9 * time.Minute)
				retry.Alive(ctx)
			}
			if n := looking.Load(); n != 1 {
				t.Errorf("%d look", n)
			}
			<-ctx.Done()
			return Page{}, context.Cause(ctx)
		}
		_, err := s.Rounds(t.Context(), []Split{m})
		if took := time.Since(w.begun); !errors.Is(err, errStalled) || took.Round(time.Minute) != 37*time.Minute {
			t.Errorf("got %v after %v", err, took)
		}
		if n := looking.Load(); n != 0 {
			t.Errorf("%d look at the end", n)
		}
	})
}

// What the last page leaves is there in the next round, also after the round was resumed.
func TestPrevious(t *testing.T) {
	w := newWorld(t)
	m := w.split("a/1", 3)
	var got []string
	pages, fail := m.Pages, 0
	m.Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
		got = append(got, fmt.Sprint(len(r.Previous), ":", len(cursor)))
		if fail++; fail == 5 {
			return Page{}, retry.Permanent(errors.New("killed"))
		}
		return pages(ctx, r, cursor)
	}
	for i := range 3 {
		m.Start = start.Add(time.Duration(i) * time.Hour)
		if _, err := w.process("1").Rounds(t.Context(), []Split{m}); (err != nil) != (i == 1) {
			t.Fatal(err)
		}
	}
	if want := []string{"0:0", "0:1", "0:2", "3:0", "3:1", "3:1", "3:2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
