package kafka_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// keep saves the positions of all groups.
func keep(t *testing.T, b *kafkatest.Broker) []schemas.Message {
	t.Helper()
	adm, err := admin.New(b.Config())
	must(t, err)
	defer adm.Close()
	msgs, err := adm.OffsetCheckpoints(t.Context())
	must(t, err)
	b.Send(msgs...)
	return msgs
}

// A group without committed offsets continues from its latest checkpoint, if the topic is the same one. It
// handles again what it has handled since, and skips nothing.
func TestGroupRestoresItsPositions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		since  bool                    // another record was handled after the checkpoint
		forget bool                    // the committed offsets are lost
		change func(*kafkatest.Broker) // before the group returns
		want   string                  // items handled then
		says   string
	}{
		"forgotten": {forget: true, want: "new", says: "restore offset of a group from its checkpoint"},
		"forgotten, and moved since": {forget: true, since: true, want: "c new",
			says: "restore offset of a group from its checkpoint"},
		"not forgotten": {since: true, want: "new"},
		"of a topic that is no more": {forget: true, change: func(b *kafkatest.Broker) { b.Recreate(schemas.Changes, 1) },
			want: "new", says: "read recreated topic"},
		"the checkpoint cannot be read for a while": {forget: true, change: func(b *kafkatest.Broker) {
			b.FailFetch(schemas.Checkpoints, kafkatest.NotDone, 20)
		}, want: "new", says: "restore offset of a group from its checkpoint"},
		"the checkpoint is gone": {forget: true, change: func(b *kafkatest.Broker) { b.Recreate(schemas.Checkpoints, 1) },
			want: "a b new"},
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
						log logtest.Lines
					)
					cfg := b.Config()
					cfg.Log = log.Log()
					once := func() string {
						part, err := reader(cfg, &h)
						must(t, err)
						must(t, parttest.Run(t, time.Minute, part))
						return strings.Join(h.take(), " ")
					}
					b.Send(parttest.Change("a"), parttest.Change("b"))
					once()
					keep(t, b)
					if tt.since {
						b.Send(parttest.Change("c"))
						once()
					}
					if tt.forget {
						group := "millrace." + string(schemas.RolePlanner)
						if kind == "BatchGroup" {
							group = "millrace." + string(schemas.RoleSink)
						}
						if _, err := parttest.Kadm(t, cfg).DeleteGroup(t.Context(), group); err != nil {
							t.Fatal(err)
						}
					}
					if tt.change != nil {
						tt.change(b)
					}
					b.Send(parttest.Change("new"))
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

// Records that were removed after a checkpoint, before the group returned, are reported and not skipped silently.
func TestCheckpointBelowTheLogStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"))
		must(t, parttest.Run(t, time.Minute, parttest.Planner(t, b, parttest.Plan)))
		keep(t, b)
		if _, err := parttest.Kadm(t, b.Config()).DeleteGroup(t.Context(), "millrace.planner"); err != nil {
			t.Fatal(err)
		}
		b.Send(parttest.Numbered(10, 10)...)
		b.Trim(schemas.Changes, 0, 5)
		if err := parttest.Run(t, time.Minute, parttest.Planner(t, b, parttest.Plan)); err == nil ||
			!strings.Contains(err.Error(), "--reset-offsets --to-earliest") {
			t.Errorf("ended: %v", err)
		}
	})
}

// Positions returns checkpoints of groups whose positions differ from the saved ones, also if a slower process
// has saved old ones.
func TestPositionsOfChangedGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		if got := keep(t, b); len(got) != 0 {
			t.Errorf("%d positions of groups that have committed nothing", len(got))
		}
		b.Send(parttest.Change("a"))
		once(t, b.Config())
		first := keep(t, b)
		time.Sleep(time.Hour)
		if again := keep(t, b); len(first) != 1 || len(again) != 0 {
			t.Errorf("%d on record at first, %d more an hour later", len(first), len(again))
		}
		parttest.Commit(t, b.Config(), "millrace.planner", schemas.Changes, 0)
		moved := keep(t, b)
		if len(moved) != 1 || moved[0].Body.GetId() == first[0].Body.GetId() {
			t.Errorf("%v after %v, though the group has moved", moved, first)
		}
		b.Send(first...)
		if again := keep(t, b); len(again) != 1 || again[0].Body.GetId() != moved[0].Body.GetId() {
			t.Errorf("%v, want %v once more", again, moved)
		}
		if got := keep(t, b); len(got) != 0 {
			t.Errorf("%v though nothing has moved", got)
		}
	})
}

