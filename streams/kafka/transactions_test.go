package kafka_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// changesOf returns changes of items as records of one partition.
func changesOf(t *testing.T, partition int32, items ...string) []kafkatest.Record {
	t.Helper()
	var msgs []schemas.Message
	for _, item := range items {
		msgs = append(msgs, parttest.Change(item))
	}
	return parttest.Encoded(t, partition, msgs...)
}

// The records of a transaction are handled when it is committed, and never when it is aborted. Its marker is
// no lag, even as the last record of a partition, and no table waits for it. A second reading from the start
// has the same result.
func TestTransactions(t *testing.T) {
	t.Parallel()
	for name, reader := range readers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 4})
				b.Write(changesOf(t, 0, "a")...)
				b.WriteTransaction(true, changesOf(t, 0, "b", "c")...)
				b.Write(changesOf(t, 1, "d")...)
				b.WriteTransaction(false, changesOf(t, 1, "e", "f")...)
				b.WriteTransaction(false, changesOf(t, 2, "g")...)
				b.WriteTransaction(false, changesOf(t, 3, "h")...)
				b.WriteTransaction(true, changesOf(t, 3, "i")...)
				b.Write(changesOf(t, 3, "j")...)
				var h handled
				for _, from := range []string{"the start", "the start again"} {
					part, err := reader(b.Config(), &h)
					must(t, err)
					must(t, parttest.Run(t, 30*time.Second, part))
					if got, want := h.take(), []string{"a", "b", "c", "d", "i", "j"}; !slices.Equal(got, want) {
						t.Errorf("from %s: handled %v, want %v", from, got, want)
					}
					if name == "Table" {
						continue
					}
					role := schemas.RolePlanner
					if name == "BatchGroup" {
						role = schemas.RoleSink
					}
					lags, err := parttest.NewAdmin(t, b.Config()).Lags(t.Context(), role)
					must(t, err)
					for _, l := range lags {
						if l.Records != 0 {
							t.Errorf("%s is %d records behind in %s: %v", l.Role, l.Records, l.Topic, l.Partitions)
						}
					}
					b.ReplaceMembers(role, schemas.Changes, map[int32]int64{0: 0, 1: 0, 2: 0, 3: 0})
				}
				if n := len(b.Read(schemas.Dead)); n > 0 {
					t.Errorf("%d dead letters", n)
				}
			})
		})
	}
}

// An open transaction blocks only the rest of its partition: other partitions and topics are handled, nothing
// waits for records in open transactions, and the brokers' end offset is reported. When the transaction ends, its
// records are handled or not.
func TestOpenTransaction(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"committed": true, "aborted": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 2})
				a := parttest.NewAdmin(t, b.Config())
				var h handled
				pool, err := kafka.NewPool(b.Config(), kafka.PoolConfig{Role: schemas.RolePlanner,
					Topics: []schemas.Topic{schemas.Changes}}, h.handle)
				must(t, err)
				parttest.Background(t, pool)
				b.Write(changesOf(t, 0, "a")...)
				end := b.BeginTransaction("foreign", changesOf(t, 0, "b", "c")...)
				b.Write(changesOf(t, 0, "behind")...)
				b.Write(changesOf(t, 1, "d")...)
				check := func(when string, open int64, want ...string) {
					t.Helper()
					time.Sleep(20 * time.Second)
					if got := h.take(); !slices.Equal(got, want) {
						t.Errorf("%s: handled %v, want %v", when, got, want)
					}
					lags, err := a.Lags(t.Context(), schemas.RolePlanner)
					must(t, err)
					if l := lags[0]; l.Topic != schemas.Changes || l.Due() != 0 || l.Uncommitted != open {
						t.Errorf("%s: %d due and %d in open transactions of %s, want 0 and %d of changes", when,
							l.Due(), l.Uncommitted, l.Topic, open)
					}
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					if err := parttest.Committed(ctx, a, schemas.Changes, schemas.RolePlanner); err != nil {
						t.Errorf("%s: %v", when, err)
					}
				}
				check("while it is open", 3, "a", "d")
				table, err := kafka.NewTable(b.Config(), schemas.Changes, func([]byte, *schemas.Delivery) error { return nil })
				must(t, err)
				parttest.Background(t, table)
				select {
				case <-table.Ready():
				case <-time.After(20 * time.Second):
					t.Error("a table waits for a transaction that is open")
				}
				e, err := a.Extent(t.Context(), schemas.Changes)
				if err != nil || !maps.Equal(e.Ends, map[int32]int64{0: 1, 1: 1}) {
					t.Errorf("the topic holds %v, %v", e, err)
				}
				end(commits)
				if commits {
					check("when it is committed", 0, "b", "behind", "c")
				} else {
					check("when it is aborted", 0, "behind")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := table.CatchUp(ctx); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Tables and readers of whole topics reach the end of a topic that ends with transactions at once.
func TestEndsOfTransactions(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"committed": true, "aborted": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				b.WriteTransaction(commits, parttest.Encoded(t, 0, checkpoint("a", "1"))...)
				b.WriteTransaction(commits, changesOf(t, 0, "a", "b")...)
				want, items := map[string]string{}, []string(nil)
				if commits {
					want["a/"], items = "1", []string{"a", "b"}
				}
				var got cursors
				tb := newTable(t, b, got.apply)
				parttest.Background(t, tb)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if err := tb.CatchUp(ctx); err != nil {
					t.Error(err)
				}
				got.check(t, want)
				if n := tb.Malformed(); n > 0 {
					t.Errorf("%d records are malformed", n)
				}
				a := parttest.NewAdmin(t, b.Config())
				e, err := a.Extent(t.Context(), schemas.Changes)
				must(t, err)
				var read handled
				ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				err = a.Read(ctx, schemas.Changes, e, func(d *schemas.Delivery, unreadable error) error {
					if unreadable == nil {
						read.add(d)
					}
					return unreadable
				})
				if got := read.take(); err != nil || !slices.Equal(got, items) {
					t.Errorf("read %v, %v, want %v", got, err, items)
				}
			})
		})
	}
}

