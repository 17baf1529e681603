package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

func TestRound(t *testing.T) {
	w := newHarness(t)
	w.fill()
	s, err := w.run(w.config(), nil)
	must(t, err)
	id := schemas.ID("round", "fixity", "acme/2/photos", "2026-03-01T12:00:00Z")
	want := Result{
		Round: Round{ID: id, Started: start}, Finished: s.Finished, Emitted: 5,
		Counts: map[string]int64{Requested: 5, RequestedBytes: 25, "pass": 5, "live": 8, Outstanding: 0},
	}
	if s.ID != want.ID || !s.Started.Equal(want.Started) || s.Emitted != 5 || !maps.Equal(s.Counts, want.Counts) ||
		s.Finished.IsZero() {
		t.Errorf("got %+v, want %+v", s, want)
	}
	tasks := of[*pb.FixityTask](w)
	if got := items(tasks); !slices.Equal(got, inOrder) {
		t.Errorf("emitted %v, want %v", got, inOrder)
	}
	c := schemas.Copy{Account: "acme", Store: "2", Space: "photos", Item: "x"}
	wantTask := &pb.FixityTask{
		Id: schemas.ID("sweep", id, c.String()), Account: "acme", Store: "2", Space: "photos", Item: "x",
		Reason: pb.FixityReason_FIXITY_REASON_SWEEP, Priority: pb.Priority_PRIORITY_LOW, Cause: id, Round: id,
		Time: timestamppb.New(start), Known: schemas.WithoutProperties(w.copies[c]),
	}
	if !proto.Equal(tasks[2], wantTask) {
		t.Errorf("got %v\nwant %v", tasks[2], wantTask)
	}
	var kinds []string
	for _, call := range w.published {
		kinds = append(kinds, fmt.Sprintf("%s×%d", call[0].Topic, len(call)))
	}
	wantKinds := []string{
		"checkpoints×1", "fixity.low×2", "checkpoints×1", "fixity.low×2", "checkpoints×1", "fixity.low×1",
		"checkpoints×1", "checkpoints×1", "jobs×2", "checkpoints×1",
	}
	if !slices.Equal(kinds, wantKinds) {
		t.Errorf("published %v, want %v", kinds, wantKinds)
	}
	job := of[*pb.Job](w)[0]
	wantJob := &pb.Job{
		Id: schemas.ID("job", "fixity/acme/2/photos", id, "done"), Name: "fixity/acme/2/photos",
		Started:  timestamppb.New(start),
		Finished: timestamppb.New(s.Finished), Counts: want.Counts,
	}
	if !proto.Equal(job, wantJob) {
		t.Errorf("got %v\nwant %v", job, wantJob)
	}
	report := of[*pb.Report](w)[0]
	wantReport := &pb.Report{
		Id: schemas.ID("report", "fixity", id), Kind: "fixity", Account: "acme", Store: "2", Space: "photos", Round: id,
		Started: timestamppb.New(start), Finished: timestamppb.New(s.Finished), Counts: want.Counts, Complete: true,
	}
	if !proto.Equal(report, wantReport) {
		t.Errorf("got %v\nwant %v", report, wantReport)
	}
	last := of[*pb.Checkpoint](w)[5]
	if last.GetFinished() == nil || last.GetRound() != id || !maps.Equal(last.GetCounts(), want.Counts) {
		t.Errorf("last checkpoint %v", last)
	}
	for _, q := range w.queries {
		if !q.PassedBefore.Equal(start.Add(-24*time.Hour)) || !q.AttemptedBefore.Equal(start.Add(-48*time.Minute)) ||
			!q.Begun.Equal(start) || q.Period != 24*time.Hour || q.Space != "photos" {
			t.Errorf("asked for %+v", q)
		}
	}
}

// A copy whose check passes while its record is read does not move the cursor: the copies after it are still due.
func TestCopyPassesWhileItsPageIsRead(t *testing.T) {
	w := newHarness(t)
	w.fill()
	want, err := w.run(w.config(), nil)
	must(t, err)
	w.passing, w.published = true, nil
	got, err := w.run(w.config(), nil)
	if err != nil || got.Emitted != want.Emitted {
		t.Errorf("got %d tasks, %v; want %d", got.Emitted, err, want.Emitted)
	}
}

