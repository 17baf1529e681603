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
	last     atomic.Pointer[reading] // of Read, also if it does not count
	set      atomic.Pointer[reading]
	compared atomic.Pointer[time.Time] // when Due was last true; nil: never
}

type reading struct {
	at, kafka time.Time
	record    time.Time // Kafka's time of the record that it was taken from
	open      bool      // it is ahead of the clock, and the next one says whether it counts
}

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
	switch {
	case last == nil && c.set.Load() == nil:
		return math.MaxInt64
	case last != nil && last.open:
		apart = max(apart, last.after(now).Sub(t).Abs())
	}
	return max(apart, c.At(now).Sub(t).Abs())
}

// IsSure reports whether the clock was read, and the last reading is not open.
func (c *Clock) IsSure() bool {
	if c == nil || c.IsSet() {
		return true
	}
	last := c.last.Load()
	return last != nil && !last.open
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
	c.set.Store(r)
}

// Read is like Set, but kafka is the greatest time in the partition of the record: a record that was dated ahead while
// the clock of the broker was wrong stays that for long. So a reading that is ahead of the clock counts only if it goes
// on from the reading before it, and one that stands still does not. It returns by how much the process is ahead, and
// whether the reading counts: by nothing if kafka is between sent and now.
func (c *Clock) Read(sent, kafka time.Time) (ahead time.Duration, counts bool) {
	r, ahead := compare(sent, kafka)
	last, off := c.last.Load(), r.kafka.Sub(c.At(r.at))
	next := last != nil && r.at.Sub(last.at) > 2*sameTime
	switch {
	case c.IsSet():
		counts = off.Abs() < sameTime
	case next && r.record.Equal(last.record): // the new record has an earlier time than that
		if off < 0 {
			c.read.Store(&reading{at: r.at, kafka: earlier(r.at, r.kafka)})
		}
	case off < sameTime, next && r.kafka.Sub(last.after(r.at)).Abs() < sameTime:
		c.read.Store(r)
		counts = true
	default:
		r.open = true
	}
	c.last.Store(r)
	return ahead, counts
}

func compare(sent, kafka time.Time) (_ *reading, ahead time.Duration) {
	now := time.Now()
	ahead = max(sent.Truncate(time.Millisecond).Sub(kafka), 0) + min(now.Sub(kafka), 0)
	return &reading{at: now, kafka: now.Add(-ahead), record: kafka}, ahead
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
