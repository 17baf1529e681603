package kafka

import (
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A queued message that is revoked while the handler of the one before it runs is not read any more.
func TestLastQueuedOfRevokedPartition(t *testing.T) {
	f := &fetcher{memory: newByteBudget()}
	s := newScheduler(unlimited(), func(t *task) { t.inflightRecord, t.delivery = inflightRecord{}, nil })
	fl := s.flowOf(classHigh, Work{Account: "a"}, func(Work) bool { return false })
	head, tail := newAssignment(f, partition{"t", 0}, 64), newAssignment(f, partition{"t", 1}, 64)
	var tasks []*task
	for _, part := range []*assignment{head, tail} {
		tasks = append(tasks, &task{inflightRecord: inflightRecord{rec: new(kgo.Record)}, part: part, cost: quantum, flow: fl,
			delivery: &schemas.Delivery{Body: &pb.Change{}}})
	}
	s.add(tasks, []uint64{1, 1})
	it, ok := begin(s, 0)
	if !ok || it.lastQueued() == nil {
		t.Fatal("nothing is started, or nothing is queued behind it")
	}
	var lost sync.WaitGroup
	lost.Go(func() {
		tail.stop()
		s.removeQueued(isStopping, s.onDrop)
	})
	_ = it.lastQueued()
	lost.Wait()
	if b := it.lastQueued(); b != nil {
		t.Errorf("%v is returned as queued although it was revoked", b)
	}
}

// A parked task that resumes frees capacity for another one, which starts at once.
func TestResumedTaskFreesCapacity(t *testing.T) {
	f := &fetcher{memory: newByteBudget()}
	s := newScheduler(NewSlots(onlyX(10)), nil)
	s.allowed, s.parkedLimit = 4, 2
	ofX := Work{Account: "a", Stores: [2]string{"X"}}
	fill(s, f, ofX, classLow, 1)
	first, ok := begin(s, 0)
	if !ok {
		t.Fatal("nothing is started")
	}
	s.park(first.task)
	fill(s, f, ofX, classLow, 1)
	if _, ok := begin(s, 0); ok {
		t.Fatal("started at the limit of parked tasks")
	}
	s.resumeTask(first.q)
	s.mu.Lock()
	defer s.unlock()
	if _, ok := s.pick(0); !ok {
		t.Error("not started although no task is parked any more")
	}
}
