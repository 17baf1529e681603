package emit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/mem"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/outbox/outboxtest"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// running starts s.Run, which ends when stop is called or the test ends.
func running(t testing.TB, s *Store) (ran <-chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ch := make(chan error, 1)
	go func() { ch <- s.Run(ctx) }()
	for !s.running.Load() {
		runtime.Gosched()
	}
	return ch, cancel
}

// durable returns a world with a File on a disk in memory.
func durable(t *testing.T, d *outboxtest.Disk, m *mem.Store, edit ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, mem: m, faulty: storagetest.NewFaulty(m), topic: &topic{}, outbox: fileOn(t, d)}
	cfg := Config{Account: "acme", Store: "1", Agent: "test", Outbox: countingOutbox{w.outbox, w}}
	for _, e := range edit {
		e(&cfg)
	}
	var err error
	w.s, err = New(w.faulty, cfg, w.topic)
	must(t, err)
	return w
}

func memory(t *testing.T) *mem.Store {
	t.Helper()
	m, err := mem.New(mem.Config{ID: "1"})
	must(t, err)
	m.Mark("1")
	must(t, m.CreateSpace(t.Context(), storage.Space{Name: sp}))
	return m
}

func (w *world) putItem(item, content string) error {
	_, err := w.s.Put(w.t.Context(), sp, item, strings.NewReader(content), storage.PutOptions{Size: storage.UnknownSize})
	return err
}

func (w *world) held() int { return w.s.cfg.Outbox.Stats().Pending }

func items(changes []*pb.Change) (all []string) {
	for _, c := range changes {
		all = append(all, c.GetItem())
	}
	return all
}

// The contract holds with an outbox on disk and Run.
func TestContractDurable(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		m, err := mem.New(mem.Config{ID: "1"})
		must(t, err)
		f, err := outbox.Open(outbox.Config{Dir: t.TempDir()})
		must(t, err)
		s, err := New(m, Config{Account: "acme", Store: "1", Outbox: f, Unmarked: true}, &topic{})
		must(t, err)
		ran, stop := running(t, s)
		t.Cleanup(func() {
			stop()
			if err := <-ran; err != nil {
				t.Errorf("Run: %v", err)
			}
			if got := f.Stats(); got.Pending != 0 || got.Undecided != 0 {
				t.Errorf("left in the outbox: %+v", got)
			}
			must(t, f.Close())
		})
		return s
	}, storagetest.Only("Put", "PutCondition", "PutBroken", "Properties", "Delete", "RacePut", "RaceReplace", "RaceDelete",
		"SpaceErrors"))
}

// Kafka is unavailable for a minute: mutations continue, and only the first waits for it; their Changes
// follow in order.
func TestPublisherUnavailableForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := durable(t, outboxtest.New(), memory(t))
		ran, stop := running(t, w.s)
		w.topic.set(func(*pb.Change) (bool, error) { return false, errUnavailable })
		var want []string
		began := time.Now()
		for i := range 60 {
			item := string(rune('a' + i%3))
			must(t, w.putItem(item, fmt.Sprint(i)))
			want = append(want, fmt.Sprint(item, i/3))
			must(t, retry.Sleep(t.Context(), time.Second))
		}
		if took := time.Since(began); took > 62*time.Second {
			t.Errorf("60 mutations, one a second, took %v", took)
		}
		if got := w.held(); got != 60 || len(w.topic.take()) > 0 {
			t.Errorf("got %d in the outbox, want 60", got)
		}
		w.topic.set(nil)
		must(t, retry.Sleep(t.Context(), 10*time.Second)) // the backoff ends
		got := w.topic.take()
		by := map[string]int{}
		var names []string
		for _, c := range got {
			names = append(names, fmt.Sprint(c.GetItem(), by[c.GetItem()]))
			by[c.GetItem()]++
			if n := by[c.GetItem()]; n > 1 && c.GetOp() != pb.Op_OP_UPDATE || n == 1 && c.GetOp() != pb.Op_OP_ADD {
				t.Errorf("%s is published out of order", c.GetOp())
			}
		}
		slices.Sort(want)
		slices.Sort(names)
		if !slices.Equal(names, want) || w.held() != 0 {
			t.Errorf("got  %v\nwant %v\nand %d left", names, want, w.held())
		}
		must(t, w.putItem("d", "after"))
		w.topic.take()
		stop()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// Neither an item that cannot be published nor a rejected Change blocks other items; neither is lost.
func TestFailingItemDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := outboxtest.New()
		m := memory(t)
		w := durable(t, d, m)
		_, stop := running(t, w.s)
		w.topic.set(func(c *pb.Change) (bool, error) {
			switch {
			case c.GetItem() == "stuck":
				return false, errUnavailable
			case c.GetItem() == "refused" && c.GetOp() == pb.Op_OP_ADD:
				return false, retry.Permanent(errors.New("not this one"))
			}
			return true, nil
		})
		if err := w.putItem("refused", "1"); !errors.Is(err, ErrNotPublished) || !retry.IsPermanent(err) {
			t.Errorf("got %v, want a permanent ErrNotPublished", err)
		}
		must(t, w.putItem("stuck", "1"))
		must(t, w.putItem("refused", "2"))
		for i := range 20 {
			must(t, w.putItem(fmt.Sprint("item ", i), "x"))
			must(t, w.putItem("stuck", fmt.Sprint(i)))
		}
		must(t, retry.Sleep(t.Context(), time.Minute))
		if got := items(w.topic.take()); len(got) != 21 || slices.Contains(got, "stuck") {
			t.Errorf("got changes of %v, want of all but the stuck item", got)
		}
		if s := w.s.cfg.Outbox.Stats(); s.Pending != 21 || s.Rejected != 1 {
			t.Errorf("got %+v, want the 21 of the stuck item, and one rejected", s)
		}
		// The next process.
		stop()
		synctest.Wait()
		w = durable(t, d.After(false, nil), m)
		if s := w.s.cfg.Outbox.Stats(); s.Pending != 21 || s.Rejected != 1 {
			t.Errorf("after a restart: got %+v", s)
		}
		ran, stop := running(t, w.s)
		synctest.Wait()
		if got := w.topic.take(); len(got) != 21 || got[0].GetOp() != pb.Op_OP_ADD || w.held() != 0 {
			t.Errorf("after a restart: got %v, want 21 in order", ops(got))
		}
		stop()
		must(t, <-ran)
	})
}

// A publisher hangs, as when its brokers are down: only the first calls wait.
func TestPublisherHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := durable(t, outboxtest.New(), memory(t))
		release := make(chan struct{})
		w.s.out = publisher(func(ctx context.Context, c *pb.Change) error {
			select {
			case <-release:
				return w.topic.Publish(ctx, schemas.Message{Topic: schemas.Changes, Body: c})
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		ran, stop := running(t, w.s)
		began := time.Now()
		for i := range 50 {
			must(t, w.putItem(fmt.Sprint(i), "x"))
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		close(release)
		must(t, retry.Sleep(t.Context(), 35*time.Second))
		if got := w.topic.take(); len(got) != 50 || w.held() != 0 {
			t.Errorf("got %d changes, and %d are left", len(got), w.held())
		}
		stop()
		must(t, <-ran)
	})
}

type publisher func(context.Context, *pb.Change) error

func (p publisher) Publish(ctx context.Context, messages ...schemas.Message) error {
	return p(ctx, messages[0].Body.(*pb.Change))
}

// If the store is unavailable at the start, mutations of unknown outcome stay in the outbox, and the
// Changes of other items do not wait for them.
func TestStoreUnavailableAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, m := outboxtest.New(), memory(t)
		w := durable(t, d, m)
		w.topic.set(func(*pb.Change) (bool, error) { return false, errUnavailable })
		must(t, w.putItem("known", "1"))
		w.faulty.Script(storagetest.Fault{Method: "Put", Item: "unknown", Applied: true},
			storagetest.Fault{Method: "Stat", Item: "unknown", Skip: 1, Times: -1})
		if err := w.putItem("unknown", "1"); !errors.Is(err, storagetest.ErrFault) {
			t.Fatalf("got %v", err)
		}
		reg := prometheus.NewRegistry()
		w = durable(t, d.After(false, nil), m, func(c *Config) { c.Metrics = NewMetrics(reg) })
		w.faulty.Script(storagetest.Fault{Method: "Stat", Times: -1})
		ran, stop := running(t, w.s)
		must(t, retry.Sleep(t.Context(), time.Minute))
		if got := items(w.topic.take()); !slices.Equal(got, []string{"known"}) || w.held() != 1 {
			t.Errorf("got %v, %d left, want the known Changes", got, w.held())
		}
		if err := w.putItem("unknown", "2"); !errors.Is(err, storagetest.ErrFault) {
			t.Errorf("the next mutation: got %v, want that the store is unavailable", err)
		}
		if got := w.s.oldestAge(); got < time.Minute {
			t.Errorf("oldest age %v, want a minute at least", got)
		}
		w.faulty.Heal()
		must(t, retry.Sleep(t.Context(), time.Minute))
		if got := w.topic.take(); !slices.Equal(items(got), []string{"unknown"}) || got[0].GetOp() != pb.Op_OP_ADD ||
			w.held() != 0 {
			t.Errorf("got %v, %d left", got, w.held())
		}
		got := gathered(t, reg)
		for name, want := range map[string]float64{
			"millrace_emit_resolved_total acme done 1": 1, "millrace_emit_resolved_total acme not_done 1": 0,
			"millrace_emit_resolved_total acme undecided 1": 0, "millrace_emit_outbox_depth acme 1": 0,
			"millrace_emit_outbox_bytes acme 1": 0, "millrace_emit_outbox_oldest_seconds acme 1": 0,
			"millrace_emit_outbox_rejected acme 1": 0, "millrace_emit_outbox_undecided acme 1": 0,
			"millrace_emit_rejected_total acme 1":     0,
			"millrace_emit_publishes_total acme ok 1": 2, "millrace_emit_publishes_total acme failed 1": 0,
		} {
			if is, ok := got[name]; !ok || is != want {
				t.Errorf("%s: got %v (%v), want %v", name, is, ok, want)
			}
		}
		if got["millrace_emit_fsync_seconds acme 1"] == 0 {
			t.Errorf("no fsync was measured: %v", got)
		}
		stop()
		must(t, <-ran)
	})
}

