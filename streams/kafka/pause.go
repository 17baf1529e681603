package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// A tap is what a client polls through: closed while its role is paused. The member keeps its
// partitions, and what was read and not handled. One loop uses it.
type tap struct {
	controls *Controls
	role     schemas.Role
	topics   []string // whose fetching stops; none: what comes is kept by whoever polls
	closed   bool
}

// turn closes or opens the tap.
func (t *tap) turn(cl *kgo.Client) {
	paused := t.controls.Role(t.role)
	switch {
	case paused && !t.closed:
		cl.PauseFetchTopics(t.topics...) // not partitions: those that come later are paused too
	case !paused && t.closed:
		cl.ResumeFetchTopics(t.topics...)
	}
	t.closed = paused
}

// poll is PollRecords, but through a closed tap it ends when the role goes on.
func (t *tap) poll(ctx context.Context, cl *kgo.Client, n int) kgo.Fetches {
	if !t.closed {
		return cl.PollRecords(ctx, n)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		if t.controls.wait(t.role, ctx.Done()) {
			cancel()
		}
	})
	return cl.PollRecords(ctx, n)
}

// errPartPaused: the message makes room for those of others.
var errPartPaused = errors.New("paused: its account, or a store that it is about")

// aside returns the record by which l waits in a lane until what it is about may go on: as
// long as for a store that is away. It spends no attempt, and is no failure.
func (r *router) aside(l *letter, now time.Time) *kgo.Record {
	t := *r.trail(l)
	t.role, t.class, t.err = r.role, "paused", errPartPaused.Error()
	t.due = now.Add(nth(r.lanes, t.unavailable, maxUnavailable).Delay)
	t.unavailable++
	l.fate = dispositionPaused
	topic := schemas.Delay(pick(r.lanes, t.due.Sub(now)).Name)
	r.log.Debug("message waits", "to", string(topic), "topic", string(t.topic), "partition", t.partition, "offset", t.offset, "class", t.class)
	return &kgo.Record{Topic: r.cfg.topic(topic), Key: l.rec.Key, Value: l.rec.Value, Headers: t.headers(l.rec.Headers)}
}