// Checkpoints hold cursors, so their form must stay the same in all versions.
func TestStoredCursor(t *testing.T) {
	w := newHarness(t)
	w.add("photos", "a/b", 48*time.Hour)
	c := w.config()
	c.Page = 1
	if _, err := w.run(c, nil); err != nil {
		t.Fatal(err)
	}
	const want = `{"LastPass":"2026-02-27T12:00:00Z","Item":"a/b","Selection":{"PassedBefore":"2026-02-28T12:00:00Z",` +
		`"AttemptedBefore":"2026-03-01T11:12:00Z","Period":86400000000000},"Requested":1}`
	if got := string(of[*pb.Checkpoint](w)[1].GetCursor()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	waits := of[*pb.Checkpoint](w)[2]
	at, err := cursorOf(waits.GetCursor())
	if err != nil || at.Requested != 1 || time.Since(at.Waiting) > time.Minute || !OnlyWaits(waits) {
		t.Errorf("the round waits: %s, %v", waits.GetCursor(), err)
	}
}

func TestTopics(t *testing.T) {
	w := newHarness(t)
	large := w.add("photos", "large", 0)
	r := proto.CloneOf(w.copies[large])
	r.Manifest.Size, r.Manifest.Properties = 100, map[string]string{"k": "v"}
	w.copies[large] = r
	w.add("photos", "small", 0)
	w.baseline = true
	if _, err := w.run(w.config(), nil); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, call := range w.published {
		for _, m := range call {
			if task, ok := m.Body.(*pb.FixityTask); ok {
				got = append(got, fmt.Sprintf("%s %s %v %v", m.Topic, task.GetItem(), task.GetPriority(), task.GetBaseline()))
				if task.GetKnown().GetManifest().GetProperties() != nil {
					t.Errorf("%s carries properties", task.GetItem())
				}
			}
		}
	}
	want := []string{"fixity.large large PRIORITY_LARGE true", "fixity.low small PRIORITY_LOW true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Copies with a check that passes during the round are not returned again and do not hide others.
func TestChecksPassMeanwhile(t *testing.T) {
	w := newHarness(t)
	w.fill()
	w.publish = func(int) (bool, error) {
		for _, task := range of[*pb.FixityTask](w) {
			c := schemas.CopyOf(task)
			w.copies[c] = &pb.CopyRecord{Manifest: w.copies[c].GetManifest(), LastPass: timestamppb.New(start.Add(time.Minute))}
		}
		return true, nil
	}
	if _, err := w.run(w.config(), nil); err != nil {
		t.Fatal(err)
	}
	if got := items(of[*pb.FixityTask](w)); !slices.Equal(got, inOrder) {
		t.Errorf("emitted %v, want %v", got, inOrder)
	}
}

func TestEmptyRound(t *testing.T) {
	w := newHarness(t)
	s, err := w.run(w.config(), nil)
	if err != nil || s.Emitted != 0 || len(of[*pb.FixityTask](w)) != 0 {
		t.Errorf("got %+v, %v", s, err)
	}
	if n := len(of[*pb.Job](w)); n != 1 {
		t.Errorf("%d jobs on record, want 1", n)
	}
}

// A sweep on demand emits tasks of reason demand, which are read even after a recent pass.
func TestDemand(t *testing.T) {
	w := newHarness(t)
	w.fill()
	c := w.config()
	c.All = true
	s, err := w.run(c, nil)
	if err != nil || s.Emitted != 7 {
		t.Fatalf("got %+v, %v, want all 7 copies", s, err)
	}
	for _, task := range of[*pb.FixityTask](w) {
		if task.GetReason() != pb.FixityReason_FIXITY_REASON_DEMAND || task.GetRound() != s.ID ||
			task.GetPriority() != pb.Priority_PRIORITY_HIGH {
			t.Errorf("got %v", task)
		}
	}
}

// The Runner is killed after any publish, failed or not, and restarted from the newest checkpoint: it is
// the same round, every copy once or, of one page, twice with the same id.
func TestInterrupted(t *testing.T) {
	dead := retry.Permanent(errors.New("killed"))
	for n := 1; n <= 9; n++ {
		for _, persisted := range []bool{false, true} {
			t.Run(fmt.Sprintf("publish %d, persisted %v", n, persisted), func(t *testing.T) {
				w := newHarness(t)
				w.fill()
				w.baseline = true
				w.publish = func(call int) (bool, error) {
					switch {
					case call == n:
						return persisted, dead
					case call > n:
						return false, dead
					}
					return true, nil
				}
				if _, err := w.run(w.config(), nil); !errors.Is(err, dead) {
					t.Fatalf("got %v, want the failure", err)
				}
				var newest *pb.Checkpoint
				if c := of[*pb.Checkpoint](w); len(c) > 0 {
					newest = c[len(c)-1]
				}
				w.publish = nil
				w.baseline = newest == nil // what the round is says its checkpoint
				s, err := w.run(w.config(), newest)
				must(t, err)
				if s.ID != schemas.ID("round", "fixity", "acme/2/photos", "2026-03-01T12:00:00Z") || s.Emitted != 5 {
					t.Errorf("got %+v", s)
				}
				ids, twice := map[string]string{}, 0
				for _, task := range of[*pb.FixityTask](w) {
					item := task.GetItem()
					if finished := newest.GetFinished() != nil; !task.GetBaseline() && !finished {
						t.Errorf("%s is not of the baseline", item)
					}
					if old, ok := ids[item]; ok {
						twice++
						if old != task.GetId() {
							t.Errorf("%s has two ids", item)
						}
					}
					ids[item] = task.GetId()
				}
				if len(ids) != 5 || twice > 2 {
					t.Errorf("%d copies emitted, %d twice", len(ids), twice)
				}
			})
		}
	}
}

func TestPublishIsTriedAgain(t *testing.T) {
	w := newHarness(t)
	w.fill()
	w.publish = func(n int) (bool, error) {
		if n == 2 || n == 4 {
			return n == 4, errors.New("time-out")
		}
		return true, nil
	}
	s, err := w.run(w.config(), nil)
	if err != nil || s.Emitted != 5 {
		t.Errorf("got %+v, %v", s, err)
	}
}

// An error does not end the round, and is published in the job.
func TestDueFails(t *testing.T) {
	w := newHarness(t)
	w.fill()
	w.due = errors.New("engine unavailable")
	if _, err := w.run(w.config(), nil); !errors.Is(err, w.due) {
		t.Fatalf("got %v", err)
	}
	if len(w.queries) != 3 {
		t.Errorf("asked %d times, want 3", len(w.queries))
	}
	jobs := of[*pb.Job](w)
	if len(jobs) != 1 || jobs[0].GetError() == "" {
		t.Errorf("jobs %v", jobs)
	}
	for _, c := range of[*pb.Checkpoint](w) {
		if c.GetFinished() != nil {
			t.Errorf("the round is finished: %v", c)
		}
	}
}

func TestLagFails(t *testing.T) {
	w := newHarness(t)
	w.fill()
	w.lag = errors.New("broker unavailable")
	if _, err := w.run(w.config(), nil); !errors.Is(err, w.lag) || len(of[*pb.FixityTask](w)) != 0 {
		t.Errorf("got %v after %d tasks", err, len(of[*pb.FixityTask](w)))
	}
}

func TestBackpressure(t *testing.T) {
	tests := map[string]struct {
		lags []int64
		want time.Duration // waited
	}{
		"room":                 {[]int64{10_000}, 0},
		"above, then half":     {[]int64{10_001, 5_000}, 100 * time.Millisecond},
		"above, then not half": {[]int64{10_001, 9_000, 5_001, 4_000}, 700 * time.Millisecond},
		"for long": {[]int64{10_001, 10_001, 10_001, 10_001, 10_001, 10_001, 10_001, 0},
			(100 + 200 + 400 + 800 + 3*1000) * time.Millisecond},
		"twice": {[]int64{10_001, 0, 20_000, 0}, 200 * time.Millisecond},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHarness(t)
				w.fill()
				w.lags = tt.lags
				begun := time.Now()
				if _, err := w.run(w.config(), nil); err != nil {
					t.Fatal(err)
				}
				if got := time.Since(begun); got != tt.want {
					t.Errorf("waited %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// What several rounds have emitted, and what is not handled, exceeds the bound by a tenth at most, whatever the size of
// their pages.
func TestBacklogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound, splits, size = 100, 8, 70
		var mu sync.Mutex
		out, most, total := 0, 0, 0
		consume := func(ctx context.Context) {
			for retry.Sleep(ctx, 10*time.Millisecond) == nil {
				mu.Lock()
				out = max(out-1, 0)
				mu.Unlock()
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		go consume(ctx)
		w := newWorld(t)
		s := w.process("1", func(c *SweeperConfig, d *SweeperDeps) {
			c.MaxBacklog, c.Workers = bound, 4
			d.Publisher = publish(func(_ context.Context, messages ...schemas.Message) error {
				if messages[0].Topic == schemas.FixityLow {
					time.Sleep(time.Millisecond)
					mu.Lock()
					out, total = out+len(messages), total+len(messages)
					most = max(most, out)
					mu.Unlock()
				}
				return nil
			})
		})
		var all []Split
		for i := range splits {
			m := w.split(fmt.Sprint("acme/", i), 3)
			m.Lag = func(context.Context) (int64, error) {
				mu.Lock()
				defer mu.Unlock()
				return int64(out), nil
			}
			one := m.Pages
			m.Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
				p, err := one(ctx, r, cursor)
				p.Messages = slices.Repeat(p.Messages, size)
				return p, err
			}
			all = append(all, m)
		}
		_, err := s.Rounds(ctx, all)
		cancel()
		if err != nil || total != splits*3*size || most > bound+bound/10 {
			t.Errorf("emitted %d, %d at once: %v", total, most, err)
		}
	})
}

// publish is a Publisher.
type publish func(context.Context, ...schemas.Message) error

func (f publish) Publish(ctx context.Context, messages ...schemas.Message) error {
	return f(ctx, messages...)
}

func TestCancelledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		w.fill()
		w.lags = []int64{1 << 20}
		m, err := w.config().Split(w.config().Request)
		must(t, err)
		reason := errors.New("shutdown")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, reason)
		defer cancel()
		_, err = w.rounds(ctx, m, nil)
		if !errors.Is(err, reason) || len(of[*pb.FixityTask](w)) != 0 || len(of[*pb.Job](w)) != 0 {
			t.Errorf("got %v; published %v", err, w.published)
		}
	})
}

func TestCursorsThatAreNone(t *testing.T) {
	w := newHarness(t)
	w.fill()
	broken := &pb.Checkpoint{Sweep: "fixity", Split: "acme/2/photos", Round: "r", Started: timestamppb.New(start),
		Cursor: []byte("{")}
	if _, err := w.run(w.config(), broken); err == nil {
		t.Error("a broken cursor is taken for a beginning")
	}
	stuck := func(_ context.Context, _ Round, cursor []byte) (Page, error) { return Page{Next: cursor}, nil }
	if _, err := w.rounds(t.Context(), Split{Sweep: "s", Name: "m", Pages: stuck}, nil); err == nil {
		t.Error("a page that does not advance the cursor is not an error")
	}
}

func TestNew(t *testing.T) {
	w := newHarness(t)
	d := SweeperDeps{Publisher: w, Log: slog.Default(), CatchUp: func(context.Context) error { return nil },
		Checkpoint: func(string, string) *pb.Checkpoint { return nil }}
	if _, err := NewSweeper(SweeperConfig{Config: Config{Poll: -1}}, d); err == nil {
		t.Error("a negative poll is taken")
	}
	if _, err := NewSweeper(SweeperConfig{}, SweeperDeps{}); err == nil {
		t.Error("no deps, no error")
	}
	for name, change := range map[string]func(*roundConfig){
		"account": func(c *roundConfig) { c.Account = "" }, "page": func(c *roundConfig) { c.Page = -1 },
		"space": func(c *roundConfig) { c.Space = "" }, "results": func(c *roundConfig) { c.Results = nil },
		"period": func(c *roundConfig) { c.Period = -1 },
	} {
		c := w.config()
		change(&c)
		if _, err := c.Split(c.Request); err == nil {
			t.Errorf("a fault in %s is taken", name)
		}
	}
}

// A sweep that counts what it has compared says how many messages it has emitted, also in a round that was resumed.
func TestEmittedBesideOtherCounts(t *testing.T) {
	w := newHarness(t)
	pages := func(_ context.Context, _ Round, cursor []byte) (Page, error) {
		return Page{Counts: map[string]int64{"equal": 1000}, Emitted: 2, Next: append(cursor, 'a'), Last: cursor != nil}, nil
	}
	m := Split{Sweep: "pairs", Name: "a", Pages: pages}
	got, err := w.rounds(t.Context(), m, nil)
	if err != nil || got.Emitted != 4 || got.Counts["equal"] != 2000 {
		t.Errorf("got %+v, %v", got, err)
	}
	resumed := of[*pb.Checkpoint](w)[1]
	got, err = w.rounds(t.Context(), m, resumed)
	if err != nil || got.Emitted != 4 {
		t.Errorf("resumed: got %+v, %v", got, err)
	}
}

// A round that is skipped ends after the page at work, without a report, and its successor knows what it has known of
// the round before.
func TestSkippedRound(t *testing.T) {
	w := newHarness(t)
	var newest *pb.Checkpoint
	s, err := NewSweeper(SweeperConfig{}, SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler),
		CatchUp:    func(context.Context) error { return nil },
		Checkpoint: func(string, string) *pb.Checkpoint { return newest },
		Skipped: func(round string) string {
			points := of[*pb.Checkpoint](w)
			if round == "r" && len(points) == 1 {
				return "skipped by ann: too long"
			}
			return ""
		}})
	must(t, err)
	newest = &pb.Checkpoint{Sweep: "s", Split: "a", Round: "r", Started: timestamppb.New(start), Cursor: []byte("x"),
		Previous: []byte("before"), Counts: map[string]int64{"equal": 1}}
	var previous []byte
	m := Split{Sweep: "s", Name: "a", Lag: w.Lag, Start: start, Report: func(Result) *pb.Report { return &pb.Report{} },
		Pages: func(_ context.Context, r Round, cursor []byte) (Page, error) {
			previous = r.Previous
			return Page{Counts: map[string]int64{"equal": 1}, Next: append(cursor, 'a'), Last: len(cursor) > 4}, nil
		}}
	results, err := s.Rounds(t.Context(), []Split{m})
	if err != nil || len(results) != 1 || results[0].ID != "r" || results[0].Counts["equal"] != 2 {
		t.Errorf("got %+v, %v", results, err)
	}
	points, jobs := of[*pb.Checkpoint](w), of[*pb.Job](w)
	last := points[len(points)-1]
	if len(points) != 2 || last.GetFinished() == nil || string(last.GetCursor()) != "before" {
		t.Errorf("checkpoints %v", points)
	}
	if len(jobs) != 1 || jobs[0].GetError() != "" || jobs[0].GetCounts()[skipped] != 1 || len(of[*pb.Report](w)) != 0 {
		t.Errorf("jobs %v, reports %v", jobs, of[*pb.Report](w))
	}
	newest, m.Start = last, start.Add(time.Hour)
	if _, err := s.Rounds(t.Context(), []Split{m}); err != nil || string(previous) != "before" {
		t.Errorf("the next round knows %q of the one before: %v", previous, err)
	}
}

