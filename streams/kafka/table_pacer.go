package kafka

import (
	"cmp"
	"sync"
	"time"
)

const (
	// idleFactor is the least time between the starts of two requests to a table, in multiples of the first
	// one's duration, if the second can wait. A busy engine takes longer, and so gets fewer and larger requests.
	idleFactor = 3
	// perRecordDelay is added to the time until the next request for each record of the last one. At a low rate
	// each record is stored soon; at a high rate requests become few and large.
	perRecordDelay = time.Millisecond
	// agedFactor is how many times more often batches may start because of their age than without it.
	agedFactor = 4
)

// readiness is the reason why a batch may be stored.
type readiness int

const (
	young    readiness = iota // only because the table is idle
	aged                      // its first record has waited for MaxAge
	complete                  // it is full, or memory is
)

// A tablePacer paces the batches of one table, oldest first. A young batch may start if no other batch of the
// table is being stored and the last one is long enough ago. An aged batch may start interval/agedFactor
// after the start of the last one. A complete batch may always start.
type tablePacer struct {
	interval time.Duration // least time between the starts of a small batch and a young one

	mu        sync.Mutex             // guards the fields below
	waiting   map[*batcher]time.Time // batchers that may not start yet, with the time at which their first record was read
	storing   int                    // batches that are being stored or about to be
	began     time.Time              // start of the newest batch
	notBefore time.Time              // earliest start of a young batch
}

func newTablePacer(apart time.Duration) *tablePacer {
	return &tablePacer{interval: apart, waiting: map[*batcher]time.Time{}}
}

// begin reports whether a batch of b with n records may start now. Its first record was read at read. A batch
// that is not complete may have to wait: for a time or, if that is 0, until b is signalled.
func (p *tablePacer) begin(b *batcher, n int, read time.Time, ready readiness) (ok bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ready != complete {
		p.waiting[b] = read
		if p.oldest() != b || ready == young && p.storing > 0 {
			return false, 0
		}
		from := p.notBefore
		if ready == aged {
			from = p.began.Add(p.interval / agedFactor)
		}
		if wait := time.Until(from); wait > 0 {
			return false, wait
		}
	}
	p.storing++
	p.began = time.Now()
	p.notBefore = p.began.Add(p.interval + time.Duration(n)*perRecordDelay)
	p.removeLocked(b)
	return true, 0
}

// end records that a batch has been stored, or will not be.
func (p *tablePacer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.storing--
	if rest := time.Now().Add((idleFactor - 1) * time.Since(p.began)); rest.After(p.notBefore) {
		p.notBefore = rest
	}
	p.signalOldest()
}

// remove removes b from the waiting batchers.
func (p *tablePacer) remove(b *batcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeLocked(b)
}

// removeLocked is remove for a caller that holds p.mu.
func (p *tablePacer) removeLocked(b *batcher) {
	delete(p.waiting, b)
	p.signalOldest()
}

// signalOldest makes the oldest waiting batcher call begin again. The caller holds p.mu.
func (p *tablePacer) signalOldest() {
	if b := p.oldest(); b != nil {
		b.signal()
	}
}

// oldest returns the batcher to start next, or nil if none waits. The caller holds p.mu.
func (p *tablePacer) oldest() (first *batcher) {
	for b, read := range p.waiting {
		if first == nil || cmp.Or(read.Compare(p.waiting[first]),
			cmp.Compare(b.ID, first.ID), cmp.Compare(b.Topic, first.Topic)) < 0 {
			first = b
		}
	}
	return first
}