// forget deletes the committed offsets of the planner's group.
func forget(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	if _, err := parttest.Kadm(t, b.Config()).DeleteGroup(t.Context(), "millrace.planner"); err != nil {
		t.Fatal(err)
	}
}

// once runs a Pool over changes for a minute, and returns the items that it handled.
func once(t *testing.T, cfg client.Config) string {
	t.Helper()
	var h handled
	part, err := readers()["Pool"](cfg, &h)
	must(t, err)
	must(t, parttest.Run(t, time.Minute, part))
	return strings.Join(h.take(), " ")
}

// A checkpoint keeps the saved offsets of partitions without a commit: a group that was restored from its
// checkpoint commits only partitions in which it handles records.
func TestCheckpointKeepsQuietPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
		writeBatches(t, b, 0, "a", "b")
		writeBatches(t, b, 1, "c", "d")
		if got := once(t, b.Config()); got != "a b c d" {
			t.Fatalf("handled %s", got)
		}
		keep(t, b)
		for i, forgotten := range []bool{true, false, true, true} {
			if forgotten {
				forget(t, b)
			}
			writeBatches(t, b, 0, "new") // partition 1 gets no record
			if got := once(t, b.Config()); got != "new" {
				t.Errorf("handled %s after restart %d, want new", got, i)
			}
			keep(t, b)
		}
		writeBatches(t, b, 1, "e")
		if got := once(t, b.Config()); got != "e" {
			t.Errorf("handled %s of the quiet partition, want e", got)
		}
	})
}

// Damaged checkpoints stop no group: readable ones count, and unreadable ones are logged.
func TestDamagedCheckpoints(t *testing.T) {
	t.Parallel()
	damage := func(_ *testing.T, b *kafkatest.Broker) { b.WriteDamaged(schemas.Checkpoints, 0, 2) }
	corrupt := func(_ *testing.T, b *kafkatest.Broker) { b.Corrupt(schemas.Checkpoints) }
	garbage := func(_ *testing.T, b *kafkatest.Broker) {
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints,
			Key: []byte("positions/millrace.planner"), Value: []byte("{")}})
	}
	kept := func(t *testing.T, b *kafkatest.Broker) { keep(t, b) }
	for name, tt := range map[string]struct {
		writes []func(*testing.T, *kafkatest.Broker) // to topic checkpoints, between two runs
		want   string
		says   string
	}{
		"a batch before the checkpoint": {[]func(*testing.T, *kafkatest.Broker){damage, kept}, "new",
			"skip unreadable batch"},
		"a batch behind the checkpoint": {[]func(*testing.T, *kafkatest.Broker){kept, damage}, "new",
			"skip unreadable batch"},
		"two batches, and no checkpoint": {[]func(*testing.T, *kafkatest.Broker){damage, damage},
			"a b new", "skip unreadable batch"},
		"the broker finds the damage": {[]func(*testing.T, *kafkatest.Broker){kept, corrupt},
			"a b new", "skip unreadable batch"},
		"a record behind the checkpoint": {[]func(*testing.T, *kafkatest.Broker){kept, garbage}, "new",
			"skip unreadable checkpoint"},
		"a record, and no checkpoint": {[]func(*testing.T, *kafkatest.Broker){garbage}, "a b new",
			"skip unreadable checkpoint"},
		"a record before the checkpoint": {[]func(*testing.T, *kafkatest.Broker){garbage, kept}, "new",
			"skip unreadable checkpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				writeBatches(t, b, 0, "a", "b")
				once(t, b.Config())
				for _, write := range tt.writes {
					write(t, b)
				}
				forget(t, b)
				writeBatches(t, b, 0, "new")
				var log logtest.Lines
				cfg := b.Config()
				cfg.Log = log.Log()
				if got := once(t, cfg); got != tt.want {
					t.Errorf("handled %q, want %q", got, tt.want)
				}
				if n := strings.Count(log.String(), "\n"); n > 20 || !strings.Contains(log.String(), tt.says) {
					t.Errorf("%d lines of log, which are to say %q:\n%s", n, tt.says, &log)
				}
			})
		})
	}
}

// A topic that is missing in lists, or unknown for a while, does not count as deleted. Nothing is read until the
// positions are known.
func TestCheckpointsMissingInLists(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*kafkatest.Broker){
		"the topic is not listed":    func(b *kafkatest.Broker) { b.FailLists(schemas.Changes) },
		"checkpoints are not listed": func(b *kafkatest.Broker) { b.FailLists(schemas.Checkpoints) },
		"checkpoints are not known for a while": func(b *kafkatest.Broker) {
			b.FailMetadata(schemas.Checkpoints, kafkatest.NotDone, 5)
		},
		"checkpoints time out for a while": func(b *kafkatest.Broker) {
			b.FailMetadata(schemas.Checkpoints, kafkatest.DoneNotAcknowledged, 5)
		},
		"the offsets of checkpoints are unknown": func(b *kafkatest.Broker) {
			b.FailListOffsets(schemas.Checkpoints, kafkatest.NotDone, 5)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				writeBatches(t, b, 0, "a", "b")
				once(t, b.Config())
				keep(t, b)
				forget(t, b)
				writeBatches(t, b, 0, "new")
				fault(b)
				if got := once(t, b.Config()); got != "new" {
					t.Errorf("handled %s, want new", got)
				}
			})
		})
	}
}

