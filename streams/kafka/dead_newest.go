package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// A place is where a record lies in its topic.
type place struct {
	partition int32
	offset    int64
}

// newest knows the newest record of each key of compacted topics, which is all that counts there: a
// letter that is sent to one must not set its key back to what it was.
type newest struct {
	d  *DeadLetters
	of map[string]*newestOf // by topic
}

type newestOf struct {
	at   map[string]place // by key
	next map[int32]int64  // not looked at yet, from here
}

// A lookError says that it is not known what is newest: the letter is neither sent nor refused.
type lookError struct{ err error }

func (e *lookError) Error() string { return "look for newer records: " + e.err.Error() }

// Unwrap returns why.
func (e *lookError) Unwrap() error { return e.err }

// overtaken returns an error if rec, which l becomes, would take the place of what is newer than l.
func (n *newest) overtaken(ctx context.Context, l *DeadLetter, rec *kgo.Record) error {
	if e, _ := schemas.Lookup(n.d.cfg.bare(rec.Topic)); e.Cleanup != schemas.Compact {
		return nil
	}
	t, err := n.look(ctx, rec.Topic)
	if err != nil {
		return &lookError{err}
	}
	at, ok := t.at[string(rec.Key)]
	if !ok || at.partition == l.Partition && at.offset <= l.Offset {
		return nil
	}
	return fmt.Errorf("cannot be redriven: %s holds what is newer for its key, at offset %d of partition %d, and only the newest counts there",
		n.d.cfg.bare(rec.Topic), at.offset, at.partition)
}

// look reads what has come to topic since it was looked at last.
func (n *newest) look(ctx context.Context, topic string) (*newestOf, error) {
	t := n.of[topic]
	if t == nil {
		t = &newestOf{at: map[string]place{}, next: map[int32]int64{}}
		n.of[topic] = t
	}
	parts, err := spans(ctx, n.d.adm, topic)
	if err != nil {
		return nil, err
	}
	for id, s := range parts {
		parts[id] = span{max(s.from, t.next[id]), s.to}
	}
	err = scan(ctx, n.d.cfg, topic, parts, func(rec *kgo.Record, _ uint32) error {
		t.at[string(rec.Key)] = place{rec.Partition, rec.Offset}
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
