package client

import (
	"math"
	"sync/atomic"
	"time"
)

// A Clock is Kafka's clock, from the last time that the process has read it. Before that, and if it is nil, it is the
// clock of the process. It does not step with that afterwards, and stands still while the machine is suspended.
type Clock struct {
	read     atomic.Pointer[reading]
	last     atomic.Pointer[reading] // of Set and Read, also if it does not count
	set      atomic.Pointer[reading]
	compared atomic.Pointer[time.Time] // when Due was last true; nil: never
}

type reading struct{ at, kafka time.Time }

// after returns Kafka's time at a time of the process.
func (r *reading) after(at time.Time) time.Time { return r.kafka.Add(at.Sub(r.at)) }

// sameTime is by how much readings of one clock may differ. It is less than half the time between two of them.
const sameTime = 25 * time.Second

// Now returns Kafka's time.
func (c *Clock) Now() time.Time { return c.At(time.Now()) }

// At returns Kafka's time at a time of the process.
func (c *Clock) At(t time.Time) time.Time {
	if c != nil {
		if r := c.read.Load(); r != nil {
			return r.after(t)
		}
	}
	return t
}

// Apart returns how far Kafka's time of something may be from now: by the clock of the process, by Kafka's and by the
// last reading of that. Without a reading there is no bound.
func (c *Clock) Apart(t time.Time) time.Duration {
	now := time.Now()
	apart := now.Sub(t).Abs()
	if c == nil {
		return apart
	}
	last := c.last.Load()
	if last == nil {
		return math.MaxInt64
	}
	return max(apart, c.At(now).Sub(t).Abs(), last.after(now).Sub(t).Abs())
}

// IsSet reports whether the clock was set in the last minute, or is nil.
func (c *Clock) IsSet() bool {
	if c == nil {
		return true
	}
	r := c.set.Load()
	return r != nil && time.Since(r.at) < time.Minute
}

// Due reports, at most once a minute, that the clock is to be read.
func (c *Clock) Due() bool {
	if c == nil {
		return false
	}
	last := c.compared.Load()
	if last != nil && time.Since(*last) < time.Minute {
		return false
	}
	now := time.Now()
	return c.compared.CompareAndSwap(last, &now)
}

// Set sets the clock by Kafka's time of a record that the process has sent at a time of its own, and that Kafka had
// before now.
func (c *Clock) Set(sent, kafka time.Time) {
	r, _ := compare(sent, kafka)
	c.read.Store(r)
	c.last.Store(r)
	c.set.Store(r)
}

// Read is like Set, but kafka is the greatest time in the partition of the record: a record that was dated ahead while
// the clock of the broker was wrong stays that for long. So a reading that is ahead of the clock counts only if it goes
// on from the reading before it. It returns by how much the process is ahead: nothing if kafka is between sent and now.
func (c *Clock) Read(sent, kafka time.Time) (ahead time.Duration) {
	r, ahead := compare(sent, kafka)
	last := c.last.Swap(r)
	if r.kafka.Sub(c.At(r.at)) < sameTime || last != nil && r.kafka.Sub(last.after(r.at)).Abs() < sameTime &&
		r.at.Sub(last.at) > 2*sameTime {
		c.read.Store(r)
	}
	return ahead
}

func compare(sent, kafka time.Time) (_ *reading, ahead time.Duration) {
	now := time.Now()
	ahead = max(sent.Truncate(time.Millisecond).Sub(kafka), 0) + min(now.Sub(kafka), 0)
	return &reading{now, now.Add(-ahead)}, ahead
}
