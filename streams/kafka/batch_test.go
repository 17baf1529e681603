package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/kafka"
	"github.com/millrace/millrace/streams/kafka/admin"
	"github.com/millrace/millrace/streams/kafka/internal/parttest"
	"github.com/millrace/millrace/streams/kafka/kafkatest"
	"github.com/millrace/millrace/streams/retry"
)

// A memoryTable stores rows like a database that may fail before or after it commits.
type memoryTable struct {
	mu      sync.Mutex
	rows    map[string]int // number of times that each was stored, by topic/partition/offset
	items   map[string]int // the same, by item
	sizes   []int          // of stored batches
	fail    []fault        // results of the next calls
	poison  string         // the item that is rejected permanently
	forgot  int
	hang    bool // a call waits for its context
	maxRows int
	stored  time.Time // time of the last batch
	mark    func(context.Context, []schemas.Progress) error
	errs    []string // invalid arguments of Store
}

type fault struct {
	err    error
	stored bool // the rows were stored all the same
}

func (tb *memoryTable) Store(ctx context.Context, batch []*schemas.Delivery) error {
	tb.mu.Lock()
	hang := tb.hang
	tb.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for i, d := range batch {
		if d.Topic != batch[0].Topic || d.Partition != batch[0].Partition || i > 0 && d.Offset <= batch[i-1].Offset ||
			d.Incarnation == 0 {
			tb.errs = append(tb.errs, fmt.Sprintf("%s/%d/%d in a batch from %s/%d/%d", d.Topic, d.Partition, d.Offset,
				batch[0].Topic, batch[0].Partition, batch[0].Offset))
		}
	}
	tb.maxRows = max(tb.maxRows, len(batch))
	var f fault
	if len(tb.fail) > 0 {
		f, tb.fail = tb.fail[0], tb.fail[1:]
	}
	if f.err != nil && !f.stored {
		return f.err
	}
	if slices.ContainsFunc(batch, func(d *schemas.Delivery) bool { return tb.poison != "" && item(d) == tb.poison }) {
		return retry.Permanent(errors.New("bad row"))
	}
	tb.sizes, tb.stored = append(tb.sizes, len(batch)), time.Now()
	if tb.rows == nil {
		tb.rows, tb.items = map[string]int{}, map[string]int{}
	}
	for _, d := range batch {
		tb.rows[fmt.Sprintf("%s/%d/%d", d.Topic, d.Partition, d.Offset)]++
		tb.items[item(d)]++
	}
	return f.err
}

func item(d *schemas.Delivery) string {
	if d.Body == nil {
		return string(d.Value)
	}
	return d.Body.(*pb.Change).GetItem()
}

func (tb *memoryTable) Table(topic schemas.Topic) string { return string(topic) }

func (tb *memoryTable) Mark(ctx context.Context, done []schemas.Progress) error {
	if tb.mark == nil {
		return nil
	}
	return tb.mark(ctx, done)
}

func (tb *memoryTable) Forget(schemas.Topic, int32) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.forgot++
}

// count returns the number of stored rows.
func (tb *memoryTable) count() int {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return len(tb.rows)
}

// forgotten returns the number of partitions that were revoked.
func (tb *memoryTable) forgotten() int {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	return tb.forgot
}

// check reports missing rows and, unless twice is set, duplicates.
func (tb *memoryTable) check(t *testing.T, n int, twice bool) {
	t.Helper()
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if len(tb.rows) != n {
		t.Errorf("%d rows, want %d", len(tb.rows), n)
	}
	for row, times := range tb.rows {
		if times > 1 && !twice {
			t.Errorf("row %s was stored %d times", row, times)
		}
	}
	if len(tb.errs) > 0 {
		t.Errorf("bad batches: %s", tb.errs)
	}
}

func sink(t testing.TB, b *kafkatest.Broker, bc kafka.BatchConfig, tb kafka.BatchSink) *kafka.BatchGroup {
	t.Helper()
	bc.Role = schemas.RoleSink
	if bc.Topics == nil {
		bc.Topics = []schemas.Topic{schemas.Changes}
	}
	g, err := kafka.NewBatchGroup(b.Config(), bc, tb)
	must(t, err)
	return g
}

