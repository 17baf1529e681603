package schedule

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/schemas"
)

// A scheduler whose tasks are of ever new flows keeps few flows and accounts.
func TestPrune(t *testing.T) {
	s := New(Config{Workers: 1})
	flow := func(i int) FlowID { return FlowID{Account: fmt.Sprint(i)} }
	for i := range 5 * minPrune {
		fill(s, flow(i), schemas.High, 1)
		s.Complete(begin(s, MainWorker))
		if n := len(s.flows); n > minPrune {
			t.Fatalf("%d flows after %d tasks", n, i+1)
		}
	}
	if n := len(s.classes[classHigh].byName); n > minPrune+1 { // one may still be in the queue of its class
		t.Errorf("%d accounts, of which none has a task", n)
	}
	for i := range 3 * minPrune {
		fill(s, flow(i), schemas.High, 1)
	}
	if n := len(s.flows); n < 3*minPrune {
		t.Errorf("%d flows, of which %d have a task", n, 3*minPrune)
	}
	for i := range 3 * minPrune {
		s.Complete(begin(s, MainWorker))
		fill(s, FlowID{Account: "other", Stores: [2]string{fmt.Sprint(i)}}, schemas.High, 1)
		s.Complete(begin(s, MainWorker))
	}
	s.mu.Lock()
	defer s.unlock()
	if n := len(s.flows); n >= 4*minPrune {
		t.Errorf("%d flows without tasks", n)
	}
}

// The flow of a task that queues behind another one of its key is kept, although none of its tasks is ready.
func TestPruneKeepsFlowsOfQueuedTasks(t *testing.T) {
	paused := false
	s := New(Config{Workers: 2, Paused: func(id FlowID) bool { return paused && id.Account == "b" }})
	gate := NewGate()
	for _, account := range []string{"a", "b"} {
		s.Add([]Entry{{Task: &Task{Gate: gate}, Key: 1, Class: schemas.High, Flow: FlowID{Account: account}}})
	}
	first := begin(s, MainWorker)
	s.mu.Lock()
	s.prune()
	s.unlock()
	paused = true
	s.SetControls(false, 2)
	s.Complete(first)
	if begin(s, MainWorker) != nil {
		t.Error("the task of a paused flow is started")
	}
}
