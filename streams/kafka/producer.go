package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

const (
	producerLimit  = 30 * time.Second // until a message of a Producer is given up
	runtimeLimit   = time.Minute      // until an output of a handler is reported as refused, and published again
	producerLinger = time.Millisecond
	runtimeLinger  = 5 * time.Millisecond // many tasks share a request
)

// A Producer publishes messages that no delivery caused. It is idempotent within its
// life; a message whose Publish failed may be on its topic all the same, and publishing
// it again is harmless, since ids are functions of what messages say.
type Producer struct {
	cl     *kgo.Client
	router *router
}

// NewProducer returns a Producer whose messages say that they come from source.
// Nothing reaches the network before Publish. The caller closes it.
func NewProducer(cfg Config, source string) (*Producer, error) {
	opts, err := cfg.options("producer", cfg.produce(producerLimit, producerLinger)...)
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: new client: %w", err)
	}
	r := newRouter(cfg, "", 0)
	r.source = source
	return &Producer{cl: cl, router: r}, nil
}

// Publish returns when all of msgs are acknowledged by the brokers, those with a due
// time in the delay lanes. They carry the context of ctx's span. An error means that some may not be: all of them should be
// published again, unless it is permanent. A message that cannot be encoded fails the
// call before anything is sent.
func (p *Producer) Publish(ctx context.Context, msgs ...schemas.Message) error {
	now, traced := time.Now(), injectTrace(ctx)
	recs := make([]*kgo.Record, len(msgs))
	for i, m := range msgs {
		rec, err := p.router.record(m, now)
		if err != nil {
			return retry.Permanent(fmt.Errorf("publish to %s: %w", m.Topic, err))
		}
		rec.Headers = append(rec.Headers, traced...)
		recs[i] = rec
	}
	if _, err := publish(ctx, p.cl, recs); err != nil {
		p.router.cfg.Metrics.unpublished()
		return err
	}
	return nil
}

// Close gives up what is not yet acknowledged.
func (p *Producer) Close() { p.cl.Close() }

// publish sends recs and waits until all are acknowledged or given up. It returns those that are not acknowledged, to be
// published again, in their order. Of a topic that was made again the client has to forget the old one first.
func publish(ctx context.Context, cl *kgo.Client, recs []*kgo.Record) (left []*kgo.Record, err error) {
	left, stale, err := produce(ctx, cl, recs)
	if len(stale) == 0 {
		return allAnew(left), err
	}
	cl.PurgeTopicsFromProducing(topicsOf(stale)...)
	late, unknown, again := produce(ctx, cl, allAnew(stale))
	if again == nil && !errors.Is(err, kerr.UnknownTopicID) {
		again = err // of others
	}
	return allAnew(slices.Concat(left, late, unknown)), again
}

// An outgoing is what is published together, and what is done once the brokers have taken all of it.
type outgoing struct {
	recs []*kgo.Record
	left []*kgo.Record     // of recs: what they have not taken
	done map[partition]int // records
}

func newOutgoing(recs []*kgo.Record, done map[partition]int) *outgoing {
	return &outgoing{recs: recs, left: recs, done: done}
}

// publish sends what is left of it.
func (o *outgoing) publish(ctx context.Context, cl *kgo.Client) (err error) {
	o.left, err = publish(ctx, cl, o.left)
	return err
}

// anew returns rec as it was before it was published: the client counts the time that it has for a record from the
// timestamp that it gave it.
func anew(rec *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: rec.Topic, Partition: rec.Partition, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
}

func allAnew(recs []*kgo.Record) []*kgo.Record {
	all := make([]*kgo.Record, len(recs))
	for i, rec := range recs {
		all[i] = anew(rec)
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

// produce sends recs and waits until all are acknowledged or given up. It returns those that are not, in their order:
// stale are of topics that the brokers know under other ids, left are the others. The error is the first one: one of left,
// if there is one.
func produce(ctx context.Context, cl *kgo.Client, recs []*kgo.Record) (left, stale []*kgo.Record, first error) {
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
				first = publishError(rec, err)
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

// passes reports whether the brokers may take what they have not taken, if it is published again.
func passes(err error) bool {
	code := (*kerr.Error)(nil)
	switch {
	case err == nil, retry.IsPermanent(err), errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		return false
	case errors.As(err, &code):
		return code.Retriable
	}
	return true
}

// publishError is the one place where errors of producing are classed.
func publishError(rec *kgo.Record, err error) error {
	wrapped := fmt.Errorf("publish to %s: %w", rec.Topic, err)
	for _, e := range []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTopicException} {
		if errors.Is(err, e) {
			return retry.Permanent(wrapped)
		}
	}
	return wrapped
}
