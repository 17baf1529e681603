package admin_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// A cluster with fewer brokers than replicas is refused before a topic is created, and the error says what to do.
// If no topic is missing, a broker may be down.
func TestTooFewBrokers(t *testing.T) {
	t.Parallel()
	const want = "kafka.replication is 3 and kafka.min_insync 2, but the cluster has 1 broker, and 36 topics must be " +
		"created: start the other brokers, or set kafka.replication to 1 and kafka.min_insync to 1 " +
		"(one replica: the loss of its disk is the loss of its records)"
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{NoTopics: true})
		o := admin.TopicOptions{Partitions: 2, Replication: 3, MinInSync: 2}
		_, err := admin.MissingTopics(t.Context(), b.Config(), o)
		for what, err := range map[string]error{
			"missing": err, "ensure": admin.EnsureTopics(t.Context(), b.Config(), o),
		} {
			if !errors.Is(err, admin.ErrTopics) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", what, err, want)
			}
		}
		o.Replication, o.MinInSync = 1, 1
		if missing, err := admin.MissingTopics(t.Context(), b.Config(), o); err != nil || len(missing) != 36 {
			t.Errorf("%d topics are missing, %v: the refused calls have created some", len(missing), err)
		}
	})
}

// Existing topics with fewer replicas than kafka.min_insync are refused, with fewer than configured logged.
func TestTopicsWithFewReplicas(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o       admin.TopicOptions
		setting string // min.insync.replicas of the topic changes
		err     string // "": none
		log     string // "": nothing
	}{
		"as configured": {admin.TopicOptions{Replication: 1, MinInSync: 1}, "1", "", ""},
		"fewer than configured": {admin.TopicOptions{Replication: 3, MinInSync: 1}, "1", "",
			"find topics with fewer replicas than kafka.replication"},
		"fewer than an acknowledgement means": {admin.TopicOptions{Replication: 3, MinInSync: 2}, "2",
			"has 1 replica, so acknowledged records would be on 1 only, but kafka.min_insync is 2: add replicas", ""},
		"fewer than the topic's own minimum, which the brokers lower": {admin.TopicOptions{Replication: 1, MinInSync: 1},
			"2", "", ""},
		"a lower minimum than configured": {admin.TopicOptions{Replication: 3, MinInSync: 2}, "1",
			"millrace.changes: min.insync.replicas is 1, want at least 2 (kafka.min_insync): raise it", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{NoTopics: true, Partitions: 2})
				b.MakeTopic(schemas.Changes, 2, map[string]string{"retention.ms": "-1", "retention.bytes": "-1",
					"max.message.bytes": "4000000", "min.insync.replicas": tt.setting,
					"message.timestamp.type": "LogAppendTime"})
				// The first call makes the other topics.
				_ = admin.EnsureTopics(t.Context(), b.Config(), admin.TopicOptions{Partitions: 2, MinInSync: tt.o.MinInSync})
				cfg, lines := b.Config(), new(logtest.Lines)
				cfg.Log = lines.Log()
				tt.o.Partitions = 2
				err := admin.EnsureTopics(t.Context(), cfg, tt.o)
				if tt.err == "" && err != nil ||
					tt.err != "" && (!errors.Is(err, admin.ErrTopics) || !strings.Contains(err.Error(), tt.err)) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				if tt.log != "" && lines.Count(tt.log) != 1 || tt.log == "" && lines.String() != "" {
					t.Errorf("logged %q, want %q", lines, tt.log)
				}
			})
		})
	}
}
