package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// One worker takes tasks of many keys one after the other: the cost of the scheduler alone.
func BenchmarkScheduler(b *testing.B) {
	for name, limit := range map[string]Limit{"unlimited": {}, "slots": {Tasks: 64}} {
		b.Run(name, func(b *testing.B) {
			s := newScheduler(NewSlots(func(string, string) Limit { return limit }), nil)
			s.allowed = 16
			part := newAssignment(&fetcher{memory: newByteBudget()}, partition{"t", 0}, 64)
			running := func(Work) bool { return false }
			const n = 512
			tasks, keys := make([]*task, n), make([]uint64, n)
			for i := range tasks {
				tasks[i], keys[i] = new(task), uint64(i%(n-n/8))
			}
			rec := new(kgo.Record)
			var last workItem
			for b.Loop() {
				s.mu.Lock()
				f := s.flowOf(classHigh, Work{Account: "a", Stores: [2]string{"1", "2"}}, running)
				s.mu.Unlock()
				for i := range tasks {
					*tasks[i] = task{inflightRecord: inflightRecord{rec: rec}, part: part, cost: quantum, flow: f}
				}
				s.add(tasks, keys)
				for range n {
					last, _ = s.take(0, last)
					last.lastQueued()
					part.endTask()
				}
				s.mu.Lock()
				s.complete(last)
				s.unlock()
				last = workItem{}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/task")
		})
	}
}
