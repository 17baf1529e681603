package kafka

import (
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/retry"
)

const (
	// maxUnavailableLane is the longest delay of a message that waits for an unavailable store or engine.
	maxUnavailableLane = 5 * time.Minute
	// maxNamedLane is the longest delay if the error names the cause and fewer than manyWaiting messages of this
	// process wait for it: the cause may recover at any time. Each pass through a lane writes a message twice,
	// so manyWaiting messages make a process write about 1,100 records a second.
	maxNamedLane = 30 * time.Second
	manyWaiting  = 1 << 14
)

// defaultAttempts is the default of PoolConfig.MaxAttempts.
const defaultAttempts = 5

// A router turns messages and failures into records. Its only side effects are log messages and counts in
// Config.Unavailable.
type router struct {
	cfg      client.Config
	role     schemas.Role
	source   string        // ce_source of published messages
	lanes    []client.Lane // shortest first
	attempts int
	log      *slog.Logger
}

func newRouter(cfg client.Config, role schemas.Role, attempts int) *router {
	if attempts <= 0 {
		attempts = defaultAttempts
	}
	return &router{
		cfg: cfg, role: role, source: "millrace/" + string(role), lanes: cfg.DelayLanes(),
		attempts: attempts, log: cfg.Logger().With("role", string(role)),
	}
}

// An inflightRecord is a record between its poll and its commit.
type inflightRecord struct {
	rec          *kgo.Record
	incarnation  uint32
	retryHeaders *retryHeaders       // nil: not parsed yet
	trace        *headerCarrier      // headers that name its span; nil: no span
	disposition  metrics.Disposition // its result, set by outcome
}

// retryHeaders returns the parsed retry headers of ir. A record on its original topic has only a history; the
// other fields are filled in from the record.
func (r *router) retryHeaders(ir *inflightRecord) *retryHeaders {
	if ir.retryHeaders == nil {
		h, rec := parseRetryHeaders(ir.rec.Headers), ir.rec
		if from := r.cfg.SchemaTopic(rec.Topic); !client.IsAgain(from) {
			h = retryHeaders{
				topic: from, partition: rec.Partition, offset: rec.Offset, timestamp: rec.Timestamp,
				history: h.history,
			}
		}
		ir.retryHeaders = &h
	}
	return ir.retryHeaders
}

// origin returns the original topic of ir, or "" if no header names it.
func (r *router) origin(ir *inflightRecord) schemas.Topic {
	if from := r.cfg.SchemaTopic(ir.rec.Topic); !client.IsAgain(from) {
		return from
	}
	return r.retryHeaders(ir).topic
}

// fillDelivery sets the fields of d that need no decoding.
func (r *router) fillDelivery(ir *inflightRecord, d *schemas.Delivery) {
	rec := ir.rec
	*d = schemas.Delivery{
		Topic: r.cfg.SchemaTopic(rec.Topic), Incarnation: ir.incarnation, Partition: rec.Partition, Offset: rec.Offset,
		Timestamp: rec.Timestamp, Key: rec.Key, Headers: headersOf(rec), Attempt: 1,
	}
	d.From = d.Topic
	if client.IsAgain(d.From) {
		h := r.retryHeaders(ir)
		d.Topic, d.Attempt, d.Waits, d.WaitsBy = h.topic, h.attempts+1, h.waits, h.waitsBy
		if !h.timestamp.IsZero() {
			d.Timestamp = h.timestamp
		}
	}
	d.Last = d.Attempt >= r.attempts
}

// headersOf returns the headers of a record without a copy. The two types are identical.
func headersOf(rec *kgo.Record) []schemas.Header {
	if len(rec.Headers) == 0 {
		return nil
	}
	_ = schemas.Header(kgo.RecordHeader{}) // does not compile if the types differ
	return unsafe.Slice((*schemas.Header)(unsafe.Pointer(unsafe.SliceData(rec.Headers))), len(rec.Headers))
}

