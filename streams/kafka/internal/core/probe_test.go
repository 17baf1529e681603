package core

import (
	"encoding/binary"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// parseNextBatch finds the next batch only if no unread record is before it.
func TestNextBatch(t *testing.T) {
	batch := func(first int64, n int32) []byte {
		b := kmsg.RecordBatch{FirstOffset: first, LastOffsetDelta: n - 1, NumRecords: n, Records: make([]byte, 20)}
		b.Length = int32(len(b.AppendTo(nil)) - 12)
		return b.AppendTo(nil)
	}
	lies := batch(10, 5)
	binary.BigEndian.PutUint32(lies[23:], 5000)
	for name, tt := range map[string]struct {
		batches     []byte
		offset, end int64
		next        int64
		ok          bool
	}{
		"another follows":                  {append(batch(10, 5), batch(15, 2)...), 10, 17, 15, true},
		"from within it":                   {append(batch(10, 5), batch(15, 2)...), 12, 17, 15, true},
		"another follows, cut":             {append(batch(10, 5), batch(15, 2)[:30]...), 10, 17, 15, true},
		"its own count is damaged":         {append(lies[:len(lies):len(lies)], batch(15, 2)...), 10, 17, 15, true},
		"the last one":                     {batch(10, 5), 10, 15, 15, true},
		"the last one, count damaged":      {lies, 10, 15, 0, false},
		"more follows, not fetched":        {batch(10, 5), 10, 20, 0, false},
		"of another offset":                {append(batch(10, 5), batch(15, 2)...), 16, 17, 0, false},
		"what follows is beyond the end":   {append(batch(10, 5), batch(99, 2)...), 10, 17, 0, false},
		"nothing":                          {nil, 10, 17, 0, false},
		"less than the head of a batch":    {batch(10, 5)[:60], 10, 15, 0, false},
		"its length is more than there is": {batch(10, 5)[:70], 10, 15, 15, true},
	} {
		next, ok := parseNextBatch(tt.batches, tt.offset, tt.end)
		if ok != tt.ok || ok && next != tt.next {
			t.Errorf("%s: %d, %t, want %d, %t", name, next, ok, tt.next, tt.ok)
		}
	}
}
