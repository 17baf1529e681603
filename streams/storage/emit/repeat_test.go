package emit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A stallingOutbox fails a number of calls of Safe and Outcome.
type stallingOutbox struct {
	*outbox.File
	safe, outcome int
	recorded      bool // an Outcome that fails is recorded nevertheless
}

func (o *stallingOutbox) Safe(ctx context.Context) error {
	if o.safe > 0 {
		o.safe--
		return context.DeadlineExceeded // as if the fsync of another caller took longer
	}
	return o.File.Safe(ctx)
}

func (o *stallingOutbox) Outcome(t outbox.Ticket, c *pb.Change) (outcome outbox.Ticket, err error) {
	if o.outcome == 0 {
		return o.File.Outcome(t, c)
	}
	o.outcome--
	if o.recorded {
		outcome, _ = o.File.Outcome(t, c)
	}
	return outcome, outboxtest.ErrStep
}

// A mutation is resolved once, whatever fails after the observation, even if its outcome is recorded by
// then: the next attempt continues there, in this process or the next. A mutation that was made is
// published once.
func TestLookGoesOnAfterItsOutcome(t *testing.T) {
	for name, fails := range map[string]stallingOutbox{
		"outcome fails":                    {outcome: 1},
		"outcome fails twice":              {outcome: 2},
		"outcome fails, but is recorded":   {outcome: 1, recorded: true},
		"outcome is not safe":              {safe: 1},
		"outcome is not safe, again":       {safe: 2},
		"recorded, fails, and is not safe": {outcome: 1, recorded: true, safe: 2},
	} {
		for method, m := range testMutations() {
			for _, done := range []bool{false, true} {
				for _, then := range []string{"flush", "kill", "power"} {
					t.Run(fmt.Sprintf("%s %s done %v %s", name, method, done, then), func(t *testing.T) {
						testLookGoesOn(t, method, m, done, fails, then)
					})
				}
			}
		}
	}
}

func testLookGoesOn(t *testing.T, method string, m testMutation, done bool, fails stallingOutbox, then string) {
	d, inner := outboxtest.New(), memory(t)
	must(t, inner.CreateSpace(t.Context(), storage.Space{Name: "empty"}))
	_, err := inner.Put(t.Context(), sp, "b", strings.NewReader("b"), storage.PutOptions{Size: 1})
	must(t, err)
	w := durable(t, d, inner, func(c *Config) {
		fails.File = c.Outbox.(countingOutbox).File
		c.Outbox = &fails
	})
	w.faulty.Script(storagetest.Fault{Method: method, Applied: done})
	if err := m.call(w); err == nil {
		t.Fatal("got no error, want the store's")
	}
	got := w.topic.take()
	if then != "flush" {
		w = durable(t, d.After(then == "power", rand.New(rand.NewPCG(1, 1))), inner)
	}
	for range 3 { // the outbox may still fail
		if err = w.s.Flush(t.Context()); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("Flush: %v", err)
	}
	var want []string
	if done {
		want = []string{m.op}
	}
	if got = append(got, w.topic.take()...); !slices.Equal(ops(got), want) || w.held() != 0 {
		t.Errorf("got %v and %d in the outbox, want %v", ops(got), w.held(), want)
	}
	w.wantNoQueues()
}
