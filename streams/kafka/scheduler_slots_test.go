package kafka

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kgo"
)

// begin returns the next task for a worker of a kind.
func begin(s *scheduler, kind int) (workItem, bool) {
	s.mu.Lock()
	s.restoreReleased()
	it, ok := s.pick(kind)
	s.unlock()
	return it, ok
}

// done ends a task that was handed out.
func done(s *scheduler, it workItem) {
	s.mu.Lock()
	s.detach(it.task)
	s.popHead(it.q)
	s.unlock()
}

func onlyX(n int) func(account, store string) Limit {
	return func(_, store string) Limit {
		if store == "X" {
			return Limit{Tasks: n}
		}
		return Limit{}
	}
}

func unlimited() *Slots { return NewSlots(func(string, string) Limit { return Limit{} }) }

// Tasks that no worker may start now do not block a store for tasks that may start: other flows get their
// slots, and they start when there is capacity again.
func TestSlotsWithoutWorkers(t *testing.T) {
	ofX := Work{Account: "a", Stores: [2]string{"X"}}
	for name, tt := range map[string]struct {
		class int
		fill  func(t *testing.T, s *scheduler, f *fetcher) (busy []workItem) // keeps class from starting
		kind  int
	}{
		"low": {classLow, func(t *testing.T, s *scheduler, f *fetcher) (busy []workItem) {
			fill(s, f, Work{Account: "a", Stores: [2]string{"Y"}}, classLow, 2)
			for range 2 {
				it, ok := begin(s, 0)
				if !ok {
					t.Fatal("low is not started though there is capacity")
				}
				busy = append(busy, it)
			}
			return busy
		}, 0},
		"large": {classLarge, func(t *testing.T, s *scheduler, f *fetcher) []workItem {
			fill(s, f, Work{Account: "a", Stores: [2]string{"Y"}}, classLarge, 1)
			it, ok := begin(s, 1)
			if !ok {
				t.Fatal("large is not started though there is capacity")
			}
			return []workItem{it}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fetcher{memory: newByteBudget()}
			s := newScheduler(NewSlots(onlyX(1)), nil)
			s.allowed, s.reserved, s.large = 4, 2, 1
			busy := tt.fill(t, s, f)
			fill(s, f, ofX, tt.class, 1)
			fill(s, f, ofX, classHigh, 1)
			s.releaseUnused()
			high, ok := begin(s, 0)
			if !ok || high.task.flow.class != classHigh {
				t.Fatal("high waits for a slot that is not in use")
			}
			if _, ok := begin(s, tt.kind); ok {
				t.Fatal("started without capacity")
			}
			done(s, high)
			done(s, busy[0])
			it, ok := begin(s, tt.kind)
			if !ok || it.task.flow.class != tt.class {
				t.Fatal("a released flow is not started though there is capacity")
			}
			done(s, it)
			if n := s.slots.slots["a/X"].used; n != 0 {
				t.Errorf("%d slots are in use, want none", n)
			}
		})
	}
}

// A paused role does not block a store for another role.
func TestSlotsOfPausedRole(t *testing.T) {
	f := &fetcher{memory: newByteBudget()}
	slots := NewSlots(onlyX(1))
	one, other := newScheduler(slots, nil), newScheduler(slots, nil)
	one.allowed, other.allowed = 4, 4
	ofX := Work{Account: "a", Stores: [2]string{"X"}}
	running := func(Work) bool { return false }
	fill(one, f, ofX, classHigh, 1)
	one.setControls(true, 4, running)
	fill(other, f, ofX, classHigh, 1)
	if _, ok := begin(other, 0); ok {
		t.Fatal("started without a slot")
	}
	one.releaseUnused()
	it, ok := begin(other, 0)
	if !ok {
		t.Fatal("waits for a slot of a role that is paused")
	}
	one.setControls(false, 4, running)
	if _, ok := begin(one, 0); ok {
		t.Fatal("started without a slot, after the pause")
	}
	done(other, it)
	if _, ok := begin(one, 0); !ok {
		t.Error("not started after the pause")
	}
}

// Shed tasks have no slots. After the pause they need them.
func TestSlotsAfterShedding(t *testing.T) {
	f := &fetcher{memory: newByteBudget()}
	s := newScheduler(NewSlots(onlyX(1)), nil)
	s.allowed = 16
	fill(s, f, Work{Account: "a", Stores: [2]string{"X"}}, classHigh, 5)
	s.setControls(false, 16, func(Work) bool { return true })
	s.startShedding()
	s.setControls(false, 16, func(Work) bool { return false })
	if it, ok := begin(s, 0); !ok || !it.task.holdsSlots {
		t.Fatal("not started, or without its slot")
	}
	if _, ok := begin(s, 0); ok {
		t.Error("two running on a store with a limit of one")
	}
}

