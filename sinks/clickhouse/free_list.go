package clickhouse

import "sync"

// spares keeps a few of what is used again, so that it need not grow anew. (A sync.Pool lets go of what it has with every
// other collection, which is several times a second where it matters.)
type freeList[T any] struct {
	mu  sync.Mutex
	all []T // guarded by mu
}

const (
	maxFree = 2
	// mostKept is how many bytes a value may have had in what is kept to be used again: a dead letter may have 64 MiB.
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
