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

// begin reports whether a batch of s with n records may start now. Its first record was read at read. A batch
// that is not complete may have to wait: for a time or, if that is 0, until s is signalled.
func (t *tablePacer) begin(s *batcher, n int, read time.Time, ripe readiness) (ok bool, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ripe != complete {
		t.waiting[s] = read
		if t.oldest() != s || ripe == young && t.storing > 0 {
			return false, 0
		}
		from := t.notBefore
		if ripe == aged {
			from = t.began.Add(t.interval / agedFactor)
		}
		if wait := time.Until(from); wait > 0 {
			return false, wait
		}
	}
	t.storing++
	t.began = time.Now()
	t.notBefore = t.began.Add(t.interval + time.Duration(n)*perRecordDelay)
	t.removeLocked(s)
	return true, 0
}

// end records that a batch has been stored, or will not be.
func (t *tablePacer) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storing--
	if rest := time.Now().Add((idleFactor - 1) * time.Since(t.began)); rest.After(t.notBefore) {
		t.notBefore = rest
	}
	t.signalOldest()
}

// remove removes s from the waiting batchers.
func (t *tablePacer) remove(s *batcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(s)
}

// removeLocked is remove for a caller that holds t.mu.
func (t *tablePacer) removeLocked(s *batcher) {
	delete(t.waiting, s)
	t.signalOldest()
}

// signalOldest makes the oldest waiting batcher call begin again. The caller holds t.mu.
func (t *tablePacer) signalOldest() {
	if s := t.oldest(); s != nil {
		s.signal()
	}
}

// oldest returns the batcher to start next, or nil if none waits. The caller holds t.mu.
func (t *tablePacer) oldest() (first *batcher) {
	for s, read := range t.waiting {
		if first == nil || cmp.Or(read.Compare(t.waiting[first]), cmp.Compare(s.id, first.id), cmp.Compare(s.topic, first.topic)) < 0 {
			first = s
		}
	}
	return first
}
