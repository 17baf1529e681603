package limit

import (
	"context"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

// An instantStore is a store with a free Marker and no other method.
type instantStore struct{ storage.Store }

func (instantStore) Marker(context.Context) error { return nil }

// BenchmarkOperation measures the overhead of the decorator on a working store.
func BenchmarkOperation(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for name, s := range map[string]storage.Store{"plain": instantStore{},
		"limited": New(instantStore{}, NewBreaker(Config{}), nil)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Marker(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("limited, all CPUs", func(b *testing.B) {
		s := New(instantStore{}, NewBreaker(Config{}), nil)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := s.Marker(ctx); err != nil {
					b.Error(err)
				}
			}
		})
	})
}

func BenchmarkAdmit(b *testing.B) {
	br := NewBreaker(Config{})
	b.ReportAllocs()
	for b.Loop() {
		if err := br.Admit(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	ctx, s := t.Context(), New(instantStore{}, NewBreaker(Config{}), nil)
	if n := testing.AllocsPerRun(100, func() {
		_ = s.Marker(ctx)
		_ = s.breaker.Admit()
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
