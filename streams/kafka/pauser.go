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
type pauser struct {
	controls *Controls
	role     schemas.Role
	topics   []string // whose fetching stops; none: what comes is kept by whoever polls
	paused   bool
}

// turn closes or opens the tap.
func (t *pauser) update(cl *kgo.Client) {
	paused := t.controls.Role(t.role)
	switch {
	case paused && !t.paused:
		cl.PauseFetchTopics(t.topics...) // not partitions: those that come later are paused too
	case !paused && t.paused:
		cl.ResumeFetchTopics(t.topics...)
	}
	t.paused = paused
}

// poll is PollRecords, but through a closed tap it ends when the role goes on.
func (t *pauser) poll(ctx context.Context, cl *kgo.Client, n int) kgo.Fetches {
	if !t.paused {
		return cl.PollRecords(ctx, n)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		if t.controls.waitResumed(t.role, ctx.Done()) {
			cancel()
		}
	})
	return cl.PollRecords(ctx, n)
}

// errPartPaused: the message makes room for those of others.
var errWorkPaused = errors.New("paused: its account, or a store that it is about")

// aside returns the record by which l waits in a lane until what it is about may go on: as
// long as for a store that is away. It spends no attempt, and is no failure.
func (r *router) pausedRecord(l *inflightRecord, now time.Time) *kgo.Record {
	t := *r.retryHeaders(l)
	t.role, t.class, t.err = r.role, "paused", errWorkPaused.Error()
	t.due = now.Add(laneForWait(r.lanes, t.unavailable, maxUnavailableLane).Delay)
	t.unavailable++
	l.disposition = fatePaused
	topic := schemas.Delay(laneFor(r.lanes, t.due.Sub(now)).Name)
	r.log.Debug("message waits", "to", string(topic), "topic", string(t.topic), "partition", t.partition, "offset", t.offset, "class", t.class)
	return &kgo.Record{Topic: r.cfg.topic(topic), Key: l.rec.Key, Value: l.rec.Value, Headers: t.apply(l.rec.Headers)}
}
