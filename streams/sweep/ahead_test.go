package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// An aheadSplit has five pages of one message each.
type aheadSplit struct {
	mu    sync.Mutex // guards reads
	reads []string   // cursors
	take  time.Duration
	fail  func(cursor string, times int) error
}

func (a *aheadSplit) page(ctx context.Context, _ Round, cursor []byte) (page Page, err error) {
	a.mu.Lock()
	a.reads = append(a.reads, string(cursor))
	times := 0
	for _, r := range a.reads {
		if r == string(cursor) {
			times++
		}
	}
	a.mu.Unlock()
	select {
	case <-time.After(a.take):
	case <-ctx.Done():
		return page, context.Cause(ctx)
	}
	if a.fail != nil {
		if err := a.fail(string(cursor), times); err != nil {
			return page, err
		}
	}
	next := string(cursor) + "x"
	return Page{Messages: []schemas.Message{{Topic: schemas.FixityLow, Body: &pb.FixityTask{Id: next}}}, Emitted: 1,
		Next: []byte(next), Last: len(next) == 5}, nil
}

// run runs the round, whose publications of a page take a time each, and returns how long that took.
func (a *aheadSplit) run(ctx context.Context, w *harness, ahead bool, publish time.Duration) (time.Duration, error) {
	slow := publisherFunc(func(ctx context.Context, messages ...schemas.Message) error {
		if messages[0].Topic == schemas.FixityLow {
			time.Sleep(publish)
		}
		return w.Publish(ctx, messages...)
	})
	s, err := NewSweeper(SweeperConfig{}, SweeperDeps{Publisher: slow, Log: slog.New(slog.DiscardHandler),
		CatchUp:    func(context.Context) error { return nil },
		Checkpoint: func(string, string) *pb.Checkpoint { return nil }})
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	_, err = s.Rounds(ctx, []Split{{Sweep: "s", Name: "a", Lag: w.Lag, Start: start, Pages: a.page, Ahead: ahead}})
	return time.Since(begun), err
}

type publisherFunc func(context.Context, ...schemas.Message) error

func (f publisherFunc) Publish(ctx context.Context, messages ...schemas.Message) error {
	return f(ctx, messages...)
}

func tasks(w *harness) string {
	var ids []string
	for _, task := range of[*pb.FixityTask](w) {
		ids = append(ids, task.GetId())
	}
	return strings.Join(ids, " ")
}

const allTasks = "x xx xxx xxxx xxxxx"

// The next page is read while one is published. Each is read and published once, in order.
func TestPagesAreReadAhead(t *testing.T) {
	for ahead, want := range map[bool]time.Duration{false: 50 * time.Second, true: 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w, a := newHarness(t), &aheadSplit{take: 5 * time.Second}
			took, err := a.run(t.Context(), w, ahead, 5*time.Second)
			if err != nil || tasks(w) != allTasks || len(a.reads) != 5 {
				t.Errorf("ahead %v: %v, published %s, read %q", ahead, err, tasks(w), a.reads)
			}
			if took < want || took > want+6*time.Second {
				t.Errorf("ahead %v: took %v, want %v", ahead, took, want)
			}
		})
	}
}

// A page that could not be read ahead, or is old by the time it is needed, is read again.
func TestPageAheadIsReadAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		fail    func(cursor string, times int) error
		publish time.Duration
		want    int // reads
	}{
		"failed": {func(cursor string, times int) error {
			if cursor == "xx" && times == 1 {
				return errors.New("away")
			}
			return nil
		}, time.Second, 6},
		"old": {nil, 6 * time.Minute, 9},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, a := newHarness(t), &aheadSplit{take: time.Second, fail: tt.fail}
			if _, err := a.run(t.Context(), w, true, tt.publish); err != nil || tasks(w) != allTasks || len(a.reads) != tt.want {
				t.Errorf("%s: %v, published %s, read %q", name, err, tasks(w), a.reads)
			}
		})
	}
}

// An error of a page, and the end of the process, end the reading of the next page.
func TestPageAheadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newHarness(t), &aheadSplit{take: time.Second}
		w.publish = func(n int) (bool, error) {
			if n > 2 {
				return false, errors.New("refused")
			}
			return true, nil
		}
		if _, err := a.run(t.Context(), w, true, 0); err == nil {
			t.Error("no error")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w, a := newHarness(t), &aheadSplit{take: time.Hour}
		a.fail = func(cursor string, _ int) error { return fmt.Errorf("page %q was read", cursor) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := a.run(ctx, w, true, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if slices.Contains(a.reads, "x") {
			t.Errorf("read %q", a.reads)
		}
	})
}

// No more pages are read ahead than there are workers, and a panic of one is the error of its round.
func TestPagesAheadAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newHarness(t), &aheadSplit{take: time.Second}
		a.fail = func(cursor string, _ int) error {
			if cursor == "xx" {
				panic("a fault of the program")
			}
			return nil
		}
		if _, err := a.run(t.Context(), w, true, 0); err == nil || !strings.Contains(err.Error(), "a fault of the program") {
			t.Errorf("got %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a := &aheadSplit{take: time.Second}
		r, err := newRunner(SweeperConfig{Workers: 2}, publisherFunc(nil), slog.New(slog.DiscardHandler), nil)
		must(t, err)
		runs := make([]*run, 3)
		for i := range runs {
			runs[i] = &run{runner: r, split: Split{Ahead: true, Pages: a.page}, base: t.Context()}
			runs[i].readAhead([]byte("x"))
		}
		if runs[0].ahead == nil || runs[1].ahead == nil || runs[2].ahead != nil {
			t.Error("other than two pages are read ahead")
		}
		runs[0].stopAhead()
		if runs[2].readAhead([]byte("x")); runs[2].ahead == nil {
			t.Error("no page is read ahead in the place of one that is not read any more")
		}
		for _, r := range runs {
			r.stopAhead()
		}
	})
}
