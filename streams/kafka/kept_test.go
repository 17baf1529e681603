package kafka_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// keep puts the positions of all groups on record.
func keep(t *testing.T, b *kafkatest.Broker) []schemas.Message {
	t.Helper()
	adm, err := kafka.NewAdmin(b.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	msgs, err := adm.Positions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Send(msgs...)
	return msgs
}

// A group whose offsets the brokers have forgotten goes on from its newest checkpoint, but only in the same topic; what
// it has handled since is handled again, and nothing is passed over.
func TestGroupGoesOnFromItsCheckpoint(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		since  bool                    // something was handled after the checkpoint
		forget bool                    // the offsets
		change func(*kafkatest.Broker) // before the group is back
		want   string                  // handled
		says   string
	}{
		"forgotten":                  {forget: true, want: "new", says: "go on from a checkpoint"},
		"forgotten, and moved since": {forget: true, since: true, want: "c new", says: "go on from a checkpoint"},
		"not forgotten":              {since: true, want: "new"},
		"of a topic that is no more": {forget: true, change: func(b *kafkatest.Broker) { b.Recreate(schemas.Changes, 1) }, want: "new", says: "made again"},
		"the checkpoint cannot be read for a while": {forget: true, change: func(b *kafkatest.Broker) {
			b.FailFetch(schemas.Checkpoints, kafkatest.NotDone, 20)
		}, want: "new", says: "go on from a checkpoint"},
		"the checkpoint is gone": {forget: true, change: func(b *kafkatest.Broker) { b.Recreate(schemas.Checkpoints, 1) }, want: "a b new"},
	} {
		for kind, reader := range readers() {
			if kind == "Table" {
				continue
			}
			t.Run(kind+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
					var (
						h   handled
						log bytes.Buffer
					)
					cfg := b.Config()
					cfg.Log = slog.New(slog.NewTextHandler(&locked{w: &log}, nil))
					once := func() string {
						part, err := reader(cfg, &h)
						if err != nil {
							t.Fatal(err)
						}
						if err := run(t, time.Minute, part); err != nil {
							t.Fatal(err)
						}
						return strings.Join(h.take(), " ")
					}
					b.Send(change("a"), change("b"))
					once()
					keep(t, b)
					if tt.since {
						b.Send(change("c"))
						once()
					}
					if tt.forget {
						group := "millrace." + string(schemas.RolePlanner)
						if kind == "BatchGroup" {
							group = "millrace." + string(schemas.RoleSink)
						}
						if _, err := admin(t, cfg).DeleteGroup(t.Context(), group); err != nil {
							t.Fatal(err)
						}
					}
					if tt.change != nil {
						tt.change(b)
					}
					b.Send(change("new"))
					if got := once(); got != tt.want {
						t.Errorf("handled %s, want %s", got, tt.want)
					}
					if tt.says != "" && !strings.Contains(log.String(), tt.says) {
						t.Errorf("the log does not say %q:\n%s", tt.says, &log)
					}
				})
			})
		}
	}
}

// What was removed below a checkpoint before the group was back is reported, and not passed over in silence.
func TestCheckpointBelowTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(change("a"))
		if err := run(t, time.Minute, planner(t, b, plan)); err != nil {
			t.Fatal(err)
		}
		keep(t, b)
		if _, err := admin(t, b.Config()).DeleteGroup(t.Context(), "millrace.planner"); err != nil {
			t.Fatal(err)
		}
		b.Send(numbered(10, 10)...)
		b.Trim(schemas.Changes, 0, 5)
		if err := run(t, time.Minute, planner(t, b, plan)); err == nil || !strings.Contains(err.Error(), "--reset-offsets --to-earliest") {
			t.Errorf("ended: %v", err)
		}
	})
}

// The positions of a group that has not moved are the same message.
func TestPositionsAreFunctionsOfCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		ids := func() (ids []string) {
			for _, m := range keep(t, b) {
				ids = append(ids, m.Body.GetId())
			}
			return ids
		}
		if got := ids(); len(got) != 0 {
			t.Errorf("%d positions of groups that have committed nothing", len(got))
		}
		b.Send(change("a"))
		if err := run(t, time.Minute, planner(t, b, plan)); err != nil {
			t.Fatal(err)
		}
		first := ids()
		time.Sleep(time.Hour)
		if again := ids(); len(first) != 1 || !slices.Equal(first, again) {
			t.Errorf("%v, and an hour later %v", first, again)
		}
		commit(t, b.Config(), "millrace.planner", schemas.Changes, 0)
		if moved := ids(); slices.Equal(first, moved) {
			t.Errorf("%v after the group has moved too", moved)
		}
	})
}
