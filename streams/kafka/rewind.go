package kafka

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/streams/kafka/internal/core"
	"github.com/millrace/millrace/streams/kafka/metrics"
)

// A batcher keeps probeRows records or about probeBytes, whichever is less, to try again with.
const (
	probeRows  = 100
	probeBytes = 1 << 20
)

// backOff drops a batch that could not be stored, except a few records, and waits until it is time to try
// with these. It reports false when the batcher is stopped.
func (b *batcher) backOff(batch []core.Record, tries int, err error) bool {
	if b.stopping() {
		return false
	}
	b.keepProbe()
	wait := b.g.retry.Backoff(tries)
	b.g.metrics.CountHandled(metrics.DispositionRetried, len(batch), -1)
	b.g.router.Log.Warn("retry batch", "topic", b.Topic, "partition", b.ID, "from", batch[0].Raw.Offset,
		"rows", len(batch), "attempt", tries, "retry_after", wait, "err", err)
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-b.halt:
		return false
	case <-t.C:
		return true
	}
}

// keepProbe frees the memory of the queue: it keeps the first few records, and the rest is read again when
// those are stored. It returns how many records are left.
func (b *batcher) keepProbe() (left int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.discarded {
		return 0
	}
	b.failing, b.batchTaken, b.flushNow = true, false, true
	b.pause()
	keep := 0
	for kept := int64(0); keep < min(len(b.records), probeRows) && kept < probeBytes; keep++ {
		kept += core.RecordBytes(b.records[keep].Raw)
	}
	rest, last := b.records[keep:], b.records[keep-1].Raw
	if len(rest) == 0 {
		return keep
	}
	b.rewindTo = &kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: rest[0].Raw.Offset}
	var weight int64
	for _, ir := range rest {
		weight += core.RecordBytes(ir.Raw)
	}
	b.records = slices.Clone(b.records[:keep])
	b.bytes -= weight
	b.g.metrics.AddInFlight(-len(rest), -weight)
	b.g.memory.add(-weight)
	return keep
}

// takeRewind returns the offset from which to read again, if records were dropped and those that were kept
// are stored. The caller must seek to it.
func (b *batcher) takeRewind() (at kgo.EpochOffset, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rewindTo == nil || b.failing || b.discarded {
		return at, false
	}
	at, b.rewindTo, b.paused = *b.rewindTo, nil, false
	return at, true
}

// requestRewind makes the poll loop read again the records that batchers dropped.
func (g *BatchGroup) requestRewind() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rewindPending = true
	if g.cancelPoll != nil {
		g.cancelPoll()
	}
}

// pollContext returns the context of a poll. It ends when a rewind is requested.
func (g *BatchGroup) pollContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cancelPoll = cancel; g.rewindPending {
		cancel()
	}
	return ctx, cancel
}

// applyRewinds seeks to the records that batchers dropped, of those that have recovered. The caller holds a
// poll, so that no partition moves meanwhile.
func (g *BatchGroup) applyRewinds(cl *kgo.Client) {
	g.mu.Lock()
	turning := g.rewindPending
	g.rewindPending = false
	g.mu.Unlock()
	if !turning {
		return
	}
	to := map[core.Partition]kgo.EpochOffset{}
	for _, b := range g.owned(nil) {
		if at, ok := b.takeRewind(); ok {
			to[b.Partition] = at
		}
	}
	g.seek(cl, to)
	for at := range to {
		cl.ResumeFetchPartitions(at.AsMap())
	}
}

// seek sets the offsets to read from. No commit runs meanwhile.
func (g *BatchGroup) seek(cl *kgo.Client, to map[core.Partition]kgo.EpochOffset) {
	named := map[string]map[int32]kgo.EpochOffset{}
	for at, offset := range to {
		if named[at.Topic] == nil {
			named[at.Topic] = map[int32]kgo.EpochOffset{}
		}
		named[at.Topic][at.ID] = offset
	}
	g.commits.sending <- struct{}{}
	cl.SetOffsets(named)
	<-g.commits.sending
}
