package client

import (
	"testing"
	"testing/synctest"
	"time"
)

// A Clock is that of the process until it is read, is due once a minute, and then goes by Kafka's time.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(Clock)
		for n, tt := range []struct {
			wait  time.Duration
			due   bool
			took  time.Duration // from sent until it is read
			kafka time.Duration // Kafka's time of the record, from when it is read
			ahead time.Duration // of the process; by the last reading if it is not due
		}{
			{0, true, 0, 0, 0},
			{59 * time.Second, false, 0, 0, 0},
			{2 * time.Second, true, time.Second, -2 * time.Hour, 2*time.Hour - time.Second},
			{58 * time.Second, false, 0, 0, 2*time.Hour - time.Second},
			{time.Second, true, time.Second, -time.Second / 2, 0},
			{time.Hour, true, time.Second, 2 * time.Hour, -2 * time.Hour},
		} {
			time.Sleep(tt.wait)
			due := c.Due()
			if due != tt.due || c.Due() {
				t.Errorf("%d: due %v, want %v, once", n, due, tt.due)
			}
			if n == 0 && (c.IsRead() || !c.Now().Equal(time.Now())) {
				t.Errorf("it is %v, before it is read", c.Now())
			}
			if due {
				sent := time.Now()
				time.Sleep(tt.took)
				if ahead := c.Read(sent, time.Now().Add(tt.kafka)); ahead != tt.ahead {
					t.Errorf("%d: ahead by %v, want %v", n, ahead, tt.ahead)
				}
			}
			if !c.IsRead() || !c.Now().Equal(time.Now().Add(-tt.ahead)) {
				t.Errorf("%d: off by %v, want %v", n, time.Since(c.Now()), tt.ahead)
			}
		}
		if time.Sleep(time.Minute); c.IsRead() {
			t.Error("it is read after a minute")
		}
		if c = nil; c.Due() || !c.IsRead() || !c.Now().Equal(time.Now()) {
			t.Error("a nil clock is not that of the process")
		}
	})
}
