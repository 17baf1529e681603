package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// A swept is a harness whose rounds a Sweeper runs, with the newest checkpoints.
type swept struct {
	*harness
	checked bool            // a check is recorded
	mu      sync.Mutex      // guards what follows, in tests with a goroutine
	paused  map[string]bool // by store
	reads   int             // of the checkpoints
	read    error           // of the next read
	other   Checkpoints     // besides the published ones
}

func newSwept(t *testing.T) *swept {
	return &swept{harness: newHarness(t), paused: map[string]bool{}, other: Checkpoints{}}
}

func (w *swept) checkpoints(context.Context) (Checkpoints, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.read; err != nil {
		w.read = nil
		return nil, err
	}
	w.reads++
	all := Checkpoints{}
	for key, c := range w.other {
		all[key] = c
	}
	for _, c := range of[*pb.Checkpoint](w.harness) {
		all[schemas.Key(c.GetSweep(), c.GetSplit())] = c
	}
	return all, nil
}

func (w *swept) sweeper() *Sweeper {
	return NewSweeper(SweeperConfig{Page: 2}, SweeperDeps{
		Due: w, Publisher: w, Lag: w.Lag, Checkpoints: w.checkpoints, Log: slog.New(slog.DiscardHandler),
		Checked: func(context.Context, string, string, string) (bool, error) { return w.checked, nil },
		Paused: func(_, store string) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.paused[store]
		},
	})
}

func (w *swept) sweep(r Request) (Result, []*pb.FixityTask) {
	w.t.Helper()
	r.Account, r.Store = "acme", "2"
	before := len(of[*pb.FixityTask](w.harness))
	result, err := w.sweeper().Sweep(w.t.Context(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return result, of[*pb.FixityTask](w.harness)[before:]
}

// A round on demand requests checks of every copy and reports their number. It is separate from the periodic rounds:
// neither resumes or replaces the other. A finished round with the same start is not repeated.
func TestSweepOnDemand(t *testing.T) {
	w := newSwept(t)
	w.fill()
	half := func(sweep string, begun time.Time) string {
		id := schemas.ID("half", sweep)
		w.other[schemas.Key(sweep, "acme/2")] = &pb.Checkpoint{Sweep: sweep, Split: "acme/2", Round: id,
			Started: timestamppb.New(begun), Cursor: []byte(`{"Space":"photos","Item":"b"}`),
			Counts: map[string]int64{"2/photos": 2}}
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
		return &pb.Checkpoint{Sweep: sweep, Split: "acme/2", Round: "r", Started: at, Finished: at,
			Counts: map[string]int64{"2/photos": tasks}}
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
				w.other[schemas.Key(c.GetSweep(), c.GetSplit())] = c
			}
			result, tasks := w.sweep(Request{Begun: start})
			if len(tasks) == 0 || result.Baseline != tt.want {
				t.Errorf("%d tasks, baseline %t, want %t", len(tasks), result.Baseline, tt.want)
			}
		})
	}
}

// A store is swept at once and then every hour. A look reads the checkpoints once for all stores, and again after each
// round. A paused round begins when the pause has ended.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSwept(t)
		start := time.Now()
		changed := make(chan struct{})
		w.paused["3"] = true
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- w.sweeper().Run(ctx, []Request{{Account: "acme", Store: "1"}, {Account: "acme", Store: "2"},
				{Account: "acme", Store: "3"}}, changed)
		}()
		check := func(when string, reads int, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, job := range of[*pb.Job](w.harness) {
				got = append(got, fmt.Sprint(job.GetName(), " ", job.GetFinished().AsTime().Sub(start).Round(time.Second)))
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if !slices.Equal(got, want) || w.reads != reads {
				t.Errorf("%s: rounds %q after %d reads, want %q after %d", when, got, w.reads, want, reads)
			}
		}
		done := []string{"fixity/acme/1 0s", "fixity/acme/2 0s"}
		check("at the start", 3, done...)
		time.Sleep(6 * time.Minute)
		check("after a look", 4, done...)
		w.mu.Lock()
		w.paused["3"] = false
		w.mu.Unlock()
		changed <- struct{}{}
		done = append(done, "fixity/acme/3 6m0s")
		check("after the pause", 5, done...)
		w.mu.Lock()
		w.read = errors.New("no broker")
		w.mu.Unlock()
		time.Sleep(5 * time.Minute)
		check("a read failed", 5, done...)
		time.Sleep(50 * time.Minute)
		done = append(done, "fixity/acme/1 1h0m0s", "fixity/acme/2 1h0m0s")
		check("after an hour", 17, done...)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A look that gets stuck is visible: Looking tells that it runs, and nothing reports progress. Between looks nothing is
// due.
func TestLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSwept(t)
		w.fill()
		var looking, progress atomic.Int64
		var stuck atomic.Bool
		w.publish = func(int) (bool, error) {
			if stuck.Load() {
				time.Sleep(time.Hour)
			}
			return true, nil
		}
		s := w.sweeper()
		s.deps.Looking = func(delta int) { looking.Add(int64(delta)) }
		ctx, cancel := context.WithCancel(t.Context())
		ctx = retry.Watched(ctx, func() { progress.Add(1) })
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, []Request{{Account: "acme", Store: "2"}}, nil) }()
		synctest.Wait()
		begun := progress.Load()
		if looking.Load() != 0 || begun < 5 { // the checkpoints, the lag, the rows, the tasks, the end
			t.Errorf("after a look: %d looks run, progress %d times", looking.Load(), begun)
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		stuck.Store(true)
		begun = progress.Load()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := progress.Load(); looking.Load() != 1 || got > begun+1 { // the checkpoints
			t.Errorf("stuck: %d looks run, progress %d times more", looking.Load(), got-begun)
		}
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if got := progress.Load(); looking.Load() != 1 || got > begun+1 {
			t.Errorf("still stuck: %d looks run, progress %d times more", looking.Load(), got-begun)
		}
		stuck.Store(false)
		cancel()
		if err := <-ended; err != nil || looking.Load() != 0 {
			t.Errorf("after the end: %d looks run, %v", looking.Load(), err)
		}
	})
}

// After a round the checkpoints are read again: other processes may have swept the next stores.
func TestLookAfterARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSwept(t)
		w.publish = func(n int) (bool, error) {
			if n == 1 {
				time.Sleep(time.Second)
				at := timestamppb.Now()
				w.other[schemas.Key("fixity", "acme/2")] = &pb.Checkpoint{Sweep: "fixity", Split: "acme/2", Round: "r",
					Started: at, Finished: at}
			}
			return true, nil
		}
		w.sweeper().look(t.Context(), []Request{{Account: "acme", Store: "1"}, {Account: "acme", Store: "2"}})
		if jobs := of[*pb.Job](w.harness); len(jobs) != 1 || w.reads != 2 {
			t.Errorf("jobs %v after %d reads, want the round over store 1 and 2 reads", jobs, w.reads)
		}
	})
}
