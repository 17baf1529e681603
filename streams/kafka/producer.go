package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/retry"
)

const (
	outputTimeout = time.Minute          // until an output of a handler counts as refused and is published again
	outputLinger  = 5 * time.Millisecond // lets many tasks share a request
)

// A Producer publishes messages that are not outputs of a handler. It is idempotent while it lives. A message of
// a failed Publish may be on its topic all the same. Publishing it again is harmless, since ids are functions of
// the content.
type Producer struct {
	cl     *kgo.Client
	router *core.Router
}

// NewProducer returns a Producer whose messages have this source. It connects at the first call of Connect or
// Publish. The caller must call Close.
func NewProducer(cfg client.Config, source string) (*Producer, error) {
	cl, err := cfg.NewClient("producer", cfg.ProduceOptions(core.ProducerTimeout, core.ProducerLinger)...)
	if err != nil {
		return nil, err
	}
	r := core.NewRouter(cfg, "", 0)
	r.Source = source
	return &Producer{cl: cl, router: r}, nil
}

// Connect connects and gets the producer's id, for which the first Publish would wait otherwise.
func (p *Producer) Connect(ctx context.Context) error {
	_, _, err := p.cl.ProducerID(ctx)
	return err
}

// Publish publishes msgs and waits until the brokers have acknowledged all of them. Messages with a due time go
// to the delay lanes. The trace context of ctx is passed on. After an error some messages may not be published:
// publish all of them again, unless the error is permanent. If a message cannot be encoded, nothing is published.
func (p *Producer) Publish(ctx context.Context, msgs ...schemas.Message) error {
	now, traced := time.Now(), core.InjectTrace(ctx)
	recs := make([]*kgo.Record, len(msgs))
	for i, m := range msgs {
		rec, err := p.router.Encode(m, now)
		if err != nil {
			return retry.Permanent(fmt.Errorf("publish to %s: %w", m.Topic, err))
		}
		rec.Headers = append(rec.Headers, traced...)
		recs[i] = rec
	}
	if _, err := core.Publish(ctx, p.cl, recs); err != nil {
		p.router.Config.Metrics.CountPublishFailure()
		return err
	}
	if len(recs) > 0 {
		p.router.CompareClock(ctx, p.cl, recs[len(recs)-1])
	}
	return nil
}

// Close gives up unacknowledged messages and closes the connections.
func (p *Producer) Close() { p.cl.Close() }