// A worker that drops a task of a partition that is about to move wakes a worker of the other kind for the
// next task of the key.
func TestDroppedTaskWakesOtherWorkers(t *testing.T) {
	for name, classes := range map[string][2]int{"large after high": {classHigh, classLarge},
		"high after large": {classLarge, classHigh}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fetcher{memory: newByteBudget()}
				s := newScheduler(unlimited(), func(*task) {})
				s.large = 1
				moves, stays := newAssignment(f, partition{"t", 0}, 64), newAssignment(f, partition{"t", 1}, 64)
				tasks := []*task{{inflightRecord: inflightRecord{rec: &kgo.Record{}}, part: moves},
					{inflightRecord: inflightRecord{rec: &kgo.Record{}}, part: stays}}
				for i, class := range classes {
					tasks[i].cost, tasks[i].flow = quantum, s.flowOf(class, Work{Account: "a"}, func(Work) bool { return false })
				}
				moves.stop()
				s.add(tasks, []uint64{1, 1})
				taken := make(chan int, 2)
				var workers sync.WaitGroup
				work := func(kind int) {
					var last workItem
					for ok := true; ok; {
						if last, ok = s.take(kind, last); ok {
							taken <- last.task.flow.class
						}
					}
				}
				workers.Go(func() { work(tasks[1].flow.kind()) })
				synctest.Wait() // it is idle
				workers.Go(func() { work(tasks[0].flow.kind()) })
				synctest.Wait()
				if len(taken) != 1 || <-taken != classes[1] {
					t.Error("the task after the dropped one was not started")
				}
				s.close()
				workers.Wait()
			})
		})
	}
}

// An account keeps its debt if it has no task to start for a moment.
func TestDebtIsKept(t *testing.T) {
	f := &fetcher{memory: newByteBudget()}
	s := newScheduler(unlimited(), nil)
	s.allowed = 2
	part := newAssignment(f, partition{"t", 1}, 1024)
	for range 400 { // of one key: there is never another while one runs
		tk := &task{inflightRecord: inflightRecord{rec: &kgo.Record{}}, part: part, cost: 99 * quantum}
		s.mu.Lock()
		tk.flow = s.flowOf(classHigh, Work{Account: "a"}, func(Work) bool { return false })
		s.mu.Unlock()
		s.add([]*task{tk}, []uint64{1 << 40})
	}
	fill(s, f, Work{Account: "b"}, classHigh, 1000)
	n := map[string]int{}
	var atWork []workItem
	for range 400 {
		it, ok := begin(s, 0)
		if ok {
			n[it.task.flow.work.Account]++
			atWork = append(atWork, it)
		}
		if len(atWork) == 2 || !ok {
			done(s, atWork[0])
			atWork = atWork[1:]
		}
	}
	if n["a"] > 8 || n["b"] < 390 {
		t.Errorf("turns %v: tasks 99 times as dear have more than their share", n)
	}
}

// resumeAndPick makes a parked task wait for a worker, and reports whether it resumes at once, and which task
// starts after it.
func resumeAndPick(s *scheduler, it workItem) (goes bool, next workItem) {
	turn := s.resumeTask(it.q)
	next, _ = begin(s, it.task.flow.kind())
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
	f := &fetcher{memory: newByteBudget()}
	s := newScheduler(unlimited(), nil)
	s.allowed, s.large, s.parkedLimit = 100, 100, 6
	parked := func(kind, class int) (items []workItem) {
		t.Helper()
		fill(s, f, Work{Account: "a"}, class, 10)
		for {
			it, ok := begin(s, kind)
			if !ok {
				return items
			}
			if it.task.flow.class != class {
				t.Fatalf("a task of class %d is started, want %d", it.task.flow.class, class)
			}
			s.park(it.task)
			items = append(items, it)
		}
	}
	low := parked(0, classLow)
	if len(low) != 3 {
		t.Fatalf("%d of low are parked, want 3", len(low))
	}
	if _, ok := begin(s, 1); ok {
		t.Error("large is started")
	}
	if large := parked(1, classLarge); len(large) != 0 {
		t.Errorf("%d of large are parked, want none", len(large))
	}
	if high := parked(0, classHigh); len(high) != 3 {
		t.Errorf("%d of high are parked, want 3", len(high))
	}
	goes, next := resumeAndPick(s, low[0])
	if !goes {
		t.Fatal("a parked task does not resume")
	}
	if next.task == nil || next.task.flow.class != classHigh {
		t.Error("the free place is not for high first")
	}
}

// While no task may start because too many are parked, none gets a slot: slots are for tasks that resume.
func TestSlotsAtParkLimit(t *testing.T) {
	f := &fetcher{memory: newByteBudget()}
	s := newScheduler(NewSlots(onlyX(1)), nil)
	s.allowed, s.parkedLimit = 100, 2
	var parked []workItem
	for _, other := range []string{"", "A", "B", "C"} { // different flows
		fill(s, f, Work{Account: "a", Stores: [2]string{"X", other}}, classHigh, 10)
	}
	for ended := range 40 {
		for it, ok := begin(s, 0); ok; it, ok = begin(s, 0) {
			s.park(it.task)
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
		if goes, next := resumeAndPick(s, it); !goes || next.task != nil {
			t.Fatal("a parked task waits for the slot of a task that may not start")
		}
		done(s, it)
	}
}
