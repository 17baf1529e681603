package kafka

import (
	"cmp"
	"sync"
	"time"
)

const (
	// restShare is how many times as long as it took nothing more is asked of a table, of what can wait: the busier the
	// engine is, the longer a request takes, and the fewer and larger they become.
	idleFactor = 3
	// recordShare is how much longer the next request may wait for each record of the one before: with few records a
	// second each is soon there, with many the requests become few and large.
	perRecordDelay = time.Millisecond
	// agedShare is how many batches are stored because of their age alone in the time of one that is not that old.
	agedFactor = 4
)

// ripeness is why a batch may be stored.
type readiness int

const (
	young    readiness = iota // nothing speaks for it but that the table has nothing else to do
	aged                      // its first record has waited for MaxAge
	complete                  // it takes no more records, or memory is full
)

// A spacing lets batches of one table be stored, the oldest first. A young one is stored if no other batch of the table
// is being stored and the last one was long enough ago, an aged one if the last one began apart/agedShare ago, and a
// complete one at once.
type tablePacer struct {
	interval time.Duration // between the beginnings of two small batches of which the second is young

	mu        sync.Mutex             // guards the rest
	waiting   map[*batcher]time.Time // those that may not begin yet, with when the first of their records was read
	storing   int                    // batches that are being stored, or are about to be
	began     time.Time              // when the newest of them began
	notBefore time.Time              // from when on a young batch may be stored
}

func newTablePacer(apart time.Duration) *tablePacer {
	return &tablePacer{interval: apart, waiting: map[*batcher]time.Time{}}
}

// begin notes that a batch of s is about to be stored: n records, the first of which was read at read. One that is not
// complete may have to wait: for a time, or until s is roused if that time is 0.
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

// end notes that a batch is stored, or is not going to be.
func (t *tablePacer) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storing--
	if rest := time.Now().Add((idleFactor - 1) * time.Since(t.began)); rest.After(t.notBefore) {
		t.notBefore = rest
	}
	t.signalOldest()
}

// quit says that s waits no more.
func (t *tablePacer) remove(s *batcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(s)
}

// leave is quit. t.mu is held.
func (t *tablePacer) removeLocked(s *batcher) {
	delete(t.waiting, s)
	t.signalOldest()
}

// rouse has the oldest look again. t.mu is held.
func (t *tablePacer) signalOldest() {
	if s := t.oldest(); s != nil {
		s.signal()
	}
}

// oldest returns the stream that is to begin next, nil if none waits. t.mu is held.
func (t *tablePacer) oldest() (first *batcher) {
	for s, read := range t.waiting {
		if first == nil || cmp.Or(read.Compare(t.waiting[first]), cmp.Compare(s.id, first.id), cmp.Compare(s.topic, first.topic)) < 0 {
			first = s
		}
	}
	return first
}
