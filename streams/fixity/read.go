package fixity

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/streams/digest"
)

// hashers keeps hashers, and their buffers, of each combination of algorithms.
type hashers struct {
	mu    sync.Mutex
	pools map[string]*digest.Pool // guarded by mu
}

// sum reads r to its end and returns the digests and the number of the bytes.
func (h *hashers) sum(r io.Reader, configured, onRecord []string) (digest.Set, int64, error) {
	if len(configured) == 0 {
		configured = []string{digest.MD5, digest.SHA256}
	}
	algs := configured
	for _, alg := range onRecord {
		if !slices.Contains(algs, alg) {
			algs = append(algs[:len(algs):len(algs)], alg)
		}
	}
	pool, err := h.pool(algs)
	if err != nil {
		return nil, 0, err
	}
	hasher, err := pool.Get()
	if err != nil {
		return nil, 0, err
	}
	defer pool.Put(hasher)
	n, err := hasher.ReadFrom(r)
	if err != nil {
		return nil, n, err
	}
	return hasher.Sum(), n, nil
}

func (h *hashers) pool(algs []string) (*digest.Pool, error) {
	key := strings.Join(algs, ",")
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.pools[key]; p != nil {
		return p, nil
	}
	p, err := digest.NewPool(algs...)
	if err != nil {
		return nil, err
	}
	if h.pools == nil {
		h.pools = map[string]*digest.Pool{}
	}
	h.pools[key] = p
	return p, nil
}

type storeKey struct{ account, store string }

// proofs shares readings of stores' markers: a reading serves all whose absence was
// seen before it began. One reading of a store runs at a time, so those who come
// meanwhile share the next one.
type proofs struct {
	mu     sync.Mutex
	stores map[storeKey]*proof // guarded by mu
}

type proof struct {
	turn chan struct{} // holds one token: the right to read, and to write what follows
	mu   sync.Mutex
	seen int   // readings begun so far; guarded by mu
	err  error // of the newest reading; guarded by turn
}

// after returns the answer of a reading that began after the call.
func (p *proofs) after(ctx context.Context, key storeKey, read func(context.Context) error) error {
	s := p.of(key)
	before := s.begun(0)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case s.turn <- struct{}{}:
	}
	defer func() { <-s.turn }()
	if s.begun(0) > before {
		return s.err
	}
	s.begun(1)
	err := read(ctx)
	if ctx.Err() != nil { // says nothing to others
		s.begun(-1)
		return context.Cause(ctx)
	}
	s.err = err
	return err
}

func (p *proofs) of(key storeKey) *proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stores[key]
	if s == nil {
		s = &proof{turn: make(chan struct{}, 1)}
		if p.stores == nil {
			p.stores = map[storeKey]*proof{}
		}
		p.stores[key] = s
	}
	return s
}

// begun counts n more readings and returns how many began.
func (s *proof) begun(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen += n
	return s.seen
}
