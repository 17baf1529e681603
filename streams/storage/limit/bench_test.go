package limit

import (
	"context"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

// instant is a store whose Stat costs nothing; it has no other method.
type instant struct{ storage.Store }

func (instant) Marker(context.Context) error { return nil }

// What a decorated call costs beyond the call, where the store works.
func BenchmarkOperation(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for name, s := range map[string]storage.Store{"plain": instant{}, "limited": NewThrottled(instant{}, NewBreaker(Config{}), nil)} {
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
		s := NewThrottled(instant{}, NewBreaker(Config{}), nil)
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
	ctx, s := t.Context(), NewThrottled(instant{}, NewBreaker(Config{}), nil)
	if n := testing.AllocsPerRun(100, func() {
		_ = s.Marker(ctx)
		_ = s.breaker.Admit()
	}); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