// delivery decodes ir. Its error is permanent.
func (r *router) delivery(ir *inflightRecord) (*schemas.Delivery, error) {
	d := new(schemas.Delivery)
	if err := r.decode(ir, d, schemas.Decode); err != nil {
		return nil, err
	}
	return d, nil
}

// decode decodes ir into d. Its error is permanent.
func (r *router) decode(
	ir *inflightRecord, d *schemas.Delivery,
	decode func(schemas.Topic, []schemas.Header, []byte) (schemas.Body, error),
) error {
	r.fillDelivery(ir, d)
	d.Hash = schemas.Hash(ir.rec.Value)
	if d.Topic == schemas.Dead {
		d.Value = ir.rec.Value
		return nil
	}
	if d.Topic == "" {
		return retry.Permanent(fmt.Errorf("record of %s without header %s: %w",
			d.From, schemas.HeaderOriginTopic, schemas.ErrMalformed))
	}
	_, foreign := d.Topic.Foreign()
	e, ok := schemas.Lookup(d.Topic)
	if client.IsAgain(d.From) && !(ok && e.Reads(r.role)) && !(foreign && r.role == schemas.RoleIngester) {
		return retry.Permanent(fmt.Errorf("record of %s comes from %s, which role %s does not read: %w",
			d.From, d.Topic, r.role, schemas.ErrMalformed))
	}
	if err := checkSize(ir.rec); err != nil {
		return err
	}
	if foreign {
		d.Value = ir.rec.Value
		return nil
	}
	body, err := decode(d.Topic, d.Headers, ir.rec.Value)
	if err != nil {
		return retry.Permanent(err)
	}
	d.Body = body
	return nil
}

// ignores reports whether a record needs no handler: it is a transaction marker or a tombstone of a compacted
// topic.
func (r *router) ignores(rec *kgo.Record) bool {
	if rec.Attrs.IsControl() {
		return true
	}
	if rec.Value != nil {
		return false
	}
	e, ok := schemas.Lookup(r.cfg.SchemaTopic(rec.Topic))
	return ok && e.Cleanup == schemas.Compact
}

// outcome returns the records to publish for ir: the messages that the handler returned or, if the handler
// failed or a message cannot be encoded, the record that waits or the dead letter.
func (r *router) outcome(ir *inflightRecord, out []schemas.Message, err error) []*kgo.Record {
	now := time.Now()
	recs := make([]*kgo.Record, 0, len(out))
	var traced []kgo.RecordHeader
	if len(out) > 0 {
		traced = ir.traceHeaders()
	}
	for _, m := range out {
		if err != nil {
			break
		}
		var rec *kgo.Record
		if rec, err = r.record(m, now); err != nil {
			err = retry.Permanent(fmt.Errorf("encode output: %w", err))
		} else {
			rec.Headers = append(rec.Headers, traced...)
		}
		recs = append(recs, rec)
	}
	ir.disposition = metrics.DispositionDone
	if err != nil && r.origin(ir) == schemas.Dead {
		r.log.Error("keep dead letter", "partition", ir.rec.Partition, "offset", ir.rec.Offset, "err", err)
		return nil
	}
	if err != nil {
		return []*kgo.Record{r.failureRecord(ir, err, now)}
	}
	return recs
}

// record encodes a message for its topic or, if it is due later, for a delay lane.
func (r *router) record(m schemas.Message, now time.Time) (*kgo.Record, error) {
	if m.Source == "" {
		m.Source = r.source
	}
	if _, ok := m.Topic.Foreign(); ok {
		return r.foreignRecord(m, now)
	}
	enc, err := schemas.Encode(m)
	if err != nil {
		return nil, err
	}
	rec := &kgo.Record{
		Topic: r.cfg.Topic(enc.Topic), Key: enc.Key, Value: enc.Value,
		Headers: make([]kgo.RecordHeader, len(enc.Headers)),
	}
	for i, h := range enc.Headers {
		rec.Headers[i] = kgo.RecordHeader{Key: h.Key, Value: h.Value}
	}
	if !m.Due.After(now) {
		return rec, nil
	}
	role, ok := retryRole(enc.Topic)
	if !ok {
		return nil, fmt.Errorf("%s has no again topic for a message with a due time", enc.Topic)
	}
	h := retryHeaders{topic: enc.Topic, partition: -1, offset: -1, timestamp: now, role: role, due: m.Due}
	rec.Headers = h.apply(rec.Headers)
	rec.Topic = r.cfg.Topic(schemas.Delay(laneFor(r.lanes, m.Due.Sub(now)).Name))
	return rec, nil
}

