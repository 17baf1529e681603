package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// Copies between stores never deadlock on buffers, however many there are and in whatever order they get them. The
// sizes are the defaults, 16 MiB in a part and 8 to 64 MiB in an item, divided by 1,024.
func TestCopiesDoNotDeadlock(t *testing.T) {
	const part, most = 16 << 10, 48
	store := func(t *testing.T) (*Store, *s3test.Server) {
		srv := s3test.New(s3test.Options{MinPart: part})
		srv.Close() // all requests bypass the network
		s := openKnown(t, srv, &Features{ETagIsMD5: true}, through(srv), func(c *Config) {
			c.minPart, c.PartBytes, c.digests = part, part, []string{digest.MD5}
		})
		must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
		return s, srv
	}
	for name, tt := range map[string]struct {
		order func(opened []int)
		step  int // between the tested numbers of copies, above some number
	}{
		// When readers waited for buffers, 16 copies deadlocked in this order, and 31 in the other.
		"last opened, first put":  {slices.Reverse[[]int], need.Amount(8, 1, 1)},
		"first opened, first put": {func([]int) {}, need.Amount(16, 1, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source, _ := store(t)
				target, kept := store(t)
				var contents [][]byte
				for i := range 8 {
					b := bytes.Repeat([]byte{byte(i)}, (i+1)*part/2)
					o := storage.PutOptions{Size: int64(len(b))}
					if _, err := source.Put(t.Context(), "s", fmt.Sprint(i), bytes.NewReader(b), o); err != nil {
						t.Fatal(err)
					}
					contents = append(contents, b)
				}
				of := func(worker int) int { return (worker*5 + 7) % len(contents) } // large and small ones in turns
				for workers := 1; workers <= most; workers++ {
					if workers > 17 && workers%tt.step > 0 {
						continue
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // in a bubble: when nothing moves any more
					bodies, turns := make([]io.ReadCloser, workers), make([]int, workers)
					for i := range workers {
						turns[i] = i
						var err error
						if bodies[i], _, err = source.Open(ctx, "s", fmt.Sprint(of(i)), ""); err != nil {
							t.Fatal(err)
						}
					}
					synctest.Wait() // they have prefetched as far as possible
					tt.order(turns)
					var all sync.WaitGroup
					for _, i := range turns {
						all.Go(func() {
							defer bodies[i].Close()
							o := storage.PutOptions{Size: int64(len(contents[of(i)]))}
							if _, err := target.Put(ctx, "s", fmt.Sprint(i), bodies[i], o); err != nil {
								t.Errorf("copy %d: %v", i, err)
							}
						})
						synctest.Wait() // it has the buffers that it gets
					}
					all.Wait()
					cancel()
					for i := range workers {
						if got, _ := kept.Object(testBucket, "s/"+fmt.Sprint(i)); !bytes.Equal(got, contents[of(i)]) {
							t.Errorf("copy %d has %d bytes, want %d", i, len(got), len(contents[of(i)]))
						}
					}
					if t.Failed() {
						t.Fatalf("with %d copies at once", workers)
					}
				}
				if !source.readBuffers.available.TryAcquire(source.readBuffers.capacity) ||
					!target.writeBuffers.available.TryAcquire(target.writeBuffers.capacity) {
					t.Error("memory is not given back")
				}
			})
		})
	}
}

// A reader without buffers reads range by range, and uses buffers as soon as some are free.
func TestReadWithoutBuffers(t *testing.T) {
	const size, n = 10, 95
	content := bytes.Repeat([]byte("0123456789abcdef"), 6)[:n]
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		taken int   // buffers in use by others
		fail  int64 // offset of a request that fails; 0: none
		err   error // of that request, or of a body
		first error // how the first body ends
		want  error
		read  int
	}{
		"all memory is free":      {want: io.EOF, read: n},
		"one piece is free":       {taken: 3, want: io.EOF, read: n},
		"no memory is free":       {taken: 4, want: io.EOF, read: n},
		"a request fails":         {fail: 50, err: boom, want: boom, read: 50},
		"the same without memory": {taken: 4, fail: 50, err: boom, want: boom, read: 50},
		"the first body breaks":   {first: boom, want: boom, read: size},
		"it breaks with an EOF":   {first: fmt.Errorf("GET: %w", io.EOF), want: io.EOF, read: size},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newBufferPool(size, 4)
			var others []buffer
			for range tt.taken {
				p, _ := memory.tryGet(size)
				others = append(others, p)
			}
			open := func(_ context.Context, at, n int64) (io.ReadCloser, error) {
				if tt.fail > 0 && at == tt.fail {
					return nil, tt.err
				}
				return io.NopCloser(bytes.NewReader(content[at : at+n])), nil
			}
			var first io.Reader = bytes.NewReader(content[:size])
			if tt.first != nil {
				first = io.MultiReader(first, iotest.ErrReader(tt.first))
			}
			p := newParallelReader(t.Context(), io.NopCloser(first), readPlan{size, n - size, size, 3}, memory, open)
			var got []byte
			var err error
			for b := make([]byte, 7); err == nil; {
				var m int
				m, err = p.Read(b)
				if got = append(got, b[:m]...); len(got) > n/2 {
					for _, o := range others {
						o.free()
					}
					others = nil
				}
			}
			if !errors.Is(err, tt.want) || (err == io.EOF) != (tt.read == n) || !bytes.Equal(got, content[:tt.read]) {
				t.Errorf("read %d bytes (%v), want %d (%v)", len(got), err, tt.read, tt.want)
			}
			p.Close()
			for _, o := range others {
				o.free()
			}
			if _, ok := memory.tryGet(4 * size); !ok {
				t.Error("memory is not given back")
			}
		})
	}
}
