package duplicate

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/brake/braketest"
	"github.com/millrace/millrace/streams/held/heldtest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// All items of a space are rewritten, by two copiers, and one of them is killed and replaced: the limit is done, and at
// most a second's work more. All others keep their content, and have a result that names the one list.
func TestRewritesOfAWholeSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, limit = 4, 1000
		const perSecond = 2 * workers * 100 // each worker takes 10 ms
		n := need.Amount(3000, 100_000, 100_000)
		w := newWorld(t)
		put := func(store, item, text string) storage.Object {
			o, err := w.mem[store].Put(t.Context(), "photos", item, strings.NewReader(text),
				storage.PutOptions{Size: int64(len(text))})
			w.must(err)
			return o
		}
		commands := make(chan *pb.DuplicationCommand, n)
		for i := range n {
			item := fmt.Sprintf("item-%06d", i)
			put("2", item, "plain")
			copyOf := at("1")
			copyOf.Item = item
			c := command(w.reported(record.Content(copyOf, put("1", item, "encrypted"))))
			c.Id, c.Item, c.CauseOp = schemas.ID("command", item), item, pb.Op_OP_UPDATE
			commands <- c
		}
		close(commands)
		topic, lists := braketest.New(brake.Rewrites), heldtest.New()
		topic.Limits.MaxShare = 1
		results := make(chan *pb.DuplicationResult, n)
		copier := func(stop <-chan struct{}) (killed *sync.WaitGroup) {
			config := w.executor.cfg
			config.Rewrites, config.Held = topic.Process(), lists
			e, err := New(config, w, w, w.journal)
			w.must(err)
			ctx, cancel := context.WithCancel(t.Context())
			var counts, all sync.WaitGroup
			counts.Go(func() { _ = config.Rewrites.Run(ctx) })
			for range workers {
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						case c, ok := <-commands:
							if !ok {
								return
							}
							out, err := e.Handle(t.Context(), &schemas.Delivery{Topic: schemas.DuplicationHigh, Body: c, Attempt: 1})
							if err != nil {
								t.Errorf("item %s: %v", c.GetItem(), err)
							}
							if len(out) > 0 {
								results <- out[len(out)-1].Body.(*pb.DuplicationResult)
							}
							time.Sleep(10 * time.Millisecond)
						}
					}
				})
			}
			killed = new(sync.WaitGroup)
			killed.Go(func() { all.Wait(); cancel(); counts.Wait() })
			return killed
		}
		kill := make(chan struct{})
		one, two := copier(kill), copier(nil)
		time.Sleep(700 * time.Millisecond) // within the first second: nothing of it is counted
		close(kill)
		one.Wait()
		three := copier(nil)
		two.Wait()
		three.Wait()
		close(results)
		done, waits := 0, 0
		for r := range results {
			switch {
			case r.GetResult() == "copied":
				done++
			case r.GetResult() == "awaiting-approval" && r.GetList() == "rewrites-1":
				waits++
			default:
				t.Errorf("got %v", r)
			}
		}
		if done < limit-perSecond/10 || done > limit+perSecond || waits != n-done {
			t.Errorf("%d of %d done, %d wait", done, n, waits)
		}
		kept := 0
		for i := range n {
			o, err := w.mem["2"].Stat(t.Context(), "photos", fmt.Sprintf("item-%06d", i))
			w.must(err)
			if o.Size == int64(len("plain")) {
				kept++
			}
		}
		if kept != n-done {
			t.Errorf("%d copies kept, %d done", kept, done)
		}
	})
}
