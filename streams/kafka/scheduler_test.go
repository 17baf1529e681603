package kafka

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/kafka/client"
)

// A schedulerModel is a scheduler with workers that the test simulates.
type schedulerModel struct {
	t       *rapid.T
	s       *scheduler
	in      *fetcher
	shares  []*assignment
	limits  map[string]int // of tasks, by account/store
	n       int64
	waiting map[uint64][]int64 // offsets by key, in order
	atWork  []workItem
	parked  []workItem
	resumed []resumingTask
	dropped int
}

// A resumingTask was parked, and waits for a worker.
type resumingTask struct {
	workItem
	turn <-chan struct{}
}

func newShift(t *rapid.T, limit func(account, store string) Limit) *schedulerModel {
	m := &schedulerModel{t: t, waiting: map[uint64][]int64{}, limits: map[string]int{}}
	m.in = &fetcher{p: &Pool{}, memory: newByteBudget(), assignments: map[partition]*assignment{}}
	m.s = newScheduler(NewSlots(limit), func(tk *task) { m.dropped++; m.gone(tk) })
	m.s.allowed, m.s.reserved, m.s.parkedLimit = 4, 1, 5
	for i := range 3 {
		m.shares = append(m.shares, newAssignment(m.in, partition{"t", int32(i)}, 64))
	}
	return m
}

func (m *schedulerModel) gone(tk *task) {
	for k, offsets := range m.waiting {
		if i := slices.Index(offsets, tk.rec.Offset); i >= 0 {
			m.waiting[k] = slices.Delete(offsets, i, i+1)
		}
	}
}

func (m *schedulerModel) add() {
	key := rapid.Uint64Range(0, 6).Draw(m.t, "key")
	class := rapid.IntRange(0, 1).Draw(m.t, "class")
	w := Work{
		Account: rapid.SampledFrom([]string{"a", "b"}).Draw(m.t, "account"),
		Stores: [2]string{rapid.SampledFrom([]string{"", "1", "2"}).Draw(m.t, "source"),
			rapid.SampledFrom([]string{"", "1", "2"}).Draw(m.t, "destination")},
		Bytes: rapid.SampledFrom([]int64{0, 1 << 20, 1 << 30}).Draw(m.t, "bytes"),
	}
	part := m.shares[rapid.IntRange(0, len(m.shares)-1).Draw(m.t, "share")]
	if part.stopping.Load() {
		return
	}
	m.n++
	tk := &task{inflightRecord: inflightRecord{rec: &kgo.Record{Offset: m.n}}, part: part, cost: w.Bytes + quantum}
	m.s.mu.Lock()
	tk.flow = m.s.flowOf(class, w, func(Work) bool { return false })
	m.s.mu.Unlock()
	m.waiting[key] = append(m.waiting[key], m.n)
	m.s.add([]*task{tk}, []uint64{key})
}

// begin makes a worker take the next task, if there is one, and lets parked tasks resume. It returns false if
// neither happened.
func (m *schedulerModel) begin() bool {
	m.s.mu.Lock()
	m.s.restoreReleased()
	it, ok := m.s.pick(0)
	m.s.unlock()
	went := m.collectResumed()
	if !ok {
		return went
	}
	if n := len(m.parked) + len(m.resumed); n >= m.s.parkedLimit {
		m.t.Fatalf("a task is started though %d are parked", n)
	}
	for _, other := range m.begun() {
		if other.q == it.q {
			m.t.Fatalf("two tasks of key %d are started", it.q.key)
		}
	}
	if first := m.waiting[it.q.key][0]; first != it.task.rec.Offset {
		m.t.Fatalf("key %d: got the task at %d, want %d", it.q.key, it.task.rec.Offset, first)
	}
	m.atWork = append(m.atWork, it)
	m.check()
	return true
}

func (m *schedulerModel) begun() []workItem {
	all := slices.Concat(m.atWork, m.parked)
	for _, g := range m.resumed {
		all = append(all, g.workItem)
	}
	return all
}

