// Package core has what pools, admin and dead letters share: records between their poll and their commit, the
// decision what a failed record becomes, retry headers, offsets of partitions, reads of ranges of a topic, and
// publishing. Publish returns when every record is acknowledged or given up; a scan calls its function once for each
// record of its range.
package core

import (
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
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

// A Router turns messages and failures into records. Its only side effects are log messages and counts in
// Config.Unavailable.
type Router struct {
	Config   client.Config
	Role     schemas.Role
	Source   string        // ce_source of published messages
	Lanes    []client.Lane // shortest first
	attempts int
	Log      *slog.Logger
}

// NewRouter returns the Router of a role. attempts is the number of deliveries until a dead letter [5].
func NewRouter(cfg client.Config, role schemas.Role, attempts int) *Router {
	if attempts <= 0 {
		attempts = defaultAttempts
	}
	return &Router{
		Config: cfg, Role: role, Source: "millrace/" + string(role), Lanes: cfg.DelayLanes(),
		attempts: attempts, Log: cfg.Logger().With("role", string(role)),
	}
}

// A Topic is a topic of Kafka, resolved once for all records of a partition.
type Topic struct {
	Name  schemas.Topic
	Entry schemas.Entry // zero if the catalogue has none
	again bool          // its records have another original topic
}

// NewTopic resolves the name of a topic in Kafka.
func NewTopic(cfg client.Config, name string) *Topic {
	t := &Topic{Name: cfg.SchemaTopic(name)}
	t.Entry, _ = schemas.Lookup(t.Name)
	t.again = client.IsAgain(t.Name)
	return t
}

// A Record is a record between its poll and its commit.
type Record struct {
	Raw          *kgo.Record
	Topic        *Topic // of Raw
	Incarnation  uint32
	RetryHeaders *RetryHeaders       // nil: not parsed yet
	trace        []kgo.RecordHeader  // headers that name its span; nil: no span
	Disposition  metrics.Disposition // its result, set by Outcome
}

// RetryHeaders returns the parsed retry headers of ir. A record on its original topic has only a history; the
// other fields are filled in from the record.
func (r *Router) RetryHeaders(ir *Record) *RetryHeaders {
	if ir.RetryHeaders == nil {
		h, rec := ParseRetryHeaders(ir.Raw.Headers), ir.Raw
		if h.Timestamp.IsZero() { // it was never on its topic
			h.Timestamp = rec.Timestamp
		}
		if !ir.Topic.again {
			h = RetryHeaders{
				Topic: ir.Topic.Name, Partition: rec.Partition, Offset: rec.Offset, Timestamp: ir.Topic.timeOf(rec),
				History: h.History,
			}
		}
		ir.RetryHeaders = &h
	}
	return ir.RetryHeaders
}

// timeOf returns Kafka's time of what rec says. For a dead letter that was sent to its original topic again it is that
// of the first record: the letter is no newer fact than it was.
func (t *Topic) timeOf(rec *kgo.Record) time.Time {
	if slices.ContainsFunc(rec.Headers, func(h kgo.RecordHeader) bool { return h.Key == schemas.HeaderOriginTimestamp }) {
		h := ParseRetryHeaders(rec.Headers)
		if h.Topic == t.Name && h.Timestamp.UnixMilli() > 0 && h.Timestamp.Before(rec.Timestamp) {
			return h.Timestamp
		}
	}
	return rec.Timestamp
}

// Origin returns the original topic of ir, or "" if no header names it.
func (r *Router) Origin(ir *Record) schemas.Topic {
	if !ir.Topic.again {
		return ir.Topic.Name
	}
	return r.RetryHeaders(ir).Topic
}

// FillDelivery sets the fields of d that need no decoding.
func (r *Router) FillDelivery(ir *Record, d *schemas.Delivery) {
	rec := ir.Raw
	*d = schemas.Delivery{
		Topic: ir.Topic.Name, Incarnation: ir.Incarnation, Partition: rec.Partition, Offset: rec.Offset,
		Timestamp: ir.Topic.timeOf(rec), Key: rec.Key, Headers: HeadersOf(rec), Attempt: 1,
	}
	d.From = d.Topic
	if ir.Topic.again {
		h := r.RetryHeaders(ir)
		d.Topic, d.Attempt, d.Waits, d.WaitsBy, d.Timestamp = h.Topic, h.Attempts+1, h.Waits, h.waitsBy, h.Timestamp
	}
	d.Last = d.Attempt >= r.attempts
}

// HeadersOf returns the headers of a record without a copy. The two types are identical.
func HeadersOf(rec *kgo.Record) []schemas.Header {
	if len(rec.Headers) == 0 {
		return nil
	}
	_ = schemas.Header(kgo.RecordHeader{}) // does not compile if the types differ
	return unsafe.Slice((*schemas.Header)(unsafe.Pointer(unsafe.SliceData(rec.Headers))), len(rec.Headers))
}

// Delivery decodes ir. Its error is permanent.
func (r *Router) Delivery(ir *Record) (*schemas.Delivery, error) {
	d := new(schemas.Delivery)
	if err := r.Decode(ir, d, schemas.Decode); err != nil {
		return nil, err
	}
	return d, nil
}

// Decode decodes ir into d, with the times of results by the clock of Kafka. Its error is permanent.
func (r *Router) Decode(
	ir *Record, d *schemas.Delivery,
	decode func(schemas.Topic, []schemas.Header, []byte) (schemas.Body, error),
) error {
	r.FillDelivery(ir, d)
	if d.Topic == schemas.Dead {
		d.Value = ir.Raw.Value
		return nil
	}
	if d.Topic == "" {
		return retry.Permanent(fmt.Errorf("record of %s without header %s: %w",
			d.From, schemas.HeaderOriginTopic, schemas.ErrMalformed))
	}
	_, foreign := d.Topic.Foreign()
	if ir.Topic.again {
		e, ok := schemas.Lookup(d.Topic)
		if !(ok && e.Reads(r.Role)) && !(foreign && r.Role == schemas.RoleIngester) {
			return retry.Permanent(fmt.Errorf("record of %s comes from %s, which role %s does not read: %w",
				d.From, d.Topic, r.Role, schemas.ErrMalformed))
		}
	}
	if err := CheckSize(ir.Raw); err != nil {
		return err
	}
	if foreign {
		d.Value = ir.Raw.Value
		return nil
	}
	body, err := decode(d.Topic, d.Headers, ir.Raw.Value)
	if err != nil {
		return retry.Permanent(err)
	}
	d.Body = body
	schemas.DateByKafka(d)
	return nil
}

// Ignored reports whether ir needs no handler: it is a transaction marker or a tombstone of a compacted topic.
func (ir *Record) Ignored() bool {
	return ir.Raw.Attrs.IsControl() || ir.Raw.Value == nil && ir.Topic.Entry.Cleanup == schemas.Compact
}

// OutputsFor returns the records to publish for ir: the messages that the handler returned or, if the handler
// failed or a message cannot be encoded, the record that waits or the dead letter.
func (r *Router) OutputsFor(ir *Record, out []schemas.Message, err error) []*kgo.Record {
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
		if rec, err = r.Encode(m, now); err != nil {
			err = retry.Permanent(fmt.Errorf("encode output: %w", err))
		} else {
			rec.Headers = append(rec.Headers, traced...)
		}
		recs = append(recs, rec)
	}
	ir.Disposition = metrics.DispositionDone
	if err != nil && r.Origin(ir) == schemas.Dead {
		r.Log.Error("keep dead letter", "partition", ir.Raw.Partition, "offset", ir.Raw.Offset, "err", err)
		return nil
	}
	if err != nil {
		return []*kgo.Record{r.FailureRecord(ir, err, now)}
	}
	return recs
}

