package s3

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/streams/storage"
)

// A buffer is memory from a bufferPool. free returns it.
type buffer struct {
	bytes []byte
	free  func()
}

// detach returns the buffer and leaves p empty.
func (p *buffer) detach() buffer {
	taken := *p
	*p = buffer{}
	return taken
}

// release frees p, unless it is empty.
func (p *buffer) release() {
	if taken := p.detach(); taken.free != nil {
		taken.free()
	}
}

// A bufferPool bounds the memory for buffers by their total size, so that many small ones can be in use instead of a
// few large ones. It reuses their memory.
type bufferPool struct {
	capacity  int64 // in bytes
	available *semaphore.Weighted
	sizes     []int64 // of the reused memory, ascending
	pools     []sync.Pool
}

// newBufferPool returns a pool with the capacity for this number of parts of full bytes each.
func newBufferPool(full int64, parts int) *bufferPool {
	capacity := int64(parts) * full
	r := &bufferPool{
		capacity: capacity, available: semaphore.NewWeighted(capacity), sizes: []int64{64 << 10, 1 << 20, full},
	}
	r.pools = make([]sync.Pool, len(r.sizes))
	return r
}

// get returns a buffer of size bytes and waits until the capacity permits it. A buffer larger than the capacity waits
// until all others are free.
func (r *bufferPool) get(ctx context.Context, size int64) (buffer, error) {
	if err := r.available.Acquire(ctx, min(size, r.capacity)); err != nil {
		return buffer{}, storage.ContextErr(ctx)
	}
	return r.allocate(size), nil
}

// tryGet is get without waiting. ok is false if the capacity does not permit the buffer now.
func (r *bufferPool) tryGet(size int64) (_ buffer, ok bool) {
	if !r.available.TryAcquire(min(size, r.capacity)) {
		return buffer{}, false
	}
	return r.allocate(size), true
}

// allocate returns a buffer after its weight was acquired.
func (r *bufferPool) allocate(size int64) buffer {
	weight := min(size, r.capacity)
	for i, n := range r.sizes {
		if size > n {
			continue
		}
		b, ok := r.pools[i].Get().(*[]byte)
		if !ok {
			fresh := make([]byte, n)
			b = &fresh
		}
		return buffer{(*b)[:size], func() { r.pools[i].Put(b); r.available.Release(weight) }}
	}
	return buffer{make([]byte, size), func() { r.available.Release(weight) }}
}
