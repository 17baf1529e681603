package schedule

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/schemas"
)

// begin returns the next task for a worker of a kind, or nil if there is none.
func begin(s *Scheduler, kind Kind) *Task {
	s.mu.Lock()
	defer s.unlock()
	s.restoreReleased()
	return s.pick(kind)
}

func onlyX(n int) func(account, store string) Limit {
	return func(_, store string) Limit {
		if store == "X" {
			return Limit{Tasks: n}
		}
		return Limit{}
	}
}

// Tasks that no worker may start now do not block a store for tasks that may start: other flows get their
// slots, and they start when there is capacity again.
func TestSlotsWithoutWorkers(t *testing.T) {
	ofX := FlowID{Account: "a", Stores: [2]string{"X"}}
	for name, tt := range map[string]struct {
		class schemas.Class
		fill  func(t *testing.T, s *Scheduler) (busy []*Task) // keeps class from starting
		kind  Kind
	}{
		"low": {schemas.Low, func(t *testing.T, s *Scheduler) (busy []*Task) {
			fill(s, FlowID{Account: "a", Stores: [2]string{"Y"}}, schemas.Low, 2)
			for range 2 {
				it := begin(s, MainWorker)
				if it == nil {
					t.Fatal("low is not started though there is capacity")
				}
				busy = append(busy, it)
			}
			return busy
		}, MainWorker},
		"large": {schemas.Large, func(t *testing.T, s *Scheduler) []*Task {
			fill(s, FlowID{Account: "a", Stores: [2]string{"Y"}}, schemas.Large, 1)
			it := begin(s, LargeWorker)
			if it == nil {
				t.Fatal("large is not started though there is capacity")
			}
			return []*Task{it}
		}, LargeWorker},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{Slots: NewSlots(onlyX(1)), Workers: 4, Reserved: 2, Large: 1})
			busy := tt.fill(t, s)
			fill(s, ofX, tt.class, 1)
			fill(s, ofX, schemas.High, 1)
			s.ReleaseUnused()
			high := begin(s, MainWorker)
			if high == nil || high.flow.class != classHigh {
				t.Fatal("high waits for a slot that is not in use")
			}
			if begin(s, tt.kind) != nil {
				t.Fatal("started without capacity")
			}
			s.Complete(high)
			s.Complete(busy[0])
			it := begin(s, tt.kind)
			if it == nil || it.flow.class != classIndex(tt.class) {
				t.Fatal("a released flow is not started though there is capacity")
			}
			s.Complete(it)
			if n := s.slots.slots["a/X"].used; n != 0 {
				t.Errorf("%d slots are in use, want none", n)
			}
		})
	}
}

// A paused role does not block a store for another role.
func TestSlotsOfPausedRole(t *testing.T) {
	slots := NewSlots(onlyX(1))
	one, other := New(Config{Slots: slots, Workers: 4}), New(Config{Slots: slots, Workers: 4})
	ofX := FlowID{Account: "a", Stores: [2]string{"X"}}
	fill(one, ofX, schemas.High, 1)
	one.SetControls(true, 4)
	fill(other, ofX, schemas.High, 1)
	if begin(other, MainWorker) != nil {
		t.Fatal("started without a slot")
	}
	one.ReleaseUnused()
	it := begin(other, MainWorker)
	if it == nil {
		t.Fatal("waits for a slot of a role that is paused")
	}
	one.SetControls(false, 4)
	if begin(one, MainWorker) != nil {
		t.Fatal("started without a slot, after the pause")
	}
	other.Complete(it)
	if begin(one, MainWorker) == nil {
		t.Error("not started after the pause")
	}
}

// Shed tasks have no slots. After the pause they need them.
func TestSlotsAfterShedding(t *testing.T) {
	paused := false
	s := New(Config{Slots: NewSlots(onlyX(1)), Workers: 16, Paused: func(FlowID) bool { return paused }})
	fill(s, FlowID{Account: "a", Stores: [2]string{"X"}}, schemas.High, 5)
	paused = true
	s.SetControls(false, 16)
	s.StartShedding()
	paused = false
	s.SetControls(false, 16)
	if it := begin(s, MainWorker); it == nil || !it.holdsSlots {
		t.Fatal("not started, or without its slot")
	}
	if begin(s, MainWorker) != nil {
		t.Error("two running on a store with a limit of one")
	}
}

// A worker that drops a task of a closed Gate wakes a worker of the other kind for the next task of the key.
func TestDroppedTaskWakesOtherWorkers(t *testing.T) {
	for name, classes := range map[string][2]schemas.Class{
		"large after high": {schemas.High, schemas.Large}, "high after large": {schemas.Large, schemas.High},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Config{Workers: 1, Large: 1})
				tasks := []*Task{{Gate: NewGate()}, {Gate: NewGate()}}
				var entries []Entry
				for i, class := range classes {
					entries = append(entries, Entry{Task: tasks[i], Key: 1, Class: class, Flow: FlowID{Account: "a"}})
				}
				tasks[0].Gate.Close()
				s.Add(entries)
				taken := make(chan *Task, 2)
				var workers sync.WaitGroup
				work := func(kind Kind) {
					for last := s.Take(kind, nil); last != nil; last = s.Take(kind, last) {
						taken <- last
					}
				}
				workers.Go(func() { work(tasks[1].flow.kind()) })
				synctest.Wait() // it is idle
				workers.Go(func() { work(tasks[0].flow.kind()) })
				synctest.Wait()
				if len(taken) != 1 || <-taken != tasks[1] {
					t.Error("the task after the dropped one was not started")
				}
				s.Close()
				workers.Wait()
			})
		})
	}
}

