package limit_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/limit"
)

// A directory disappears and comes back, like an unplugged disk: one operation fails, the next are refused,
// and the first probe after the return closes the breaker.
func TestDirectoryUnavailable(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		root, aside := filepath.Join(dir, "disk"), filepath.Join(dir, "unplugged")
		must(t, os.Mkdir(root, 0o755))
		f, err := file.Open(file.Config{ID: "1", Root: root})
		must(t, err)
		defer f.Close()
		b := limit.NewBreaker(limit.Config{Account: "acme", Store: "1"})
		s := limit.New(f, b, nil)
		must(t, errors.Join(s.WriteMarker(ctx), s.CreateSpace(ctx, storage.Space{Name: "photos"})))
		o, err := s.Put(ctx, "photos", "a", strings.NewReader("bytes"), storage.PutOptions{Size: 5})
		must(t, err)
		must(t, os.Rename(root, aside))
		if _, err := s.Stat(ctx, "photos", "a"); retry.ClassOf(err) != retry.ClassUnavailable ||
			errors.Is(err, limit.ErrOpen) {
			t.Errorf("Stat: got %v, want the store's own error", err)
		}
		var open *limit.OpenError
		if _, err := s.Stat(ctx, "photos", "a"); !errors.As(err, &open) || errors.Is(err, storage.ErrNotFound) ||
			errors.Is(err, storage.ErrNoMarker) {
			t.Fatalf("Stat again: got %v, want a refusal", err)
		}
		must(t, os.Rename(aside, root))
		if err := s.Marker(ctx); !errors.Is(err, limit.ErrOpen) {
			t.Errorf("back, before it is asked again: got %v", err)
		}
		time.Sleep(time.Until(open.Until))
		if err := b.Admit(); err != nil {
			t.Errorf("Admit when it is due: %v", err)
		}
		r, got, err := s.Open(ctx, "photos", "a", o.Version)
		if err != nil {
			t.Fatalf("Open when it is due: %v", err)
		}
		defer r.Close()
		if bytes, err := io.ReadAll(r); string(bytes) != "bytes" || err != nil || got.Version != o.Version {
			t.Errorf("Open: got %q, %+v, %v", bytes, got, err)
		}
		if state, _, cause := b.State(); state != limit.Closed || cause != nil {
			t.Errorf("state: got %v, %v", state, cause)
		}
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
