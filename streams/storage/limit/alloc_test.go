package limit

import (
	"context"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

// An instantStore is a store with a free Marker and no other method.
type instantStore struct{ storage.Store }

func (instantStore) Marker(context.Context) error { return nil }

func TestNoAllocations(t *testing.T) {
	ctx, s := t.Context(), New(instantStore{}, NewBreaker(Config{}), nil)
	if n := testing.AllocsPerRun(100, func() {
		_ = s.Marker(ctx)
		_ = s.breaker.Admit()
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
