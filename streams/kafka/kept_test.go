package kafka_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

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
					cfg.Log = slog.New(slog.NewTextHandler(&lockedBuffer{w: &log}, nil))
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

// A group's positions are put on record if they are not what is on record: also of what another process, which was
// slower, has put there.
func TestPositionsThatAreNotOnRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		if got := keep(t, b); len(got) != 0 {
			t.Errorf("%d positions of groups that have committed nothing", len(got))
		}
		b.Send(change("a"))
		once(t, b.Config())
		first := keep(t, b)
		time.Sleep(time.Hour)
		if again := keep(t, b); len(first) != 1 || len(again) != 0 {
			t.Errorf("%d on record at first, %d more an hour later", len(first), len(again))
		}
		commit(t, b.Config(), "millrace.planner", schemas.Changes, 0)
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

// forget has the brokers forget what the planner's group has committed.
func forget(t *testing.T, b *kafkatest.Broker) {
	t.Helper()
	if _, err := admin(t, b.Config()).DeleteGroup(t.Context(), "millrace.planner"); err != nil {
		t.Fatal(err)
	}
}

// once runs a Pool over changes for a minute, and returns what it handled.
func once(t *testing.T, cfg kafka.Config) string {
	t.Helper()
	var h handled
	part, err := readers()["Pool"](cfg, &h)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t, time.Minute, part); err != nil {
		t.Fatal(err)
	}
	return strings.Join(h.take(), " ")
}

// A checkpoint has what the one before knew of partitions without a commit: a group that went on from a checkpoint commits
// only partitions of which it handles something.
func TestCheckpointOfQuietPartitions(t *testing.T) {
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
			writeBatches(t, b, 0, "new") // partition 1 is quiet
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

// Damage in checkpoints keeps no group from its work: what can be read is believed, and the log says what cannot.
func TestDamagedCheckpoints(t *testing.T) {
	t.Parallel()
	damage := func(_ *testing.T, b *kafkatest.Broker) { b.WriteDamaged(schemas.Checkpoints, 0, 2) }
	corrupt := func(_ *testing.T, b *kafkatest.Broker) { b.Corrupt(schemas.Checkpoints) }
	garbage := func(_ *testing.T, b *kafkatest.Broker) {
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints, Key: []byte("positions/millrace.planner"), Value: []byte("{")}})
	}
	kept := func(t *testing.T, b *kafkatest.Broker) { keep(t, b) }
	for name, tt := range map[string]struct {
		writes []func(*testing.T, *kafkatest.Broker) // to checkpoints, between the work of two processes
		want   string
		says   string
	}{
		"a batch before the checkpoint":  {[]func(*testing.T, *kafkatest.Broker){damage, kept}, "new", "pass over a batch"},
		"a batch behind the checkpoint":  {[]func(*testing.T, *kafkatest.Broker){kept, damage}, "new", "pass over a batch"},
		"two batches, and no checkpoint": {[]func(*testing.T, *kafkatest.Broker){damage, damage}, "a b new", "pass over a batch"},
		"the broker finds the damage":    {[]func(*testing.T, *kafkatest.Broker){kept, corrupt}, "a b new", "pass over a batch"},
		"a record behind the checkpoint": {[]func(*testing.T, *kafkatest.Broker){kept, garbage}, "new", "pass over a checkpoint"},
		"a record, and no checkpoint":    {[]func(*testing.T, *kafkatest.Broker){garbage}, "a b new", "pass over a checkpoint"},
		"a record before the checkpoint": {[]func(*testing.T, *kafkatest.Broker){garbage, kept}, "new", "pass over a checkpoint"},
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
				var log bytes.Buffer
				cfg := b.Config()
				cfg.Log = slog.New(slog.NewTextHandler(&lockedBuffer{w: &log}, nil))
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

// What the brokers do not list, or not for a while, is not taken for absent: nothing is read before it is known where the
// group was.
func TestCheckpointsThatAreNotListed(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*kafkatest.Broker){
		"the topic is not listed":                func(b *kafkatest.Broker) { b.FailLists(schemas.Changes) },
		"checkpoints are not listed":             func(b *kafkatest.Broker) { b.FailLists(schemas.Checkpoints) },
		"checkpoints are not known for a while":  func(b *kafkatest.Broker) { b.FailMetadata(schemas.Checkpoints, kafkatest.NotDone, 5) },
		"checkpoints time out for a while":       func(b *kafkatest.Broker) { b.FailMetadata(schemas.Checkpoints, kafkatest.DoneButLost, 5) },
		"the offsets of checkpoints are unknown": func(b *kafkatest.Broker) { b.FailListOffsets(schemas.Checkpoints, kafkatest.NotDone, 5) },
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

// Who may not read checkpoints does not read from the start, but ends with an error that names the topic.
func TestCheckpointsThatMayNotBeRead(t *testing.T) {
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
				if err != nil {
					t.Fatal(err)
				}
				err = run(t, time.Minute, part)
				if err == nil || !strings.Contains(err.Error(), "millrace.checkpoints") || !errors.Is(err, kerr.TopicAuthorizationFailed) {
					t.Errorf("ended: %v", err)
				}
				if got := h.take(); len(got) > 0 {
					t.Errorf("handled %v", got)
				}
			})
		})
	}
}

