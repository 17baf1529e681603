package schedule

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
)

// startAll starts and ends all tasks that may start, and returns their number.
func startAll(s *Scheduler) (n int) {
	for {
		it := begin(s, MainWorker)
		if it == nil {
			return n
		}
		n++
		s.Complete(it)
	}
}

// Rates limit the start of tasks: at once as much as for a second, then as seconds pass. A task that costs
// more than is left starts all the same, and causes a debt.
func TestRates(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit Limit
		bytes int64
		want  []int // started so far after each second
	}{
		"none":                           {Limit{}, 1 << 30, []int{100, 100, 100}},
		"tasks":                          {Limit{TasksPerSecond: 10}, 0, []int{10, 20, 30, 40}},
		"fewer than one a second":        {Limit{TasksPerSecond: 0.5}, 0, []int{1, 1, 2, 2, 3}},
		"bytes":                          {Limit{BytesPerSecond: 2 * quantum}, 0, []int{2, 5, 7, 9}},
		"a task of more than a second's": {Limit{BytesPerSecond: quantum}, 3 * quantum, []int{1, 1, 1, 2, 2, 2, 2, 3, 3}},
		"the tighter one of two":         {Limit{TasksPerSecond: 50, BytesPerSecond: quantum}, 0, []int{1, 3, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slots := NewSlots(func(_, store string) Limit {
					if store == "X" {
						return tt.limit
					}
					return Limit{}
				})
				s := New(Config{Slots: slots, Workers: 100})
				fillBytes(s, FlowID{Account: "a", Stores: [2]string{"X"}}, schemas.High, 100, tt.bytes)
				var got []int
				for i, n := 0, 0; i < len(tt.want); i++ {
					n += startAll(s)
					got = append(got, n)
					time.Sleep(time.Second + time.Millisecond)
					synctest.Wait()
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("started %v, want %v", got, tt.want)
				}
				// A waiting flow would keep its timer while there is a debt.
				time.Sleep(time.Minute)
			})
		})
	}
}

// A new limit counts for tasks that run and that wait already; other stores keep theirs.
func TestRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := map[string]Limit{"Y": {Tasks: 1}}
		slots := NewSlots(func(_, store string) Limit { return limits[store] })
		s := New(Config{Slots: slots, Workers: 100})
		x, y := FlowID{Account: "a", Stores: [2]string{"X"}}, FlowID{Account: "a", Stores: [2]string{"Y"}}
		fill(s, x, schemas.High, 10)
		running := []*Task{begin(s, MainWorker), begin(s, MainWorker), begin(s, MainWorker)}
		set := func(l Limit) {
			limits["X"] = l
			slots.Refresh("a", "X", "Z")
		}
		set(Limit{Tasks: 2})
		running = append(running, begin(s, MainWorker)) // it has its slot already
		if running[3] == nil || begin(s, MainWorker) != nil {
			t.Error("a task starts although four run and two may")
		}
		for _, task := range running[:3] {
			s.Complete(task)
		}
		running = append(running[3:], begin(s, MainWorker))
		if running[1] == nil || begin(s, MainWorker) != nil {
			t.Error("of two tasks that may run, two do not run")
		}
		set(Limit{Tasks: 3})
		if running = append(running, begin(s, MainWorker)); running[2] == nil {
			t.Error("no task starts although two run and three may")
		}
		fill(s, y, schemas.High, 2)
		if begin(s, MainWorker) == nil || begin(s, MainWorker) != nil {
			t.Error("the limit of another store has changed")
		}
		set(Limit{TasksPerSecond: 0.001})
		for _, task := range running {
			s.Complete(task)
		}
		if n := startAll(s); n != 1 {
			t.Errorf("%d tasks start, want that of the first second", n)
		}
		set(Limit{})
		if n := startAll(s); n != 3 {
			t.Errorf("%d tasks start without a limit, want the rest", n)
		}
		time.Sleep(time.Hour)
	})
}

// Paused tasks use nothing of the rates.
func TestRatesAreRefunded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slots := NewSlots(func(_, store string) Limit {
			if store == "X" {
				return Limit{TasksPerSecond: 1}
			}
			return Limit{}
		})
		paused := false
		s := New(Config{Slots: slots, Workers: 100, Paused: func(FlowID) bool { return paused }})
		fill(s, FlowID{Account: "a", Stores: [2]string{"X"}}, schemas.High, 10)
		for range 20 {
			paused = true
			s.SetControls(false, 100)
			paused = false
			s.SetControls(false, 100)
		}
		if n := startAll(s); n != 1 {
			t.Errorf("%d started after pauses, want 1", n)
		}
		time.Sleep(time.Minute)
	})
}

// Waiters for a slot get it in turn: class high first, but others are not starved.
func TestSlotsInTurn(t *testing.T) {
	s := New(Config{Slots: NewSlots(onlyX(1)), Workers: 100})
	for i := range 20 { // an account has one flow for each pair of stores
		fill(s, FlowID{Account: "a", Stores: [2]string{"X", fmt.Sprint(i)}}, schemas.High, 1)
		fill(s, FlowID{Account: "a", Stores: [2]string{"X", fmt.Sprint(i)}}, schemas.Low, 1)
	}
	var got []int
	for range 20 {
		it := begin(s, MainWorker)
		if it == nil {
			t.Fatal("the slot is free, and no flow has it")
		}
		if begin(s, MainWorker) != nil {
			t.Fatal("two on a store of one")
		}
		got = append(got, it.flow.class)
		s.Complete(it)
	}
	low := 0
	for _, class := range got {
		if class == classLow {
			low++
		}
	}
	if low < 2 || low > 3 {
		t.Errorf("%d of class low among 20, want one in nine: %v", low, got)
	}
}
