package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/retry"
)

// sendAgain is the wait before records are sent again that were given up after runtimeLimit, or at once.
const resendDelay = time.Second

// Outputs are published by one client until the brokers take them: those of one topic and key in the order of send.
type outputs struct {
	router *router
	cl     *kgo.Client
	ctx    context.Context // what is not acknowledged when it ends is given up

	mu     sync.Mutex // guards the rest
	queues map[topicKey]*sendQueue

	purgeMu sync.Mutex // guards purged
	purged  map[string]time.Time
}

type topicKey struct{ topic, key string }

// A line is what is not acknowledged of one topic and key. What waits is sent when all that was sent is answered: a record
// that is given up would come behind those that were sent meanwhile.
type sendQueue struct {
	sent, waiting []*output
	unanswered    int // of sent: those without an answer
}

// An output is one record.
type output struct {
	rec     *kgo.Record
	part    *assignment // of its task
	refusal refusal
	err     error // why it is to be sent again
	done    func(error)
}

func newOutputs(ctx context.Context, r *router, cl *kgo.Client) *outputs {
	return &outputs{router: r, cl: cl, ctx: ctx, queues: map[topicKey]*sendQueue{}, purged: map[string]time.Time{}}
}

// send sends rec until it is acknowledged, and calls settled then, or with an error that does not pass. Nor is it sent
// again once the partition of its task has moved: it would come behind what the new owner publishes.
func (s *outputs) send(part *assignment, rec *kgo.Record, settled func(error)) {
	o, of := &output{rec: rec, part: part, done: settled}, topicKey{rec.Topic, string(rec.Key)}
	s.mu.Lock()
	l := s.queues[of]
	if l != nil {
		l.waiting = append(l.waiting, o)
		s.mu.Unlock()
		return
	}
	l = &sendQueue{sent: []*output{o}, unanswered: 1}
	s.queues[of] = l
	s.mu.Unlock()
	s.produce(of, l, l.sent)
}

// produce sends what a line has sent. Nothing is added to that before the last answer.
func (s *outputs) produce(of topicKey, l *sendQueue, sent []*output) {
	for _, o := range sent {
		if o.part.isCancelled() {
			s.onAck(of, l, o, o.rec, retry.Permanent(errRevoked))
			continue
		}
		s.cl.Produce(s.ctx, o.rec, func(rec *kgo.Record, err error) { s.onAck(of, l, o, rec, err) })
	}
}

func (s *outputs) onAck(of topicKey, l *sendQueue, o *output, rec *kgo.Record, err error) {
	if err != nil {
		err = publishError(rec, err)
	}
	if passes(err) && s.ctx.Err() == nil {
		o.err = err
		o.refusal.record(s.router, o.part.fetcher.metrics, err)
	} else {
		o.err = nil
		o.refusal.clear(o.part.fetcher.metrics)
		o.done(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.unanswered--; l.unanswered > 0 {
		return
	}
	var next []*output
	for _, o := range l.sent {
		if o.err != nil {
			next = append(next, o)
		}
	}
	wait := time.Duration(0)
	if len(next) > 0 {
		wait = resendDelay
	}
	next = append(next, l.waiting...)
	if l.sent, l.waiting, l.unanswered = next, nil, len(next); l.unanswered == 0 {
		delete(s.queues, of)
		return
	}
	time.AfterFunc(wait, func() { // it may wait for room, which answers make
		for _, o := range next {
			if errors.Is(o.err, kerr.UnknownTopicID) {
				s.purgeTopic(of.topic)
			}
			if o.err != nil {
				o.rec = anew(o.rec)
			}
		}
		s.produce(of, l, next)
	})
}

// purge has the client forget a topic that was made again. That fails what others are about to send to it, so it is
// done once for all that were failed by the new topic.
func (s *outputs) purgeTopic(topic string) {
	s.purgeMu.Lock()
	defer s.purgeMu.Unlock()
	if now := time.Now(); now.Sub(s.purged[topic]) > 2*resendDelay {
		s.purged[topic] = now
		s.cl.PurgeTopicsFromProducing(topic)
	}
}

// empty reports whether all that was sent is settled.
func (s *outputs) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queues) == 0
}