// A group goes on from the start of the log of a topic whose records come and go, if that is above its checkpoint: only
// records that the group has committed are removed from there.
func TestCheckpointOfAPassingTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		send := func(items ...string) {
			for _, item := range items {
				rec := messageRecord(t, change(item))
				to := schemas.Record{Topic: schemas.Again(schemas.RolePlanner), Key: rec.Key, Value: rec.Value}
				for _, h := range rec.Headers {
					to.Headers = append(to.Headers, schemas.Header{Key: h.Key, Value: h.Value})
				}
				to.Headers = append(to.Headers, schemas.Header{Key: schemas.TrailTopic, Value: []byte(schemas.Changes)},
					schemas.Header{Key: schemas.TrailRole, Value: []byte(schemas.RolePlanner)})
				b.Write(kafkatest.Record{Record: to, Partition: 0})
			}
		}
		b.Send(change("x"))
		send("a", "b")
		once(t, b.Config())
		keep(t, b)
		send("c", "d", "e") // before the next checkpoint
		once(t, b.Config())
		if _, err := trimmer(t, b.Config(), 14*24*time.Hour).Trim(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := starts(t, b.Config(), schemas.Again(schemas.RolePlanner))[0]; at != 4 {
			t.Fatalf("the log starts at %d", at)
		}
		forget(t, b)
		if got := once(t, b.Config()); got != "e" { // the newest record stays in the log
			t.Errorf("handled %q, want e", got)
		}
		if got := b.Bodies(schemas.Incidents); len(got) > 0 {
			t.Errorf("incidents %v", got)
		}
	})
}

// The same holds for the lanes of the Delayer.
func TestCheckpointOfALane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1, Lanes: quickLanes()})
		lane := schemas.Delay(quickLanes()[0].Name)
		pass := func(n int) {
			for range n {
				rec := messageRecord(t, change("a"))
				to := schemas.Record{Topic: lane, Key: rec.Key, Value: rec.Value}
				to.Headers = []schemas.Header{{Key: schemas.TrailTopic, Value: []byte(schemas.Changes)},
					{Key: schemas.TrailRole, Value: []byte(schemas.RolePlanner)}}
				b.Write(kafkatest.Record{Record: to, Partition: 0})
			}
			if err := run(t, time.Minute, delayer(t, b)); err != nil {
				t.Fatal(err)
			}
		}
		pass(2)
		keep(t, b)
		pass(3)
		if _, err := trimmer(t, b.Config(), 14*24*time.Hour).Trim(t.Context()); err != nil {
			t.Fatal(err)
		}
		if at := starts(t, b.Config(), lane)[0]; at != 4 {
			t.Fatalf("the log starts at %d", at)
		}
		if _, err := admin(t, b.Config()).DeleteGroup(t.Context(), "millrace.delayer"); err != nil {
			t.Fatal(err)
		}
		pass(0)
		if n := len(b.Read(schemas.Again(schemas.RolePlanner))); n != 6 { // the newest record stays in the lane
			t.Errorf("%d records came back, want 6", n)
		}
	})
}