// Encode encodes a message for its topic or, if it is due later, for a delay lane.
func (r *Router) Encode(m schemas.Message, now time.Time) (*kgo.Record, error) {
	if m.Source == "" {
		m.Source = r.Source
	}
	if _, ok := m.Topic.Foreign(); ok {
		return r.foreignRecord(m)
	}
	enc, err := schemas.Encode(m)
	if err != nil {
		return nil, err
	}
	rec := &kgo.Record{
		Topic: r.Config.Topic(enc.Topic), Key: enc.Key, Value: enc.Value,
		Headers: make([]kgo.RecordHeader, len(enc.Headers)),
	}
	for i, h := range enc.Headers {
		rec.Headers[i] = kgo.RecordHeader{Key: h.Key, Value: h.Value}
	}
	if !m.Due.After(now) {
		return rec, nil
	}
	role, ok := RetryRole(enc.Topic)
	if !ok {
		return nil, fmt.Errorf("%s has no again topic for a message with a due time", enc.Topic)
	}
	h := RetryHeaders{Topic: enc.Topic, Partition: -1, Offset: -1, Role: role, After: m.Due.Sub(now)}
	rec.Headers = h.Apply(rec.Headers)
	rec.Topic = r.Config.Topic(schemas.Delay(LaneFor(r.Lanes, h.After).Name))
	return rec, nil
}

