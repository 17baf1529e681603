package client

import (
	"sync/atomic"
	"time"
)

// A Clock is Kafka's clock, from the last time that the process has read it. Before that, and if it is nil, it is the
// clock of the process. It does not step with that afterwards.
type Clock struct {
	read     atomic.Pointer[reading]
	compared atomic.Pointer[time.Time] // when Due was last true; nil: never
}

type reading struct{ at, kafka time.Time }

// Now returns Kafka's time.
func (c *Clock) Now() time.Time { return c.At(time.Now()) }

// At returns Kafka's time at a time of the process.
func (c *Clock) At(t time.Time) time.Time {
	if c != nil {
		if r := c.read.Load(); r != nil {
			return r.kafka.Add(t.Sub(r.at))
		}
	}
	return t
}

// IsRead reports whether the clock was read in the last minute, or is nil. It stands still while the machine is
// suspended.
func (c *Clock) IsRead() bool {
	if c == nil {
		return true
	}
	r := c.read.Load()
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

// Read sets the clock by Kafka's time of a record that the process has sent at a time of its own, and that Kafka had
// before now. It returns by how much the process is ahead: nothing if Kafka's time is between sent and now.
func (c *Clock) Read(sent, kafka time.Time) (ahead time.Duration) {
	now := time.Now()
	ahead = max(sent.Truncate(time.Millisecond).Sub(kafka), 0) + min(now.Sub(kafka), 0)
	c.read.Store(&reading{now, now.Add(-ahead)})
	return ahead
}
