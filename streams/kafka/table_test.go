package kafka_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

func checkpoint(sweep, cursor string) schemas.Message {
	return schemas.Message{Topic: schemas.Checkpoints,
		Body: &pb.Checkpoint{Id: schemas.ID(sweep, cursor), Sweep: sweep, Cursor: []byte(cursor)}}
}

func tombstone(sweep string) kafkatest.Record {
	return kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints, Key: []byte(schemas.Key(sweep, ""))},
		Partition: -1}
}

// cursors is a table's apply function and its state.
type cursors struct {
	mu sync.Mutex
	m  map[string]string
}

func (c *cursors) apply(key []byte, d *schemas.Delivery) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[string]string{}
	}
	if d.Body == nil {
		delete(c.m, string(key))
		return nil
	}
	c.m[string(key)] = string(d.Body.(*pb.Checkpoint).GetCursor())
	return nil
}

func (c *cursors) check(t *testing.T, want map[string]string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.m, want) {
		t.Errorf("got %v, want %v", c.m, want)
	}
}

func newTable(t *testing.T, b *kafkatest.Broker, apply func([]byte, *schemas.Delivery) error) *kafka.Table {
	t.Helper()
	tb, err := kafka.NewTable(b.Config(), schemas.Checkpoints, apply)
	must(t, err)
	return tb
}

// A Table has all existing records when it is ready, and follows later ones.
func TestTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{})
		b.Send(checkpoint("a", "1"), checkpoint("b", "1"), checkpoint("a", "2"), checkpoint("c", "1"))
		b.Write(tombstone("c"), kafkatest.Record{Record: schemas.Record{Topic: schemas.Checkpoints,
			Key: []byte("x"), Value: []byte("poison")}, Partition: -1})
		var got cursors
		tb := newTable(t, b, got.apply)
		unreadable := map[string]error{}
		tb.OnUnreadable(func(key []byte, at time.Time, cause error) {
			if age := time.Since(at); age < 0 || age > time.Minute {
				t.Errorf("%s: dated %v", key, at)
			}
			unreadable[string(key)] = cause
		})
		parttest.Background(t, tb)
		select {
		case <-tb.Ready():
		case <-time.After(time.Minute):
			t.Fatal("not ready")
		}
		got.check(t, map[string]string{"a/": "2", "b/": "1"})
		if len(unreadable) != 1 || unreadable["x"] == nil {
			t.Errorf("unreadable: %v, want x", unreadable)
		}
		if n := tb.Malformed(); n != 1 {
			t.Errorf("%d malformed, want 1", n)
		}
		b.Send(checkpoint("a", "3"))
		b.Write(tombstone("b"))
		time.Sleep(10 * time.Second)
		got.check(t, map[string]string{"a/": "3"})
	})
}

// Ready is closed for a topic that is empty, trimmed to the end, or compacted; and not before the brokers are
// reachable.
func TestTableReady(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		prepare func(b *kafkatest.Broker)
		want    map[string]string
	}{
		"empty": {func(*kafkatest.Broker) {}, nil},
		"trimmed": {func(b *kafkatest.Broker) {
			b.Send(checkpoint("a", "1"))
			for p := range int32(4) {
				for _, r := range b.Read(schemas.Checkpoints) {
					if r.Partition == p {
						b.Trim(schemas.Checkpoints, p, r.Offset+1)
					}
				}
			}
		}, nil},
		"compacted": {func(b *kafkatest.Broker) {
			for _, v := range []string{"1", "2", "3", "4"} {
				b.Send(checkpoint("a", v))
				b.Send(checkpoint("b", v))
			}
			b.Compact()
		}, map[string]string{"a/": "4", "b/": "4"}},
		"brokers unavailable": {func(b *kafkatest.Broker) {
			b.Send(checkpoint("a", "1"))
			mend := b.Disconnect()
			time.AfterFunc(20*time.Second, mend)
		}, map[string]string{"a/": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				tt.prepare(b)
				var got cursors
				tb := newTable(t, b, got.apply)
				parttest.Background(t, tb)
				select {
				case <-tb.Ready():
				case <-time.After(5 * time.Minute):
					t.Fatal("not ready")
				}
				got.check(t, tt.want)
			})
		})
	}
}

// Records that apply rejects permanently are skipped. Any other error ends Run.
func TestTableApplyFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err   error
		stops bool
	}{
		"permanent": {retry.Permanent(errors.New("no such thing")), false},
		"transient": {errors.New("no room"), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{})
				b.Send(checkpoint("a", "1"))
				tb := newTable(t, b, func([]byte, *schemas.Delivery) error { return tt.err })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := tb.Run(ctx); (err != nil) != tt.stops || tt.stops && !errors.Is(err, tt.err) {
					t.Errorf("Run = %v", err)
				}
			})
		})
	}
}
