package clickhouse

import "sync"

// A freeList keeps up to maxFree values for reuse, so that their buffers need not grow again. A sync.Pool would drop
// its values with every second garbage collection, which is several times a second under load.
type freeList[T any] struct {
	mu  sync.Mutex
	all []T // guarded by mu
}

const (
	maxFree = 2
	// maxKeptBytes is the largest record value for which columns are kept for reuse: a dead letter may have 64 MiB.
	maxKeptBytes = 1 << 20
)

func (s *freeList[T]) take() (one T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.all) - 1
	if n < 0 {
		return one, false
	}
	one, s.all = s.all[n], s.all[:n]
	return one, true
}

func (s *freeList[T]) put(one T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) < maxFree {
		s.all = append(s.all, one)
	}
}
