package fixity

import (
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/streams/digest"
)

// hashers pools hashers, and their buffers, by combination of algorithms.
type hashers struct {
	mu    sync.Mutex
	pools map[string]*digest.Pool // guarded by mu
}

// sum reads r to its end and returns the digests and the number of bytes.
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
