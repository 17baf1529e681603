package client

import (
	"sync"
	"time"
)

// A UnavailableCounts counts the messages that this process has sent to delay lanes and that are not due yet, by the
// cause of their errors (retry.UnavailableFor). It does not know those of earlier processes. The zero value
// is ready to use. It is safe for concurrent use, and a nil *UnavailableCounts counts nothing.
type UnavailableCounts struct {
	mu      sync.Mutex // guards the fields below
	byCause map[string]*dueCounts
}

// dueCounts are numbers of messages by the second at which they are due.
type dueCounts struct {
	bySecond map[int64]int
	total    int
	pruned   int64 // the second up to which due messages have been removed
}

// Count returns the number of messages that wait because of cause.
func (w *UnavailableCounts) Count(cause string) int {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.byCause[cause]
	if c == nil {
		return 0
	}
	c.prune(time.Now().Unix())
	return c.total
}

// Add counts a message that waits because of cause.
func (w *UnavailableCounts) Add(cause string, due time.Time) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.byCause[cause]
	if c == nil {
		c = &dueCounts{bySecond: map[int64]int{}}
		if w.byCause == nil {
			w.byCause = map[string]*dueCounts{}
		}
		w.byCause[cause] = c
	}
	c.prune(time.Now().Unix())
	c.bySecond[due.Unix()]++
	c.total++
}

// prune removes the messages that are due at now.
func (c *dueCounts) prune(now int64) {
	if c.pruned == now {
		return
	}
	c.pruned = now
	for second, n := range c.bySecond {
		if second < now {
			c.total -= n
			delete(c.bySecond, second)
		}
	}
}
