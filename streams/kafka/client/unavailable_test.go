package client

import (
	"testing"
	"testing/synctest"
	"time"
)

// A message counts until it is due.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none *UnavailableCounts
		none.Add("acme/1", time.Now().Add(time.Hour))
		if n := none.Count("acme/1"); n != 0 {
			t.Errorf("nil counts %d", n)
		}
		var w UnavailableCounts
		for _, after := range []time.Duration{10 * time.Second, 20 * time.Second, 20 * time.Second} {
			w.Add("acme/1", time.Now().Add(after))
		}
		w.Add("acme/2", time.Now().Add(30*time.Second))
		for _, tt := range []struct{ acme1, acme2 int }{{3, 1}, {2, 1}, {0, 1}, {0, 0}} {
			if got1, got2 := w.Count("acme/1"), w.Count("acme/2"); got1 != tt.acme1 || got2 != tt.acme2 {
				t.Errorf("at %v: %d and %d wait, want %d and %d", time.Now(), got1, got2, tt.acme1, tt.acme2)
			}
			time.Sleep(11 * time.Second)
		}
	})
}
