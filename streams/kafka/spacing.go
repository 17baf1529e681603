package kafka

import (
	"sync"
	"time"
)

// restShare is how many times as long as it took nothing more is asked of a table, of what can wait: the busier the engine
// is, the longer a request takes, and the fewer and larger they become.
const restShare = 3

// A spacing lets batches of one table be stored before they are complete: at once if no other batch of the table is
// being stored and the last one was long enough ago. Complete batches do not wait for it.
type spacing struct {
	apart time.Duration // between the beginnings of two batches of which the second is not complete

	mu    sync.Mutex // guards the rest
	busy  int        // batches that are being stored, or are about to be
	began time.Time  // when the newest of them began
	early time.Time  // from when on a batch that is not complete may be stored
}

// begin notes that a batch is about to be stored. A batch that is not complete may have to wait: for a time, or for the
// end of another batch if that time is 0.
func (s *spacing) begin(complete bool) (ok bool, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !complete {
		if s.busy > 0 {
			return false, 0
		}
		if wait := time.Until(s.early); wait > 0 {
			return false, wait
		}
	}
	s.busy++
	s.began = time.Now()
	s.early = s.began.Add(s.apart)
	return true, 0
}

// end notes that a batch is stored, or is not going to be.
func (s *spacing) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	if rest := time.Now().Add((restShare - 1) * time.Since(s.began)); rest.After(s.early) {
		s.early = rest
	}
}
