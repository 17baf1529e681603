package schedule

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
)

// A schedulerModel is a scheduler with workers that the test simulates. The owner of a task is its number.
type schedulerModel struct {
	t       *rapid.T
	s       *Scheduler
	gates   []*Gate
	limits  map[string]int // of tasks, by account/store
	n       int
	waiting map[uint64][]int // numbers by key, in order
	running []*Task
	parked  []*Task
	resumed []resumingTask
}

// A resumingTask was parked, and waits for a worker.
type resumingTask struct {
	*Task
	turn <-chan struct{}
}

func newModel(t *rapid.T, limit func(account, store string) Limit) *schedulerModel {
	m := &schedulerModel{
		t: t, waiting: map[uint64][]int{}, limits: map[string]int{}, gates: []*Gate{NewGate(), NewGate(), NewGate()},
	}
	m.s = New(Config{Workers: 4, Reserved: 1, Slots: NewSlots(limit), OnDrop: m.gone})
	m.s.parkedLimit = 5
	return m
}

func (m *schedulerModel) gone(t *Task) {
	for k, numbers := range m.waiting {
		if i := slices.Index(numbers, t.Owner.(int)); i >= 0 {
			m.waiting[k] = slices.Delete(numbers, i, i+1)
		}
	}
}

func (m *schedulerModel) add() {
	key := rapid.Uint64Range(0, 6).Draw(m.t, "key")
	class := rapid.SampledFrom([]schemas.Class{schemas.High, schemas.Low}).Draw(m.t, "class")
	id := FlowID{
		Account: rapid.SampledFrom([]string{"a", "b"}).Draw(m.t, "account"),
		Stores: [2]string{rapid.SampledFrom([]string{"", "1", "2"}).Draw(m.t, "source"),
			rapid.SampledFrom([]string{"", "1", "2"}).Draw(m.t, "destination")},
	}
	bytes := rapid.SampledFrom([]int64{0, 1 << 20, 1 << 30}).Draw(m.t, "bytes")
	gate := rapid.SampledFrom(m.gates).Draw(m.t, "gate")
	if gate.Closed() {
		return
	}
	m.n++
	m.waiting[key] = append(m.waiting[key], m.n)
	m.s.Add([]Entry{{Task: &Task{Gate: gate, Owner: m.n}, Key: key, Class: class, Flow: id, Bytes: bytes}})
}

// begin makes a worker take the next task, if there is one, and lets parked tasks resume. It returns false if
// neither happened.
func (m *schedulerModel) begin() bool {
	it := begin(m.s, MainWorker)
	went := m.collectResumed()
	if it == nil {
		return went
	}
	if n := len(m.parked) + len(m.resumed); n >= m.s.parkedLimit {
		m.t.Fatalf("a task is started though %d are parked", n)
	}
	for _, other := range m.begun() {
		if other.queue == it.queue {
			m.t.Fatalf("two tasks of key %d are started", it.queue.key)
		}
	}
	if first := m.waiting[it.queue.key][0]; first != it.Owner {
		m.t.Fatalf("key %d: got task %v, want %d", it.queue.key, it.Owner, first)
	}
	m.running = append(m.running, it)
	m.check()
	return true
}

func (m *schedulerModel) begun() []*Task {
	all := slices.Concat(m.running, m.parked)
	for _, g := range m.resumed {
		all = append(all, g.Task)
	}
	return all
}

// collectResumed marks resumed tasks that have a worker as running.
func (m *schedulerModel) collectResumed() (any bool) {
	m.resumed = slices.DeleteFunc(m.resumed, func(g resumingTask) bool {
		select {
		case <-g.turn:
			m.running = append(m.running, g.Task)
			any = true
			return true
		default:
			return false
		}
	})
	m.check()
	return any
}

// park parks a running task.
func (m *schedulerModel) park(i int) {
	it := m.running[i]
	m.running = slices.Delete(m.running, i, i+1)
	m.s.Park(it)
	m.parked = append(m.parked, it)
}

