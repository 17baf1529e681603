package file

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// A copy between two stores of one file system is read back, and is its own file.
func TestCopyBetweenStores(t *testing.T) {
	ctx := t.Context()
	content := strings.Repeat("some bytes ", 300_000)
	src := store(t, Config{})
	was := put(t, src, "a", content)
	plain := openPlain(t, PlainConfig{Root: src.cfg.Root + "/" + sp, Space: "tree"})
	for name, from := range map[string]struct {
		storage.Locator
		space string
	}{
		"millrace's layout": {src, sp},
		"an ordinary tree":  {plain, "tree"},
	} {
		t.Run(name, func(t *testing.T) {
			dst := store(t, Config{})
			at, err := from.Locate(ctx, storage.Ref{Space: from.space, Item: "a"})
			must(t, err)
			defer at.Close()
			var judged int64
			done, err := dst.CopyFrom(ctx, sp, "b", at, storage.PutOptions{
				Digests: was.Digests, Size: was.Size, Verify: func(_ digest.Set, n int64) error { judged = n; return nil },
			})
			if errors.Is(err, storage.ErrUnsupported) {
				t.Skipf("this file system does not copy: %v", err)
			}
			must(t, err)
			if done.How != byReflink && done.How != byRange || !done.Read || judged != was.Size || done.Object.Digests.Compare(was.Digests) != digest.Agree {
				t.Errorf("got %+v, of which %d bytes were judged, want what was read back", done, judged)
			}
			was = put(t, src, "a", content) // of which the copy has nothing
			if got, err := read(t, dst, "b", ""); got != content || err != nil {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			if o := stat(t, dst, "b"); o.Version != done.Object.Version || len(o.Digests) == 0 {
				t.Errorf("got %+v, want what CopyFrom told: %+v", o, done.Object)
			}
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := dst.CopyFrom(cancelled, sp, "c", at, storage.PutOptions{Size: storage.UnknownSize}); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: got %v", err)
			}
			if got := list(t, dst); len(got) != 1 {
				t.Errorf("got items %q", got)
			}
		})
	}
}

// Between two file systems nothing is copied, and nothing is left.
func TestCopyAcross(t *testing.T) {
	if !mounts(t) {
		return
	}
	dir, _ := small(t)
	src, dst := store(t, Config{}), store(t, Config{Root: dir})
	put(t, src, "a", strings.Repeat("x", 1<<20))
	at, err := src.Locate(t.Context(), storage.Ref{Space: sp, Item: "a"})
	must(t, err)
	defer at.Close()
	if _, err := dst.CopyFrom(t.Context(), sp, "b", at, storage.PutOptions{Size: 1 << 20}); !errors.Is(err, storage.ErrUnsupported) {
		t.Errorf("got %v, want ErrUnsupported", err)
	}
	if got := list(t, dst); len(got) != 0 {
		t.Errorf("got items %q", got)
	}
}
