package schedule

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
)

// What is removed of a key are tasks that match, and those before them stay the first ones. After stop, no other task
// is looked at or removed.
func TestRemoveQueued(t *testing.T) {
	const keys, each = 3, 4
	for name, tt := range map[string]struct {
		match   func(at map[*Task]int, asked int, first, queued *Task) (remove, stop bool)
		removed []int // numbers of tasks within their key
		left    int
	}{
		"none": {func(map[*Task]int, int, *Task, *Task) (bool, bool) { return false, false }, nil, keys * each},
		"the keys' second tasks": {func(at map[*Task]int, _ int, _, queued *Task) (bool, bool) {
			return at[queued] == 1, false
		}, []int{1, 1, 1}, keys * (each - 1)},
		"all of one key": {func(_ map[*Task]int, asked int, _, _ *Task) (bool, bool) {
			return true, asked == each
		}, []int{0, 1, 2, 3}, (keys - 1) * each},
		"stop without removing": {func(map[*Task]int, int, *Task, *Task) (bool, bool) {
			return false, true
		}, nil, keys * each},
		"the first task alone": {func(map[*Task]int, int, *Task, *Task) (bool, bool) {
			return true, true
		}, []int{0}, keys*each - 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, gate := New(Config{Workers: 1}), NewGate()
			at, key := map[*Task]int{}, map[*Task]int{}
			for i := range each {
				for k := range keys {
					task := &Task{Gate: gate}
					at[task], key[task] = i, k
					s.Add([]Entry{{Task: task, Key: uint64(k), Class: schemas.High}})
				}
			}
			asked := 0
			var removed []int
			for _, r := range s.RemoveQueued(func(first, queued *Task) (bool, bool) {
				if key[first] != key[queued] {
					t.Errorf("task of key %d with the first one of key %d", key[queued], key[first])
				}
				asked++
				return tt.match(at, asked, first, queued)
			}) {
				removed = append(removed, at[r.Task])
			}
			if !slices.Equal(removed, tt.removed) {
				t.Errorf("removed %v, want %v", removed, tt.removed)
			}
			last := map[int]int{}
			var done *Task
			for range tt.left {
				done = s.Take(MainWorker, done)
				if k := key[done]; last[k] > at[done] {
					t.Errorf("task %d of key %d after task %d", at[done], k, last[k])
				}
				last[key[done]] = at[done]
			}
			s.Close()
			if next := s.Take(MainWorker, done); next != nil {
				t.Errorf("task %d is left", at[next])
			}
		})
	}
}

// Keys come and go while EachQueued lets workers take the lock.
func TestEachQueuedYields(t *testing.T) {
	const keys, workers = 4 * yieldKeys, 2 * yieldKeys
	for range 20 {
		s, gate := New(Config{Workers: workers}), NewGate()
		for k := range keys {
			s.Add([]Entry{{Task: &Task{Gate: gate}, Key: uint64(k), Class: schemas.High}})
		}
		var taken [workers]*Task // so that no worker ends before all of them have one
		for i := range taken {
			taken[i] = s.Take(MainWorker, nil)
		}
		var all sync.WaitGroup
		for _, task := range taken {
			all.Go(func() {
				for task != nil {
					task = s.Take(MainWorker, task)
				}
			})
		}
		s.EachQueued(func(_, _ *Task) { time.Sleep(100 * time.Microsecond) }) // the workers wait for the lock meanwhile
		s.Close()
		all.Wait()
	}
}
