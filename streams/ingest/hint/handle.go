package hint

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// Places says of which copies a bucket's key can be, told by a topic: of several where stores have buckets of one
// name and nothing says which is meant; of none where the key is no item's. known says that the bucket is somebody's.
type Places interface {
	Places(topic schemas.Topic, bucket, key string) (all []schemas.Copy, known bool)
}

// A Handler handles the deliveries of notification topics. It is safe for concurrent use.
type Handler struct {
	look   *Looker
	places Places
	count  func(Row)
}

// NewHandler returns a Handler. count, where it is set, is told what each hint came to.
func NewHandler(stores Stores, places Places, count func(Row)) (*Handler, error) {
	if stores == nil || places == nil {
		return nil, errors.New("hint: stores or places are missing")
	}
	if count == nil {
		count = func(Row) {}
	}
	return &Handler{look: NewLooker(stores), places: places, count: count}, nil
}

// Handle returns what one delivery comes to: a Change, nothing, or, where the delivery holds several hints, each of
// them by itself, so that none waits for another's store, or is lost with another's unknown bucket.
func (h *Handler) Handle(ctx context.Context, d *schemas.Delivery) ([]schemas.Message, error) {
	hints, err := Parse(d.Value)
	if err != nil {
		return nil, retry.Permanent(err)
	}
	if len(hints) > 1 {
		out := Split(d.Topic, hints)
		for range len(hints) - len(out) {
			h.count(rowAside)
		}
		return out, nil
	}
	var out []schemas.Message
	for _, one := range hints {
		ch, err := h.one(ctx, d, one)
		if err != nil {
			return nil, err
		}
		out = append(out, ch...)
	}
	return out, nil
}

func (h *Handler) one(ctx context.Context, d *schemas.Delivery, one Hint) ([]schemas.Message, error) {
	if one.Kind == Aside {
		h.count(rowAside)
		return nil, nil
	}
	c, item, err := h.place(d.Topic, one)
	if err != nil {
		return nil, err
	}
	if !item {
		h.count(rowNoItem)
		return nil, nil
	}
	s, err := h.look.Look(ctx, c)
	if err != nil {
		return nil, err
	}
	s.Received = d.Timestamp
	decided, err := Decide(c, one, s)
	if err != nil {
		return nil, err
	}
	h.count(decided.Row)
	if decided.Change == nil {
		return nil, nil
	}
	return []schemas.Message{{Topic: schemas.Changes, Body: decided.Change}}, nil
}

// place finds the copy that a hint is about; not item: it is about something else in a bucket of ours, such as what
// the driver keeps there for itself. Its error is permanent.
func (h *Handler) place(topic schemas.Topic, one Hint) (c schemas.Copy, item bool, err error) {
	name, _ := topic.Foreign()
	all, known := h.places.Places(topic, one.Bucket, one.Key)
	switch {
	case len(all) == 1:
		return all[0], true, nil
	case len(all) > 1:
		return c, false, retry.Permanent(fmt.Errorf("%s of key %q by %s: bucket %q may be of %s or %s: say for %s which store it tells of",
			one.Event, one.Key, name, one.Bucket, all[0], all[1], name))
	case !known:
		return c, false, retry.Permanent(fmt.Errorf("%s of key %q by %s: no store that it may tell of has bucket %q", one.Event, one.Key, name, one.Bucket))
	}
	return c, false, nil
}

// Place is the first copy of the first hint in value: what a delivery is about, as far as that is known before
// it is handled; false where it is not.
func (h *Handler) Place(d *schemas.Delivery) (schemas.Copy, bool) {
	hints, err := Parse(d.Value)
	if err != nil || len(hints) != 1 || hints[0].Kind == Aside {
		return schemas.Copy{}, false
	}
	all, _ := h.places.Places(d.Topic, hints[0].Bucket, hints[0].Key)
	if len(all) != 1 {
		return schemas.Copy{}, false
	}
	return all[0], true
}

// Split returns messages to the ingester, in the name of topic, of one hint each, but for those that no Change tells
// of. Those of one key have one key.
func Split(topic schemas.Topic, hints []Hint) []schemas.Message {
	out := make([]schemas.Message, 0, len(hints))
	for _, one := range hints {
		if one.Kind == Aside {
			continue
		}
		out = append(out, schemas.Message{Topic: topic, Key: []byte(schemas.Key(one.Bucket, one.Key)), Value: one.raw})
	}
	return out
}