// gathered returns metric values by name and label values; for histograms the counts.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// A full outbox refuses mutations, and the store stays as it is; when there is space they continue.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fileOn(t, outboxtest.New(), func(c *outbox.Config) { c.Limit = 20 << 10 })
		w := durable(t, outboxtest.New(), memory(t), func(c *Config) { c.Outbox = f })
		ran, stop := running(t, w.s)
		w.topic.set(func(*pb.Change) (bool, error) { return false, errUnavailable })
		done := 0
		var err error
		for ; err == nil; done++ {
			err = w.putItem(fmt.Sprint(done), "x")
		}
		if !errors.Is(err, outbox.ErrFull) || w.faulty.Count("Put") != done-1 {
			t.Errorf("got %v after %d puts of %d", err, w.faulty.Count("Put"), done)
		}
		w.topic.set(nil)
		must(t, retry.Sleep(t.Context(), time.Minute))
		must(t, w.putItem("again", "x"))
		if got := w.topic.take(); len(got) != done {
			t.Errorf("got %d changes, want %d", len(got), done)
		}
		stop()
		must(t, <-ran)
	})
}

// A failed outbox ends Run with an error and refuses mutations.
func TestRunEndsWithTheOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := outboxtest.New()
		w := durable(t, d, memory(t))
		ran, stop := running(t, w.s)
		defer stop()
		d.Fail(2, outboxtest.Failure{})
		if err := w.putItem("a", "x"); !errors.Is(err, outbox.ErrFailed) || w.faulty.Count("Put") != 0 {
			t.Errorf("got %v", err)
		}
		if err := <-ran; !errors.Is(err, outbox.ErrFailed) || !strings.Contains(err.Error(), "acme/1") {
			t.Errorf("Run: %v", err)
		}
	})
}

// Neither Flush nor Run interferes with calls that end at the same time.
func TestFlushRacesCalls(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	var flushing, calling sync.WaitGroup
	flushing.Go(func() {
		for ctx.Err() == nil {
			if err := w.s.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	const callers, each = 4, 100
	for i := range callers {
		calling.Go(func() {
			for n := range each {
				item := fmt.Sprint(i, n%2)
				if err := w.putItem(item, fmt.Sprint(n)); err != nil {
					t.Error(err)
				}
				if _, err := w.s.Delete(t.Context(), sp, item, storage.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	calling.Wait()
	cancel()
	flushing.Wait()
	ids := map[string]bool{}
	got := w.topic.take()
	for _, c := range got {
		ids[c.GetId()] = true
	}
	if len(got) != 2*callers*each || len(ids) != len(got) || len(w.pending()) != 0 || len(w.undecided) != 0 {
		t.Errorf("got %d changes of %d ids, %d left and %d undecided, want %d", len(got), len(ids), len(w.pending()),
			len(w.undecided), 2*callers*each)
	}
}

// The Change of a concurrent mutation of an item is not published before the outcomes of all of them are
// known.
func TestConcurrentMutationsOfOneItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := durable(t, outboxtest.New(), memory(t))
		ran, stop := running(t, w.s)
		hold := make(chan struct{})
		w.faulty.Before(func(_ context.Context, c storagetest.Call) error {
			if c.Method == "Put" && w.faulty.Count("Put") == 1 {
				<-hold
			}
			return nil
		})
		first := make(chan error, 1)
		go func() { first <- w.putItem("a", "slow") }()
		synctest.Wait()
		must(t, w.putItem("a", "quick"))
		must(t, w.putItem("b", "other"))
		if got := items(w.topic.take()); !slices.Equal(got, []string{"b"}) {
			t.Errorf("got changes of %v, want of b only", got)
		}
		close(hold)
		must(t, <-first)
		synctest.Wait()
		got := w.topic.take()
		if len(got) != 2 || !got[0].GetTime().AsTime().Before(got[1].GetTime().AsTime()) {
			t.Errorf("got %v, want two in the order of their times", got)
		}
		stop()
		must(t, <-ran)
	})
}
