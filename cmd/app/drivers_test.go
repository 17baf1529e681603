package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/logtest"
	"github.com/millrace/millrace/streams/storage"
)

// A plain tree is identified by the expected file, and is read only.
func TestPlainStore(t *testing.T) {
	ctx, root := t.Context(), t.TempDir()
	must(t, errors.Join(os.Mkdir(filepath.Join(root, "photos"), 0o755),
		os.WriteFile(filepath.Join(root, "photos", "a b"), []byte("x"), 0o600)))
	c := config.Store{ID: "1", Driver: "file", Layout: "plain", Root: root, Expect: "bagit.txt",
		Requests: config.Requests{PerSecond: 20, AtOnce: 1}}
	s, err := newStores(&config.Config{Accounts: []config.Account{{ID: "acme", Stores: []config.Store{c}}}},
		slog.New(slog.DiscardHandler))
	must(t, err)
	defer s.close()
	name := StoreName{"acme", "1"}
	if err := s.init(ctx, name); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("init of a tree without what is expected: got %v, want ErrReadOnly", err)
	}
	must(t, os.WriteFile(filepath.Join(root, "bagit.txt"), nil, 0o600))
	if err := s.init(ctx, name); err != nil {
		t.Errorf("init: %v", err)
	}
	st, _ := s.Store("acme", "1")
	begun := time.Now()
	for range 6 {
		if o, err := st.Stat(ctx, "photos", "a b"); err != nil || o.Size != 1 {
			t.Errorf("Stat: got %+v, %v", o, err)
		}
	}
	if d := time.Since(begun); d < 100*time.Millisecond {
		t.Errorf("6 requests took %v, at 20 a second", d)
	}
	if _, err := st.Put(ctx, "photos", "b", strings.NewReader("x"), storage.PutOptions{Size: 1}); !errors.Is(err,
		storage.ErrReadOnly) {
		t.Errorf("Put: got %v, want ErrReadOnly", err)
	}
	r, _, err := st.Open(ctx, "photos", "a b", "")
	must(t, err)
	r.Close()
	if names, err := os.ReadDir(root); len(names) != 2 || err != nil {
		t.Errorf("the tree has %v, %v", names, err)
	}
}

// An unknown driver is refused before anything is opened.
func TestUnknownDriver(t *testing.T) {
	_, err := newStores(&config.Config{Accounts: []config.Account{{ID: "acme",
		Stores: []config.Store{{ID: "1", Driver: "tape"}}}}}, new(logtest.Lines).Log())
	if !errors.Is(err, precondition.Err) || !strings.Contains(err.Error(), `store acme/1: unknown driver "tape"`) {
		t.Errorf("got %v", err)
	}
}
