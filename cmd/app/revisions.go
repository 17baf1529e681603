package app

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/revision"
)

// AnyBase as the base of a change is the revision that is current when the change is made.
const AnyBase = -1

// A DocumentInfo is the document of an account in a topic.
type DocumentInfo[D any] struct {
	Account  string
	Revision int64 // the current one; 0 if there is none
	Active   *revision.Entry[D]
	Newest   *revision.Entry[D] // of the current revision; nil if there is none
	Fault    error              // of the newest records, or of the configuration
}

// documentInfo returns the document of an account, without its fault.
func documentInfo[D any](r *revision.Registry[D], account string) DocumentInfo[D] {
	info := DocumentInfo[D]{Account: account, Revision: r.Revision(account)}
	if e, ok := r.Active(account); ok {
		info.Active = &e
	}
	for _, e := range r.History(account) {
		if e.Revision > 0 {
			info.Newest = &e
		}
	}
	return info
}

// A publication publishes one revision of the document of an account.
type publication[D any] struct {
	registry *revision.Registry[D]
	producer *kafka.Producer
	topic    schemas.Topic
	noun     string // of the document, for errors: "policy"
	account  string
	base     int64 // the revision that was edited, or AnyBase
	// record returns the message for a base, and same whether the document in force is that of the change.
	record func(base int64, at time.Time) (revision.Record, error)
	same   func() bool
}

// publish publishes the revision unless it changes nothing, and returns when it is in force, with the current revision.
// A *revision.LostError reports that another revision was published after the base.
func (c publication[D]) publish(ctx context.Context) (current int64, changed bool, err error) {
	current = c.registry.Revision(c.account) // read first, so that a later revision is not overwritten
	if c.same() {
		return current, false, nil
	}
	if c.base == AnyBase {
		c.base = current
	}
	if err := c.registry.CheckBase(c.account, c.base); err != nil {
		return current, false, err
	}
	rec, err := c.record(c.base, time.Now().UTC())
	if err != nil {
		return current, false, err
	}
	if err := c.producer.Publish(ctx, schemas.Message{Topic: c.topic, Body: rec}); err != nil {
		return current, false, fmt.Errorf("publish the %s of %s: the result is unknown; repeating it is safe: %w",
			c.noun, c.account, err)
	}
	for {
		settled, err := c.registry.Settled(rec)
		switch now := c.registry.Revision(c.account); {
		case settled && err != nil && c.same():
			return now, false, nil // the other writer published the same
		case settled:
			return now, err == nil, err
		}
		if err := retry.Sleep(ctx, 10*time.Millisecond); err != nil {
			return current, false, err
		}
	}
}
