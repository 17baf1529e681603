package kafka

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A fetch asks for about half a window of records, never for less than the longest batch lately, and
// within bounds.
func TestPortion(t *testing.T) {
	for name, tt := range map[string]struct {
		times, records, bytes int // of batches, and of each
		least, most           int32
	}{
		"nothing read":                 {0, 0, 0, portionBytes, portionBytes},
		"an empty batch":               {1, 0, 100, portionBytes, portionBytes},
		"small records, short batches": {1000, 10, 400, 4096 * 40, 4096 * 41},
		"tiny ones":                    {1000, 10, 10, portionLeast, portionLeast},
		"large ones":                   {10, 1, 1 << 20, portionBytes, portionBytes},
		"long batches of small ones":   {100, 20_000, 900_000, 900_000, portionBytes},
		"a batch beyond every bound":   {3, 100_000, 4 << 20, portionBytes, portionBytes},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPortion(8192)
			p.read(tt.times, tt.records, tt.bytes)
			if got, _ := p.next(); got < tt.least || got > tt.most {
				t.Errorf("asks for %d bytes, want %d to %d", got, tt.least, tt.most)
			}
			if got, changed := p.next(); changed {
				t.Errorf("asks for %d bytes, and then for others without having read more", got)
			}
		})
	}
}

// Whoever wrote short batches and then long ones has the long ones read at once; after them the
// portion shrinks by and by.
func TestPortionFollows(t *testing.T) {
	p := newPortion(8192)
	p.read(1000, 10, 400)
	short, _ := p.next()
	p.read(1, 10_000, 400_000)
	if got, changed := p.next(); !changed || got < 400_000 {
		t.Errorf("asks for %d bytes after a batch of 400,000", got)
	}
	p.read(1_000_000, 10, 400)
	if got, _ := p.next(); got > 2*short {
		t.Errorf("asks for %d bytes long after, want about %d", got, short)
	}
}

func (p *portion) read(times, records, bytes int) {
	for range times {
		p.OnFetchBatchRead(kgo.BrokerMetadata{}, "t", 0, kgo.FetchBatchMetrics{NumRecords: records, CompressedBytes: bytes})
	}
}
