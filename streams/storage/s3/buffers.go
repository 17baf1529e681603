package s3

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/streams/storage"
)

// A part is a piece of what is put, in memory.
type buffer struct {
	bytes []byte
	free  func()
}

// take returns what p is, which is empty then.
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

// A room is the memory that parts have: so many of full size at a time, and as many small ones as take no more than those.
type bufferPool struct {
	capacity  int64 // bytes
	available *semaphore.Weighted
	sizes     []int64 // sizes that are kept for reuse, ascending
	pools     []sync.Pool
}

// newRoom has room for so many full parts.
func newBufferPool(full int64, parts int) *bufferPool {
	r := &bufferPool{capacity: int64(parts) * full, available: semaphore.NewWeighted(int64(parts) * full), sizes: []int64{64 << 10, 1 << 20, full}}
	r.pools = make([]sync.Pool, len(r.sizes))
	return r
}

// part returns memory for size bytes, when there is some. One that is larger than all has it for itself.
func (r *bufferPool) get(ctx context.Context, size int64) (buffer, error) {
	if err := r.available.Acquire(ctx, min(size, r.capacity)); err != nil {
		return buffer{}, storage.Ended(ctx)
	}
	return r.allocate(size), nil
}

// try returns memory for size bytes if there is some now.
func (r *bufferPool) tryGet(size int64) (_ buffer, ok bool) {
	if !r.available.TryAcquire(min(size, r.capacity)) {
		return buffer{}, false
	}
	return r.allocate(size), true
}

// taken returns memory whose weight is acquired.
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
