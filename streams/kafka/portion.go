package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Bounds of what a fetch asks for of one partition. A batch that is longer comes all the same, but
// one partition in a fetch.
const (
	fetchBytes   = 16 << 20 // of all partitions
	portionBytes = 1 << 20
	portionLeast = 64 << 10
)

// A portion is how many bytes of a partition one fetch of a Pool asks for: about as many records as a
// window that was full has room for when it is fetched again. The client drops what it has read of
// a partition when that is paused, and reads, decompresses and parses it again: for tasks that are
// slower than the network that would be most of what it does.
type portion struct {
	records int // that are wanted

	mu      sync.Mutex // guards the rest: brokers are read side by side
	mean    float64    // bytes of a record, as lately read
	longest float64    // batch lately: less is never asked for
	asked   int32
}

var _ kgo.HookFetchBatchRead = (*portion)(nil)

func newPortion(window int) *portion { return &portion{records: window / 2, asked: portionBytes} }

// options are those of the client that p is for. In a fetch session a partition keeps the bytes that were
// asked for when it last got on: one whose next batch is longer would have to wait until it is the only one.
func (p *portion) options() []kgo.Opt {
	return []kgo.Opt{kgo.WithHooks(p), kgo.DisableFetchSessions()}
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (p *portion) OnFetchBatchRead(_ kgo.BrokerMetadata, _ string, _ int32, b kgo.FetchBatchMetrics) {
	if b.NumRecords == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	mean := float64(b.CompressedBytes) / float64(b.NumRecords)
	if p.mean == 0 {
		p.mean = mean
	}
	weight := min(float64(b.NumRecords)/float64(p.records), 1) // of one batch among many
	p.mean += (mean - p.mean) * weight
	p.longest = max(p.longest*(1-weight/512), float64(b.CompressedBytes))
}

// next returns what to ask for from now on, if that differs enough to say so.
func (p *portion) next() (bytes int32, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mean == 0 {
		return p.asked, false
	}
	want := int32(min(max(p.mean*float64(p.records), p.longest*1.1, portionLeast), portionBytes))
	if want > p.asked/4*3 && want < p.asked/4*5 {
		return p.asked, false
	}
	p.asked = want
	return want, true
}
