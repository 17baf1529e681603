package deletion

import (
	"cmp"
	"errors"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A permit is given back if the delete certainly did not take effect, and only then. ErrChanged and ErrNotFound without
// the mark may be the answers to a repeated request whose first one did.
func TestPermitsAreGivenBack(t *testing.T) {
	lost, denied := retry.Unavailable(errors.New("no answer")), retry.Permanent(errors.New("403"))
	slow := storage.NotApplied(retry.Unavailable(errors.New("slow down")))
	readOnly := storage.NotApplied(retry.Permanent(storage.ErrReadOnly))
	kinds := map[string]struct {
		method string
		make   func(*testing.T) (*world, *pb.DeletionCommand)
	}{
		"item":  {"Delete", func(t *testing.T) (*world, *pb.DeletionCommand) { return newWorld(t), order() }},
		"space": {"DeleteSpace", func(t *testing.T) (*world, *pb.DeletionCommand) { return newSpaceWorld(t), spaceOrder() }},
		"copy that came back": {"Delete", func(t *testing.T) (*world, *pb.DeletionCommand) {
			w := newWorld(t)
			return w, w.returnedOrder()
		}},
	}
	for name, tt := range map[string]struct {
		fault   storagetest.Fault
		counted bool
	}{
		"deleted":                            {storagetest.Fault{Method: "none"}, true},
		"deleted, and the answer was lost":   {storagetest.Fault{Err: lost, Applied: true}, true},
		"unknown":                            {storagetest.Fault{Err: lost}, true},
		"repeated, and absent":               {storagetest.Fault{Err: storage.ErrNotFound, Applied: true}, true},
		"repeated, and changed":              {storagetest.Fault{Err: storage.ErrChanged, Applied: true}, true},
		"refused":                            {storagetest.Fault{Err: storage.NotApplied(denied)}, false},
		"refused by a read-only store":       {storagetest.Fault{Err: readOnly}, false},
		"refused for now":                    {storagetest.Fault{Err: slow}, false},
		"a permanent error without the mark": {storagetest.Fault{Err: denied}, true},
	} {
		for kind, k := range kinds {
			t.Run(kind+", "+name, func(t *testing.T) {
				w, c := k.make(t)
				w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1}
				fault := tt.fault
				fault.Method = cmp.Or(fault.Method, k.method)
				w.faulty["2"].Script(fault)
				_, _, _ = w.run(c) // the tests of each kind have the results
				got := w.deleter.cfg.Brake.Reached(destination)
				if counted := got == "deletes.max_count within an hour"; counted != tt.counted || !counted && got != "" {
					t.Errorf("reached %q, want it counted: %v", got, tt.counted)
				}
			})
		}
	}
}

// A delete that was not tried, because the source is back, does not count.
func TestPermitOfADeleteThatIsNotTried(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1}
	stats := 0
	w.on("1", "Stat", func() {
		if stats++; stats == 2 { // after the observation
			w.put("1", "hello")
		}
	})
	_, r, err := w.run(order())
	w.must(err)
	if r.GetResult() != "not-deleted" || w.deleter.cfg.Brake.Reached(destination) != "" {
		t.Errorf("got %v, reached %q", r, w.deleter.cfg.Brake.Reached(destination))
	}
	w.present(true)
}

// A delete that the store refused while the source came back does not count, and copies nothing before it is observed.
func TestPermitOfARefusedDeleteWithASource(t *testing.T) {
	w := newWorld(t)
	w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: 1}
	w.on("2", "Delete", func() { w.put("1", "hello") })
	w.faulty["2"].Script(storagetest.Fault{Method: "Delete",
		Err: storage.NotApplied(retry.Unavailable(errors.New("slow down")))})
	if _, _, err := w.run(order()); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("got %v", err)
	}
	if got := w.deleter.cfg.Brake.Reached(destination); got != "" {
		t.Errorf("reached %q", got)
	}
}
