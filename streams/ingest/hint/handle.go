package hint

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/record"
)

// Resolver returns the copies that a bucket and key in a notification from topic can mean: several if stores have
// buckets of the same name and the topic does not select one, and none if the key is not that of an item. known reports
// whether a store has the bucket.
type Resolver interface {
	Resolve(topic schemas.Topic, bucket, key string) (all []schemas.Copy, known bool)
	// IsClaim reports whether a hint from topic about c is a claim: whoever has a token can send it, and c is a copy that
	// millrace writes.
	IsClaim(topic schemas.Topic, c schemas.Copy) bool
}

// A Handler handles the deliveries of notification topics. It is safe for concurrent use.
type Handler struct {
	observer *Observer
	records  Records
	resolver Resolver
	count    func(Row)
}

// NewHandler returns a Handler. It calls count, if not nil, with the row of each hint.
func NewHandler(observer *Observer, records Records, resolver Resolver, count func(Row)) (*Handler, error) {
	if observer == nil || records == nil || resolver == nil {
		return nil, errors.New("hint: observer, records or resolver are missing")
	}
	if count == nil {
		count = func(Row) {}
	}
	return &Handler{observer: observer, records: records, resolver: resolver, count: count}, nil
}

// Handle handles one delivery. It returns a Change or nothing for a single hint. If the delivery has several hints, it
// returns one message per hint, so that the failure of one does not affect the others.
func (h *Handler) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	if c, agent, isClaim, err := claimOf(d); err != nil {
		return nil, err
	} else if isClaim {
		out, err := h.handleClaim(ctx, d, schemas.CopyOf(c),
			Hint{Event: c.GetOp().String(), Time: c.GetTime().AsTime(), Version: c.GetVersion()})
		for _, m := range out {
			m.Body.(*pb.Change).Agent = agent // no part of the id
		}
		return out, err
	}
	hints, err := Parse(d.Value)
	if err != nil {
		return nil, retry.Permanent(err)
	}
	if len(hints) > 1 {
		out := Split(d.Topic, hints)
		for range len(hints) - len(out) {
			h.count(rowIrrelevant)
		}
		return out, nil
	}
	var out []schemas.Message
	for _, one := range hints {
		ch, err := h.handleHint(ctx, d, one)
		if err != nil {
			return nil, err
		}
		out = append(out, ch...)
	}
	return out, nil
}

func (h *Handler) handleHint(ctx context.Context, d *schemas.Delivery, one Hint) ([]schemas.Message, error) {
	if one.Kind == Irrelevant {
		h.count(rowIrrelevant)
		return nil, nil
	}
	c, item, err := h.copyOf(d.Topic, one)
	if err != nil {
		return nil, err
	}
	if !item {
		h.count(rowNoItem)
		return nil, nil
	}
	if h.resolver.IsClaim(d.Topic, c) {
		one.Kind, one.OfVersion = Other, false
		return h.handleClaim(ctx, d, c, one)
	}
	s, err := h.observer.Observe(ctx, c)
	if err != nil {
		return nil, err
	}
	s.Received = d.Timestamp
	if one.OfVersion && (!s.Present || one.Version != s.Object.Version) {
		all, err := h.records.Fresh(ctx, []schemas.Copy{c})
		if err != nil {
			return nil, fmt.Errorf("read the records of %s: %w", c, err)
		}
		m := all[0].GetManifest()
		s.Deleted = m.GetState() == pb.RecordState_RECORD_STATE_TOMBSTONE
		if s.Present && one.undoes(m, s.Object) {
			s.Undone = m.GetTime().AsTime()
		}
	}
	decided := Decide(c, one, s)
	if decided.Row == rowCurrent && !record.Time(s.Object.Modified).AsTime().Equal(decided.Change.GetTime().AsTime()) {
		if known, err := h.isKnown(ctx, c, s.Object, false); known || err != nil {
			return nil, err
		}
	}
	return h.publish(decided), nil
}

// isKnown reports, and counts, that the content of a copy is on record: a Change of another time would take the digests
// of that content away from the record. For a claim, all content of an item on record, live or deleted, is known.
func (h *Handler) isKnown(ctx context.Context, c schemas.Copy, o storage.Object, isClaim bool) (bool, error) {
	all, err := h.records.Fresh(ctx, []schemas.Copy{c})
	if err != nil {
		return false, fmt.Errorf("read the record of %s: %w", c, err)
	}
	switch m := all[0].GetManifest(); {
	case record.IsOf(m, o):
		h.count(rowKnown)
	case isClaim && m.GetState() > pb.RecordState_RECORD_STATE_NONE:
		h.count(rowDifferent)
	default:
		return false, nil
	}
	return true, nil
}

// publish counts a decision, and returns its Change, if any.
func (h *Handler) publish(decided Decision) []schemas.Message {
	h.count(decided.Row)
	if decided.Change == nil {
		return nil
	}
	return []schemas.Message{{Topic: schemas.Changes, Body: decided.Change}}
}

// undoes reports whether the version that was removed is what is on record: that content, or the delete marker of an
// item that shows older content again.
func (h Hint) undoes(m *pb.Record, shown storage.Object) bool {
	switch m.GetState() {
	case pb.RecordState_RECORD_STATE_LIVE:
		return m.GetVersion() == h.Version
	case pb.RecordState_RECORD_STATE_TOMBSTONE:
		return !shown.Modified.After(schemas.Reported(m).AsTime())
	}
	return false
}

// copyOf returns the copy that a hint is about. item is false if the hint is about another object in a known bucket,
// such as an internal one of the driver. Its error is permanent.
func (h *Handler) copyOf(topic schemas.Topic, one Hint) (c schemas.Copy, item bool, err error) {
	name, _ := topic.Foreign()
	all, known := h.resolver.Resolve(topic, one.Bucket, one.Key)
	switch {
	case len(all) == 1:
		return all[0], true, nil
	case len(all) > 1:
		return c, false, retry.Permanent(fmt.Errorf(
			"%s of key %q by %s: bucket %q can be that of %s or %s: configure the store of %s",
			one.Event, one.Key, name, one.Bucket, all[0], all[1], name))
	case !known:
		return c, false, retry.Permanent(fmt.Errorf("%s of key %q by %s: none of its stores has bucket %q",
			one.Event, one.Key, name, one.Bucket))
	}
	return c, false, nil
}

// Copy returns the copy that a delivery is about, before it is handled. It returns false if the delivery does not have
// exactly one hint about exactly one copy.
func (h *Handler) Copy(d *schemas.Delivery) (schemas.Copy, bool) {
	if c, _, isClaim, err := claimOf(d); isClaim {
		return schemas.CopyOf(c), err == nil
	}
	hints, err := Parse(d.Value)
	if err != nil || len(hints) != 1 || hints[0].Kind == Irrelevant {
		return schemas.Copy{}, false
	}
	all, _ := h.resolver.Resolve(d.Topic, hints[0].Bucket, hints[0].Key)
	if len(all) != 1 {
		return schemas.Copy{}, false
	}
	return all[0], true
}

// Split returns a message to the ingester for each hint, except irrelevant ones. The messages have the given topic.
// Hints with the same bucket and key have the same message key.
func Split(topic schemas.Topic, hints []Hint) []schemas.Message {
	out := make([]schemas.Message, 0, len(hints))
	for _, one := range hints {
		if one.Kind == Irrelevant {
			continue
		}
		out = append(out, schemas.Message{Topic: topic, Key: []byte(schemas.Key(one.Bucket, one.Key)), Value: one.raw})
	}
	return out
}
