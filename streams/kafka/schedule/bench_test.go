package schedule

import (
	"testing"

	"github.com/millrace/millrace/schemas"
)

// One worker takes tasks of many keys one after the other: the cost of the scheduler alone.
func BenchmarkScheduler(b *testing.B) {
	for name, limit := range map[string]Limit{"unlimited": {}, "slots": {Tasks: 64}} {
		b.Run(name, func(b *testing.B) {
			s := New(Config{Workers: 16, Slots: NewSlots(func(string, string) Limit { return limit })})
			gate := NewGate()
			const n = 512
			tasks, entries := make([]Task, n), make([]Entry, n)
			for i := range entries {
				entries[i] = Entry{
					Task: &tasks[i], Key: uint64(i % (n - n/8)), Class: schemas.High,
					Flow: FlowID{Account: "a", Stores: [2]string{"1", "2"}},
				}
			}
			var last *Task
			for b.Loop() {
				for i := range tasks {
					tasks[i] = Task{Gate: gate}
				}
				s.Add(entries)
				for range n {
					last = s.Take(MainWorker, last)
					gate.End()
				}
				s.Complete(last)
				last = nil
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/task")
		})
	}
}
