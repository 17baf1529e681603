package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/policy"
)

// TestPolicyWriterClock checks that the rules of a policy start at the brokers' append time, regardless of the writers'
// clocks. This also holds for a topic that an earlier version created, from the next start.
func TestPolicyWriterClock(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1})
	cfg := c.Config("clocks.")
	ensure := func() {
		t.Helper()
		if err := admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}); err != nil {
			t.Fatal(err)
		}
	}
	ensure()
	c.SetTopicConfig(t, cfg.Prefix+string(schemas.Policies), "message.timestamp.type", "CreateTime")
	awaitDates(t, c, cfg, schemas.Policies, false)
	ensure()
	awaitDates(t, c, cfg, schemas.Policies, true)

	begun := time.Now().Truncate(time.Millisecond)
	document := func(deletes string) string {
		return `{"defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}], "spaces": {"photos": {"deletes": "` + deletes +
			`"}}}`
	}
	for i, revision := range []struct {
		deletes string
		clock   time.Time
	}{{"propagate", begun.AddDate(1, 0, 0)}, {"keep", begun.AddDate(-1, 0, 0)}, {"propagate", begun.AddDate(-1, 0, 1)}} {
		r := harness.Encode(t, schemas.Message{Topic: schemas.Policies, Body: &pb.Policy{
			Id: schemas.ID("policy", fmt.Sprint(i)), Account: "acme", Base: int64(i), Document: document(revision.deletes),
		}})
		r.Timestamp = revision.clock
		c.Write(t, cfg, r)
	}

	book := policy.NewRegistry(func(string) []string { return []string{"1", "2"} })
	table, err := kafka.NewTable(cfg, schemas.Policies, func(key []byte, d *schemas.Delivery) error {
		p, _ := d.Body.(*pb.Policy)
		book.Apply(key, d.Timestamp, p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- table.Run(ctx) }()
	select {
	case <-table.Ready():
	case <-ctx.Done():
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	rules, _ := book.Rules("acme", "photos")
	added := rules.Added[policy.Pair{Source: "1", Destination: "2"}]
	if rules.Revision != 3 || added.Before(begun) || rules.Since.Before(added) || rules.Since.After(time.Now()) {
		t.Errorf("revision %d, pair since %v, rule for deletes since %v: want revision 3, and both dates between %v and now",
			rules.Revision, added, rules.Since, begun)
	}
}

// awaitDates waits until records of a topic have the brokers' time, or the writers' time. Brokers acknowledge a topic
// configuration before they apply it.
func awaitDates(t *testing.T, c *harness.Cluster, cfg client.Config, topic schemas.Topic, ofBrokers bool) {
	t.Helper()
	const ahead = 30 * time.Minute // within the limit of the brokers for timestamps of writers
	for begun := time.Now(); time.Since(begun) < 30*time.Second; wait(t, 100*time.Millisecond) {
		r := harness.Encode(t,
			schemas.Message{Topic: topic, Body: &pb.Policy{Id: schemas.NewID(), Account: "probe", Document: "{}"}})
		r.Timestamp = begun.Add(ahead)
		c.Write(t, cfg, r)
		if all := c.Read(t, cfg, topic); all[len(all)-1].Timestamp.Before(begun.Add(ahead/2)) == ofBrokers {
			return
		}
	}
	t.Fatalf("the brokers do not follow the settings of %s", topic)
}
