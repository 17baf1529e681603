package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/retry"
)

// stopGrace is how long publishing and committing may take after the context of Run has ended.
const stopGrace = 5 * time.Second

// WithStopGrace returns a context that ends stopGrace after ctx.
func WithStopGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return out, func() { stop(); cancel() }
}

// Publish sends recs and waits until each is acknowledged or given up. It returns those that are not
// acknowledged, in order and ready to be published again. If a topic was recreated, it makes the client forget
// the old one and tries once more.
func Publish(ctx context.Context, cl *kgo.Client, recs []*kgo.Record) (left []*kgo.Record, err error) {
	left, stale, err := produceAll(ctx, cl, recs)
	if len(stale) == 0 {
		return resetRecords(left), err
	}
	cl.PurgeTopicsFromProducing(topicsOf(stale)...)
	late, unknown, again := produceAll(ctx, cl, resetRecords(stale))
	if again == nil && !errors.Is(err, kerr.UnknownTopicID) {
		again = err // error of other records
	}
	return resetRecords(slices.Concat(left, late, unknown)), again
}

// ResetRecord returns a copy of rec without the fields that the client sets. The client counts the delivery
// timeout from the timestamp, so a record that is published again needs a new one.
func ResetRecord(rec *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: rec.Topic, Partition: rec.Partition, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
}

func resetRecords(recs []*kgo.Record) []*kgo.Record {
	all := make([]*kgo.Record, len(recs))
	for i, rec := range recs {
		all[i] = ResetRecord(rec)
	}
	return all
}

// topicsOf returns the topics of recs.
func topicsOf(recs []*kgo.Record) (topics []string) {
	for _, rec := range recs {
		if !slices.Contains(topics, rec.Topic) {
			topics = append(topics, rec.Topic)
		}
	}
	return topics
}

// produceAll sends recs and waits until each is acknowledged or given up. It returns the unacknowledged ones in
// order: stale are those of recreated topics, left are the others. The error is that of a record in left, if
// there is one.
func produceAll(ctx context.Context, cl *kgo.Client, recs []*kgo.Record) (left, stale []*kgo.Record, first error) {
	if len(recs) == 0 {
		return nil, nil, nil
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex // guards the rest
		failed = map[*kgo.Record]error{}
	)
	wg.Add(len(recs))
	for _, rec := range recs {
		cl.Produce(ctx, rec, func(rec *kgo.Record, err error) {
			defer wg.Done()
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failed[rec] = err
			if first == nil || errors.Is(first, kerr.UnknownTopicID) {
				first = PublishError(rec, err)
			}
		})
	}
	wg.Wait()
	if len(failed) == 0 {
		return nil, nil, nil
	}
	for _, rec := range recs {
		switch err, is := failed[rec]; {
		case !is:
		case errors.Is(err, kerr.UnknownTopicID):
			stale = append(stale, rec)
		default:
			left = append(left, rec)
		}
	}
	return left, stale, first
}

// IsRetriable reports whether publishing may succeed if it is tried again after err.
func IsRetriable(err error) bool {
	code := (*kerr.Error)(nil)
	switch {
	case err == nil, retry.IsPermanent(err), errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		return false
	case errors.As(err, &code):
		return code.Retriable
	}
	return true
}

// PublishError classifies errors of producing. No other function does.
func PublishError(rec *kgo.Record, err error) error {
	wrapped := client.Refused(fmt.Errorf("publish to %s: %w", rec.Topic, err), "Write", rec.Topic, "")
	for _, e := range []error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTopicException,
	} {
		if errors.Is(err, e) {
			return retry.Permanent(wrapped)
		}
	}
	return wrapped
}

const (
	// ProducerTimeout is how long a client tries to publish a message that no handler returned.
	ProducerTimeout = 30 * time.Second
	// ProducerLinger is how long such a client waits for more messages for a batch.
	ProducerLinger = time.Millisecond
)
