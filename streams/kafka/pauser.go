package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// A pauser stops the polls of a client while its role is paused. The member keeps its partitions and the
// records that it has read. Only one loop uses a pauser.
type pauser struct {
	controls *Controls
	role     schemas.Role
	topics   []string // topics to pause; if empty, the polling loop holds the records itself
	paused   bool
}

// update pauses or resumes the topics.
func (t *pauser) update(cl *kgo.Client) {
	paused := t.controls.Role(t.role)
	switch {
	case paused && !t.paused:
		cl.PauseFetchTopics(t.topics...) // not partitions, so that partitions assigned later are paused too
	case !paused && t.paused:
		cl.ResumeFetchTopics(t.topics...)
	}
	t.paused = paused
}

// poll is PollRecords. While the role is paused, it also ends when the role is resumed.
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

// errWorkPaused sends a paused message to a lane, to make room for others.
var errWorkPaused = errors.New("paused: its account, or a store that it is about")

// pausedRecord returns the record that waits in a lane while the work of l is paused, for as long as for an
// unavailable store. It counts as no attempt and as no failure.
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