// A process that was suspended in the last page of a round ends nothing: another one has ended the round meanwhile, or
// works on it.
func TestSuspendedInTheLastPage(t *testing.T) {
	under := &pb.Checkpoint{Sweep: "s", Split: "a", Round: "r", Started: timestamppb.New(start), Cursor: []byte("x")}
	ended := proto.CloneOf(under)
	ended.Finished, ended.Counts = timestamppb.New(start.Add(time.Minute)), map[string]int64{"equal": 7}
	for name, tt := range map[string]struct {
		then *pb.Checkpoint
		owns bool
		want error
		jobs int
	}{
		"it goes on":    {under, true, nil, 1},
		"it has ended":  {ended, true, nil, 0},
		"a later one":   {&pb.Checkpoint{Round: "later"}, true, errLost, 0},
		"another owner": {under, false, errLost, 0},
	} {
		w := newHarness(t)
		newest, owns := under, true
		s, err := NewSweeper(SweeperConfig{}, SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler),
			CatchUp:    func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint { return newest },
			Owns:       func(string, string) bool { return owns }})
		must(t, err)
		results, err := s.Rounds(t.Context(), []Split{{Sweep: "s", Name: "a", Lag: w.Lag, Start: start,
			Pages: func(context.Context, Round, []byte) (Page, error) {
				newest, owns = tt.then, tt.owns
				return Page{Counts: map[string]int64{"equal": 1}, Last: true}, nil
			}}})
		if !errors.Is(err, tt.want) || len(of[*pb.Job](w)) != tt.jobs || len(of[*pb.Checkpoint](w)) != tt.jobs {
			t.Errorf("%s: %v, published %v", name, err, w.published)
		}
		if tt.then == ended && (len(results) != 1 || results[0].Counts["equal"] != 7) {
			t.Errorf("%s: got %+v", name, results)
		}
	}
}
