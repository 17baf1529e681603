package sweep

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

func TestBudgetLeft(t *testing.T) {
	now := time.Date(2026, 9, 2, 12, 30, 0, 0, time.UTC)
	ago := func(hours int64, s Spent) Spending { return Spending{hourOf(now) - hours: s} }
	point := func(split string, s Spending) *pb.Checkpoint {
		cursor, err := json.Marshal(fixityCursor{Spent: s})
		must(t, err)
		return &pb.Checkpoint{Sweep: FixitySweep, Split: split, Cursor: cursor}
	}
	one := func(s Spending) []*pb.Checkpoint { return []*pb.Checkpoint{point("a", s)} }
	left := func(items, bytes, retried, retriedBytes int64) allowance {
		return allowance{Amount{items, bytes, -1}, Amount{retried, retriedBytes, -1}}
	}
	for name, tt := range map[string]struct {
		limit  Amount
		points []*pb.Checkpoint
		taken  map[string]Spending
		want   allowance
	}{
		"no limit":         {Amount{0, 0, 0}, one(ago(0, Spent{Items: 5})), nil, unlimited},
		"nothing is spent": {Amount{10, 100, 0}, nil, nil, left(1, 4, 3, 25)},
		"a large one":      {Amount{2400, 0, 0}, nil, nil, left(100, -1, 600, -1)},
		"of two splits": {Amount{10, 100, 0}, []*pb.Checkpoint{point("a", ago(1, Spent{3, 30, 0, 1, 10, 0})),
			point("b", ago(2, Spent{4, 40, 0, 1, 5, 0}))},
			nil, left(1, 4, 1, 10)},
		"23 hours ago":        {Amount{10, 0, 0}, one(ago(23, Spent{Items: 9})), nil, left(1, -1, 3, -1)},
		"a day ago":           {Amount{10, 0, 0}, one(ago(24, Spent{Items: 10})), nil, left(0, -1, 3, -1)},
		"more than a day ago": {Amount{10, 0, 0}, one(ago(25, Spent{Items: 10})), nil, left(1, -1, 3, -1)},
		"by a clock ahead":    {Amount{10, 0, 0}, one(ago(-30, Spent{Items: 10})), nil, left(1, -1, 3, -1)},
		"of the round before": {Amount{10, 0, 0}, []*pb.Checkpoint{{Sweep: FixitySweep, Split: "a",
			Previous: point("a", ago(1, Spent{Items: 10})).GetCursor()}}, nil, left(0, -1, 3, -1)},
		"more than there is": {Amount{10, 0, 0}, one(ago(0, Spent{11, 0, 0, 5, 0, 0})), nil, left(0, -1, 0, -1)},
		"all bytes":          {Amount{10, 100, 0}, one(ago(0, Spent{1, 100, 0, 0, 0, 0})), nil, left(1, 0, 3, 25)},
		"only bytes":         {Amount{0, 100, 0}, one(ago(0, Spent{1, 99, 0, 1, 20, 0})), nil, left(-1, 1, -1, 5)},
		"only bytes, all":    {Amount{0, 100, 0}, one(ago(0, Spent{1, 100, 0, 1, 30, 0})), nil, left(-1, 0, -1, 0)},
		"requests": {Amount{0, 0, 48}, one(ago(1, Spent{Items: 4, Requests: 40, Retried: 1, RetriedRequests: 7})), nil,
			allowance{Amount{-1, -1, 2}, Amount{-1, -1, 5}}},
		"all requests": {Amount{10, 0, 48}, one(ago(1, Spent{Items: 4, Requests: 48, Retried: 1, RetriedRequests: 12})),
			nil, allowance{Amount{1, -1, 0}, Amount{2, -1, 0}}},
		"a checkpoint is late": {Amount{10, 0, 0}, nil, map[string]Spending{"fixity/a": ago(0, Spent{Items: 10})},
			left(0, -1, 3, -1)},
		"taken, and in the checkpoint": {Amount{10, 0, 0}, one(ago(0, Spent{Items: 9})),
			map[string]Spending{"fixity/a": ago(0, Spent{Items: 8})}, left(1, -1, 3, -1)},
		"a cursor that cannot be read": {Amount{10, 0, 0}, []*pb.Checkpoint{{Sweep: FixitySweep, Split: "a",
			Cursor: []byte("x")}}, nil, left(1, -1, 3, -1)},
	} {
		b := NewBudget(tt.limit, func() []*pb.Checkpoint { return tt.points })
		if tt.taken != nil {
			b.taken = tt.taken
		}
		if got := b.left(now); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// A round with a budget requests as many checks in a day, and goes on the day after. The next round knows what was
// requested before.
func TestRoundWithBudget(t *testing.T) {
	for name, tt := range map[string]struct {
		items, bytes, requests int64
		perDay, days           int64
	}{
		"no limit": {0, 0, 0, 11, 1},
		"items":    {4, 0, 0, 4, 3},
		"bytes":    {0, 12, 0, 3, 4}, // of 5 bytes each: the third exceeds them
		"requests": {0, 0, 12, 4, 3}, // three for each check
		"all":      {2, 12, 12, 2, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHarness(t)
				for i := range 11 {
					w.add("photos", fmt.Sprint(i), 0)
				}
				var points []*pb.Checkpoint
				begun := time.Now()
				w.begun = begun
				perDay := map[int64]int64{}
				c := w.config()
				c.Requests = func(int64) int64 { return 3 }
				c.Budget = NewBudget(Amount{tt.items, tt.bytes, tt.requests}, func() []*pb.Checkpoint { return points })
				last := time.Duration(0)
				w.publish = func(int) (bool, error) {
					perDay[int64(time.Since(begun)/(24*time.Hour))] = int64(len(of[*pb.FixityTask](w)))
					last = time.Since(begun)
					return true, nil
				}
				s, err := w.run(c, nil)
				if err != nil || s.Counts[Requested] != 11 {
					t.Fatalf("got %v, %v", s.Counts, err)
				}
				if got := int64(last/(24*time.Hour)) + 1; got != tt.days {
					t.Errorf("the round took %d days, want %d", got, tt.days)
				}
				if tasks := of[*pb.FixityTask](w); len(tasks) != 11 {
					t.Errorf("%d tasks", len(tasks))
				}
				before := int64(0)
				for day := range tt.days {
					if got := perDay[day] - before; got > tt.perDay {
						t.Errorf("day %d: %d checks, want %d", day, got, tt.perDay)
					}
					before = perDay[day]
				}
				all := of[*pb.Checkpoint](w)
				end := all[len(all)-1]
				at, err := cursorOf(end.GetCursor())
				if err != nil || end.GetFinished() == nil || len(at.Spent) == 0 {
					t.Errorf("the round ended with %v, %v", at, err)
				}
				points = []*pb.Checkpoint{end}
				again := NewBudget(Amount{tt.items, tt.bytes, tt.requests}, func() []*pb.Checkpoint { return points })
				if left := again.left(time.Now()); tt.items > 0 && left.all.Items >= tt.items {
					t.Errorf("%v is left after a restart", left)
				}
			})
		})
	}
}

