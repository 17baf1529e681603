package kafka

import (
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// A message behind the task at work that is given back while its handler is called is not read any more.
func TestBehindIsGivenBack(t *testing.T) {
	in := &intake{weight: newScale()}
	s := newScheduler(unlimited(), func(t *task) { t.letter, t.delivery = letter{}, nil })
	f := s.flowOf(classHigh, Work{Account: "a"}, func(Work) bool { return false })
	head, tail := newShare(in, partition{"t", 0}, 64), newShare(in, partition{"t", 1}, 64)
	var tasks []*task
	for _, sh := range []*share{head, tail} {
		tasks = append(tasks, &task{letter: letter{rec: new(kgo.Record)}, share: sh, cost: turnBytes, flow: f,
			delivery: &schemas.Delivery{Body: &pb.Change{}}})
	}
	s.add(tasks, []uint64{1, 1})
	it, ok := begin(s, 0)
	if !ok || it.behind() == nil {
		t.Fatal("nothing is begun, or nothing is behind it")
	}
	var lost sync.WaitGroup
	lost.Go(func() {
		tail.stop()
		s.purge()
	})
	_ = it.behind()
	lost.Wait()
	if b := it.behind(); b != nil {
		t.Errorf("%v is behind the task, which was given back", b)
	}
}