func TestBatchGroup(t *testing.T) {
	t.Parallel()
	const n = 64
	errDown := errors.New("connection refused")
	for name, tt := range map[string]struct {
		tb      *memoryTable
		batches int
		dead    int
		twice   bool // rows may be stored more than once
		atLeast time.Duration
	}{
		"success": {tb: &memoryTable{}, batches: 1},
		"down for long": {tb: &memoryTable{fail: slices.Repeat([]fault{{err: errDown}}, 40)}, batches: 1,
			atLeast: 5 * time.Minute},
		"engine unavailable": {tb: &memoryTable{fail: slices.Repeat([]fault{{err: retry.Unavailable(errDown)}}, 40)},
			batches: 1, atLeast: 5 * time.Minute},
		"stored but reported lost": {tb: &memoryTable{fail: []fault{{err: errDown, stored: true}}}, batches: 2, twice: true},
		"one bad row among many":   {tb: &memoryTable{poison: "17"}, batches: 6, dead: 1},
		"bad row while down": {tb: &memoryTable{poison: "17", fail: slices.Repeat([]fault{{err: errDown}}, 5)},
			batches: 6, dead: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				b.Send(parttest.Numbered(n, n)...)
				tb := tt.tb
				start := time.Now()
				must(t, parttest.Run(t, time.Minute+2*tt.atLeast, sink(t, b, kafka.BatchConfig{}, tb)))
				tb.check(t, n-tt.dead, tt.twice)
				if len(tb.sizes) != tt.batches || tb.forgot != 1 {
					t.Errorf("stored %v, forgot %d, want %d batches and 1", tb.sizes, tb.forgot, tt.batches)
				}
				dead := b.Read(schemas.Dead)
				if len(dead) != tt.dead {
					t.Fatalf("%d dead letters, want %d", len(dead), tt.dead)
				}
				if tt.dead > 0 && (dead[0].Header(schemas.HeaderError) != "bad row" ||
					dead[0].Header(schemas.HeaderOriginOffset) != "17" || dead[0].Header(schemas.HeaderRole) != "sink") {
					t.Errorf("dead letter %v", dead[0].Headers)
				}
				if got := b.Committed(schemas.RoleSink, schemas.Changes)[0]; got != n {
					t.Errorf("committed %d, want %d", got, n)
				}
				if took := tb.stored.Sub(start); took < tt.atLeast {
					t.Errorf("%v, want it to be down for %v", took, tt.atLeast)
				}
			})
		})
	}
}

// Unreadable records become dead letters, and the rest of the batch is stored. A dead letter is stored
// unchanged; one that cannot be stored makes no other dead letter.
func TestBatchGroupDeadLetters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"))
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Changes, Key: []byte("k"), Value: []byte("poison")}})
		b.Send(parttest.Change("b"))
		b.Write(kafkatest.Record{Record: schemas.Record{Topic: schemas.Dead, Key: []byte("k"), Value: []byte("cursed")}})
		tb := &memoryTable{poison: "cursed"}
		must(t, parttest.Run(t, time.Minute, sink(t, b, kafka.BatchConfig{Topics: []schemas.Topic{schemas.Changes,
			schemas.Dead}},
			tb)))
		want := map[string]int{"a": 1, "b": 1, "poison": 1}
		if fmt.Sprint(tb.items) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", tb.items, want)
		}
		if got := len(b.Read(schemas.Dead)); got != 2 {
			t.Errorf("%d dead letters, want 2", got)
		}
		if got := parttest.Sum(b.Committed(schemas.RoleSink, schemas.Dead)); got != 2 {
			t.Errorf("committed %d, want 2", got)
		}
	})
}

// A sink that panics loses only the row that causes the panic.
func TestBatchGroupPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Numbered(16, 16)...)
		tb := &memoryTable{}
		s := storeFunc{func(ctx context.Context, batch []*schemas.Delivery) error {
			for _, d := range batch {
				if item(d) == "5" {
					panic("boom")
				}
			}
			return tb.Store(ctx, batch)
		}}
		must(t, parttest.Run(t, time.Minute, sink(t, b, kafka.BatchConfig{}, s)))
		tb.check(t, 15, false)
		dead := b.Read(schemas.Dead)
		if len(dead) != 1 || !strings.HasPrefix(dead[0].Header(schemas.HeaderError), "sink panicked: boom") {
			t.Errorf("dead letters %v", dead)
		}
	})
}

type storeFunc struct {
	f func(context.Context, []*schemas.Delivery) error
}

func (s storeFunc) Store(ctx context.Context, batch []*schemas.Delivery) error {
	return s.f(ctx, batch)
}
func (storeFunc) Table(topic schemas.Topic) string               { return string(topic) }
func (storeFunc) Mark(context.Context, []schemas.Progress) error { return nil }
func (storeFunc) Forget(schemas.Topic, int32)                    {}

