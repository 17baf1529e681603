package kafka_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// locked is a buffer that several goroutines write to.
type locked struct {
	mu sync.Mutex // guards w
	w  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// A batch that cannot be parsed is fetched a few times. Then its partition is stopped, with an error that says what to
// do, and the others are read on; done as the error says, the partition is read from behind the batch.
func TestDamagedBatch(t *testing.T) {
	t.Parallel()
	for name, reader := range readers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				var (
					h   handled
					log bytes.Buffer
				)
				cfg := b.Config()
				cfg.Unreadables = kafka.NewUnreadables()
				cfg.Log = slog.New(slog.NewTextHandler(&locked{w: &log}, nil))
				write := func(partition int32, items ...string) {
					for _, item := range items {
						rec, err := schemas.Encode(change(item))
						if err != nil {
							t.Fatal(err)
						}
						b.Write(kafkatest.Record{Record: rec, Partition: partition})
					}
				}
				write(0, "a", "b")
				b.WriteDamaged(schemas.Changes, 0, 3)
				write(0, "c")
				write(1, "d")
				part, err := reader(cfg, &h)
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Minute, func() { write(1, "e") })
				time.AfterFunc(90*time.Second, func() {
					stopped := cfg.Unreadables.Batches()
					if len(stopped) != 1 || stopped[0].Position() != "changes/0@2" {
						t.Fatalf("stopped %v", stopped)
					}
					want := "Have a replica lead it whose bytes are whole"
					if name != "Table" {
						want = "--topic millrace.changes:0 --reset-offsets --to-offset 5 --execute"
					}
					if got := stopped[0].Err.Error(); !strings.Contains(got, want) {
						t.Errorf("%s, want it to say %s", got, want)
					}
				})
				if err := run(t, 2*time.Minute, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"a", "b", "d", "e"}) {
					t.Errorf("handled %v", got)
				}
				if n := strings.Count(log.String(), "\n"); n > 100 {
					t.Errorf("%d lines of log", n)
				}
				if name == "Table" {
					return
				}
				role := schemas.RolePlanner
				if name == "BatchGroup" {
					role = schemas.RoleSink
				}
				if got := b.Committed(role, schemas.Changes)[0]; got != 2 {
					t.Errorf("committed %d", got)
				}
				commit(t, cfg, "millrace."+string(role), schemas.Changes, 5)
				if got := cfg.Unreadables.Batches(); len(got) > 0 {
					t.Errorf("stopped %v, which are no longer ours", got)
				}
				if part, err = reader(cfg, &h); err != nil {
					t.Fatal(err)
				}
				if err := run(t, time.Minute, part); err != nil {
					t.Error(err)
				}
				if got := h.take(); !slices.Equal(got, []string{"c"}) || len(cfg.Unreadables.Batches()) > 0 {
					t.Errorf("handled %v behind the batch, stopped %v", got, cfg.Unreadables.Batches())
				}
			})
		})
	}
}