// foreignRecord encodes a message to a foreign topic. Nothing is written to foreign topics: the record goes
// to the again topic, like a record of the foreign topic that has waited.
func (r *router) foreignRecord(m schemas.Message, now time.Time) (*kgo.Record, error) {
	if m.Body != nil || m.Value == nil || !m.Due.IsZero() {
		return nil, fmt.Errorf("message of %s: must have bytes that are due now, and no body: %w",
			m.Topic, schemas.ErrMalformed)
	}
	h := retryHeaders{topic: m.Topic, partition: -1, offset: -1, timestamp: now, role: schemas.RoleIngester}
	again := r.cfg.Topic(schemas.Again(schemas.RoleIngester))
	rec := &kgo.Record{Topic: again, Key: m.Key, Value: m.Value, Headers: h.apply(nil)}
	if err := checkSize(rec); err != nil {
		return nil, err
	}
	return rec, nil
}

// retryRole returns the role with the again topic for messages of t.
func retryRole(t schemas.Topic) (schemas.Role, bool) {
	e, ok := schemas.Lookup(t)
	if !ok || len(e.Readers) == 0 {
		return "", false
	}
	_, ok = schemas.Lookup(schemas.Again(e.Readers[0]))
	return e.Readers[0], ok
}

// failureRecord returns the record for a failed delivery: one for a delay lane or a dead letter.
func (r *router) failureRecord(ir *inflightRecord, err error, now time.Time) *kgo.Record {
	h, class := *r.retryHeaders(ir), retry.ClassOf(err)
	attempt := h.attempts + 1
	h.role, h.class, h.err = r.role, class.String(), err.Error()
	h.addFailure(failure{
		Attempt: attempt, Class: h.class, Error: h.err, By: r.failedBy(),
		First: now.UTC(), Last: now.UTC(), Times: 1,
	})
	h.due = time.Time{}
	var cause string // the cause that the error names; it has been logged where it was detected
	_, hasAgain := schemas.Lookup(schemas.Again(r.role))
	switch {
	case class == retry.ClassPermanent || !hasAgain:
	case class == retry.ClassUnavailable:
		longest := maxUnavailableLane
		if cause = retry.CauseOf(err); cause != "" && r.cfg.Unavailable.Count(cause) < manyWaiting {
			longest = maxNamedLane
		}
		h.due = now.Add(laneForWait(r.lanes, h.unavailable, longest).Delay)
		h.unavailable++
		if cause != "" {
			r.cfg.Unavailable.Add(cause, h.due)
		}
	case class == retry.ClassWait:
		n := h.addWait(retry.CauseOf(err))
		if h.due = retry.Due(err); !h.due.After(now) {
			h.due = now.Add(laneForWait(r.lanes, n, 0).Delay)
		}
	default:
		h.attempts, h.unavailable = attempt, 0
		if attempt < r.attempts {
			h.due = now.Add(laneForWait(r.lanes, attempt-1, 0).Delay)
		}
	}
	topic, log := schemas.Dead, r.log.Error
	ir.disposition = metrics.DispositionDead
	if !h.due.IsZero() {
		ir.disposition = metrics.DispositionOf(class)
		if topic, log = schemas.Delay(laneFor(r.lanes, h.due.Sub(now)).Name), r.log.Warn; cause != "" {
			log = r.log.Debug
		}
	} else if class == retry.ClassPermanent {
		h.attempts = attempt
	}
	log("route failed message", "to", string(topic), "topic", string(h.topic),
		"partition", h.partition, "offset", h.offset, "attempt", attempt, "class", h.class, "err", err)
	return &kgo.Record{Topic: r.cfg.Topic(topic), Key: ir.rec.Key, Value: ir.rec.Value, Headers: h.apply(ir.rec.Headers)}
}

