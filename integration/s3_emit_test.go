package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/outbox"
)

// memoryPublisher publishes to memory, or is unavailable.
type memoryPublisher struct {
	mu          sync.Mutex
	unavailable bool
	changes     []*pb.Change
}

func (s *memoryPublisher) Publish(_ context.Context, messages ...schemas.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unavailable {
		return errors.New("unavailable")
	}
	s.changes = append(s.changes, messages[0].Body.(*pb.Change))
	return nil
}

func (s *memoryPublisher) setUnavailable(unavailable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unavailable = unavailable
}

// of returns the published operations of an item, each id once.
func (s *memoryPublisher) of(item string) (ops []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for _, c := range s.changes {
		if c.GetItem() == item && !ids[c.GetId()] {
			ids[c.GetId()] = true
			ops = append(ops, c.GetOp().String())
		}
	}
	return ops
}

// emitting is emit with an outbox on disk, over a new store.
func (r *realS3) emitting(t *testing.T, cfg outbox.Config, out schemas.Publisher) (*emit.Store, *outbox.File) {
	t.Helper()
	inner := r.spaced(t, r.config(t))
	must(t, inner.WriteMarker(t.Context()))
	cfg.Dir = t.TempDir()
	box, err := outbox.Open(cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := box.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := emit.New(inner, emit.Config{Account: "acme", Store: "1", Outbox: box, Retry: 20 * time.Millisecond,
		Wait: 20 * time.Millisecond}, out)
	must(t, err)
	return s, box
}

func putText(t *testing.T, s storage.Store, item, text string) error {
	t.Helper()
	_, err := s.Put(t.Context(), "s", item, strings.NewReader(text), storage.PutOptions{Size: int64(len(text))})
	return err
}

// flush publishes the remaining changes of the outbox.
func flush(t *testing.T, s *emit.Store, box *outbox.File) {
	t.Helper()
	harness.Eventually(t, time.Minute, "publish the remaining changes", func(ctx context.Context) error {
		err := s.Flush(ctx)
		if n := box.Stats().Pending; err == nil && n > 0 {
			err = fmt.Errorf("%d are pending", n)
		}
		return err
	})
}

// TestS3ServerKilled kills the server during a put. The put fails, no object exists and no Change is published. After a
// restart, puts work and earlier items exist.
func TestS3ServerKilled(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{harness.Versitygw, harness.MinIO} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: kind, Own: true}), false, false)
			out := &memoryPublisher{}
			s, box := r.emitting(t, outbox.Config{}, out)
			must(t, putText(t, s, "before", "it stays"))
			const size = 48 << 20 // in parts
			body := &killingReader{left: size, at: size / 2, kill: func() { r.Kill(t) }}
			o, err := s.Put(t.Context(), "s", "large", body, storage.PutOptions{Size: size})
			if err == nil {
				t.Fatalf("Put while the server was killed: got %+v", o)
			}
			for _, is := range []error{storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrChanged,
				storage.ErrDigest} {
				if errors.Is(err, is) {
					t.Errorf("Put while the server was killed: %v is reported as a fact (%v)", err, is)
				}
			}
			if _, err := s.Stat(t.Context(), "s", "before"); err == nil || errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Stat while the server is down: got %v, want an error that does not report an absence", err)
			}
			r.Restart(t)
			flush(t, s, box)
			if _, err := s.Stat(t.Context(), "s", "large"); !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Stat of the item that was not put: %v", err)
			}
			if ops := out.of("large"); len(ops) != 0 {
				t.Errorf("published operations of an item that was not put: %v", ops)
			}
			if o, err := s.Stat(t.Context(), "s", "before"); err != nil || o.Size != 8 {
				t.Errorf("Stat of the item that was put before: %+v, %v", o, err)
			}
			if _, err := s.Put(t.Context(), "s", "large", &killingReader{left: size, at: -1},
				storage.PutOptions{Size: size}); err != nil {
				t.Fatalf("Put when the server is back: %v", err)
			}
			flush(t, s, box)
			if ops := out.of("large"); !slices.Equal(ops, []string{"OP_ADD"}) {
				t.Errorf("published %v for the later put", ops)
			}
		})
	}
}

// killingReader is a reader that kills something when half of its bytes are read.
type killingReader struct {
	left, at int64
	kill     func()
}

func (k *killingReader) Read(b []byte) (int, error) {
	if k.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(b)), k.left)
	for i := range b[:n] {
		b[i] = byte(k.left - int64(i))
	}
	if k.left -= n; k.left <= k.at {
		k.at = -1
		k.kill()
	}
	return int(n), nil
}

