package s3

import (
	"context"
	"errors"
	"testing"
)

// Small buffers count by their size, so many can be in use at a time, and a full one waits for them.
func TestBufferPool(t *testing.T) {
	const full = 8 << 20
	r := newBufferPool(full, 2)
	var small []buffer
	for range 100 {
		p, err := r.get(t.Context(), 10<<10)
		must(t, err)
		if len(p.bytes) != 10<<10 {
			t.Fatalf("%d bytes, want %d", len(p.bytes), 10<<10)
		}
		small = append(small, p)
	}
	one, err := r.get(t.Context(), full)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.get(ctx, full); !errors.Is(err, context.Canceled) {
		t.Errorf("a second full part beside the small ones: %v, want that it waits", err)
	}
	for _, p := range small {
		p.free()
	}
	one.free()
	two, err := r.get(t.Context(), 3*full) // has all for itself, or it would never be had
	must(t, err)
	if len(two.bytes) != 3*full {
		t.Errorf("%d bytes, want %d", len(two.bytes), 3*full)
	}
	if _, err := r.get(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a part when all memory is taken: %v, want that it waits", err)
	}
	two.free()
}
