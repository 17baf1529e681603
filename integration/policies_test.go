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
	"github.com/millrace/millrace/streams/policy"
)

// TestPolicyWriterClock checks that the rules of a policy start at the brokers' append time, regardless of the writers'
// clocks.
func TestPolicyWriterClock(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1})
	cfg := c.Config("clocks.")
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1}))
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
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- table.Run(ctx) }()
	select {
	case <-table.Ready():
	case <-ctx.Done():
	}
	cancel()
	must(t, <-ended)
	rules, _ := book.Rules("acme", "photos")
	added := rules.Added[policy.Pair{Source: "1", Destination: "2"}]
	if rules.Revision != 3 || added.Before(begun) || rules.Since.Before(added) || rules.Since.After(time.Now()) {
		t.Errorf("revision %d, pair since %v, rule for deletes since %v: want revision 3, and both dates between %v and now",
			rules.Revision, added, rules.Since, begun)
	}
}