// collectResumed marks resumed tasks that have a worker as running.
func (m *schedulerModel) collectResumed() (any bool) {
	m.resumed = slices.DeleteFunc(m.resumed, func(g resumingTask) bool {
		select {
		case <-g.turn:
			m.atWork = append(m.atWork, g.workItem)
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
	it := m.atWork[i]
	m.atWork = slices.Delete(m.atWork, i, i+1)
	m.s.park(it.task)
	m.parked = append(m.parked, it)
}

// resume makes a parked task wait for a worker.
func (m *schedulerModel) resume(i int) {
	it := m.parked[i]
	m.parked = slices.Delete(m.parked, i, i+1)
	m.resumed = append(m.resumed, resumingTask{it, m.s.resumeTask(it.q)})
}

// cancelResume cancels and ends a task that waits for a worker.
func (m *schedulerModel) cancelResume(i int) {
	it := m.resumed[i].workItem
	m.resumed = slices.Delete(m.resumed, i, i+1)
	if !m.s.cancelResume(it.q) {
		m.t.Fatal("a task has a worker that it was not given")
	}
	m.atWork = append(m.atWork, it)
	m.end(len(m.atWork) - 1)
}

// end ends a running task.
func (m *schedulerModel) end(i int) {
	it := m.atWork[i]
	m.atWork = slices.Delete(m.atWork, i, i+1)
	m.gone(it.task)
	m.s.mu.Lock()
	m.s.complete(it)
	m.s.unlock()
	it.task.part.endTask()
}

// check compares the running tasks with the limits.
func (m *schedulerModel) check() {
	used, low := map[string]int{}, 0
	for _, it := range m.atWork {
		w := it.task.flow.work
		names := []string{w.Account}
		for _, store := range w.Stores {
			if name := w.Account + "/" + store; store != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		for _, n := range names {
			used[n]++
		}
		if it.task.flow.class == classLow {
			low++
		}
	}
	for name, most := range m.limits {
		if used[name] > most {
			m.t.Fatalf("%d tasks of %s running, the limit is %d", used[name], name, most)
		}
	}
	if len(m.atWork) > m.s.allowed || low > m.s.allowed-m.s.reserved {
		m.t.Fatalf("%d tasks running, %d of class low", len(m.atWork), low)
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
		m := newShift(t, func(account, store string) Limit {
			name := account
			if store != "" {
				name += "/" + store
			}
			return Limit{Tasks: limits[name]}
		})
		m.limits = limits
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			switch rapid.IntRange(0, 14).Draw(t, "step") {
			case 0, 1, 2, 3:
				m.add()
			case 4, 5, 6:
				m.begin()
			case 7, 8:
				if n := len(m.atWork); n > 0 {
					m.end(rapid.IntRange(0, n-1).Draw(t, "which"))
				}
			case 10, 11:
				if n := len(m.atWork); n > 0 {
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
			case 9:
				if rapid.IntRange(0, 9).Draw(t, "stop") == 0 {
					m.shares[2].stop()
					m.s.removeQueued(isStopping, m.s.onDrop)
				}
			}
		}
		for range 10_000 {
			switch {
			case m.begin():
			case len(m.atWork) > 0:
				m.end(0)
			case len(m.parked) > 0:
				m.resume(0)
			default:
				m.s.releaseUnused() // as the watchdog does every second
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
func order(s *scheduler, n int) (names []string) {
	for range n {
		s.mu.Lock()
		it, ok := s.pick(0)
		s.unlock()
		if !ok {
			return names
		}
		f := it.task.flow
		names = append(names, fmt.Sprintf("%s%d", f.work.Account, f.class))
		s.mu.Lock()
		s.detach(it.task)
		s.popHead(it.q)
		s.unlock()
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

// fill queues n tasks of an account and class, each with its own key.
func fill(s *scheduler, f *fetcher, w Work, class, n int) {
	part := newAssignment(f, partition{"t", 0}, 64)
	for range n {
		tk := &task{inflightRecord: inflightRecord{rec: &kgo.Record{}}, part: part, cost: w.Bytes + quantum}
		s.mu.Lock()
		tk.flow = s.flowOf(class, w, func(Work) bool { return false })
		key := uint64(len(s.keys))
		s.mu.Unlock()
		s.add([]*task{tk}, []uint64{key})
	}
}

func TestSchedulerShares(t *testing.T) {
	f := &fetcher{memory: newByteBudget()}
	for name, tt := range map[string]struct {
		fill  func(s *scheduler)
		first int // tasks to compare
		want  map[string]int
	}{
		"high to low 8:1": {func(s *scheduler) {
			fill(s, f, Work{Account: "a"}, classLow, 1000)
			fill(s, f, Work{Account: "a"}, classHigh, 1000)
		}, 90, map[string]int{"a0": 80, "a1": 10}},
		"low alone has all": {func(s *scheduler) {
			fill(s, f, Work{Account: "a"}, classLow, 100)
		}, 90, map[string]int{"a1": 90}},
		"accounts take turns": {func(s *scheduler) {
			fill(s, f, Work{Account: "a"}, classHigh, 1000)
			fill(s, f, Work{Account: "b"}, classHigh, 10)
		}, 20, map[string]int{"a0": 10, "b0": 10}},
		"by bytes": {func(s *scheduler) {
			fill(s, f, Work{Account: "a", Bytes: 9 * quantum}, classHigh, 1000)
			fill(s, f, Work{Account: "b"}, classHigh, 1000)
		}, 110, map[string]int{"a0": 10, "b0": 100}},
		"an account in debt is skipped, then served again": {func(s *scheduler) {
			fill(s, f, Work{Account: "a", Bytes: 1 << 40}, classHigh, 2)
			fill(s, f, Work{Account: "b", Bytes: 1 << 40}, classHigh, 2)
		}, 4, map[string]int{"a0": 2, "b0": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(unlimited(), nil)
			s.allowed = 1
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

// What a commit records about deaths, and how the next owner reads it.
func TestCrashHistory(t *testing.T) {
	for name, tt := range map[string]struct {
		text      string
		committed int64
		want      crashHistory
	}{
		"of another": {"member-1", 10, crashHistory{deaths: map[int64]int{}}},
		"none":       {"", 10, crashHistory{deaths: map[int64]int{}}},
		"a stop":     {"millrace/1 closed 0", 10, crashHistory{deaths: map[int64]int{}}},
		"a death": {"millrace/1 open 0 12:0* 14:0*", 10,
			crashHistory{deaths: map[int64]int{12: 1, 14: 1}, horizon: 74}},
		"a second one": {"millrace/1 open 74 12:1* 14:1", 10,
			crashHistory{deaths: map[int64]int{12: 2, 14: 1}, horizon: 74}},
		"a stop after a death":    {"millrace/1 closed 74 12:2", 11, crashHistory{deaths: map[int64]int{12: 2}, horizon: 74}},
		"below the commit":        {"millrace/1 closed 74 12:2", 80, crashHistory{deaths: map[int64]int{}}},
		"a death past horizon":    {"millrace/1 open 74", 80, crashHistory{deaths: map[int64]int{}, horizon: 144}},
		"unreadable":              {"millrace/1 open x 12 a:1 13:b*", 10, crashHistory{deaths: map[int64]int{}, horizon: 74}},
		"nothing but the opening": {"millrace/1 open 0", 10, crashHistory{deaths: map[int64]int{}, horizon: 74}},
		"a death, one made progress": {"millrace/1 open 0 12:0* 14:0", 10,
			crashHistory{deaths: map[int64]int{12: 1, 14: 0}, horizon: 74}},
		"a stop, one made progress": {"millrace/1 closed 0 14:0", 10, crashHistory{deaths: map[int64]int{}}},
		"a stop, and more is done": {"millrace/1 closed 0 ahead=900/3:AAU", 10,
			crashHistory{deaths: map[int64]int{}, completed: completedAhead{kgo.EpochOffset{Epoch: 3, Offset: 900},
				[]int64{10, 15}}}},
		"a death, and more is done": {"millrace/1 open 0 ahead=900/3:AA 10:0*", 10,
			crashHistory{deaths: map[int64]int{10: 1}, horizon: 964,
				completed: completedAhead{kgo.EpochOffset{Epoch: 3, Offset: 900}, []int64{10}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseCrashHistory(tt.text, tt.committed, 64, true); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	c := crashHistory{deaths: map[int64]int{12: 1, 14: 2}, horizon: 74}
	for name, tt := range map[string]struct {
		open      bool
		committed int64
		now       runningOffsets
		want      string
	}{
		"at work": {true, 10, runningOffsets{suspect: []int64{12, 20}},
			"millrace/1 open 74 14:2 12:1* 20:1*"},
		"past all":                  {false, 80, runningOffsets{}, ""},
		"progress after two deaths": {true, 10, runningOffsets{progressing: []int64{14}}, "millrace/1 open 74 12:1 14:0"},
		"progress, beyond the horizon": {true, 10, runningOffsets{progressing: []int64{90}},
			"millrace/1 open 74 14:2 12:1 90:0"},
		"progress while stopping": {false, 80, runningOffsets{progressing: []int64{90}}, ""},
		"suspect while stopping":  {true, 80, runningOffsets{suspect: []int64{90}}, "millrace/1 open 0 90:0*"},
	} {
		if got, _ := c.encode(tt.open, tt.committed, tt.now, completedAhead{}); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// Which later records a commit records as done, and what follows for a record.
func TestCompletedAhead(t *testing.T) {
	a := completedAhead{kgo.EpochOffset{Epoch: 3, Offset: 900}, []int64{100, 105, 700}}
	word, end := a.encode(100)
	if want := " ahead=900/3:AAXTBA"; word != want || end != 900 {
		t.Errorf("got %q below %d, want %q", word, end, want)
	}
	if got, end := a.encode(900); got != "" || end != 900 {
		t.Errorf("got %q below the committed %d", got, end)
	}
	for name, tt := range map[string]struct {
		word      string
		committed int64
		want      completedAhead
	}{
		"as written":             {"ahead=900/3:AAXTBA", 100, a},
		"nothing is left":        {"ahead=900/3:", 100, completedAhead{end: a.end}},
		"it is committed":        {"ahead=900/3:AAXTBA", 900, completedAhead{}},
		"another word":           {"45:1*", 10, completedAhead{}},
		"without an epoch":       {"ahead=900:AA", 10, completedAhead{}},
		"without the unfinished": {"ahead=900/3", 10, completedAhead{}},
		"no base64":              {"ahead=900/3:A~", 10, completedAhead{}},
		"half a number":          {"ahead=900/3:gA", 10, completedAhead{}},
		"a step beyond the end":  {"ahead=900/3:0wQ", 500, completedAhead{}},
		"a large epoch":          {"ahead=900/99999999999:AA", 10, completedAhead{}},
	} {
		if got := parseCompletedAhead(tt.word, tt.committed); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
	for name, tt := range map[string]struct {
		offset int64
		epoch  int32
		want   bool
	}{
		"done":                                   {101, 3, true},
		"of an earlier leader":                   {101, 2, true},
		"left":                                   {105, 3, false},
		"behind the end":                         {900, 3, false},
		"written after the log had lost its end": {101, 4, false},
	} {
		if got := a.isDone(tt.offset, tt.epoch); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
	many := completedAhead{end: kgo.EpochOffset{Offset: 1 << 41}}
	suspects := runningOffsets{}
	for i := range int64(2 * maxParked) {
		many.unfinished = append(many.unfinished, 1<<40+8192*i)
		suspects.suspect = append(suspects.suspect, 1<<40+8192*i)
	}
	text, end := new(crashHistory).encode(true, 1<<40, suspects, many)
	if len(text) > 4096 {
		t.Errorf("%d bytes of metadata, want at most what brokers accept", len(text))
	}
	got := parseCrashHistory(text, 1<<40, 64, false).completed
	if n := len(got.unfinished); n < maxStragglers || got.end.Offset != many.unfinished[n] ||
		!slices.Equal(got.unfinished, many.unfinished[:n]) {
		t.Errorf("got %d that are left below %d, want the first ones, to the first that is not named", n, got.end.Offset)
	}
	if end != got.end.Offset {
		t.Errorf("all is recorded below %d, want %d: a death of tasks started behind it would not count", end,
			got.end.Offset)
	}
}

// Records that a process committed as done stay committed until a later owner has read all of them.
func TestCompletedAheadIsKept(t *testing.T) {
	c := parseCrashHistory("millrace/1 closed 0 ahead=900/3:AAXTBA", 100, 64, true)
	later := completedAhead{kgo.EpochOffset{Epoch: 4, Offset: 1000}, []int64{105}}
	for name, tt := range map[string]struct {
		committed int64
		more      completedAhead
		want      string
	}{
		"some is committed": {105, completedAhead{}, "millrace/1 open 0 ahead=900/3:ANME below 900"},
		"all is committed":  {905, completedAhead{}, "millrace/1 open 0 below 905"},
		"more is done":      {105, later, "millrace/1 open 0 ahead=1000/4:AA below 1000"},
	} {
		text, done := c.encode(true, tt.committed, runningOffsets{}, tt.more)
		if got := fmt.Sprintf("%s below %d", text, done); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// heaviest returns the flows of the heaviest accounts until at most keep is left, and none of a light
// account.
func TestHeaviest(t *testing.T) {
	for name, tt := range map[string]struct {
		weights     map[string]int64 // by account/store
		keep, least int64
		want        []string
	}{
		"nothing waits":              {nil, 25, 2, nil},
		"one has all":                {map[string]int64{"a/1": 100}, 25, 2, []string{"a/1"}},
		"one has nearly all":         {map[string]int64{"a/1": 3, "b/1": 90, "c/1": 2}, 25, 2, []string{"b/1"}},
		"two have it":                {map[string]int64{"a/1": 50, "b/1": 3, "c/1": 40}, 25, 2, []string{"a/1", "c/1"}},
		"a quarter is left as it is": {map[string]int64{"a/1": 75, "b/1": 10, "c/1": 15}, 25, 2, []string{"a/1"}},
		"all are light":              {map[string]int64{"a/1": 10, "b/1": 10, "c/1": 10}, 25, 11, nil},
		"there is room":              {map[string]int64{"a/1": 10, "b/1": 10}, 25, 2, nil},
		"one has it in many flows": {map[string]int64{"a/1": 10, "a/2": 11, "a/3": 10, "b/1": 9}, 20, 10,
			[]string{"a/2", "a/1", "a/3"}},
		"one store of two": {map[string]int64{"a/1": 80, "a/2": 1, "b/1": 9}, 20, 10, []string{"a/1"}},
	} {
		weights := map[Work]int64{}
		for name, n := range tt.weights {
			account, store, _ := strings.Cut(name, "/")
			weights[Work{Account: account, Stores: [2]string{store}}] = n
		}
		var got []string
		for _, w := range heaviest(weights, tt.keep, tt.least) {
			got = append(got, w.Account+"/"+w.Stores[0])
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// A flow is moved until few of its messages arrive. Flows get different slots while there are free ones.
func TestDiversion(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := diversion{flows: map[Work]*route{}}
	giant, other := Work{Account: "giant", Stores: [2]string{"1"}}, Work{Account: "giant", Stores: [2]string{"2"}}
	d.expire(now, 10)
	slot := d.slotOf(giant)
	if _, ok := d.routeOf(giant); ok {
		t.Error("arriving messages of a flow are moved before the first ones")
	}
	if !d.open(giant) || d.open(giant) || d.slotOf(giant) != slot {
		t.Error("a flow is not new when it is moved first, is new later, or has another slot")
	}
	if _, ok := d.routeOf(other); ok {
		t.Error("a flow of another store is moved")
	}
	arrive := func(n int) {
		for range n {
			if _, ok := d.routeOf(Work{Key: "item", Account: giant.Account, Stores: giant.Stores, Bytes: 7}); !ok {
				t.Fatal("the flow is not moved")
			}
		}
	}
	arrive(10)
	d.expire(now.Add(divertWindow), 10)
	d.stalled.Store(true)
	if _, ok := d.routeOf(giant); ok {
		t.Error("more is moved while the brokers take nothing")
	}
	d.stalled.Store(false)
	arrive(8) // and the one above
	d.expire(now.Add(2*divertWindow-time.Second), 10)
	arrive(0)
	used := map[int]bool{d.flows[giant].slot: true}
	for _, account := range []string{"a", "b"} {
		used[d.slotOf(Work{Account: account})] = true
	}
	if len(used) != client.BacklogSlots {
		t.Errorf("three flows have %d slots", len(used))
	}
	d.expire(now.Add(2*divertWindow), 10)
	if _, ok := d.routeOf(giant); ok || d.active.Load() {
		t.Error("the flow is moved, although few messages of it arrive")
	}
}
