package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

// BenchmarkPut puts small files durably. The peer writes, syncs and renames files and syncs their directory, without
// digests and properties.
func BenchmarkPut(b *testing.B) {
	content := bytes.Repeat([]byte("millrace"), 4<<10/8)
	name := func(n int64) string { return fmt.Sprintf("dir%02d/file%07d", n%50, n) }
	put := func(b *testing.B) func(ctx context.Context, n int64) error {
		s := open(b, Config{})
		if err := s.CreateSpace(b.Context(), storage.Space{Name: "s"}); err != nil {
			b.Fatal(err)
		}
		return func(ctx context.Context, n int64) error {
			_, err := s.Put(ctx, "s", name(n), bytes.NewReader(content), storage.PutOptions{
				Size: int64(len(content)), Properties: storage.Properties{MediaType: "text/plain"},
				Condition: storage.Condition{Absent: true},
			})
			return err
		}
	}
	peer := func(b *testing.B) func(ctx context.Context, n int64) error {
		root := b.TempDir()
		for n := range int64(50) {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name(n))), 0o777); err != nil {
				b.Fatal(err)
			}
		}
		return func(_ context.Context, n int64) error { return plainWrite(filepath.Join(root, name(n)), content) }
	}
	for kind, start := range map[string]func(b *testing.B) func(context.Context, int64) error{"store": put, "peer": peer} {
		b.Run("alone/"+kind, func(b *testing.B) {
			f := start(b)
			b.SetBytes(int64(len(content)))
			var n int64
			for b.Loop() {
				if err := f(b.Context(), n); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
		b.Run("16 at once/"+kind, func(b *testing.B) {
			f := start(b)
			b.SetBytes(int64(len(content)))
			b.SetParallelism(8)
			var n atomic.Int64
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if err := f(b.Context(), n.Add(1)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func plainWrite(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func BenchmarkStat(b *testing.B) {
	s := open(b, Config{})
	if err := s.CreateSpace(b.Context(), storage.Space{Name: "s"}); err != nil {
		b.Fatal(err)
	}
	if _, err := s.Put(b.Context(), "s", "a/b/c/d", bytes.NewReader(nil), storage.PutOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Stat(b.Context(), "s", "a/b/c/d"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList(b *testing.B) {
	s := open(b, Config{})
	const n = 10_000
	for i := range n {
		path := filepath.Join(s.cfg.Root, "s", fmt.Sprintf("dir%02d", i%50), fmt.Sprintf("file%07d", i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, nil, 0o666)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		got := 0
		for _, err := range s.List(b.Context(), "s", "") {
			if err != nil {
				b.Fatal(err)
			}
			got++
		}
		if got != n {
			b.Fatalf("listed %d of %d", got, n)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "items/s")
}
