package admin

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// Extent returns the current extent of a topic. It returns an error if the topic does not exist.
func (a *Admin) Extent(ctx context.Context, topic schemas.Topic) (schemas.OffsetRange, error) {
	logs, err := a.extents(ctx, []schemas.Topic{topic})
	if err != nil {
		return schemas.OffsetRange{}, fmt.Errorf("look up topic %s: %w", topic, err)
	}
	e, ok := logs[topic]
	if !ok || len(e.Ends) == 0 {
		return schemas.OffsetRange{}, fmt.Errorf("look up topic %s: it does not exist", topic)
	}
	return e, nil
}

// Committed returns the offsets that a role's group has committed for topic, by partition. Partitions without a
// commit are left out.
func (a *Admin) Committed(ctx context.Context, role schemas.Role, topic schemas.Topic) (map[int32]int64, error) {
	name := a.cfg.Topic(topic)
	done, err := a.committed(ctx, role, name)
	if err != nil {
		return nil, err
	}
	return done[name], nil
}

// Read calls f for each record of a topic in an extent, one call at a time, and in order within a partition. It
// stops at the first error of f and returns it. It uses no consumer group and changes nothing. If a record cannot
// be decoded, f gets the error, and a delivery without a Body. Tombstones are left out, as sinks do. Records that
// were removed meanwhile are skipped.
func (a *Admin) Read(
	ctx context.Context, topic schemas.Topic, e schemas.OffsetRange, f func(d *schemas.Delivery, unreadable error) error,
) error {
	parts := map[int32]core.Range{}
	for id, end := range e.Ends {
		parts[id] = core.Range{From: e.Starts[id], To: end}
	}
	r, name := core.NewRouter(a.cfg, "read", 0), a.cfg.Topic(topic)
	from := core.NewTopic(a.cfg, name)
	return core.Scan(ctx, a.cfg, name, parts, func(rec *kgo.Record, inc uint32) error {
		ir := core.Record{Raw: rec, Topic: from, Incarnation: inc}
		if ir.Ignored() {
			return nil
		}
		d, err := r.Delivery(&ir)
		if err != nil {
			d = new(schemas.Delivery)
			r.FillDelivery(&ir, d)
		}
		return f(d, err)
	})
}
