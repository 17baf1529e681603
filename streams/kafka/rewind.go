package kafka

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// probeRows, and of these about probeBytes, are kept of what could not be stored, to try with.
const (
	probeRows  = 100
	probeBytes = 1 << 20
)

// retreat lets go of a batch that could not be stored, and returns when it is time to try again: with the first few
// of its records, for which there is always room. It reports false when the stream is stopped.
func (s *batcher) backOff(batch []inflightRecord, tries int, err error) bool {
	if s.stopping() {
		return false
	}
	s.keepProbe()
	wait := s.g.retry.Backoff(tries)
	s.g.metrics.handled(fateRetried, len(batch), -1)
	s.g.router.log.Warn("will store again", "topic", s.topic, "partition", s.id, "from", batch[0].rec.Offset,
		"rows", len(batch), "attempt", tries, "wait", wait, "err", err)
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-s.halt:
		return false
	case <-t.C:
		return true
	}
}

// fails leaves the memory to others: but for a few records, what was read is read again once those are stored. It returns
// how many are left.
func (s *batcher) keepProbe() (left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.discarded {
		return 0
	}
	s.failing, s.batchTaken, s.flushNow = true, false, true
	s.pause()
	keep := 0
	for kept := int64(0); keep < min(len(s.records), probeRows) && kept < probeBytes; keep++ {
		kept += recordBytes(s.records[keep].rec)
	}
	rest, last := s.records[keep:], s.records[keep-1].rec
	if len(rest) == 0 {
		return keep
	}
	s.rewindTo = &kgo.EpochOffset{Epoch: last.LeaderEpoch, Offset: rest[0].rec.Offset}
	var weight int64
	for _, l := range rest {
		weight += recordBytes(l.rec)
	}
	s.records = slices.Clone(s.records[:keep])
	s.bytes -= weight
	s.g.metrics.inFlight(-len(rest), -weight)
	s.g.memory.add(-weight)
	return keep
}

// turned returns from where to read again, if there is something to be read and what was kept of it is stored. The
// caller has it read.
func (s *batcher) takeRewind() (at kgo.EpochOffset, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rewindTo == nil || s.failing || s.discarded {
		return at, false
	}
	at, s.rewindTo, s.paused = *s.rewindTo, nil, false
	return at, true
}

// turnBack has the poll loop read again what streams have let go of.
func (g *BatchGroup) requestRewind() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rewindPending = true
	if g.cancelPoll != nil {
		g.cancelPoll()
	}
}

// polling returns the context of a poll, which ends when there is something to turn back to.
func (g *BatchGroup) pollContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cancelPoll = cancel; g.rewindPending {
		cancel()
	}
	return ctx, cancel
}

// setBack has read again what streams have let go of, of those that store again. A poll is held, so that no
// partition moves meanwhile.
func (g *BatchGroup) applyRewinds(cl *kgo.Client) {
	g.mu.Lock()
	turning := g.rewindPending
	g.rewindPending = false
	g.mu.Unlock()
	if !turning {
		return
	}
	to := map[partition]kgo.EpochOffset{}
	for _, s := range g.owned(nil) {
		if at, ok := s.takeRewind(); ok {
			to[s.partition] = at
		}
	}
	g.seek(cl, to)
	for at := range to {
		cl.ResumeFetchPartitions(at.asMap())
	}
}

// seek sets positions, while nothing is committed.
func (g *BatchGroup) seek(cl *kgo.Client, to map[partition]kgo.EpochOffset) {
	named := map[string]map[int32]kgo.EpochOffset{}
	for at, offset := range to {
		if named[at.topic] == nil {
			named[at.topic] = map[int32]kgo.EpochOffset{}
		}
		named[at.topic][at.id] = offset
	}
	g.commits.sending <- struct{}{}
	cl.SetOffsets(named)
	<-g.commits.sending
}