// An account keeps its debt if it has no task to start for a moment.
func TestDebtIsKept(t *testing.T) {
	s := New(Config{Workers: 2})
	for range 400 { // of one key: there is never another while one runs
		t := &Task{Gate: NewGate()}
		s.Add([]Entry{{Task: t, Key: 1 << 40, Class: schemas.High, Flow: FlowID{Account: "a"}, Bytes: 98 * quantum}})
	}
	fill(s, FlowID{Account: "b"}, schemas.High, 1000)
	n := map[string]int{}
	var running []*Task
	for range 400 {
		it := begin(s, MainWorker)
		if it != nil {
			n[it.flow.id.Account]++
			running = append(running, it)
		}
		if len(running) == 2 || it == nil {
			s.Complete(running[0])
			running = running[1:]
		}
	}
	if n["a"] > 8 || n["b"] < 390 {
		t.Errorf("turns %v: tasks 99 times as dear have more than their share", n)
	}
}

// resumeAndPick makes a parked task wait for a worker, and reports whether it resumes at once, and which task
// starts after it.
func resumeAndPick(s *Scheduler, it *Task) (goes bool, next *Task) {
	turn := s.Resume(it)
	next = begin(s, it.flow.kind())
	select {
	case <-turn:
		return true, next
	default:
		return false, next
	}
}

// Parked tasks of classes low and large use half of the limit: tasks of class high start, whatever the others
// wait for.
func TestParkedTasksLeavePlacesToHigh(t *testing.T) {
	s := New(Config{Workers: 100, Large: 100})
	s.parkedLimit = 6
	parked := func(kind Kind, class schemas.Class) (items []*Task) {
		t.Helper()
		fill(s, FlowID{Account: "a"}, class, 10)
		for {
			it := begin(s, kind)
			if it == nil {
				return items
			}
			if it.flow.class != classIndex(class) {
				t.Fatalf("a task of class %d is started, want %s", it.flow.class, class)
			}
			s.Park(it)
			items = append(items, it)
		}
	}
	low := parked(MainWorker, schemas.Low)
	if len(low) != 3 {
		t.Fatalf("%d of low are parked, want 3", len(low))
	}
	if begin(s, LargeWorker) != nil {
		t.Error("large is started")
	}
	if large := parked(LargeWorker, schemas.Large); len(large) != 0 {
		t.Errorf("%d of large are parked, want none", len(large))
	}
	if high := parked(MainWorker, schemas.High); len(high) != 3 {
		t.Errorf("%d of high are parked, want 3", len(high))
	}
	goes, next := resumeAndPick(s, low[0])
	if !goes {
		t.Fatal("a parked task does not resume")
	}
	if next == nil || next.flow.class != classHigh {
		t.Error("the free place is not for high first")
	}
}

// While no task may start because too many are parked, none gets a slot: slots are for tasks that resume.
func TestSlotsAtParkLimit(t *testing.T) {
	s := New(Config{Slots: NewSlots(onlyX(1)), Workers: 100})
	s.parkedLimit = 2
	var parked []*Task
	for _, other := range []string{"", "A", "B", "C"} { // different flows
		fill(s, FlowID{Account: "a", Stores: [2]string{"X", other}}, schemas.High, 10)
	}
	for ended := range 40 {
		for it := begin(s, MainWorker); it != nil; it = begin(s, MainWorker) {
			s.Park(it)
			parked = append(parked, it)
		}
		if len(parked) == 0 {
			t.Fatalf("%d tasks ended, and none is started", ended)
		}
		if n := s.slots.slots["a/X"].used; n != 0 {
			t.Fatalf("%d slots are held for tasks that may not begin", n)
		}
		it := parked[0]
		parked = parked[1:]
		if goes, next := resumeAndPick(s, it); !goes || next != nil {
			t.Fatal("a parked task waits for the slot of a task that may not start")
		}
		s.Complete(it)
	}
}

// A parked task that resumes frees capacity for another one, which starts at once.
func TestResumedTaskFreesCapacity(t *testing.T) {
	s := New(Config{Slots: NewSlots(onlyX(10)), Workers: 4})
	s.parkedLimit = 2
	ofX := FlowID{Account: "a", Stores: [2]string{"X"}}
	fill(s, ofX, schemas.Low, 1)
	first := begin(s, MainWorker)
	if first == nil {
		t.Fatal("nothing is started")
	}
	s.Park(first)
	fill(s, ofX, schemas.Low, 1)
	if begin(s, MainWorker) != nil {
		t.Fatal("started at the limit of parked tasks")
	}
	s.Resume(first)
	s.mu.Lock()
	defer s.unlock()
	if s.pick(MainWorker) == nil {
		t.Error("not started although no task is parked any more")
	}
}
