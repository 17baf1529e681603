package emit

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// null is a store that takes everything and keeps nothing.
type null struct {
	storage.Store
	version atomic.Int64
}

func (n *null) Stat(context.Context, string, string) (storage.Object, error) {
	return storage.Object{}, storage.ErrNotFound
}

func (n *null) Put(_ context.Context, _, item string, r io.Reader, o storage.PutOptions) (storage.Object, error) {
	size, err := io.Copy(io.Discard, r)
	if err != nil {
		return storage.Object{}, err
	}
	sum := digest.Set{
		digest.MD5: "d41d8cd98f00b204e9800998ecf8427e", digest.SHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
	}
	if sum, err = o.Accept(sum, size); err != nil {
		return storage.Object{}, err
	}
	return storage.Object{
		Item: item, Size: size, Digests: sum, Modified: time.Now(), Version: strconv.FormatInt(n.version.Add(1), 10), Properties: o.Properties,
	}, nil
}

type nobody struct{ after time.Duration }

func (p nobody) Publish(context.Context, *pb.Change) error {
	if p.after > 0 {
		<-time.After(p.after)
	}
	return nil
}

// BenchmarkEmit is 256 callers that put over a store that does nothing, every intent on disk
// before its put, and every Change acknowledged before its call returns.
func BenchmarkEmit(b *testing.B) {
	for name, after := range map[string]time.Duration{"at once": 0, "acknowledged after 3ms": 3 * time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			f, err := OpenFile(FileConfig{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			s, err := New(&null{}, Config{Account: "acme", Store: "1", Outbox: f}, nobody{after})
			if err != nil {
				b.Fatal(err)
			}
			var syncs atomic.Int64
			f.observe(func(time.Duration) { syncs.Add(1) })
			ran, stop := running(b, s)
			const callers = 256
			var n atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			b.SetParallelism(callers / max(1, benchProcs()))
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					i := n.Add(1)
					_, err := s.Put(b.Context(), "photos", fmt.Sprintf("2026/11/%08d.jpg", i), eof{}, storage.PutOptions{
						Size: 0, Properties: storage.Properties{MediaType: "image/jpeg"},
					})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "mutations/s")
			b.ReportMetric(float64(b.N)/float64(max(1, syncs.Load())), "mutations/fsync")
			if st := f.Stats(); st.Held != 0 {
				b.Errorf("%d are left in the outbox", st.Held)
			}
			stop()
			if err := <-ran; err != nil {
				b.Error(err)
			}
			if err := f.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }
