package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka/admin"
)

// TestIncidentsAreNotCompactedUnread checks, with the most eager compaction, that the topic incidents keeps every
// record that the sink may not have read yet, and that a topic that only tables read is compacted. An
// existing topic without the lag is refused by name.
func TestIncidentsAreNotCompactedUnread(t *testing.T) {
	need.Full(t)
	c := harness.Kafka(t, harness.Options{Brokers: 1, Properties: map[string]string{
		"log.cleaner.backoff.ms": "200", "log.cleaner.min.cleanable.ratio": "0", "log.roll.ms": "300",
	}})
	cfg := c.Config("compaction.")
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 1, Replication: 1}))
	const n = 6
	for i := range n {
		now := timestamppb.New(time.Now().Add(-time.Hour))
		c.Write(t, cfg,
			harness.Encode(t,
				schemas.Message{Topic: schemas.Incidents, Body: &pb.Incident{Id: schemas.ID("i"), Account: "acme", Store: "1",
					Space: "s", Item: "i", Kind: "k", State: pb.IncidentState_INCIDENT_STATE_OPEN, Opened: now, Updated: now,
					StepCount: int32(i + 1)}}),
			harness.Encode(t, schemas.Message{Topic: schemas.Checkpoints,
				Body: &pb.Checkpoint{Id: schemas.ID(fmt.Sprint(i)), Sweep: "s", Time: now}}))
		// each write rolls what is older than log.roll.ms
		harness.Eventually(t, time.Minute, "roll a segment", func(ctx context.Context) error {
			if time.Since(now.AsTime()) < time.Hour+400*time.Millisecond {
				return fmt.Errorf("record %d is young", i)
			}
			return nil
		})
	}
	harness.Eventually(t, time.Minute, "compact the checkpoints", func(context.Context) error {
		if left := len(c.Read(t, cfg, schemas.Checkpoints)); left > 2 { // the latest one, and one in the active segment
			return fmt.Errorf("%d records are left", left)
		}
		return nil
	})
	if got := len(c.Read(t, cfg, schemas.Incidents)); got != n {
		t.Errorf("%d records are left of %d incidents that no group has read", got, n)
	}

	other := c.Config("limited.")
	c.CreateTopic(t, other, schemas.Incidents, 4)
	for key, value := range map[string]string{"cleanup.policy": "compact", "max.message.bytes": "4000000"} {
		c.SetTopicConfig(t, other.Prefix+string(schemas.Incidents), key, value)
	}
	err := admin.EnsureTopics(t.Context(), other, admin.TopicOptions{Partitions: 1, Replication: 1})
	if err == nil || !strings.Contains(err.Error(), other.Prefix+"incidents: min.compaction.lag.ms is 0, want at least ") {
		t.Errorf("without the lag: %v", err)
	}
}
