package kafka

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
)

// The batchers with the most bytes flush, until every slot is taken.
func TestFlushLargest(t *testing.T) {
	busy, failing := func(b *batcher) { b.batchTaken = true }, func(b *batcher) { b.batchTaken, b.failing = true, true }
	due := func(b *batcher) { b.flushNow = true }
	type is = func(*batcher)
	for name, tt := range map[string]struct {
		bytes []int64
		are   map[int]is
		want  []int // those that must flush
	}{
		"nothing is read":          {[]int64{0, 0}, nil, nil},
		"one":                      {[]int64{0, 3}, nil, []int{1}},
		"the largest":              {[]int64{3, 9, 5}, nil, []int{1, 2}},
		"of those that wait":       {[]int64{3, 9, 5}, map[int]is{1: busy}, []int{2}},
		"every slot is taken":      {[]int64{3, 9, 5}, map[int]is{1: busy, 2: busy}, nil},
		"one flushes already":      {[]int64{3, 9, 5}, map[int]is{1: due}, []int{1, 2}},
		"the others have none":     {[]int64{0, 9, 0}, map[int]is{1: busy}, nil},
		"a failing one":            {[]int64{3, 9, 5}, map[int]is{1: failing}, []int{0, 2}},
		"only a failing one":       {[]int64{0, 9, 0}, map[int]is{1: failing}, nil},
		"many failing ones":        {[]int64{3, 9, 5, 7}, map[int]is{1: failing, 2: failing, 3: failing}, []int{0}},
		"more are busy than slots": {[]int64{3, 9, 5, 7}, map[int]is{1: busy, 2: busy, 3: busy}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := &BatchGroup{storeSlots: make(chan struct{}, 2), batchers: map[core.Partition]*batcher{}}
			all := make([]*batcher, len(tt.bytes))
			for i, n := range tt.bytes {
				b := &batcher{Partition: core.Partition{Topic: "changes", ID: int32(i)}, bytes: n, wake: make(chan struct{}, 1)}
				if n > 0 {
					b.records = make([]core.Record, 1)
				}
				if is := tt.are[i]; is != nil {
					is(b)
				}
				all[i], g.batchers[b.Partition] = b, b
			}
			g.flushLargest()
			for i, b := range all {
				if want := slices.Contains(tt.want, i); b.flushNow != want {
					t.Errorf("stream %d: due is %v, want %v", i, b.flushNow, want)
				}
			}
		})
	}
}

