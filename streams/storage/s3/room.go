package s3

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/streams/storage"
)

// A part is a piece of what is put, in memory.
type part struct {
	bytes []byte
	free  func()
}

// take returns what p is, which is empty then.
func (p *part) take() part {
	taken := *p
	*p = part{}
	return taken
}

// release frees p, unless it is empty.
func (p *part) release() {
	if taken := p.take(); taken.free != nil {
		taken.free()
	}
}

// A room is the memory that parts have: so many of full size at a time, and as many small ones as take no more than those.
type room struct {
	all    int64 // bytes
	left   *semaphore.Weighted
	shelf  []int64 // sizes that are kept for reuse, ascending
	shelfs []sync.Pool
}

// newRoom has room for so many full parts.
func newRoom(full int64, parts int) *room {
	r := &room{all: int64(parts) * full, left: semaphore.NewWeighted(int64(parts) * full), shelf: []int64{64 << 10, 1 << 20, full}}
	r.shelfs = make([]sync.Pool, len(r.shelf))
	return r
}

// part returns memory for size bytes, when there is some. One that is larger than all has it for itself.
func (r *room) part(ctx context.Context, size int64) (part, error) {
	if err := r.left.Acquire(ctx, min(size, r.all)); err != nil {
		return part{}, storage.Ended(ctx)
	}
	return r.taken(size), nil
}

// try returns memory for size bytes if there is some now.
func (r *room) try(size int64) (_ part, ok bool) {
	if !r.left.TryAcquire(min(size, r.all)) {
		return part{}, false
	}
	return r.taken(size), true
}

// taken returns memory whose weight is acquired.
func (r *room) taken(size int64) part {
	weight := min(size, r.all)
	for i, n := range r.shelf {
		if size > n {
			continue
		}
		b, ok := r.shelfs[i].Get().(*[]byte)
		if !ok {
			fresh := make([]byte, n)
			b = &fresh
		}
		return part{(*b)[:size], func() { r.shelfs[i].Put(b); r.left.Release(weight) }}
	}
	return part{make([]byte, size), func() { r.left.Release(weight) }}
}
