package deadletter

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// A recordPosition is the position of a record in its topic.
type recordPosition struct {
	partition int32
	offset    int64
}

// latestRecords finds the latest record of each key in compacted topics. Only the latest counts there, so a
// redriven letter must not set its key back to an older value.
type latestRecords struct {
	d       *Letters
	byTopic map[string]*latestInTopic
}

type latestInTopic struct {
	byKey map[string]recordPosition
	next  map[int32]int64 // next offset to read, by partition
}

// A latestLookupError says that the latest record is unknown. The letter is then neither published nor refused.
type latestLookupError struct{ err error }

// Error implements error.
func (e *latestLookupError) Error() string { return "read newer records: " + e.err.Error() }

// Unwrap returns the cause.
func (e *latestLookupError) Unwrap() error { return e.err }

// checkSuperseded returns an error if rec, made of l, would replace a newer record of its key.
func (n *latestRecords) checkSuperseded(ctx context.Context, l *Letter, rec *kgo.Record) error {
	if e, _ := schemas.Lookup(n.d.cfg.SchemaTopic(rec.Topic)); e.Cleanup != schemas.Compact {
		return nil
	}
	t, err := n.refresh(ctx, rec.Topic)
	if err != nil {
		return &latestLookupError{err}
	}
	at, ok := t.byKey[string(rec.Key)]
	if !ok || at.partition == l.Partition && at.offset <= l.Offset {
		return nil
	}
	return fmt.Errorf("cannot be redriven: %s holds a newer record for its key, at offset %d of partition %d, "+
		"and only the latest one counts there",
		n.d.cfg.SchemaTopic(rec.Topic), at.offset, at.partition)
}

// refresh reads the records that were added to topic since the last call.
func (n *latestRecords) refresh(ctx context.Context, topic string) (*latestInTopic, error) {
	t := n.byTopic[topic]
	if t == nil {
		t = &latestInTopic{byKey: map[string]recordPosition{}, next: map[int32]int64{}}
		n.byTopic[topic] = t
	}
	parts, err := core.TopicRanges(ctx, n.d.adm, topic)
	if err != nil {
		return nil, err
	}
	for id, s := range parts {
		parts[id] = core.Range{From: max(s.From, t.next[id]), To: s.To}
	}
	err = core.Scan(ctx, n.d.cfg, topic, parts, func(rec *kgo.Record, _ uint32) error {
		t.byKey[string(rec.Key)] = recordPosition{rec.Partition, rec.Offset}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id, s := range parts {
		t.next[id] = max(s.To, t.next[id])
	}
	return t, nil
}
