package kafka

import (
	"sync"
	"time"
)

// A Waiting counts the messages that a process has sent to delay lanes since something is away, by the cause of their
// errors (retry.UnavailableFor), until they are due. It knows nothing of those that a former process has sent. The zero
// value is ready to use, by many at a time; nil counts nothing.
type Waiting struct {
	mu      sync.Mutex // guards the rest
	byCause map[string]*dueCounts
}

// dueCounts are messages by the second in which they are due.
type dueCounts struct {
	bySecond map[int64]int
	total    int
	pruned   int64 // the second up to which those that are due have been removed
}

// Of returns how many messages wait because of a cause.
func (w *Waiting) Of(cause string) int {
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

// add counts a message that waits because of a cause.
func (w *Waiting) add(cause string, due time.Time) {
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
