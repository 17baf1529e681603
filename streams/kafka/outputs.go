package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

// errNotInTime says that a message with an age was not acknowledged within outputTimeout. It may have been written.
var errNotInTime = errors.New("the result was not acknowledged in time, and the work is done again")

// resendDelay is the wait before a record is sent again that the client gave up or the brokers refused.
const resendDelay = time.Second

// outputs publishes records with one client until the brokers acknowledge them. Records of one topic and key
// are written in the order of the calls of send.
type outputs struct {
	router *core.Router
	cl     *kgo.Client
	ctx    context.Context // records that are not acknowledged when it ends are given up

	mu     sync.Mutex // guards the fields below
	queues map[topicKey]*sendQueue

	purgeMu sync.Mutex // guards purged
	purged  map[string]time.Time
}

type topicKey struct{ topic, key string }

// A sendQueue holds the unacknowledged records of one topic and key. Waiting records are sent when all sent
// ones are answered. If they were sent at once, a record that is sent again would follow them.
type sendQueue struct {
	sent, waiting []*output
	unanswered    int // of sent, without an answer
}

// An output is one record to publish.
type output struct {
	rec     *kgo.Record
	part    *assignment // of its task
	made    time.Time   // of a message with an age: when it was published; zero: it has none
	refusal refusal
	err     error // why it must be sent again
	done    func(error)
}

func newOutputs(ctx context.Context, r *core.Router, cl *kgo.Client) *outputs {
	return &outputs{router: r, cl: cl, ctx: ctx, queues: map[topicKey]*sendQueue{}, purged: map[string]time.Time{}}
}

// send sends rec until it is acknowledged, and then calls settled. If an error is permanent, it calls settled
// with the error. When the partition of the task is revoked, rec is not sent again, because it would follow
// the outputs of the new owner. A message with an age is never sent again if it may have been written: with another
// time of Kafka its id would have two. If it was not acknowledged in time, settled gets errNotInTime.
func (s *outputs) send(part *assignment, rec *kgo.Record, settled func(error)) {
	o, key := &output{rec: rec, part: part, done: settled}, topicKey{rec.Topic, string(rec.Key)}
	if s.router.Config.SchemaTopic(rec.Topic).HasAge() {
		o.made = time.Now()
		rec.Timestamp = o.made // the client gives it up outputTimeout after that
	}
	s.mu.Lock()
	q := s.queues[key]
	if q != nil {
		q.waiting = append(q.waiting, o)
		s.mu.Unlock()
		return
	}
	q = &sendQueue{sent: []*output{o}, unanswered: 1}
	s.queues[key] = q
	s.mu.Unlock()
	s.produce(key, q, q.sent)
}

// produce sends the records in sent. The queue sends no others before the last answer.
func (s *outputs) produce(key topicKey, q *sendQueue, sent []*output) {
	for _, o := range sent {
		if o.part.isCancelled() {
			s.onAck(key, q, o, o.rec, retry.Permanent(errRevoked))
			continue
		}
		s.cl.Produce(s.ctx, o.rec, func(rec *kgo.Record, err error) { s.onAck(key, q, o, rec, err) })
	}
}

func (s *outputs) onAck(key topicKey, q *sendQueue, o *output, rec *kgo.Record, err error) {
	if err != nil {
		err = core.PublishError(rec, err)
	} else {
		s.router.CompareClock(s.ctx, s.cl, rec)
	}
	if written := !errors.Is(err, kerr.UnknownTopicID); !o.made.IsZero() && s.ctx.Err() == nil &&
		!retry.IsPermanent(err) && (isLate(o.made) || core.IsRetriable(err) && written) {
		err = retry.Permanent(errors.Join(errNotInTime, err))
	}
	if core.IsRetriable(err) && s.ctx.Err() == nil {
		o.err = err
		o.refusal.record(s.router, o.part.fetcher.metrics, err)
	} else {
		o.err = nil
		o.refusal.clear(o.part.fetcher.metrics)
		o.done(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.unanswered--; q.unanswered > 0 {
		return
	}
	var next []*output
	for _, o := range q.sent {
		if o.err != nil {
			next = append(next, o)
		}
	}
	wait := time.Duration(0)
	if len(next) > 0 {
		wait = resendDelay
	}
	next = append(next, q.waiting...)
	if q.sent, q.waiting, q.unanswered = next, nil, len(next); q.unanswered == 0 {
		delete(s.queues, key)
		return
	}
	time.AfterFunc(wait, func() { // in a goroutine: it may block until answers make room
		for _, o := range next {
			if errors.Is(o.err, kerr.UnknownTopicID) {
				s.purgeTopic(key.topic)
			}
			if o.err != nil {
				o.rec = core.ResetRecord(o.rec)
				o.rec.Timestamp = o.made
			}
		}
		s.produce(key, q, next)
	})
}

// isLate reports whether more than outputTimeout has passed since made, by one of the clocks: the monotonic one stands
// still while the machine is suspended.
func isLate(made time.Time) bool {
	now := time.Now()
	return max(now.Sub(made), now.Round(0).Sub(made.Round(0))) > outputTimeout
}

// purgeTopic makes the client forget a topic that was created again. That fails the records that other
// goroutines are about to send, so it runs once for all records that failed because of the new topic.
func (s *outputs) purgeTopic(topic string) {
	s.purgeMu.Lock()
	defer s.purgeMu.Unlock()
	if now := time.Now(); now.Sub(s.purged[topic]) > 2*resendDelay {
		s.purged[topic] = now
		s.cl.PurgeTopicsFromProducing(topic)
	}
}

// A refusal tracks an output, or the moves of a Delayer, that the brokers do not accept for now.
type refusal struct{ active bool }

// record records that the brokers have refused it.
func (f *refusal) record(r *core.Router, m *metrics.Role, err error) {
	m.CountPublishFailures(1)
	if !f.active && m.AddRefused(1) {
		r.Log.Warn("retry outputs", "err", err)
	}
	f.active = true
}

// clear records that the brokers have accepted it, or that it is not sent again.
func (f *refusal) clear(m *metrics.Role) {
	if f.active {
		m.AddRefused(-1)
	}
	f.active = false
}