// Batches are stored at MaxRows, MaxBytes or MaxAge, whichever comes first.
func TestBatchGroupLimits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		bc   kafka.BatchConfig
		most int
	}{
		"rows":  {kafka.BatchConfig{MaxRows: 10}, 10},
		"bytes": {kafka.BatchConfig{MaxBytes: 2000}, 8},
		"age":   {kafka.BatchConfig{}, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
				const n = 1000
				b.Send(parttest.Numbered(n, n)...)
				tb := &memoryTable{}
				must(t, parttest.Run(t, time.Minute, sink(t, b, tt.bc, tb)))
				tb.check(t, n, false)
				if tb.maxRows > tt.most || len(tb.sizes) < n/tt.most || len(tb.sizes) > 4*n/tt.most {
					t.Errorf("%d batches of at most %d, want at most %d", len(tb.sizes), tb.maxRows, tt.most)
				}
			})
		})
	}
}

// Stored records are committed at once when there are no more to store, so that fresh reads do not wait; but
// not after each message of a slow stream.
func TestBatchGroupCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		parttest.Background(t, sink(t, b, kafka.BatchConfig{MaxAge: 100 * time.Millisecond}, &memoryTable{}))
		time.Sleep(10 * time.Second)
		adm, err := admin.New(b.Config())
		must(t, err)
		defer adm.Close()
		b.Send(parttest.Change("a"))
		start := time.Now()
		must(t, parttest.Committed(t.Context(), adm, schemas.Changes, schemas.RoleSink))
		if took := time.Since(start); took > 300*time.Millisecond {
			t.Errorf("committed after %v", took)
		}
		commits := b.CountCommits(schemas.RoleSink)
		start = time.Now()
		write, stop := b.Writer()
		defer stop()
		for i := range need.Amount(300, 1000, 1000) {
			r, err := schemas.Encode(parttest.Change(fmt.Sprint(i)))
			must(t, err)
			write(kafkatest.Record{Record: r, Partition: -1})
		}
		time.Sleep(time.Second)
		if n, most := commits(), int(time.Since(start)/(100*time.Millisecond)); n > most {
			t.Errorf("%d commits, want at most %d", n, most)
		}
	})
}

// While the store is unavailable, memory is bounded and a member that joins is assigned partitions. When the
// store is back, nothing is missing or stored twice.
func TestBatchGroupRebalancesWhileDown(t *testing.T) {
	t.Parallel()
	b := kafkatest.New(t, kafkatest.Options{Partitions: 4, RealTime: true})
	const n = 2000
	b.Send(parttest.Numbered(n, n)...)
	tb := &memoryTable{fail: slices.Repeat([]fault{{err: errors.New("down")}}, 40)}
	bc := kafka.BatchConfig{MaxRows: 100, MaxAge: 50 * time.Millisecond, Memory: 100_000}
	again := retry.Policy{Wait: 50 * time.Millisecond, MaxWait: 200 * time.Millisecond}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var members sync.WaitGroup
	for i := range 2 {
		members.Go(func() {
			<-time.After(time.Duration(i) * 500 * time.Millisecond)
			if err := sink(t, b, bc, tb).SetRetry(again).Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	parttest.Await(t, "partitions move, and all rows are stored", func() bool {
		return tb.forgotten() >= 2 && parttest.Sum(b.Committed(schemas.RoleSink, schemas.Changes)) == n
	})
	stop()
	members.Wait()
	tb.check(t, n, false)
	if got := parttest.Sum(b.Committed(schemas.RoleSink, schemas.Changes)); got != n {
		t.Errorf("committed %d, want %d", got, n)
	}
	if tb.forgot < 6 {
		t.Errorf("forgot %d partitions, want the 2 that moved and 4 at the end", tb.forgot)
	}
}

// A call of Store that hangs is cancelled after DrainTimeout and nothing is committed. The next member stores the
// batch.
func TestBatchGroupStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.New(t, kafkatest.Options{Partitions: 1})
		b.Send(parttest.Change("a"))
		tb := &memoryTable{hang: true}
		start := time.Now()
		must(t, parttest.Run(t, 5*time.Second, sink(t, b, kafka.BatchConfig{DrainTimeout: 2 * time.Second}, tb)))
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("stopped after %v", took)
		}
		if got := b.Committed(schemas.RoleSink, schemas.Changes); len(got) != 0 {
			t.Errorf("committed %v", got)
		}
		tb.hang = false
		must(t, parttest.Run(t, 5*time.Second, sink(t, b, kafka.BatchConfig{}, tb)))
		tb.check(t, 1, false)
	})
}