// The size of a record includes its headers, and a poll requests no more records than fit into memory.
func TestPollSize(t *testing.T) {
	fetched := func(n, value, header int) kgo.Fetches {
		recs := make([]*kgo.Record, n)
		for i := range recs {
			recs[i] = &kgo.Record{Value: make([]byte, value), Headers: []kgo.RecordHeader{{Value: make([]byte, header)}}}
		}
		return kgo.Fetches{{Topics: []kgo.FetchTopic{{Partitions: []kgo.FetchPartition{{Records: recs}}}}}}
	}
	for name, tt := range map[string]struct {
		fetches kgo.Fetches
		want    int
	}{
		"nothing was there":       {nil, 70},
		"small ones":              {fetched(10, 100, 0), maxPollRecords},
		"long values":             {fetched(10, 1<<20, 0), 4},
		"long headers":            {fetched(10, 0, 1<<20), 4},
		"longer than may be":      {fetched(1, 50<<20, 0), 1},
		"as long as dead letters": {fetched(10, 1<<10, 8<<10), 536},
	} {
		if got := pollSize(tt.fetches, 70, BatchMemory); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// After a failed batch, records of a limited size are kept.
func TestKeepProbeByBytes(t *testing.T) {
	for name, tt := range map[string]struct {
		n, header, want int
	}{
		"short records": {500, 10, probeRows},
		"fewer":         {20, 10, 20},
		"long headers":  {500, 100 << 10, 11},
		"one too long":  {5, 9 << 20, 1},
	} {
		g := &BatchGroup{memory: newByteBudget(), metrics: uncounted()}
		b := &batcher{Partition: core.Partition{Topic: "dead", ID: 0}, g: g, paused: true}
		for range tt.n {
			rec := &kgo.Record{Headers: []kgo.RecordHeader{{Value: make([]byte, tt.header)}}}
			b.records = append(b.records, core.Record{Raw: rec})
			b.bytes += core.RecordBytes(rec)
		}
		g.memory.add(b.bytes)
		b.keepProbe()
		if len(b.records) != tt.want || (b.rewindTo != nil) != (tt.want < tt.n) || g.memory.n.Load() != b.bytes {
			t.Errorf("%s: keeps %d, of %d bytes by %d, want %d", name, len(b.records), b.bytes, g.memory.n.Load(), tt.want)
		}
	}
}

// A flush request that arrives when all records have just been stored has no later effect.
func TestFlushAfterStore(t *testing.T) {
	for name, b := range map[string]*batcher{
		"nothing is left":    {},
		"it is at it anyway": {records: make([]core.Record, 1), batchTaken: true},
	} {
		b.wake = make(chan struct{}, 1)
		if b.flush(); b.flushNow {
			t.Errorf("%s: it is due", name)
		}
	}
}

// Records of a log that was created again while they were stored are neither marked nor committed for the new
// log.
func TestCompleteOfRecreatedLog(t *testing.T) {
	record := func(offset int64) []*kgo.Record { return []*kgo.Record{{Offset: offset}} }
	g := &BatchGroup{
		cfg: BatchConfig{MaxRows: 10, MaxBytes: 1 << 20, Memory: 1 << 20}, router: &core.Router{},
		memory: newByteBudget(), commits: newCommits(nil), commitSignal: make(chan struct{}, 1),
		metrics: uncounted(),
	}
	b := &batcher{g: g, Partition: core.Partition{Topic: "changes", ID: 0}, wake: make(chan struct{}, 1)}
	b.add(record(40), 7, 0, 40)
	b.add(record(0), 8, 0, 40)
	b.complete(b.records[:1:1], 0)
	if len(g.commits.todo) > 0 {
		t.Errorf("%v is to be committed, which is of the old log", g.commits.todo)
	}
	b.complete(b.records[:1:1], 0)
	want := position{EpochOffset: kgo.EpochOffset{Offset: 1}, origin: origin{incarnation: 8}}
	if got := g.commits.todo[b.Partition]; got != want {
		t.Errorf("%+v is to be committed, want %+v", got, want)
	}
}

// Batches of one table that were read at the same time, of partitions with the same number, have an order.
func TestOldestOfTwoTopics(t *testing.T) {
	now := time.Now()
	for range 100 {
		table := newTablePacer(time.Second)
		table.waiting[&batcher{Partition: core.Partition{Topic: "fixity.results", ID: 3}}] = now
		table.waiting[&batcher{Partition: core.Partition{Topic: "changes", ID: 3}}] = now
		if got := table.oldest(); got.Topic != "changes" {
			t.Fatalf("the oldest is of %s, want changes", got.Topic)
		}
	}
}

// Stored and uncommitted records of an old log are not committed for the new one.
func TestCommitOfRecreatedLog(t *testing.T) {
	record := func(offset int64) []*kgo.Record { return []*kgo.Record{{Offset: offset}} }
	g := &BatchGroup{
		cfg: BatchConfig{MaxRows: 10, MaxBytes: 1 << 20, Memory: 1 << 20}, router: &core.Router{},
		memory: newByteBudget(), commits: newCommits(nil), commitSignal: make(chan struct{}, 1),
		metrics: uncounted(),
	}
	b := &batcher{g: g, Partition: core.Partition{Topic: "changes", ID: 0}, wake: make(chan struct{}, 1)}
	b.add(record(40), 7, 0, 40)
	b.complete(b.records[:1:1], 0)
	if len(g.commits.todo) != 1 {
		t.Fatal("nothing is to be committed")
	}
	b.add(record(0), 8, 0, 40)
	if len(g.commits.todo) > 0 {
		t.Errorf("%v is to be committed, which is of the old log", g.commits.todo)
	}
}

// A partition that is revoked while its Mark fails is forgotten.
func TestUnmarkedRevokedPartition(t *testing.T) {
	g := &BatchGroup{
		unmarked: map[core.Partition]bool{{Topic: "changes"}: true}, batchers: map[core.Partition]*batcher{},
	}
	if err := g.rereadUnmarked(t.Context(), nil); err != nil || len(g.unmarked) > 0 {
		t.Errorf("got %v, and %v is doubted", err, g.unmarked)
	}
}
