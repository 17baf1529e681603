package kafka

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// watermarkPoll is the time between two looks at what groups have committed.
const watermarkPoll = 25 * time.Millisecond

// A Watermark waits until groups have handled what a topic holds. Callers that wait at one time share the looks at what
// the groups have committed.
type Watermark struct {
	a     *Admin
	topic schemas.Topic
	reads map[schemas.Role][]schemas.Topic

	sem    chan struct{}   // holds the caller that asks the brokers
	latest *commitSnapshot // guarded by turn
}

// A look is what groups had committed at one time.
type commitSnapshot struct {
	at       time.Time // when it began
	done     map[schemas.Role]offsets
	progress map[schemas.Role][]schemas.Progress // nil: not asked for yet; guarded by the turn
}

// NewWatermark returns a Watermark of a topic that the groups of all roles in reads have to handle. Reads are the topics
// of which it reports what the groups have committed.
func (a *Admin) NewWatermark(topic schemas.Topic, reads map[schemas.Role][]schemas.Topic) *Watermark {
	return &Watermark{a: a, topic: topic, reads: reads, sem: make(chan struct{}, 1), latest: new(commitSnapshot)}
}

// Wait returns when the groups have committed up to where the topic ended at the time of the call, with what they had
// committed of all topics that they read. ctx bounds it.
func (w *Watermark) Wait(ctx context.Context) (map[schemas.Role][]schemas.Progress, error) {
	l, err := w.wait(ctx)
	if err != nil {
		return nil, err
	}
	return w.progress(ctx, l)
}

// Committed returns what the groups have committed now: 0 of a partition of which a group has committed nothing.
func (w *Watermark) Committed(ctx context.Context) (map[schemas.Role][]schemas.Progress, error) {
	l, err := w.snapshot(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	return w.progress(ctx, l)
}

func (w *Watermark) wait(ctx context.Context) (*commitSnapshot, error) {
	name, from := w.a.cfg.topic(w.topic), time.Now().Add(-watermarkPoll)
	starts, ends, err := bounds(ctx, w.a.adm, name)
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", w.topic, err)
	}
	for {
		l, err := w.snapshot(ctx, from)
		if err != nil {
			return nil, fmt.Errorf("wait for %s: %w", w.topic, err)
		}
		late := ""
		for role, done := range l.done {
			if totalLag(starts, ends, offsets{name: done[name]}) > 0 {
				late = string(role)
			}
		}
		if late == "" {
			return l, nil
		}
		from = l.at.Add(watermarkPoll)
		if err := retry.Sleep(ctx, time.Until(from)); err != nil {
			return nil, fmt.Errorf("wait for %s: %s has not got there: %w", w.topic, late, err)
		}
	}
}

// look returns the newest look if it began at from or later, and else looks.
func (w *Watermark) snapshot(ctx context.Context, from time.Time) (*commitSnapshot, error) {
	defer w.acquire(ctx)()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if !w.latest.at.Before(from) {
		return w.latest, nil
	}
	l := &commitSnapshot{at: time.Now(), done: map[schemas.Role]offsets{}}
	for role, topics := range w.reads {
		var err error
		if l.done[role], err = w.a.committed(ctx, role, w.a.topicNames(topics)...); err != nil {
			return nil, err
		}
	}
	w.latest = l
	return l, nil
}

// take waits for the turn, or for the end of ctx, and returns what ends the turn.
func (w *Watermark) acquire(ctx context.Context) (give func()) {
	select {
	case w.sem <- struct{}{}:
		return func() { <-w.sem }
	case <-ctx.Done():
		return func() {}
	}
}

// progress returns what a look found, with where the logs start.
func (w *Watermark) progress(ctx context.Context, l *commitSnapshot) (map[schemas.Role][]schemas.Progress, error) {
	defer w.acquire(ctx)()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if l.progress != nil {
		return l.progress, nil
	}
	var topics []schemas.Topic
	for _, read := range w.reads {
		topics = append(topics, read...)
	}
	slices.Sort(topics)
	// After the commits were read: none of them can lie behind an end, unless the log lost it.
	logs, err := w.a.extents(ctx, slices.Compact(topics))
	if err != nil {
		return nil, fmt.Errorf("look where topics start and end: %w", err)
	}
	all := map[schemas.Role][]schemas.Progress{}
	for role, read := range w.reads {
		for _, topic := range read {
			e, done := logs[topic], l.done[role][w.a.cfg.topic(topic)]
			for id := range e.Ends {
				next := done[id]
				if next > e.Ends[id] && e.Ends[id] > e.Starts[id] {
					return nil, fmt.Errorf("%s has committed offset %d of partition %d of %s, whose log ends at %d: it has not read the partition anew yet",
						role, next, id, topic, e.Ends[id])
				}
				all[role] = append(all[role], schemas.Progress{Topic: topic, Incarnation: e.Incarnation, Partition: id,
					Start: e.Starts[id], Next: min(next, e.Ends[id])})
			}
		}
	}
	l.progress = all
	return all, nil
}

func (a *Admin) topicNames(topics []schemas.Topic) (names []string) {
	for _, t := range topics {
		names = append(names, a.cfg.topic(t))
	}
	return names
}

// logs returns what topics hold now. Topics that are not there are left out.
func (a *Admin) extents(ctx context.Context, topics []schemas.Topic) (map[schemas.Topic]schemas.Extent, error) {
	names := a.topicNames(topics)
	starts, ends, err := bounds(ctx, a.adm, names...)
	if err != nil {
		return nil, err
	}
	// The client's own answer may be seconds old, and of a topic that is no more.
	req := kmsg.NewPtrMetadataRequest()
	for i := range names {
		req.Topics = append(req.Topics, kmsg.MetadataRequestTopic{Topic: &names[i]})
	}
	resp, err := req.RequestWith(ctx, a.cl)
	if err != nil {
		return nil, err
	}
	all := map[schemas.Topic]schemas.Extent{}
	for _, t := range resp.Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case t.Topic == nil, err == kerr.UnknownTopicOrPartition: //nolint:errorlint // as the client returns it
		case err != nil:
			return nil, fmt.Errorf("%s: %w", *t.Topic, err)
		default:
			all[a.cfg.schemaTopic(*t.Topic)] = schemas.Extent{Incarnation: incarnation(t.TopicID), Starts: starts[*t.Topic], Ends: ends[*t.Topic]}
		}
	}
	return all, nil
}
