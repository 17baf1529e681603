package admin_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// EnsureTopics finds no difference in topics that it has created.
func TestEnsureTopics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 3})
		for range 2 {
			must(t, admin.EnsureTopics(t.Context(), b.Config(), admin.TopicOptions{Partitions: 5, MinInSync: 1}))
		}
		adm, err := admin.New(b.Config())
		must(t, err)
		defer adm.Close()
		for topic, want := range map[schemas.Topic]int{"changes": 3, "incidents": 4, "delay.30s": 3, "again.copier": 3} {
			if got, err := adm.EndOffsets(t.Context(), topic); err != nil || len(got) != want {
				t.Errorf("%s: %d partitions, %v, want %d", topic, len(got), err, want)
			}
		}
	})
}

// Brokers may learn of a new topic late. A topic that stays unknown is an error.
func TestEnsureTopicsWaitsForBrokers(t *testing.T) {
	t.Parallel()
	for times, want := range map[int]bool{3: true, -1: false} {
		synctest.Test(t, func(t *testing.T) {
			b := kafkatest.New(t, kafkatest.Options{Partitions: 3})
			b.FailDescribe(schemas.Jobs, times)
			err := admin.EnsureTopics(t.Context(), b.Config(), admin.TopicOptions{Partitions: 3})
			if known := err == nil; known != want || !known &&
				!strings.Contains(err.Error(), "millrace.jobs: describe: UNKNOWN_TOPIC_OR_PARTITION") {
				t.Errorf("unknown %d times: %v", times, err)
			}
		})
	}
}

// The error names every difference from the catalogue, and nothing is changed.
func TestEnsureTopicsDifferences(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{NoTopics: true})
		forever := func(more map[string]string) map[string]string {
			m := map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1",
				"max.message.bytes": "4000000", "message.timestamp.type": "LogAppendTime"}
			maps.Copy(m, more)
			return m
		}
		b.MakeTopic(schemas.Changes, 2, forever(map[string]string{"cleanup.policy": "compact"}))
		b.MakeTopic(schemas.FixityHigh, 2, forever(map[string]string{"retention.ms": "86400000"}))
		b.MakeTopic(schemas.Admin, 2, forever(map[string]string{"retention.ms": "86400000", // set by an operator
			"message.timestamp.type": "CreateTime"}))
		b.MakeTopic(schemas.Reports, 2, map[string]string{
			"max.message.bytes": "4000000", "message.timestamp.type": "LogAppendTime"})
		b.MakeTopic(schemas.Incidents, 2, forever(nil))
		b.MakeTopic(schemas.Deletions, 7, forever(nil))
		b.MakeTopic(schemas.DuplicationResults, 3, forever(nil))
		b.MakeTopic(schemas.Delay("5m"), 2, forever(map[string]string{"max.message.bytes": "1000",
			"message.timestamp.type": "CreateTime"}))
		err := admin.EnsureTopics(t.Context(), b.Config(), admin.TopicOptions{Partitions: 2})
		if err == nil {
			t.Fatal("no error")
		}
		for _, want := range []string{
			"millrace.changes: cleanup.policy is compact, want delete",
			"millrace.fixity.high: retention.ms is 86400000, want -1",
			"millrace.reports: retention.ms is 604800000, want -1",
			"millrace.incidents: cleanup.policy is delete, want compact",
			"millrace.incidents: has 2 partitions, want 4",
			"millrace.again.deleter: has 2 partitions, but millrace.deletions has 7",
			"millrace.backlog.deleter: has 2 partitions, but millrace.deletions has 7",
			"millrace.duplication.results: has 3 partitions, but millrace.fixity.results has 2",
			"millrace.delay.5m: max.message.bytes is 1000, want at least 2097152",
			"millrace.admin, millrace.delay.5m: message.timestamp.type is CreateTime, want LogAppendTime",
			"millrace.incidents: min.compaction.lag.ms is unknown, want at least 1209600000",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("not named: %s", want)
			}
		}
		if n := strings.Count(err.Error(), "\n") + 1; n != 11 {
			t.Errorf("%d contradictions, want 11:\n%v", n, err)
		}
	})
}

// Publish returns when all messages are acknowledged. It fails before it sends anything if one can never be sent,
// and does not block for ever.
func TestProducer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		p, err := kafka.NewProducer(b.Config(), "test/emit")
		must(t, err)
		defer p.Close()
		must(t, p.Publish(t.Context(), parttest.Numbered(100, 100)...))
		recs := b.Read(schemas.Changes)
		if len(recs) != 100 || recs[0].Header(schemas.HeaderSource) != "test/emit" {
			t.Errorf("%d records from %q", len(recs), recs[0].Header(schemas.HeaderSource))
		}
		big := parttest.Change("a")
		big.Body.(*pb.Change).Properties = map[string]string{}
		for i := range 40 {
			big.Body.(*pb.Change).Properties[fmt.Sprint(i)] = strings.Repeat("x", 8<<10)
		}
		if err := p.Publish(t.Context(), parttest.Change("a"), big); !retry.IsPermanent(err) || !errors.Is(err,
			schemas.ErrTooLarge) {
			t.Errorf("too large: %v", err)
		}
		if n := len(b.Read(schemas.Changes)); n != 100 {
			t.Errorf("%d records, though one could not be encoded", n)
		}
		mend := b.FailProduce(schemas.Changes, kafkatest.NotDone, -1)
		start := time.Now()
		if err := p.Publish(t.Context(), parttest.Change("a")); err == nil || retry.IsPermanent(err) {
			t.Errorf("refused for long: %v", err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("gave up after %v", took)
		}
		mend()
		mend = b.Disconnect()
		start = time.Now()
		if err := p.Publish(t.Context(), parttest.Change("a")); err == nil || retry.IsPermanent(err) {
			t.Errorf("cut off: %v", err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("gave up after %v", took)
		}
		mend()
		if err := p.Publish(t.Context(), parttest.Change("a")); err != nil {
			t.Errorf("mended: %v", err)
		}
	})
}

