package kafka

import (
	"sync"
	"time"
)

// A spacing lets batches of one table be stored before they are complete: at once if no other batch of the table is
// being stored and the last one began long enough ago. Complete batches do not wait for it.
type spacing struct {
	apart time.Duration // between the beginnings of two batches of which the second is not complete

	mu   sync.Mutex // guards the rest
	busy int        // batches that are being stored, or are about to be
	last time.Time  // when the newest of them began
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
		if wait := s.apart - time.Since(s.last); wait > 0 {
			return false, wait
		}
	}
	s.busy++
	s.last = time.Now()
	return true, 0
}

// end notes that a batch is stored, or is not going to be.
func (s *spacing) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
}