// resume makes a parked task wait for a worker.
func (m *schedulerModel) resume(i int) {
	it := m.parked[i]
	m.parked = slices.Delete(m.parked, i, i+1)
	m.resumed = append(m.resumed, resumingTask{it, m.s.Resume(it)})
}

// cancelResume cancels and ends a task that waits for a worker.
func (m *schedulerModel) cancelResume(i int) {
	it := m.resumed[i].Task
	m.resumed = slices.Delete(m.resumed, i, i+1)
	if !m.s.CancelResume(it) {
		m.t.Fatal("a task has a worker that it was not given")
	}
	m.running = append(m.running, it)
	m.end(len(m.running) - 1)
}

// end ends a running task.
func (m *schedulerModel) end(i int) {
	it := m.running[i]
	m.running = slices.Delete(m.running, i, i+1)
	m.gone(it)
	m.s.Complete(it)
	it.Gate.End()
}

// prune removes flows without tasks. Those with tasks stay.
func (m *schedulerModel) prune() {
	m.s.mu.Lock()
	defer m.s.unlock()
	m.s.prune()
	tasks := map[*flow]int{}
	for _, q := range m.s.keys {
		for t := q.head; t != nil; t = t.next {
			tasks[t.flow]++
		}
		if q.homeFlow != nil {
			tasks[q.homeFlow]++
		}
	}
	for f, n := range tasks {
		index := f.class
		if f.resumes {
			index += resumeOffset
		}
		if m.s.flows[flowKey{index, f.id}] != f || f.tasks != n {
			m.t.Fatalf("flow %v of class %d is removed or has %d tasks, want %d", f.id, index, f.tasks, n)
		}
	}
}

// check compares the running tasks with the limits.
func (m *schedulerModel) check() {
	used, low := map[string]int{}, 0
	for _, it := range m.running {
		w := it.flow.id
		names := []string{w.Account}
		for _, store := range w.Stores {
			if name := w.Account + "/" + store; store != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		for _, n := range names {
			used[n]++
		}
		if it.flow.class == classLow {
			low++
		}
	}
	for name, most := range m.limits {
		if used[name] > most {
			m.t.Fatalf("%d tasks of %s running, the limit is %d", used[name], name, most)
		}
	}
	if len(m.running) > m.s.allowed || low > m.s.allowed-m.s.reserved {
		m.t.Fatalf("%d tasks running, %d of class low", len(m.running), low)
	}
}

// Whatever the keys, classes, accounts and stores, and whichever tasks park: tasks of one key run one at a
// time and in order, and limits hold. Every task is handed out eventually, or dropped with its assignment,
// and parked tasks resume.
func TestSchedulerInvariants(t *testing.T) {
	need.Check(t, func(t *rapid.T) {
		limits := map[string]int{}
		for _, name := range []string{"a", "a/1", "a/2", "b/1"} {
			if n := rapid.IntRange(0, 3).Draw(t, "limit of "+name); n > 0 {
				limits[name] = n
			}
		}
		m := newModel(t, func(account, store string) Limit {
			name := account
			if store != "" {
				name += "/" + store
			}
			return Limit{Tasks: limits[name]}
		})
		m.limits = limits
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 15).Draw(t, "step") {
			case 0, 1, 2, 3:
				m.add()
			case 4, 5, 6:
				m.begin()
			case 7, 8:
				if n := len(m.running); n > 0 {
					m.end(rapid.IntRange(0, n-1).Draw(t, "which"))
				}
			case 10, 11:
				if n := len(m.running); n > 0 {
					m.park(rapid.IntRange(0, n-1).Draw(t, "which"))
				}
			case 12, 13:
				if n := len(m.parked); n > 0 {
					m.resume(rapid.IntRange(0, n-1).Draw(t, "which"))
				}
			case 14:
				if n := len(m.resumed); n > 0 {
					m.cancelResume(rapid.IntRange(0, n-1).Draw(t, "which"))
				}
			case 15:
				m.prune()
			case 9:
				if rapid.IntRange(0, 9).Draw(t, "stop") == 0 {
					m.gates[2].Close()
					for _, r := range m.s.RemoveQueued(func(_, t *Task) (bool, bool) { return t.Gate.Closed(), false }) {
						m.gone(r.Task)
					}
				}
			}
		}
		for range 10_000 {
			switch {
			case m.begin():
			case len(m.running) > 0:
				m.end(0)
			case len(m.parked) > 0:
				m.resume(0)
			default:
				m.s.ReleaseUnused() // as the watchdog does every second
			}
		}
		if len(m.resumed) > 0 || m.s.parked != 0 {
			t.Fatalf("%d never go on, %d are parked", len(m.resumed), m.s.parked)
		}
		for key, left := range m.waiting {
			if len(left) > 0 {
				t.Fatalf("key %d: %v are never given out", key, left)
			}
		}
	})
}

