package kafka

import (
	"runtime"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/client"
	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// idleFetcher returns a fetcher with a client that never connects.
func idleFetcher(t *testing.T) *fetcher {
	cl, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.ConsumeTopics("t"))
	must(t, err)
	t.Cleanup(cl.Close)
	return &fetcher{p: new(Pool), cl: cl, memory: newByteBudget(), assignments: map[core.Partition]*assignment{},
		metrics: uncounted()}
}

// uncounted returns metrics that are exported nowhere.
func uncounted() *metrics.Role { return (*metrics.Metrics)(nil).Role(schemas.RoleCopier, schemas.High) }

// withInFlight returns an assignment with a window of 64 and n records in flight.
func (f *fetcher) withInFlight(id int32, n int) *assignment {
	part := newAssignment(f, core.Partition{Topic: "t", ID: id}, 64)
	f.assignments[part.Partition] = part
	part.track(recordsFrom(0, n))
	return part
}

// recordsFrom returns records with offsets first to last-1.
func recordsFrom(first, last int) (recs []*kgo.Record) {
	for i := first; i < last; i++ {
		recs = append(recs, &kgo.Record{Offset: int64(i)})
	}
	return recs
}

func (f *fetcher) pausedPartitions() int { return len(f.cl.PauseFetchPartitions(nil)["t"]) }

// Partitions may be assigned and lost before Run has got the client.
func TestPartitionsLostAtOnce(t *testing.T) {
	cfg := client.Config{Brokers: []string{"127.0.0.1:1"}}
	p, err := NewPool(cfg, PoolConfig{Role: schemas.RoleCopier, Topics: []schemas.Topic{schemas.DuplicationHigh}}, nil)
	must(t, err)
	f := p.fetchers[0]
	cl, err := kgo.NewClient(f.opts...)
	must(t, err)
	defer cl.CloseAllowingRebalance()
	part := f.withInFlight(0, 1)
	f.onLost(t.Context(), cl, map[string][]int32{part.Topic: {part.ID}})
	if len(f.assignments) > 0 {
		t.Errorf("still assigned: %v", f.assignments)
	}
}

// A partition is paused when three quarters of its window are in flight, and resumed at a quarter.
func TestPauseOfFullWindows(t *testing.T) {
	f := idleFetcher(t)
	f.withInFlight(0, 47)
	if n := f.pausedPartitions(); n != 0 {
		t.Errorf("%d paused with less than three quarters in flight", n)
	}
	full := f.withInFlight(1, 48)
	if f.pausedPartitions() != 1 || !full.isPaused() {
		t.Errorf("%d paused, the full one %v", f.pausedPartitions(), full.isPaused())
	}
	for i := range uint64(31) {
		full.finish(i)
	}
	if f.pausedPartitions() != 1 {
		t.Error("fetched again with more than a quarter in flight")
	}
	full.finish(31)
	if f.pausedPartitions() != 0 {
		t.Error("a window three quarters empty is still paused")
	}
}

// A fetcher pauses a partition while a worker resumes it: the later one sees the result of the earlier one.
func TestPauseAndResumeAtOnce(t *testing.T) {
	f := idleFetcher(t)
	for try := range 5_000 {
		part := f.withInFlight(0, 47)
		for i := range uint64(46) {
			part.finish(i + 1)
		}
		var both sync.WaitGroup
		both.Go(func() { part.track(recordsFrom(47, 48)) })
		both.Go(func() { part.finish(0) })
		both.Wait()
		if paused := f.pausedPartitions() > 0; paused != part.isPaused() {
			t.Fatalf("try %d: the client says paused %v, the share %v", try, paused, part.isPaused())
		}
		f.cl.ResumeFetchPartitions(part.AsMap())
	}
}

// One task that is not done does not keep the done records of its poll in memory.
func TestDoneRecordsAreFreed(t *testing.T) {
	p := &Pool{}
	p.cfg.defaults()
	f := &fetcher{p: p, memory: newByteBudget(), assignments: map[core.Partition]*assignment{}, metrics: uncounted()}
	part := newAssignment(f, core.Partition{Topic: "t", ID: 0}, 8192)
	f.assignments[part.Partition] = part
	recs := make([]*kgo.Record, 2048)
	for i := range recs {
		recs[i] = &kgo.Record{Offset: int64(i), Value: make([]byte, 16<<10)}
	}
	before := heapBytes()
	tasks, _, err := f.newTasks(kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "t",
		Partitions: []kgo.FetchPartition{{Records: recs}}}}}})
	must(t, err)
	recs = nil
	for _, tk := range tasks[1:] {
		if !part.gate.Begin() {
			t.Fatal("not started")
		}
		p.finish(tk)
	}
	if freed := int64(before) - int64(heapBytes()); freed < 30<<20 {
		t.Errorf("%d MiB are free again, want all but one of 2048 records: 31", freed>>20)
	}
	runtime.KeepAlive(tasks[0])
	runtime.KeepAlive(recs)
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
