package client

import (
	"math"
	"slices"
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
			{time.Second, true, time.Second, 10*time.Second - 2*time.Hour, 2*time.Hour - 11*time.Second},
			{time.Hour, true, time.Second, -4 * time.Hour, 4*time.Hour - time.Second},
		} {
			time.Sleep(tt.wait)
			due := c.Due()
			if due != tt.due || c.Due() {
				t.Errorf("%d: due %v, want %v, once", n, due, tt.due)
			}
			if n == 0 && (c.IsSet() || c.IsSure() || c.Apart(time.Now()) != math.MaxInt64 || !c.Now().Equal(time.Now())) {
				t.Errorf("it is %v, before it is read", c.Now())
			}
			if due {
				sent := time.Now()
				time.Sleep(tt.took)
				if ahead, counts := c.Read(sent, time.Now().Add(tt.kafka)); ahead != tt.ahead || !counts {
					t.Errorf("%d: ahead by %v, want %v", n, ahead, tt.ahead)
				}
			}
			if c.IsSet() || !c.Now().Equal(time.Now().Add(-tt.ahead)) {
				t.Errorf("%d: off by %v, want %v", n, time.Since(c.Now()), tt.ahead)
			}
		}
		if c = nil; c.Due() || !c.IsSet() || c.Apart(time.Now()) != 0 || !c.Now().Equal(time.Now()) {
			t.Error("a nil clock is not that of the process")
		}
	})
}

// A record that was dated ahead stays the greatest time of its partition: readings of it do not count. Those that are
// behind the clock, and those that go on, do.
func TestClockThatIsAhead(t *testing.T) {
	type times = []time.Duration
	const years, m = 3 * 365 * 24 * time.Hour, time.Minute
	for name, tt := range map[string]struct {
		kafka times         // the greatest times, one a minute, from the clock of the process at first
		want  time.Duration // Kafka's clock at last, from that of the process
		open  bool          // the last reading is
	}{
		"right":                                {times{0, m}, 0, false},
		"behind":                               {times{-years}, -years, false},
		"ahead, once":                          {times{years}, 0, true},
		"ahead":                                {times{years, years + m}, years, false},
		"one record ahead":                     {times{years, years, years, years}, 0, false},
		"records ahead in two partitions":      {times{years, years + 20*time.Second}, 0, true},
		"behind, and one record ahead":         {times{-years, years, years}, -years, false},
		"one record ahead, and it has gone":    {times{years, years, 2 * m}, 0, false},
		"after the machine was suspended":      {times{0, time.Hour, time.Hour + m}, time.Hour - m, false},
		"one record ahead for hours":           {append(slices.Repeat(times{time.Hour}, 59), time.Hour), 0, false},
		"the clock of the broker was set back": {times{years, years + m, 2 * m}, 0, false},
		"set back, and one record is left":     {times{years, years + m, years + m}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, began := new(Clock), time.Now()
				for n, at := range tt.kafka {
					if n > 0 {
						time.Sleep(time.Minute)
					}
					c.Read(time.Now(), began.Add(at))
				}
				last := tt.kafka[len(tt.kafka)-1]
				if off := time.Until(c.Now()); off != tt.want {
					t.Errorf("off by %v, want %v", off, tt.want)
				}
				apart := tt.want.Abs()
				if tt.open {
					apart = time.Until(began.Add(last)).Abs()
				}
				if got := c.Apart(time.Now()); got != apart || c.IsSure() == tt.open {
					t.Errorf("apart %v, want %v; sure: %v", got, apart, c.IsSure())
				}
				c.Set(time.Now(), began.Add(last))
				if off := c.Now().Sub(began.Add(last)); off != 0 || !c.IsSet() {
					t.Errorf("off by %v when it is set", off)
				}
				if time.Sleep(time.Minute); c.IsSet() {
					t.Error("it is set after a minute")
				}
			})
		})
	}
}
