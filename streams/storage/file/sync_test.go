package file

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/storage"
)

// began is when a sync began, as the error that all who waited for it get.
type syncBegan int64

func (b syncBegan) Error() string { return fmt.Sprint("began at ", int64(b)) }

// A call returns after a sync that began after the call. Calls during a sync share the next one.
func TestSharedSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			s     syncGroup
			wg    sync.WaitGroup
			runs  atomic.Int64
			start = time.Now()
			now   = func() int64 { return int64(time.Since(start)) }
		)
		for n := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(n) * time.Millisecond)
				came, id := now(), dirID{ino: uint64(n % 2)}
				err := s.do(id, func() error {
					runs.Add(1)
					began := now()
					time.Sleep(10 * time.Millisecond)
					return syncBegan(began)
				})
				var began syncBegan
				if !errors.As(err, &began) || int64(began) < came {
					t.Errorf("caller %d came at %d, and got: %v", n, came, err)
				}
			})
		}
		wg.Wait()
		if got := runs.Load(); got < 20 || got > 24 {
			t.Errorf("got %d syncs of two directories in 100 ms of 10 ms each", got)
		}
		if len(s.dirs) > 0 {
			t.Errorf("directories are left: %v", s.dirs)
		}
	})
}

// The error of a sync is also returned to the calls of the next batch: their changes may be among the lost ones, and
// the kernel reports the error once.
func TestSharedSyncFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			s    syncGroup
			wg   sync.WaitGroup
			boom = errors.New("boom")
			got  [3]error
		)
		for n := range got {
			wg.Go(func() {
				time.Sleep(time.Duration(n) * 10 * time.Millisecond) // each call starts during the sync of the one before
				got[n] = s.do(dirID{}, func() error {
					time.Sleep(15 * time.Millisecond)
					if n == 0 {
						return boom
					}
					return nil
				})
			})
		}
		wg.Wait()
		if got != [3]error{boom, boom, nil} {
			t.Errorf("got %v", got)
		}
	})
}

// Stat returns the metadata while it moves between sidecar and attribute.
func TestStatWhileItMoves(t *testing.T) {
	ctx := t.Context()
	s := store(t, Config{Root: inMemory(t), maxAttr: 200})
	want := put(t, s, "a", "x")
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if got, err := s.Stat(ctx, sp, "a"); err != nil || got.PropertiesUnknown ||
					got.Digests["md5"] != want.Digests["md5"] {
					t.Errorf("got %+v, %v", got, err)
					return
				}
			}
		})
	}
	for n := range 6000 {
		props := storage.Properties{MediaType: strings.Repeat("long", 100*(n%2))}
		if _, err := s.SetProperties(ctx, sp, "a", props, storage.Condition{}); err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
}
