package emit

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A logRecorder keeps the times of records whose message begins with text.
type logRecorder struct {
	slog.Handler
	text string

	mu    sync.Mutex // guards what follows
	times []time.Time
}

func (l *logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (l *logRecorder) WithAttrs([]slog.Attr) slog.Handler       { return l }

func (l *logRecorder) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Level >= slog.LevelWarn && strings.HasPrefix(r.Message, l.text) {
		l.times = append(l.times, r.Time)
	}
	return nil
}

// A persistent failure is logged when it begins, and again whenever the number of failures has doubled: the
// log of the last hours shows it, and it does not fill the disk.
func TestPersistentFailureIsLoggedAgain(t *testing.T) {
	unavailable := func(w *world) { w.topic.set(func(*pb.Change) (bool, error) { return false, errUnavailable }) }
	for name, tt := range map[string]struct {
		text string
		fail func(w *world, d *outboxtest.Disk)
	}{
		"publishing": {"retry publish later", func(w *world, _ *outboxtest.Disk) { unavailable(w) }},
		"a publisher that hangs": {"stop waiting for acknowledgements", func(w *world, _ *outboxtest.Disk) {
			w.s.out = publisher(func(ctx context.Context, _ *pb.Change) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}},
		"looking at the store": {"retry resolving mutations later", func(w *world, _ *outboxtest.Disk) {
			w.faulty.Script(storagetest.Fault{Method: "Put", Applied: true},
				storagetest.Fault{Method: "Stat", Skip: 1, Times: -1})
		}},
		"deleting published records": {"retry outbox deletion later", func(w *world, d *outboxtest.Disk) {
			w.topic.set(func(*pb.Change) (bool, error) {
				d.Fail(1, outboxtest.Failure{Stop: true})
				return true, nil
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, d := &logRecorder{text: tt.text}, outboxtest.New()
				w := durable(t, d, memory(t), func(c *Config) { c.Log = slog.New(log) })
				_, stop := running(t, w.s)
				tt.fail(w, d)
				_, _ = w.put("x")
				began := time.Now()
				must(t, retry.Sleep(t.Context(), 4*time.Hour))
				stop()
				log.mu.Lock()
				defer log.mu.Unlock()
				n := len(log.times)
				if n == 0 || n > 30 {
					t.Fatalf("it was logged %d times in 4 h, want some", n)
				}
				if last := log.times[n-1].Sub(began); last < time.Hour && name != "a publisher that hangs" {
					t.Errorf("it was logged last after %v of 4 h", last)
				}
			})
		})
	}
}
