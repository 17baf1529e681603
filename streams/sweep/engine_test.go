package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

// settling returns splits of one page each, which holds 10 items while it waits for d.
func (w *world) settling(s *Sweeper, n int, d time.Duration) (all []Split) {
	for i := range n {
		m := w.split(fmt.Sprintf("a/%d", i), 1)
		pages := m.Pages
		m.Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
			if err := s.Settle(ctx, d, 10); err != nil {
				return Page{}, err
			}
			return pages(ctx, r, cursor)
		}
		all = append(all, m)
	}
	return all
}

// A page without room for its items waits without a slot: the splits of other accounts go on.
func TestNoRoomKeepsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.process("1", func(c *SweeperConfig, _ *SweeperDeps) { c.Workers, c.Held = 2, 10 })
		var ended time.Duration
		other := w.split("b/1", 10)
		pages := other.Pages
		other.Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
			p, err := pages(ctx, r, cursor)
			if p.Last {
				ended = time.Since(w.begun)
			}
			return p, err
		}
		if _, err := s.Rounds(t.Context(), append(w.settling(s, 4, 2*time.Minute), other)); err != nil {
			t.Fatal(err)
		}
		if ended > time.Minute {
			t.Errorf("the other account's round of 10 quick pages ended after %v", ended)
		}
	})
}

// Such a page is not cancelled as stalled, however long others hold their items.
func TestNoRoomIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.process("1", func(c *SweeperConfig, _ *SweeperDeps) { c.Workers, c.Held = 4, 10 })
		if _, err := s.Rounds(t.Context(), w.settling(s, 4, 5*time.Minute)); err != nil {
			t.Error(err)
		}
	})
}

// A page that is cancelled as stalled is on record, and counted, as a failure.
func TestStallIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		reg := prometheus.NewRegistry()
		counts := NewMetrics(reg, map[string]string{"s": "all"})
		s := w.process("1", func(_ *SweeperConfig, d *SweeperDeps) { d.Metrics = counts })
		if _, err := s.Rounds(t.Context(), []Split{w.split("a/2", 3)}); err != nil {
			t.Error(err)
		}
		w.jobs = nil
		m := w.split("a/1", 1)
		m.Pages = func(ctx context.Context, _ Round, _ []byte) (Page, error) {
			<-ctx.Done()
			return Page{}, context.Cause(ctx)
		}
		_, err := s.Rounds(t.Context(), []Split{m})
		if !errors.Is(err, errStalled) || len(w.jobs) != 1 {
			t.Errorf("got %v; jobs %q", err, w.jobs)
		}
		got := map[string]float64{}
		families, err := reg.Gather()
		for _, f := range families {
			got[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
		}
		want := map[string]float64{"millrace_sweep_emitted_total": 3, "millrace_sweep_failures_total": 1,
			"millrace_sweep_stalls_total": 1, "millrace_sweep_overruns_total": 0}
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("counted %v, %v; want %v", got, err, want)
		}
	})
}

// Two failures of a round at one page are two iterations.
func TestFailuresAreRecorded(t *testing.T) {
	w := newWorld(t)
	ids := map[string]int{}
	s := w.process("1", func(_ *SweeperConfig, d *SweeperDeps) { d.Publisher = jobIDs{w, ids} })
	m := w.split("a/1", 1)
	m.Pages = func(context.Context, Round, []byte) (Page, error) {
		return Page{}, retry.Permanent(errors.New("403"))
	}
	for range 2 {
		if _, err := s.Rounds(t.Context(), []Split{m}); err == nil {
			t.Fatal("no failure")
		}
	}
	if len(ids) != 2 {
		t.Errorf("ids %v", ids)
	}
}

type jobIDs struct {
	*world
	ids map[string]int
}

func (j jobIDs) Publish(ctx context.Context, messages ...schemas.Message) error {
	for _, m := range messages {
		if b, ok := m.Body.(*pb.Job); ok {
			j.ids[b.GetId()]++
		}
	}
	return j.world.Publish(ctx, messages...)
}
