package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// Extent returns what a topic holds now. A topic that is not there is an error.
func (a *Admin) Extent(ctx context.Context, topic schemas.Topic) (schemas.Extent, error) {
	logs, err := a.logs(ctx, []schemas.Topic{topic})
	if err != nil {
		return schemas.Extent{}, fmt.Errorf("look at topic %s: %w", topic, err)
	}
	e, ok := logs[topic]
	if !ok || len(e.Ends) == 0 {
		return schemas.Extent{}, fmt.Errorf("look at topic %s: it is not there", topic)
	}
	return e, nil
}

// Committed returns what the group in which a role reads a topic has committed, by partition.
// Partitions without a commit are left out.
func (a *Admin) Committed(ctx context.Context, role schemas.Role, topic schemas.Topic) (map[int32]int64, error) {
	name := a.cfg.topic(topic)
	done, err := a.committed(ctx, role, name)
	if err != nil {
		return nil, err
	}
	return done[name], nil
}

// Read calls f once for each record of a topic that lies in an extent, those of a partition in
// order, one call at a time, until f returns an error, which it then returns. It belongs to no
// group and changes nothing. Of a record that cannot be decoded, f is told why, and its delivery has
// no Body. Records that only say that their key is gone are left out, as every sink does;
// what was removed meanwhile is not there to be read.
func (a *Admin) Read(ctx context.Context, topic schemas.Topic, e schemas.Extent, f func(d *schemas.Delivery, unreadable error) error) error {
	parts := map[int32]span{}
	for id, end := range e.Ends {
		parts[id] = span{e.Starts[id], end}
	}
	r := newRouter(a.cfg, "read", 0)
	return scan(ctx, a.cfg, a.cfg.topic(topic), parts, func(rec *kgo.Record, inc uint32) error {
		if r.ignores(rec) {
			return nil
		}
		ir := inflightRecord{rec: rec, incarnation: inc}
		d, err := r.delivery(&ir)
		if err != nil {
			d = new(schemas.Delivery)
			r.fillDelivery(&ir, d)
		}
		return f(d, err)
	})
}
