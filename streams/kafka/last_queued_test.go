package kafka

import (
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/schedule"
)

// A queued message that is revoked while the handler of the one before it runs is not read any more.
func TestLastQueuedOfRevokedPartition(t *testing.T) {
	f := &fetcher{p: new(Pool), memory: newByteBudget(), metrics: uncounted()}
	p := &Pool{sched: schedule.New(schedule.Config{Workers: 1, OnStart: setSuccessor})}
	head, tail := newAssignment(f, core.Partition{Topic: "t", ID: 0}, 64), newAssignment(f, core.Partition{Topic: "t",
		ID: 1}, 64)
	var entries []schedule.Entry
	for _, part := range []*assignment{head, tail} {
		tk := &task{
			Record: core.Record{Raw: new(kgo.Record)}, part: part, delivery: &schemas.Delivery{Body: &pb.Change{}},
		}
		tk.Gate, tk.Owner = part.gate, tk
		entries = append(entries, schedule.Entry{Task: &tk.Task, Key: 1, Class: schemas.High})
	}
	p.sched.Add(entries)
	first := taskOf(p.sched.Take(schedule.MainWorker, nil))
	if first.lastQueued() == nil {
		t.Fatal("nothing is queued behind the first task")
	}
	var lost sync.WaitGroup
	lost.Go(func() {
		tail.gate.Close()
		p.removeStopping()
	})
	_ = first.lastQueued()
	lost.Wait()
	if b := first.lastQueued(); b != nil {
		t.Errorf("%v is returned as queued although it was revoked", b)
	}
}
