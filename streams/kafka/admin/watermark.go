package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

// watermarkPoll is the interval between reads of the committed offsets.
const watermarkPoll = 25 * time.Millisecond

// A Watermark waits until groups have committed all records that a topic holds. Concurrent callers share the
// requests to the brokers.
type Watermark struct {
	a     *Admin
	topic schemas.Topic
	reads map[schemas.Role][]schemas.Topic

	sem    chan struct{}   // held by the caller that sends requests to the brokers
	latest *commitSnapshot // guarded by sem
}

// A commitSnapshot holds the committed offsets of groups at one time.
type commitSnapshot struct {
	at       time.Time // when the first request was sent
	done     map[schemas.Role]core.Offsets
	progress map[schemas.Role][]schemas.Progress // nil until requested; guarded by sem
}

// NewWatermark returns a Watermark of a topic that the groups of all roles in reads must handle. reads also lists
// the topics of each role for which Wait and Committed report progress.
func (a *Admin) NewWatermark(topic schemas.Topic, reads map[schemas.Role][]schemas.Topic) *Watermark {
	return &Watermark{a: a, topic: topic, reads: reads, sem: make(chan struct{}, 1), latest: new(commitSnapshot)}
}

// Wait waits until the groups have committed up to the end that the topic has at the time of the call. It returns
// their progress in all topics of reads. ctx bounds the wait.
func (w *Watermark) Wait(ctx context.Context) (map[schemas.Role][]schemas.Progress, error) {
	l, err := w.wait(ctx)
	if err != nil {
		return nil, err
	}
	return w.progress(ctx, l)
}

// Committed returns the current progress of the groups: Next is 0 for partitions without a commit.
func (w *Watermark) Committed(ctx context.Context) (map[schemas.Role][]schemas.Progress, error) {
	l, err := w.snapshot(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	return w.progress(ctx, l)
}

func (w *Watermark) wait(ctx context.Context) (*commitSnapshot, error) {
	name, from := w.a.cfg.Topic(w.topic), time.Now().Add(-watermarkPoll)
	starts, ends, err := core.Bounds(ctx, w.a.adm, name)
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
			if totalLag(starts, ends, core.Offsets{name: done[name]}) > 0 {
				late = string(role)
			}
		}
		if late == "" {
			return l, nil
		}
		from = l.at.Add(watermarkPoll)
		if err := retry.Sleep(ctx, time.Until(from)); err != nil {
			return nil, fmt.Errorf("wait for %s: %s has not committed it: %w", w.topic, late, err)
		}
	}
}

// snapshot returns the latest snapshot if it was begun at from or later, and otherwise takes a new one.
func (w *Watermark) snapshot(ctx context.Context, from time.Time) (*commitSnapshot, error) {
	defer w.acquire(ctx)()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if !w.latest.at.Before(from) {
		return w.latest, nil
	}
	l := &commitSnapshot{at: time.Now(), done: map[schemas.Role]core.Offsets{}}
	for role, topics := range w.reads {
		var err error
		if l.done[role], err = w.a.committed(ctx, role, w.a.topicNames(topics)...); err != nil {
			return nil, err
		}
	}
	w.latest = l
	return l, nil
}

// acquire waits for sem or for the end of ctx. It returns the function that releases sem.
func (w *Watermark) acquire(ctx context.Context) (release func()) {
	select {
	case w.sem <- struct{}{}:
		return func() { <-w.sem }
	case <-ctx.Done():
		return func() {}
	}
}

// progress returns the progress of the groups in a snapshot.
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
	// Read ends after the commits: a commit beyond the end then means that the log was truncated.
	logs, err := w.a.extents(ctx, slices.Compact(topics))
	if err != nil {
		return nil, fmt.Errorf("read start and end offsets: %w", err)
	}
	all := map[schemas.Role][]schemas.Progress{}
	for role, read := range w.reads {
		for _, topic := range read {
			e, done := logs[topic], l.done[role][w.a.cfg.Topic(topic)]
			for id := range e.Ends {
				next := done[id]
				if next > e.Ends[id] && e.Ends[id] > e.Starts[id] {
					return nil, fmt.Errorf("%s has committed offset %d of partition %d of %s, whose log ends at %d: "+
						"it has not read the new log yet",
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
		names = append(names, a.cfg.Topic(t))
	}
	return names
}

// extents returns the current extents of topics. Topics that do not exist are left out.
func (a *Admin) extents(ctx context.Context, topics []schemas.Topic) (map[schemas.Topic]schemas.OffsetRange, error) {
	names := a.topicNames(topics)
	starts, ends, err := core.Bounds(ctx, a.adm, names...)
	if err != nil {
		return nil, err
	}
	resp, err := core.Metadata(ctx, a.cl, names...)
	if err != nil {
		return nil, err
	}
	all := map[schemas.Topic]schemas.OffsetRange{}
	for _, t := range resp.Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case err == kerr.UnknownTopicOrPartition: //nolint:errorlint // as the client returns it
		case err != nil:
			return nil, fmt.Errorf("%s: %w", *t.Topic, err)
		default:
			all[a.cfg.SchemaTopic(*t.Topic)] = schemas.OffsetRange{
				Incarnation: core.Incarnation(t.TopicID), Starts: starts[*t.Topic], Ends: ends[*t.Topic],
			}
		}
	}
	return all, nil
}
