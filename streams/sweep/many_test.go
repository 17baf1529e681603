package sweep

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Of 10,000 spaces of an account one has 99 % of the items: the rounds of the others end while it has had a few pages.
// The sweeper runs as in the role: with its default of workers, from looks, and with pages that are read ahead.
func TestOneGiantOfManySpaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const spaces, page = 10_000, 1000
		const giant = 99 * (spaces - 1) / page // its pages; each other space has one item
		w := newWorld(t)
		var mu sync.Mutex   // guards what follows
		ended, read := 0, 0 // spaces whose only page was published, and pages of the giant by then
		s := w.process("1", func(c *SweeperConfig, d *SweeperDeps) {
			c.Workers = 0 // 4
			d.Publisher = publish(func(ctx context.Context, messages ...schemas.Message) error {
				mu.Lock()
				for _, m := range messages {
					b, ok := m.Body.(*pb.FixityTask)
					switch {
					case ok && b.GetSpace() == "a/giant" && ended < spaces-1:
						read++
					case ok:
						ended++
					}
				}
				mu.Unlock()
				time.Sleep(time.Millisecond) // a broker
				return w.Publish(ctx, messages...)
			})
		})
		splits := []Split{w.split("a/giant", giant)}
		for i := range spaces - 1 {
			splits = append(splits, w.split(fmt.Sprintf("a/%04d", i), 1))
		}
		for i := range splits {
			pages := splits[i].Pages
			items := 1
			if i == 0 {
				items = page
			}
			splits[i].Ahead = true
			splits[i].Pages = func(ctx context.Context, r Round, cursor []byte) (Page, error) {
				time.Sleep(10*time.Millisecond + time.Duration(items)*time.Millisecond) // a request, and its items
				return pages(ctx, r, cursor)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- s.Run(ctx, kindOf(splits...), nil) }()
		begun := time.Now()
		for w.checkpoint("s", "a/giant").GetFinished() == nil && time.Since(begun) < 24*time.Hour {
			time.Sleep(time.Second)
		}
		cancel()
		if err := <-stopped; err != nil || ended < spaces-1 {
			t.Fatalf("%d of %d spaces have ended: %v", ended, spaces-1, err)
		}
		if read > 2 {
			t.Errorf("the giant had %d of %d pages before the last of the others ended", read, giant)
		}
	})
}