// foreignRecord encodes a message to a foreign topic. Nothing is written to foreign topics: the record goes
// to the again topic, like a record of the foreign topic that has waited.
func (r *Router) foreignRecord(m schemas.Message) (*kgo.Record, error) {
	if m.Body != nil || m.Value == nil || !m.Due.IsZero() {
		return nil, fmt.Errorf("message of %s: must have bytes that are due now, and no body: %w",
			m.Topic, schemas.ErrMalformed)
	}
	h := RetryHeaders{Topic: m.Topic, Partition: -1, Offset: -1, Role: schemas.RoleIngester}
	again := r.Config.Topic(schemas.Again(schemas.RoleIngester))
	rec := &kgo.Record{Topic: again, Key: m.Key, Value: m.Value, Headers: h.Apply(nil)}
	if err := CheckSize(rec); err != nil {
		return nil, err
	}
	return rec, nil
}

// RetryRole returns the role with the again topic for messages of t.
func RetryRole(t schemas.Topic) (schemas.Role, bool) {
	e, ok := schemas.Lookup(t)
	if !ok || len(e.Readers) == 0 {
		return "", false
	}
	_, ok = schemas.Lookup(schemas.Again(e.Readers[0]))
	return e.Readers[0], ok
}

// FailureRecord returns the record for a failed delivery: one for a delay lane or a dead letter.
func (r *Router) FailureRecord(ir *Record, err error, now time.Time) *kgo.Record {
	h, class := *r.RetryHeaders(ir), retry.ClassOf(err)
	attempt := h.Attempts + 1
	h.Role, h.Class, h.Err = r.Role, class.String(), err.Error()
	h.addFailure(Failure{
		Attempt: attempt, Class: h.Class, Error: h.Err, By: r.failedBy(),
		First: now.UTC(), Last: now.UTC(), Times: 1,
	})
	h.After, h.Due = 0, time.Time{}
	var cause string // the cause that the error names; it has been logged where it was detected
	_, hasAgain := schemas.Lookup(schemas.Again(r.Role))
	switch {
	case class == retry.ClassPermanent || !hasAgain:
	case class == retry.ClassUnavailable:
		longest := maxUnavailableLane
		if cause = retry.CauseOf(err); cause != "" && r.Config.Unavailable.Count(cause) < manyWaiting {
			longest = maxNamedLane
		}
		h.After = laneForWait(r.Lanes, h.unavailable, longest).Delay
		h.unavailable++
		if cause != "" {
			r.Config.Unavailable.Add(cause, now.Add(h.After))
		}
	case class == retry.ClassWait:
		n := h.addWait(retry.CauseOf(err))
		if h.After = retry.Due(err).Sub(now); h.After <= 0 {
			h.After = laneForWait(r.Lanes, n, 0).Delay
		}
	default:
		h.Attempts, h.unavailable = attempt, 0
		if attempt < r.attempts {
			h.After = laneForWait(r.Lanes, attempt-1, 0).Delay
		}
	}
	topic, log := schemas.Dead, r.Log.Error
	ir.Disposition = metrics.DispositionDead
	if h.After > 0 {
		ir.Disposition = metrics.DispositionOf(class)
		if topic, log = schemas.Delay(LaneFor(r.Lanes, h.After).Name), r.Log.Warn; cause != "" {
			log = r.Log.Debug
		}
	} else if class == retry.ClassPermanent {
		h.Attempts = attempt
	}
	log("route failed message", "to", string(topic), "topic", string(h.Topic),
		"partition", h.Partition, "offset", h.Offset, "attempt", attempt, "class", h.Class, "err", err)
	return &kgo.Record{Topic: r.Config.Topic(topic), Key: ir.Raw.Key, Value: ir.Raw.Value,
		Headers: h.Apply(ir.Raw.Headers)}
}

