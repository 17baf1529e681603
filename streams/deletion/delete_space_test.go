package deletion

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/brake"
	"github.com/millrace/millrace/streams/storage"
)

// All items of a space are deleted at the source. Many deletes are at work at once: exactly the limit is done, and each
// of the others keeps its copy and has one result that names the one list.
func TestDeletesOfAWholeSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, limit = 16, 1000
		n := need.Amount(3000, 100_000, 100_000)
		w := newWorld(t)
		w.topic.Limits = brake.Limits{MaxShare: 1, MaxCount: limit}
		items := make(chan string, n)
		for i := range n {
			item := fmt.Sprintf("item-%06d", i)
			_, err := w.mem["2"].Put(t.Context(), "photos", item, strings.NewReader("hello"),
				storage.PutOptions{Size: int64(len("hello"))})
			w.must(err)
			items <- item
		}
		close(items)
		results := make(chan *pb.DuplicationResult, n)
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for item := range items {
					d := &schemas.Delivery{Topic: schemas.Deletions, Body: orderOf(item), Attempt: 1}
					out, err := w.deleter.Handle(t.Context(), d)
					if err != nil {
						t.Errorf("item %s: %v", item, err)
						continue
					}
					results <- out[len(out)-1].Body.(*pb.DuplicationResult)
				}
			})
		}
		all.Wait()
		close(results)
		deleted, held, lists := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for r := range results {
			switch r.GetResult() {
			case "deleted":
				deleted[r.GetItem()] = true
			case "awaiting-approval":
				held[r.GetItem()], lists[r.GetList()] = true, true
			default:
				t.Errorf("got %v", r)
			}
		}
		if len(deleted) != limit || len(held) != n-limit || len(lists) != 1 || !lists["brake-1"] {
			t.Errorf("%d deleted, %d held of %d, lists %v", len(deleted), len(held), n, lists)
		}
		kept := 0
		for o, err := range w.mem["2"].List(t.Context(), "photos", "") {
			if w.must(err); o.Item == "a.jpg" {
				continue // of the world
			}
			if kept++; !held[o.Item] {
				t.Errorf("the copy of %s is kept without a result", o.Item)
			}
		}
		if kept != n-limit {
			t.Errorf("%d copies are kept, want %d", kept, n-limit)
		}
	})
}
