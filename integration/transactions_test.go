package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
)

// TestTransactions checks that readers of changes handle records in transactions of other producers only after the
// commit. Partitions that end with a marker have no lag, and tables are read to the end. An open transaction blocks the
// later records of its partition, is not lag, and is reported.
func TestTransactions(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1})
	cfg := c.Config("transactions.")
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 3, Replication: 1}))
	write := func(partition int32, items ...string) (recs []harness.Record) {
		for i, item := range items {
			r := harness.Encode(t, change(item, i))
			r.Partition = partition
			recs = append(recs, r)
		}
		return recs
	}
	in := map[string]*inbox{}
	var table *kafka.Table
	for name, open := range changesReaders() {
		in[name] = &inbox{}
		part, err := open(cfg, in[name])
		running(t, part, err)
		if of, is := part.(*kafka.Table); is {
			table = of
		}
	}
	await := func(items ...string) {
		t.Helper()
		for _, of := range in {
			of.await(t, items...)
		}
	}
	a, err := admin.New(cfg)
	must(t, err)
	defer a.Close()
	atTheEnd := func(open int64) {
		t.Helper()
		must(t, table.CatchUp(t.Context()))
		for _, role := range []schemas.Role{schemas.RolePlanner, schemas.RoleSink} {
			harness.Eventually(t, time.Minute, "commit all records of ended transactions", func(ctx context.Context) error {
				lags, err := a.Lags(ctx, role)
				if err != nil {
					return err
				}
				for _, l := range lags {
					if l.Topic == schemas.Changes && (l.Records != 0 || l.Uncommitted != open) {
						return fmt.Errorf("%s has lag %v, and %d records are in open transactions, want %d", role, l.Partitions,
							l.Uncommitted, open)
					}
				}
				return nil
			})
		}
	}
	c.BeginTransaction(t, cfg, "one", write(0, "a", "b")...)(true)
	c.BeginTransaction(t, cfg, "two", write(0, "c")...)(false)
	c.BeginTransaction(t, cfg, "one", write(1, "d")...)(false)
	await("a", "b")
	atTheEnd(0)

	end := c.BeginTransaction(t, cfg, "two", write(0, "e", "f")...)
	c.Write(t, cfg, append(write(0, "g"), write(2, "h")...)...)
	await("a", "b", "h")
	atTheEnd(3)
	end(true)
	await("a", "b", "e", "f", "g", "h")
	atTheEnd(0)
	if dead := c.Read(t, cfg, schemas.Dead); len(dead) > 0 {
		t.Errorf("%d dead letters", len(dead))
	}

	again := &inbox{} // of a reader that starts now
	part, err := kafka.NewTable(cfg, schemas.Changes,
		func(_ []byte, d *schemas.Delivery) error { again.add(d); return nil })
	running(t, part, err)
	must(t, part.CatchUp(t.Context()))
	again.await(t, "a", "b", "e", "f", "g", "h")
}
