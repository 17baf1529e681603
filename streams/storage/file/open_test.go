package file

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/streams/storage"
)

// A read ends with its context: a process that stops does not wait until a large file has been read.
func TestReadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "photos"), 0o777))
	must(t, os.WriteFile(filepath.Join(root, "photos", "1.jpg"), []byte("some bytes"), 0o666))
	for name, s := range map[string]storage.Store{
		"layout millrace": open(t, Config{Root: root}),
		"layout plain":    openPlain(t, PlainConfig{Root: root}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			r, _, err := s.Open(ctx, "photos", "1.jpg", "")
			must(t, err)
			defer r.Close()
			_, err = io.ReadFull(r, make([]byte, 4))
			must(t, err)
			stop := errors.New("the process stops")
			cancel(stop)
			if n, err := r.Read(make([]byte, 4)); n != 0 || !errors.Is(err, context.Canceled) || errors.Is(err, stop) {
				t.Errorf("got %d bytes and %v, want 0 and %v", n, err, context.Canceled)
			}
		})
	}
}
