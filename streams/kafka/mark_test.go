package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
)

// marks are the partitions that a sink was asked to mark, without incarnations.
type marks struct {
	mu  sync.Mutex
	all []string
	err error
}

func (m *marks) mark(_ context.Context, done []schemas.Progress) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range done {
		m.all = append(m.all, fmt.Sprintf("%s/%d from %d of %d to %d", p.Topic, p.Partition, p.From, p.Start, p.Next))
		if p.Incarnation == 0 {
			m.all = append(m.all, "of no log")
		}
	}
	return m.err
}

func (m *marks) taken() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.all = nil }()
	return slices.Compact(m.all)
}

// Mark is called before an offset is committed, with the offset where reading began. Unreadable records and
// tombstones count as handled.
func TestMarkBeforeCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"), parttest.Change("b"))
		m := &marks{}
		tb := &memoryTable{mark: m.mark}
		must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
		want := []string{"changes/0 from 0 of 0 to 2"}
		if got := m.taken(); !slices.Equal(got, want) {
			t.Errorf("marked %q, want %q", got, want)
		}
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Changes, Key: []byte("k"), Value: []byte("poison")}})
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Changes, Key: []byte("k")}})
		must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
		if got := m.taken(); len(got) == 0 || got[len(got)-1] != "changes/0 from 2 of 0 to 4" {
			t.Errorf("marked %q, want changes/0 from 2 of 0 to 4", got)
		}
	})
}

// Records that were removed from the start of the log count as handled by a group that has a commit, and not
// by one that begins behind them.
func TestMarkAfterRemovedRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, tt := range map[string]struct {
			first int // records that are handled before they are removed
			want  string
		}{"handled": {2, "changes/0 from 2 of 0 to 3"}, "never read": {0, "changes/0 from 2 of 2 to 3"}} {
			b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
			m := &marks{}
			tb := &memoryTable{mark: m.mark}
			b.Send(parttest.Change("a"), parttest.Change("b"))
			if tt.first > 0 {
				must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
				m.taken()
			}
			b.Trim(schemas.Changes, 0, 2)
			b.Send(parttest.Change("c"))
			must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
			if got := m.taken(); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("%s: marked %q, want %q", name, got, tt.want)
			}
		}
	})
}

// Records that the sink could not mark are not committed, and are marked again, in this process or the next
// one.
func TestMarkFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"))
		m := &marks{err: errors.New("connection refused")}
		tb := &memoryTable{mark: m.mark}
		must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
		if got := b.Committed(schemas.RoleSink, schemas.Changes); len(got) != 0 {
			t.Errorf("committed %v although nothing was marked", got)
		}
		if got := m.taken(); !slices.Equal(got, []string{"changes/0 from 0 of 0 to 1"}) {
			t.Errorf("marked %q", got)
		}
		m.err = nil
		must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
		if got := b.Committed(schemas.RoleSink, schemas.Changes)[0]; got != 1 {
			t.Errorf("committed %d, want 1", got)
		}
		if got := m.taken(); !slices.Equal(got, []string{"changes/0 from 0 of 0 to 1"}) {
			t.Errorf("marked %q", got)
		}
	})
}

// A commit that fails, or that is reported as failed, is marked again before it is repeated.
func TestMarkOfFailedCommit(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]kafkatest.Fault{"not done": kafkatest.NotDone,
		"done, but reported as failed": kafkatest.DoneNotAcknowledged} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				b.FailCommit(schemas.RoleSink, f, 3)
				b.Send(parttest.Change("a"))
				m := &marks{}
				must(t, parttest.Run(t, 30*time.Second, sink(t, b, kafka.BatchConfig{}, &memoryTable{mark: m.mark})))
				if got := b.Committed(schemas.RoleSink, schemas.Changes)[0]; got != 1 {
					t.Errorf("committed %d, want 1", got)
				}
				if got := m.taken(); !slices.Equal(got, []string{"changes/0 from 0 of 0 to 1"}) {
					t.Errorf("marked %q", got)
				}
			})
		})
	}
}

// Stored records that could not be marked are passed to the sink again, from the committed offset on, before
// they are committed: the store may have been restored to an earlier state.
func TestMarkFailsAndStoreIsRestored(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before   int  // batches that are marked and committed at once
		failures int  // of Mark, for each later batch
		done     bool // Mark succeeds, and reports a failure
		store    int  // failures of Store before
		offsets  bool // Kafka does not return committed offsets for a while
	}{
		"the first batch":              {0, 1, false, 0, false},
		"a later batch":                {1, 1, false, 0, false},
		"done, but reported as failed": {1, 1, true, 0, false},
		"it is unavailable for long":   {1, 20, false, 0, false},
		"storing fails, too":           {1, 2, false, 2, false},
		"Kafka answers later":          {1, 1, false, 0, true},
		"done, and Kafka later":        {1, 1, true, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				tb, failures, backup := &memoryTable{}, 0, map[string]int{}
				tb.mark = func(context.Context, []schemas.Progress) error {
					tb.mu.Lock()
					defer tb.mu.Unlock()
					if failures == 0 || tt.done {
						backup = maps.Clone(tb.rows)
					}
					if failures == 0 {
						return nil
					}
					failures--
					tb.rows = maps.Clone(backup)
					return errors.New("connection refused")
				}
				parttest.Background(t, sink(t, b, kafka.BatchConfig{}, tb))
				for n := range tt.before + 2 {
					tb.mu.Lock()
					if n >= tt.before {
						failures = tt.failures
						for range tt.store {
							tb.fail = append(tb.fail, fault{err: errors.New("connection refused")})
						}
					}
					tb.mu.Unlock()
					mend := func() {}
					if n >= tt.before && tt.offsets {
						mend = b.FailOffsets(schemas.RoleSink, kafkatest.NotDone, -1)
					}
					b.Send(parttest.Numbered(5, 1)...)
					time.Sleep(20 * time.Second)
					mend()
					time.Sleep(100 * time.Second)
				}
				tb.mu.Lock()
				defer tb.mu.Unlock()
				want := 5 * (tt.before + 2)
				if got := b.Committed(schemas.RoleSink, schemas.Changes)[0]; got != int64(want) {
					t.Errorf("committed %d, want %d", got, want)
				}
				if len(tb.rows) != want {
					t.Errorf("the store has %d rows of the %d that are committed", len(tb.rows), want)
				}
				if len(tb.errs) > 0 {
					t.Errorf("bad batches: %s", tb.errs)
				}
			})
		})
	}
}
