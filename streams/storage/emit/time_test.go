package emit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/record"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// Changes that the store does not date are at least a millisecond apart, and none is dated ahead of the
// clock: the store dates the next Put by the same clock, and it must not look older.
func TestNoChangeIsDatedAhead(t *testing.T) {
	const n = 5
	for name, act := range map[string]func(w *world){
		// Deletes of one item were in progress when the process ended; the next process resolves them.
		"resolved deletes": func(w *world) {
			o, err := w.mem.Stat(w.t.Context(), sp, "a")
			must(w.t, err)
			_, err = w.mem.Delete(w.t.Context(), sp, "a", storage.DeleteOptions{})
			must(w.t, err)
			must(w.t, retry.Sleep(w.t.Context(), time.Second))
			for range n {
				in := outbox.Mutation{Draft: w.s.draft(w.t.Context(), pb.Op_OP_DELETE, sp, "a"), Began: time.Now()}
				in.Before = completed(in.Draft, record.Content(schemas.CopyOf(in.Draft), o))
				_, err := w.s.cfg.Outbox.Intend(w.t.Context(), in)
				must(w.t, err)
			}
			w.s, err = New(w.faulty, w.s.cfg, w.topic)
			must(w.t, err)
			must(w.t, w.s.Flush(w.t.Context()))
		},
		"properties": func(w *world) {
			for i := range n {
				p := storage.Properties{MediaType: strings.Repeat("x", i+1)}
				_, err := w.s.SetProperties(w.t.Context(), sp, "a", p, storage.Condition{})
				must(w.t, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				must(t, w.putItem("a", "one"))
				must(t, retry.Sleep(t.Context(), time.Second))
				w.topic.take()
				w.topic.set(func(c *pb.Change) (bool, error) {
					if at := c.GetTime().AsTime(); at.After(time.Now()) {
						t.Errorf("%s is dated %v ahead of the clock", c.GetOp(), time.Until(at))
					}
					return true, nil
				})
				act(w)
				must(t, w.putItem("a", "two"))
				got := w.topic.take()
				if len(got) != n+1 {
					t.Fatalf("got %v, want %d changes", ops(got), n+1)
				}
				for i, c := range got[1:n] {
					if !c.GetTime().AsTime().After(got[i].GetTime().AsTime()) {
						t.Errorf("changes %d and %d have times %v and %v", i, i+1, got[i].GetTime(), c.GetTime())
					}
				}
				if last, put := got[n-1].GetTime().AsTime(), got[n].GetTime().AsTime(); put.Before(last) {
					t.Errorf("the Put is dated %v before the %s that it follows", last.Sub(put), got[n-1].GetOp())
				}
			})
		})
	}
}

// A Put that becomes visible after an observation of the item's absence is published after the DELETE of
// that observation and is not dated before it, however long the marker is read in between.
func TestPutAfterALook(t *testing.T) {
	for name, tt := range map[string]struct {
		marker bool          // the Put continues while the marker is read after the observation, else after that
		slow   time.Duration // delay before it continues
	}{
		"after the mutation was resolved":      {},
		"while the marker is read":             {marker: true},
		"while the marker is read, and slowly": {marker: true, slow: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				must(t, w.putItem("a", "one"))
				must(t, retry.Sleep(t.Context(), 2*time.Second))
				w.topic.take()
				streamed, goOn := make(chan struct{}), make(chan struct{})
				deleted, looked := false, false
				w.faulty.Before(func(ctx context.Context, c storagetest.Call) error {
					switch {
					case c.Method == "Delete":
						w.mem.Lose(sp, "a")
						deleted = true
					case c.Method == "Stat" && deleted && tt.marker:
						must(t, retry.Sleep(ctx, time.Millisecond)) // else the marker reading before it counts as one after it
						looked = true
					case c.Method == "Marker" && looked:
						looked, deleted = false, false
						must(t, retry.Sleep(ctx, tt.slow))
						close(goOn)
						must(t, retry.Sleep(ctx, time.Millisecond)) // the outcome of the Put is recorded meanwhile
					}
					return nil
				})
				w.faulty.Script(storagetest.Fault{Method: "Delete"})
				var g errgroup.Group
				g.Go(func() error {
					_, err := w.s.Put(t.Context(), sp, "a", strings.NewReader("two"), storage.PutOptions{
						Size: 3, Verify: func(digest.Set, int64) error {
							close(streamed)
							<-goOn
							return nil
						},
					})
					return err
				})
				<-streamed
				g.Go(func() error {
					if _, err := w.s.Delete(t.Context(), sp, "a", storage.DeleteOptions{}); !errors.Is(err, storagetest.ErrFault) {
						t.Errorf("got %v, want the store's error", err)
					}
					return nil
				})
				synctest.Wait()
				if !tt.marker {
					close(goOn)
				}
				must(t, g.Wait())
				got := w.wantOps(0, "DELETE", "UPDATE")
				if apart := got[1].GetTime().AsTime().Sub(got[0].GetTime().AsTime()); apart != tt.slow {
					t.Errorf("the UPDATE is dated %v after the DELETE, want %v", apart, tt.slow)
				}
			})
		})
	}
}

// A clock that does not advance, or was set back, is not waited for.
func TestClockIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		at := time.Now()
		w.s.cfg.Now = func() time.Time { return at }
		began, last := time.Now(), time.Time{}
		set := func() {
			t.Helper()
			must(t, w.s.SetSpace(t.Context(), storage.Space{Name: sp}))
			got := w.topic.take()
			if c := got[0].GetTime().AsTime(); len(got) != 1 || !c.After(last) {
				t.Errorf("got %v, want one change after %v", got, last)
			} else {
				last = c
			}
		}
		for range 5 {
			set()
		}
		at = at.Add(-time.Hour)
		set()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("6 mutations took %v", took)
		}
	})
}