// order returns the names of tasks in the order in which a scheduler with one worker hands them out.
func order(s *Scheduler, n int) (names []string) {
	for range n {
		it := begin(s, MainWorker)
		if it == nil {
			return names
		}
		names = append(names, fmt.Sprintf("%s%d", it.flow.id.Account, it.flow.class))
		s.Complete(it)
	}
	return names
}

func count(names []string, name string) (n int) {
	for _, x := range names {
		if x == name {
			n++
		}
	}
	return n
}

// fill queues n tasks of a flow and class, each with its own key.
func fill(s *Scheduler, id FlowID, class schemas.Class, n int) { fillBytes(s, id, class, n, 0) }

// fillBytes is fill with tasks that move bytes.
func fillBytes(s *Scheduler, id FlowID, class schemas.Class, n int, bytes int64) {
	gate := NewGate()
	for range n {
		s.Add([]Entry{{Task: &Task{Gate: gate}, Key: s.added, Class: class, Flow: id, Bytes: bytes}})
	}
}

func TestSchedulerShares(t *testing.T) {
	for name, tt := range map[string]struct {
		fill  func(s *Scheduler)
		first int // tasks to compare
		want  map[string]int
	}{
		"high to low 8:1": {func(s *Scheduler) {
			fill(s, FlowID{Account: "a"}, schemas.Low, 1000)
			fill(s, FlowID{Account: "a"}, schemas.High, 1000)
		}, 90, map[string]int{"a0": 80, "a1": 10}},
		"low alone has all": {func(s *Scheduler) {
			fill(s, FlowID{Account: "a"}, schemas.Low, 100)
		}, 90, map[string]int{"a1": 90}},
		"accounts take turns": {func(s *Scheduler) {
			fill(s, FlowID{Account: "a"}, schemas.High, 1000)
			fill(s, FlowID{Account: "b"}, schemas.High, 10)
		}, 20, map[string]int{"a0": 10, "b0": 10}},
		"by bytes": {func(s *Scheduler) {
			fillBytes(s, FlowID{Account: "a"}, schemas.High, 1000, 9*quantum)
			fill(s, FlowID{Account: "b"}, schemas.High, 1000)
		}, 110, map[string]int{"a0": 10, "b0": 100}},
		"an account in debt is skipped, then served again": {func(s *Scheduler) {
			fillBytes(s, FlowID{Account: "a"}, schemas.High, 2, 1<<40)
			fillBytes(s, FlowID{Account: "b"}, schemas.High, 2, 1<<40)
		}, 4, map[string]int{"a0": 2, "b0": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Config{Workers: 1})
			tt.fill(s)
			got := order(s, tt.first)
			for name, want := range tt.want {
				if n := count(got, name); n < want-1 || n > want+1 {
					t.Errorf("%d of %s among the first %d, want about %d", n, name, tt.first, want)
				}
			}
			if len(got) != tt.first {
				t.Errorf("%d tasks, want %d", len(got), tt.first)
			}
		})
	}
}