// Lag counts uncommitted records, from the log start if nothing is committed.
func TestLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Numbered(10, 10)...)
		b.Trim(schemas.Changes, 0, 4)
		adm, err := admin.New(b.Config())
		must(t, err)
		defer adm.Close()
		check := func(want map[schemas.Role]int64) {
			t.Helper()
			got, err := adm.Lag(t.Context(), schemas.RolePlanner, schemas.RoleCopier, schemas.RoleState)
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("got %v, %v, want %v", got, err, want)
			}
		}
		check(map[schemas.Role]int64{"planner": 6, "copier": 0, "state": 6})
		must(t, parttest.Run(t, 10*time.Second, parttest.Planner(t, b, parttest.Plan)))
		check(map[schemas.Role]int64{"planner": 0, "copier": 6, "state": 6})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := parttest.Committed(ctx, adm, schemas.Changes, schemas.RolePlanner); err != nil {
			t.Errorf("wait for the planner: %v", err)
		}
		if err := parttest.Committed(ctx, adm, schemas.Changes, schemas.RolePlanner, schemas.RoleState); err == nil {
			t.Error("did not wait for the state")
		}
	})
}

// The broker sets the timestamps of all topics, whatever the clocks of producers say. A compacted topic that a group
// reads has a compaction lag of 14 days; a longer one of an existing topic is accepted.
func TestTimesOfTopics(t *testing.T) {
	t.Parallel()
	for _, lag := range []string{"", "1209600001"} { // "": no topic
		synctest.Test(t, func(t *testing.T) {
			b := kafkatest.New(t, kafkatest.Options{NoTopics: true})
			if lag != "" {
				b.MakeTopic(schemas.Incidents, 4, map[string]string{
					"cleanup.policy": "compact", "max.message.bytes": "4000000", "min.compaction.lag.ms": lag,
					"message.timestamp.type": "LogAppendTime"})
			}
			must(t, admin.EnsureTopics(t.Context(), b.Config(), admin.TopicOptions{Partitions: 2}))
			for topic, want := range map[schemas.Topic]string{schemas.Incidents: cmp.Or(lag, "1209600000"),
				schemas.Controls: "", schemas.Checkpoints: "", schemas.Policies: ""} {
				if got := b.Setting(topic, "min.compaction.lag.ms"); got != want {
					t.Errorf("%s has the lag %q, want %q", topic, got, want)
				}
			}
			for _, e := range schemas.Catalogue(b.Config().LaneNames()...) {
				for name, at := range map[string]time.Time{
					"slow": time.Now().AddDate(-1, 0, 0), "fast": time.Now().AddDate(1, 0, 0)} {
					b.Write(kafkatest.Record{Record: schemas.Record{Topic: e.Topic, Key: []byte("acme")}, Timestamp: at})
					all := b.Read(e.Topic)
					if got := all[len(all)-1].Timestamp; time.Since(got) < 0 || time.Since(got) > time.Minute {
						t.Errorf("%s: a %s writer's record is dated %v, want %v", e.Topic, name, got, time.Now())
					}
				}
			}
		})
	}
}

// While partitions are added topic by topic, only a role that needs the same number in all of its topics refuses
// to start, and a command without roles. More than configured in the topics of the steward are logged.
func TestUnequalPartitions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		roles   []schemas.Role
		refused bool
	}{
		"any":                   {nil, true},
		"the steward":           {[]schemas.Role{schemas.RoleIngester, schemas.RoleSteward}, true},
		"the sink and ingester": {[]schemas.Role{schemas.RoleSink, schemas.RoleIngester}, false},
		"the deleter":           {[]schemas.Role{schemas.RoleDeleter}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{NoTopics: true, Partitions: 2})
				b.MakeTopic(schemas.Admin, 3, map[string]string{"retention.ms": "-1", "retention.bytes": "-1",
					"max.message.bytes": "4000000", "message.timestamp.type": "LogAppendTime"})
				err := admin.EnsureTopics(t.Context(), b.Config(), admin.TopicOptions{Partitions: 2, Roles: tt.roles})
				if refused := err != nil && strings.Contains(err.Error(),
					"millrace.admin: has 3 partitions, but millrace.fixity.results has 2"); refused != tt.refused {
					t.Errorf("got %v, want a refusal: %v", err, tt.refused)
				}
				for configured, want := range map[int32]int{1: 1, 2: 0, 3: 0} { // fixity.results has 2
					cfg, lines := b.Config(), new(logtest.Lines)
					cfg.Log = lines.Log()
					_ = admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: configured, Roles: tt.roles})
					if lines.Count("topics must never get more") != want {
						t.Errorf("configured %d, logged %q, want %d warnings", configured, lines, want)
					}
				}
			})
		})
	}
}
