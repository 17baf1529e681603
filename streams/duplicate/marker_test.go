package duplicate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func slowStore(t *testing.T) (*mem.Store, *storagetest.Faulty) {
	t.Helper()
	s, err := mem.New(mem.Config{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	s.Mark("1")
	f := storagetest.NewFaulty(s)
	f.Before(func(ctx context.Context, _ storagetest.Call) error { return retry.Sleep(ctx, 100*time.Millisecond) })
	return s, f
}

func TestMarkerIsReadAfterTheAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := slowStore(t)
		m := new(Observer)
		at := schemas.Copy{Account: "acme", Store: "1"}
		if err := m.confirmMarker(t.Context(), at, f, time.Now()); err != nil {
			t.Fatal(err)
		}
		s.Mark("") // unmounted
		if err := m.confirmMarker(t.Context(), at, f, time.Now().Add(-markerAge)); err != nil {
			t.Errorf("a reading a second old does before a write: %v", err)
		}
		err := m.confirmMarker(t.Context(), at, f, time.Now())
		if !errors.Is(err, storage.ErrNoMarker) || retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("an absence was believed by an older reading: %v", err)
		}
		s.Mark("1")
		if err := m.confirmMarker(t.Context(), at, f, time.Now().Add(-markerAge)); err != nil {
			t.Errorf("a fault is remembered: %v", err)
		}
		other := schemas.Copy{Account: "other", Store: "1"}
		before := f.Count("Marker")
		if err := m.confirmMarker(t.Context(), other, f, time.Now().Add(-markerAge)); err != nil ||
			f.Count("Marker") == before {
			t.Errorf("another account's store goes by the same reading: %v", err)
		}
	})
}

func TestConcurrentConfirmationsShareOneReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f := slowStore(t)
		m := new(Observer)
		at := schemas.Copy{Account: "acme", Store: "1"}
		ask := func(wg *sync.WaitGroup, ctx context.Context) {
			wg.Go(func() {
				if err := m.confirmMarker(ctx, at, f, time.Now()); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
		}
		var wg sync.WaitGroup
		first, cancel := context.WithCancel(t.Context())
		ask(&wg, first)
		synctest.Wait()
		ask(&wg, t.Context()) // in time for the reading that is cancelled
		time.Sleep(10 * time.Millisecond)
		for range 100 {
			ask(&wg, t.Context()) // too late for the first reading
		}
		time.Sleep(10 * time.Millisecond)
		cancel() // the reader is cancelled; those that wait are not
		wg.Wait()
		if got := f.Count("Marker"); got != 2 {
			t.Errorf("%d readings, want 2", got)
		}
	})
}