// The delayer moves committed records when they are due, and never aborted ones. Markers stay where they are,
// and block nothing.
func TestDelayerAndTransactions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Lanes: parttest.QuickLanes(), Partitions: 1})
		lane := func(item string) kafkatest.Record {
			r := parttest.Encoded(t, 0, parttest.Command(parttest.Change(item).Body.(*pb.Change)))[0]
			r.Topic = schemas.Delay("30s")
			r.Headers = append(r.Headers,
				schemas.Header{Key: schemas.HeaderOriginTopic, Value: []byte(schemas.DuplicationHigh)},
				schemas.Header{Key: schemas.HeaderRole, Value: []byte(schemas.RoleCopier)})
			return r
		}
		b.WriteTransaction(true, lane("a"))
		b.WriteTransaction(false, lane("b"))
		b.Write(lane("c"))
		b.WriteTransaction(false, lane("d"))
		must(t, parttest.Run(t, time.Minute, parttest.Delayer(t, b)))
		got := itemsOf(t, b, schemas.DuplicationHigh, schemas.Again(schemas.RoleCopier))
		if want := []string{"a", "c"}; !slices.Equal(got, want) {
			t.Errorf("%v came back, want %v", got, want)
		}
		if got, want := b.Committed(schemas.RoleDelayer, schemas.Delay("30s")),
			map[int32]int64{0: 7}; !reflect.DeepEqual(got, want) {
			t.Errorf("committed %v, want %v", got, want)
		}
		if n := len(b.Read(schemas.Dead)); n > 0 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// A sink that fails, or that stores a batch and reports a failure, stores the same again: only committed
// records, with the position after the markers.
func TestBatchesOfTransactions(t *testing.T) {
	t.Parallel()
	for name, lands := range map[string]bool{"failed": false, "done but reported as failed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				b.Write(changesOf(t, 0, "a")...)
				b.WriteTransaction(false, changesOf(t, 0, "b")...)
				b.WriteTransaction(true, changesOf(t, 0, "c")...)
				var (
					h     handled
					calls int
				)
				store := storeFunc{func(ctx context.Context, batch []*schemas.Delivery) error {
					if calls++; calls > 1 {
						return h.Store(ctx, batch)
					}
					if lands {
						_ = h.Store(ctx, batch)
					}
					return errors.New("unavailable")
				}}
				must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, store)))
				want := []string{"a", "c"}
				if lands {
					want = []string{"a", "a", "c", "c"}
				}
				if got := h.take(); !slices.Equal(got, want) {
					t.Errorf("stored %v, want %v", got, want)
				}
				if got := b.Committed(schemas.RoleSink, schemas.Changes)[0]; got != 5 {
					t.Errorf("committed %d, want 5", got)
				}
			})
		})
	}
}

// A transaction that is open for five minutes is logged once, with its first offset. One that ends in time is
// not logged, and neither is the next one.
func TestOpenTransactionIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		var log logtest.Lines
		cfg := b.Config()
		cfg.Log = log.Log()
		a := parttest.NewAdmin(t, cfg)
		look := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			if _, err := a.Lags(t.Context(), schemas.RolePlanner); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(log.String(), "wait for open transaction"); n != want {
				t.Errorf("logged %d times, want %d:\n%s", n, want, log.String())
			}
		}
		end := b.BeginTransaction("quick", changesOf(t, 0, "a")...)
		look(0, 0)
		look(4*time.Minute, 0)
		end(true)
		end = b.BeginTransaction("slow", changesOf(t, 0, "b")...)
		look(2*time.Minute, 0)
		look(4*time.Minute, 0)
		look(2*time.Minute, 1)
		look(2*time.Minute, 1)
		end(false)
		look(time.Minute, 1)
		if want := "topic=millrace.changes partition=0 offset=2 records=1"; !strings.Contains(log.String(), want) {
			t.Errorf("logged %s, want %s", log.String(), want)
		}
	})
}