// Copies whose newest check did not pass take a quarter of a budget, of items, bytes and requests, also in a store that
// is not always read.
func TestRetriedCopiesWithBudget(t *testing.T) {
	for name, tt := range map[string]struct {
		items, bytes, requests int64
		want                   string
	}{
		"of items":       {10, 0, 0, "[0 1 2 6 7]"},
		"of bytes":       {0, 60, 0, "[0 1 2 6 7]"}, // of 5 bytes each: 15 are a quarter
		"of fewer bytes": {0, 44, 0, "[0 1 2 6 7]"}, // the last one exceeds them
		"of both":        {10, 20, 0, "[0 6 7]"},
		"of requests":    {0, 0, 48, "[0 1 2 6 7]"}, // four for each check
		"no limit":       {0, 0, 0, "[0 1 2 3 4 5 6 7]"},
	} {
		for read, percent := range map[string]int{"always": 100, "sampled": 5, "never": 0} {
			t.Run(name+", read "+read, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newHarness(t)
					w.begun = time.Now()
					for i := range 8 {
						c := w.add("photos", fmt.Sprint(i), 0)
						if i < 6 {
							w.copies[c].LastAttempt = timestamppb.New(start.Add(-time.Hour))
						}
					}
					c := w.config()
					c.Page, c.Requests = 10, func(size int64) int64 { return size - 1 }
					c.ReadPercent, c.Asserts = percent, percent < 100
					c.Budget = NewBudget(Amount{tt.items, tt.bytes, tt.requests}, func() []*pb.Checkpoint { return nil })
					_, err := w.run(c, nil)
					if got := fmt.Sprint(items(of[*pb.FixityTask](w))); err != nil || got != tt.want {
						t.Errorf("got %s, %v, want %s", got, err, tt.want)
					}
				})
			})
		}
	}
}

// Rounds over two spaces, which take turns with the budget of their store, request all their checks, also if their
// results are not waited for.
func TestTwoSpacesWithOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t)
		for i := range 5 {
			w.add("photos", fmt.Sprint(i), 0)
			w.add("papers", fmt.Sprint(i), 0)
		}
		c := w.config()
		c.Due = slowDue{w}
		c.Budget, c.Detach = NewBudget(Amount{}, func() []*pb.Checkpoint { return nil }), true
		var splits []Split
		for _, c.Space = range []string{"photos", "papers"} {
			m, err := c.Split(c.Request)
			must(t, err)
			splits = append(splits, m)
		}
		s, err := NewSweeper(SweeperConfig{}, SweeperDeps{Publisher: w, Log: slog.New(slog.DiscardHandler),
			CatchUp:    func(context.Context) error { return nil },
			Checkpoint: func(string, string) *pb.Checkpoint { return nil }})
		must(t, err)
		results, err := s.Rounds(t.Context(), splits)
		if err != nil || len(results) != 2 || results[0].Emitted != 5 || results[1].Emitted != 5 {
			t.Errorf("got %v, %v, want 5 checks each", results, err)
		}
	})
}

// A slowDue takes a second for each page.
type slowDue struct{ *harness }

func (d slowDue) Due(
	ctx context.Context, q schemas.DueQuery,
) ([]schemas.DueCopy, schemas.DueCursor, error) {
	time.Sleep(time.Second)
	return d.harness.Due(ctx, q)
}

// A round that has requested all checks when the budget is used up waits for results, not for the budget.
func TestRoundAtTheEndOfItsBudget(t *testing.T) {
	for name, due := range map[string]int{"all are requested": 2, "none is due": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newHarness(t)
				for i := range due {
					w.add("photos", fmt.Sprint(i), 0)
				}
				begun := time.Now()
				w.begun = begun
				c := w.config()
				c.Page = 1
				used := Spending{hourOf(begun): Spent{Items: int64(24 - due)}}
				c.Budget = NewBudget(Amount{Items: 24}, func() []*pb.Checkpoint { return nil })
				c.Budget.taken["fixity/acme/2/papers"] = used
				s, err := w.run(c, nil)
				if err != nil || s.Counts[Requested] != int64(due) || time.Since(begun) > 10*time.Minute {
					t.Errorf("got %v, %v after %v", s.Counts, err, time.Since(begun))
				}
			})
		})
	}
}