// TestS3OutboxFull checks that a mutation is rejected before it is executed if the outbox is full, and that the changes
// in the outbox are published when that is possible again.
func TestS3OutboxFull(t *testing.T) {
	t.Parallel()
	r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: harness.S3Kinds()[0]}), false, false)
	out := &memoryPublisher{unavailable: true}
	s, box := r.emitting(t, outbox.Config{Limit: 64 << 10, Segment: 8 << 10}, out)
	n := 0
	var err error
	for ; err == nil && n < 1000; n++ {
		err = putText(t, s, fmt.Sprintf("item %03d", n), "some bytes")
	}
	if !errors.Is(err, outbox.ErrFull) || n < 10 {
		t.Fatalf("put %d: got %v, want ErrFull", n, err)
	}
	refused := fmt.Sprintf("item %03d", n-1)
	if _, err := s.Stat(t.Context(), "s", refused); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Stat of the refused item: %v", err)
	}
	if _, err := s.Delete(t.Context(), "s", "item 000", storage.DeleteOptions{}); !errors.Is(err, outbox.ErrFull) {
		t.Errorf("Delete: got %v, want ErrFull", err)
	}
	if _, err := s.Stat(t.Context(), "s", "item 000"); err != nil {
		t.Errorf("Stat of the item that was not deleted: %v", err)
	}
	out.setUnavailable(false)
	flush(t, s, box)
	for i := range n - 1 {
		if ops := out.of(fmt.Sprintf("item %03d", i)); !slices.Equal(ops, []string{"OP_ADD"}) {
			t.Errorf("published %v for item %d", ops, i)
		}
	}
	if ops := out.of(refused); len(ops) > 0 {
		t.Errorf("published %v for a rejected mutation", ops)
	}
	if err := putText(t, s, refused, "some bytes"); err != nil {
		t.Errorf("Put when there is room: %v", err)
	}
}

// TestS3KafkaUnavailable makes Kafka unavailable, for a minute in the full form. Mutations continue, and their changes
// are published later in the order of each item.
func TestS3KafkaUnavailable(t *testing.T) {
	need.Full(t)
	t.Parallel()
	r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: harness.S3Kinds()[0]}), false, false)
	c := harness.Kafka(t, harness.Options{Brokers: 1})
	c.Breakable(t)
	cfg := c.Config("unavailable.")
	must(t, admin.EnsureTopics(t.Context(), cfg, admin.TopicOptions{Partitions: 3, Replication: 1, MinInSync: 1}))
	producer, err := kafka.NewProducer(cfg, "test")
	must(t, err)
	t.Cleanup(producer.Close)
	s, box := r.emitting(t, outbox.Config{}, producer)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	must(t, putText(t, s, "item 0", "before the outage"))
	c.Freeze(t, 0)
	outage := time.Duration(need.Amount(20, 60, 60)) * time.Second
	begun := time.Now()
	want := map[string][]string{"item 0": {"OP_ADD"}}
	made := 0
	for n := 1; n <= 60 || time.Since(begun) < outage; n++ {
		if n > 60 {
			wait(t, time.Second)
		}
		item := fmt.Sprintf("item %d", n%10)
		err := putText(t, s, item, fmt.Sprint("content ", n))
		want[item] = append(want[item], "OP_ADD")
		made++
		if err == nil && n%4 == 0 {
			made++
			_, err = s.Delete(t.Context(), "s", item, storage.DeleteOptions{})
			want[item] = append(want[item], "OP_DELETE")
		}
		if err != nil {
			t.Fatalf("mutation %d while Kafka is unavailable: %v", n, err)
		}
	}
	pending := box.Stats().Pending
	t.Logf("%d mutations in %v while Kafka was unavailable; %d are pending", made,
		time.Since(begun).Round(time.Millisecond), pending)
	if pending < made {
		t.Errorf("%d mutations are pending, want all %d", pending, made)
	}
	c.Thaw(t, 0)
	harness.Eventually(t, time.Minute, "publish all changes", func(context.Context) error {
		if n := box.Stats().Pending; n > 0 {
			return fmt.Errorf("%d are pending", n)
		}
		return nil
	})
	compareOps(t, c.Read(t, cfg, schemas.Changes), want)
}

// compareOps compares the published operations of each item, each id once, in order.
func compareOps(t *testing.T, recs []harness.Record, want map[string][]string) {
	t.Helper()
	ids, got := map[string]bool{}, map[string][]string{}
	for _, rec := range recs {
		body, err := schemas.Decode(rec.Topic, rec.Headers, rec.Value)
		must(t, err)
		ch := body.(*pb.Change)
		if !ids[ch.GetId()] && ch.GetItem() != "" {
			ids[ch.GetId()] = true
			op := strings.Replace(ch.GetOp().String(), "OP_UPDATE", "OP_ADD", 1) // whether the item existed does not matter
			got[ch.GetItem()] = append(got[ch.GetItem()], op)
		}
	}
	for item, ops := range want {
		if !slices.Equal(got[item], ops) {
			t.Errorf("%s: got %v, want %v", item, got[item], ops)
		}
	}
}