// A process that may not read checkpoints does not read from the log start: it ends with an error that names the topic.
func TestCheckpointsWithoutPermission(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*kafkatest.Broker) func(){
		"described": func(b *kafkatest.Broker) func() { return b.FailMetadata(schemas.Checkpoints, kafkatest.Refused, -1) },
		"read":      func(b *kafkatest.Broker) func() { return b.FailFetch(schemas.Checkpoints, kafkatest.Refused, -1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				writeBatches(t, b, 0, "a", "b")
				once(t, b.Config())
				keep(t, b)
				forget(t, b)
				fault(b)
				var h handled
				part, err := readers()["Pool"](b.Config(), &h)
				must(t, err)
				err = parttest.Run(t, time.Minute, part)
				if err == nil || !strings.Contains(err.Error(), "millrace.checkpoints") ||
					!errors.Is(err, kerr.TopicAuthorizationFailed) {
					t.Errorf("ended: %v", err)
				}
				if got := h.take(); len(got) > 0 {
					t.Errorf("handled %v", got)
				}
			})
		})
	}
}

// In a pass-through topic a group continues from the log start if that is after its checkpoint. Only records that
// the group has committed are removed there.
func TestCheckpointOfAPassThroughTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		send := func(items ...string) {
			for _, item := range items {
				rec := messageRecord(t, parttest.Change(item))
				to := schemas.Record{Topic: schemas.Again(schemas.RolePlanner), Key: rec.Key, Value: rec.Value}
				for _, h := range rec.Headers {
					to.Headers = append(to.Headers, schemas.Header{Key: h.Key, Value: h.Value})
				}
				to.Headers = append(to.Headers, schemas.Header{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.Changes)},
					schemas.Header{Key: schemas.HeaderRole, Value: []byte(schemas.RolePlanner)})
				b.Write(kafkatest.Record{Record: to, Partition: 0})
			}
		}
		b.Send(parttest.Change("x"))
		send("a", "b")
		once(t, b.Config())
		keep(t, b)
		send("c", "d", "e") // before the next checkpoint
		once(t, b.Config())
		if _, err := parttest.Trimmer(t, b.Config(), 14*24*time.Hour).Trim(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := parttest.LogStarts(t, b.Config(), schemas.Again(schemas.RolePlanner))[0]; at != 4 {
			t.Fatalf("the log starts at %d", at)
		}
		forget(t, b)
		if got := once(t, b.Config()); got != "e" { // the latest record stays in the log
			t.Errorf("handled %q, want e", got)
		}
		if got := b.Bodies(schemas.Incidents); len(got) > 0 {
			t.Errorf("incidents %v", got)
		}
	})
}

// The same holds for the Delayer's lanes.
func TestCheckpointOfALane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: parttest.QuickLanes()})
		lane := schemas.Delay(parttest.QuickLanes()[0].Name)
		pass := func(n int) {
			for range n {
				rec := messageRecord(t, parttest.Change("a"))
				to := schemas.Record{Topic: lane, Key: rec.Key, Value: rec.Value}
				to.Headers = []schemas.Header{{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.Changes)},
					{Key: schemas.HeaderRole, Value: []byte(schemas.RolePlanner)}}
				b.Write(kafkatest.Record{Record: to, Partition: 0})
			}
			must(t, parttest.Run(t, time.Minute, parttest.Delayer(t, b)))
		}
		pass(2)
		keep(t, b)
		pass(3)
		if _, err := parttest.Trimmer(t, b.Config(), 14*24*time.Hour).Trim(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := parttest.LogStarts(t, b.Config(), lane)[0]; at != 4 {
			t.Fatalf("the log starts at %d", at)
		}
		if _, err := parttest.Kadm(t, b.Config()).DeleteGroup(t.Context(), "millrace.delayer"); err != nil {
			t.Fatal(err)
		}
		pass(0)
		if n := len(b.Read(schemas.Again(schemas.RolePlanner))); n != 6 { // the latest record stays in the lane
			t.Errorf("%d records came back, want 6", n)
		}
	})
}