func (r *router) failedBy() string {
	if r.cfg.ClientID == "" {
		return string(r.role)
	}
	return string(r.role) + " " + r.cfg.ClientID
}

// laneFor returns the lane for a delay of d: the longest that is not longer than d, or the shortest lane.
func laneFor(lanes []client.Lane, d time.Duration) client.Lane {
	lane := lanes[0]
	for _, l := range lanes {
		if l.Delay <= d {
			lane = l
		}
	}
	return lane
}

// laneForWait returns the lane for wait number n, counted from 0. It is not longer than limit if limit is
// positive.
func laneForWait(lanes []client.Lane, n int, limit time.Duration) client.Lane {
	last := 0
	for i, l := range lanes {
		if limit <= 0 || l.Delay <= limit {
			last = i
		}
	}
	return lanes[min(n, last)]
}

// backlogRecord returns the record that moves ir unchanged to a backlog topic.
func (r *router) backlogRecord(ir *inflightRecord, topic string) *kgo.Record {
	h := *r.retryHeaders(ir)
	h.role = r.role
	ir.disposition = metrics.DispositionMoved
	return &kgo.Record{Topic: topic, Key: ir.rec.Key, Value: ir.rec.Value, Headers: h.apply(ir.rec.Headers)}
}

// incarnation hashes a topic id.
func incarnation(id [16]byte) uint32 {
	h := fnv.New32a()
	h.Write(id[:]) // never fails
	return h.Sum32()
}

// errWorkPaused sends a paused message to a lane, to make room for others.
var errWorkPaused = errors.New("account or store is paused")

// pausedRecord returns the record that waits in a lane while the work of ir is paused, for as long as for an
// unavailable store. It counts as no attempt and as no failure.
func (r *router) pausedRecord(ir *inflightRecord, now time.Time) *kgo.Record {
	h := *r.retryHeaders(ir)
	h.role, h.class, h.err = r.role, "paused", errWorkPaused.Error()
	h.due = now.Add(laneForWait(r.lanes, h.unavailable, maxUnavailableLane).Delay)
	h.unavailable++
	ir.disposition = metrics.DispositionPaused
	topic := schemas.Delay(laneFor(r.lanes, h.due.Sub(now)).Name)
	r.log.Debug("delay paused message", "to", string(topic), "topic", string(h.topic),
		"partition", h.partition, "offset", h.offset, "class", h.class)
	return &kgo.Record{Topic: r.cfg.Topic(topic), Key: ir.rec.Key, Value: ir.rec.Value, Headers: h.apply(ir.rec.Headers)}
}

// checkSize returns a permanent error if rec is too large for a delay lane with its retry headers. Such a record
// is no message of this system.
func checkSize(rec *kgo.Record) error {
	n := schemas.Record{Key: rec.Key, Value: rec.Value, Headers: headersOf(rec)}.Size()
	if n > 2*schemas.MaxBytes {
		return retry.Permanent(fmt.Errorf("key, value and headers are %d bytes, at most %d: %w",
			n, 2*schemas.MaxBytes, schemas.ErrMalformed))
	}
	return nil
}

// recordBytes estimates the memory of a record. The headers are most of a dead letter.
func recordBytes(rec *kgo.Record) int64 {
	n := len(rec.Key) + len(rec.Value) + 512
	for _, h := range rec.Headers {
		n += len(h.Key) + len(h.Value) + headerOverhead
	}
	return int64(n)
}

// headerOverhead is the memory of a header beside its key and value.
const headerOverhead = 48