func (r *Router) failedBy() string {
	if r.Config.ClientID == "" {
		return string(r.Role)
	}
	return string(r.Role) + " " + r.Config.ClientID
}

// LaneFor returns the lane for a delay of d: the longest that is not longer than d, or the shortest lane.
func LaneFor(lanes []client.Lane, d time.Duration) client.Lane {
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

// BacklogRecord returns the record that moves ir unchanged to a backlog topic.
func (r *Router) BacklogRecord(ir *Record, topic string) *kgo.Record {
	h := *r.RetryHeaders(ir)
	h.Role = r.Role
	ir.Disposition = metrics.DispositionMoved
	return &kgo.Record{Topic: topic, Key: ir.Raw.Key, Value: ir.Raw.Value, Headers: h.Apply(ir.Raw.Headers)}
}

// Incarnation hashes a topic id.
func Incarnation(id [16]byte) uint32 {
	h := fnv.New32a()
	h.Write(id[:]) // never fails
	return h.Sum32()
}

// ErrWorkPaused sends a paused message to a lane, to make room for others.
var ErrWorkPaused = errors.New("account or store is paused")

// PausedRecord returns the record that waits in a lane while the work of ir is paused, for as long as for an
// unavailable store. It counts as no attempt and as no failure.
func (r *Router) PausedRecord(ir *Record, now time.Time) *kgo.Record {
	h := *r.RetryHeaders(ir)
	h.Role, h.Class, h.Err = r.Role, "paused", ErrWorkPaused.Error()
	h.After, h.Due = laneForWait(r.Lanes, h.unavailable, maxUnavailableLane).Delay, time.Time{}
	h.unavailable++
	ir.Disposition = metrics.DispositionPaused
	topic := schemas.Delay(LaneFor(r.Lanes, h.After).Name)
	r.Log.Debug("delay paused message", "to", string(topic), "topic", string(h.Topic),
		"partition", h.Partition, "offset", h.Offset, "class", h.Class)
	return &kgo.Record{Topic: r.Config.Topic(topic), Key: ir.Raw.Key, Value: ir.Raw.Value,
		Headers: h.Apply(ir.Raw.Headers)}
}

// CheckSize returns a permanent error if rec is too large for a delay lane with its retry headers. Such a record
// is no message of this system.
func CheckSize(rec *kgo.Record) error {
	n := schemas.Record{Key: rec.Key, Value: rec.Value, Headers: HeadersOf(rec)}.Size()
	if n > 2*schemas.MaxBytes {
		return retry.Permanent(fmt.Errorf("key, value and headers are %d bytes, at most %d: %w",
			n, 2*schemas.MaxBytes, schemas.ErrMalformed))
	}
	return nil
}

// RecordBytes estimates the memory of a record. The headers are most of a dead letter.
func RecordBytes(rec *kgo.Record) int64 {
	n := len(rec.Key) + len(rec.Value) + 512
	for _, h := range rec.Headers {
		n += len(h.Key) + len(h.Value) + headerOverhead
	}
	return int64(n)
}

// headerOverhead is the memory of a header beside its key and value.
const headerOverhead = 48
