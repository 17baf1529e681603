package integration

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
)

// TestS3CopiesAtOnce checks that more concurrent copies of 8 to 64 MiB than the stores have part buffers complete, even
// if all sources are opened before the first put.
func TestS3CopiesAtOnce(t *testing.T) {
	need.Full(t)
	for _, kind := range harness.S3Kinds() {
		t.Run(kind, func(t *testing.T) {
			r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: kind}), false, false)
			open := func() *s3.Store {
				cfg := r.config(t)
				cfg.PartBytes = 0 // the default
				return r.spaced(t, cfg).Store
			}
			source, target := open(), open()
			var items []storage.Object
			for i := range 8 {
				size := int64(i+1) * 8 << 20
				o, err := source.Put(t.Context(), "s", fmt.Sprint(i), io.LimitReader(rand.NewChaCha8([32]byte{byte(i)}), size),
					storage.PutOptions{Size: size})
				must(t, err)
				items = append(items, o)
			}
			for _, workers := range []int{9, 16, 48} {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				group, ctx := errgroup.WithContext(ctx)
				bodies := make([]io.ReadCloser, workers)
				for i := range bodies {
					var err error
					if bodies[i], _, err = source.Open(ctx, "s", items[i%len(items)].Item, ""); err != nil {
						t.Fatal(err)
					}
				}
				for i, body := range slices.Backward(bodies) {
					group.Go(func() error {
						defer body.Close()
						from := items[i%len(items)]
						o, err := target.Put(ctx, "s", fmt.Sprint(i), body, storage.PutOptions{Size: from.Size, Digests: from.Digests})
						if err == nil && o.Size != from.Size {
							err = fmt.Errorf("%d of %d bytes", o.Size, from.Size)
						}
						return err
					})
				}
				err := group.Wait()
				cancel()
				if err != nil {
					t.Fatalf("%d at once: %v", workers, err)
				}
				t.Logf("%d at once took %v", workers, time.Since(began))
			}
		})
	}
}
