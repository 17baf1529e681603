package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// A place is where a record lies in its topic.
type recordPosition struct {
	partition int32
	offset    int64
}

// newest knows the newest record of each key of compacted topics, which is all that counts there: a
// letter that is sent to one must not set its key back to what it was.
type latestRecords struct {
	d       *DeadLetters
	byTopic map[string]*latestInTopic // by topic
}

type latestInTopic struct {
	byKey map[string]recordPosition // by key
	next  map[int32]int64           // not looked at yet, from here
}

// A lookError says that it is not known what is newest: the letter is neither sent nor refused.
type latestLookupError struct{ err error }

func (e *latestLookupError) Error() string { return "look for newer records: " + e.err.Error() }

// Unwrap returns why.
func (e *latestLookupError) Unwrap() error { return e.err }

// overtaken returns an error if rec, which l becomes, would take the place of what is newer than l.
func (n *latestRecords) checkSuperseded(ctx context.Context, l *DeadLetter, rec *kgo.Record) error {
	if e, _ := schemas.Lookup(n.d.cfg.schemaTopic(rec.Topic)); e.Cleanup != schemas.Compact {
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
	return fmt.Errorf("cannot be redriven: %s holds what is newer for its key, at offset %d of partition %d, and only the newest counts there",
		n.d.cfg.schemaTopic(rec.Topic), at.offset, at.partition)
}

// look reads what has come to topic since it was looked at last.
func (n *latestRecords) refresh(ctx context.Context, topic string) (*latestInTopic, error) {
	t := n.byTopic[topic]
	if t == nil {
		t = &latestInTopic{byKey: map[string]recordPosition{}, next: map[int32]int64{}}
		n.byTopic[topic] = t
	}
	parts, err := topicRanges(ctx, n.d.adm, topic)
	if err != nil {
		return nil, err
	}
	for id, s := range parts {
		parts[id] = offsetRange{max(s.from, t.next[id]), s.to}
	}
	err = scan(ctx, n.d.cfg, topic, parts, func(rec *kgo.Record, _ uint32) error {
		t.byKey[string(rec.Key)] = recordPosition{rec.Partition, rec.Offset}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id, s := range parts {
		t.next[id] = max(s.to, t.next[id])
	}
	return t, nil
}
