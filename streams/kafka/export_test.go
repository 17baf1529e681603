package kafka

import (
	"cmp"
	"time"

	"github.com/millrace/millrace/streams/retry"
)

// SetDeadline sets how long a task may run: d, plus a second for each slow bytes of it. Zero is the default.
func (p *Pool) SetDeadline(d time.Duration, slow int64) *Pool {
	p.deadlineBase, p.deadlineRate = cmp.Or(d, p.deadlineBase), cmp.Or(slow, p.deadlineRate)
	return p
}

// SetRetry sets the wait between two calls of Store.
func (g *BatchGroup) SetRetry(p retry.Policy) *BatchGroup {
	g.retry = p
	return g
}
