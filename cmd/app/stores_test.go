package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/file"
	"github.com/millrace/millrace/streams/storage/limit"
)

// openTestStores makes stores acme/b (the primary), acme/a and zoo/a, each a directory of
// its name in dir.
func openTestStores(t *testing.T, dir string) *Stores {
	t.Helper()
	at := func(account, id string) config.Store {
		root := filepath.Join(dir, account+"-"+id)
		must(t, os.Mkdir(root, 0o755))
		return config.Store{ID: id, Driver: "file", Root: root, Primary: id == "b"}
	}
	cfg := &config.Config{Accounts: []config.Account{
		{ID: "zoo", Stores: []config.Store{at("zoo", "a")}},
		{ID: "acme", Stores: []config.Store{at("acme", "a"), at("acme", "b")}},
	}}
	s, err := newStores(cfg, slog.New(slog.DiscardHandler))
	must(t, err)
	for _, name := range []StoreName{{"zoo", "a"}, {"acme", "a"}, {"acme", "b"}} {
		must(t, s.init(t.Context(), name))
	}
	return s
}

// states returns the result of Breakers without times and causes.
func states(s *Stores) (all []string) {
	for _, b := range s.Breakers() {
		all = append(all, b.Account+"/"+b.Store+" "+b.State.String())
	}
	return all
}

// Tasks of an unavailable store are refused until it returns; those of other stores, also of one
// with the same id, are not.
func TestStoreAway(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := openTestStores(t, dir)
		must(t, s.checkMarkers(ctx))
		look := func(account, id string) error {
			st, ok := s.Store(account, id)
			if !ok {
				t.Fatalf("no store %s/%s", account, id)
			}
			_, err := st.StatSpace(ctx, "photos")
			return err
		}
		root := filepath.Join(dir, "acme-a")
		must(t, os.Rename(root, root+".unplugged"))
		// Checks before the start go directly to the store and do not change the breaker.
		for range 10 {
			if err := s.checkMarkers(ctx); !errors.Is(err, storage.ErrNoMarker) || !errors.Is(err, precondition.Err) {
				t.Fatalf("checkMarkers: got %v, want the missing marker", err)
			}
		}
		if want := []string{"acme/b closed", "acme/a closed", "zoo/a closed"}; !slices.Equal(states(s), want) {
			t.Errorf("after the check: got %q, want %q", states(s), want)
		}

		if err := look("acme", "a"); retry.ClassOf(err) != retry.ClassUnavailable || errors.Is(err, limit.ErrOpen) {
			t.Errorf("the first look: got %v, want the store's own error", err)
		}
		refusal := s.Admit("acme", "a")
		var open *limit.OpenError
		if !errors.As(refusal, &open) || retry.ClassOf(refusal) != retry.ClassUnavailable || open.Account != "acme" ||
			open.Store != "a" {
			t.Fatalf("Admit: got %v, want a refusal of class unavailable", refusal)
		}
		if err := look("acme", "a"); !errors.Is(err, limit.ErrOpen) {
			t.Errorf("the second look: got %v, want a refusal", err)
		}
		for _, other := range []StoreName{{"acme", "b"}, {"zoo", "a"}} {
			if err := s.Admit(other.Account, other.Store); err != nil {
				t.Errorf("Admit to %v: %v", other, err)
			}
			if err := look(other.Account, other.Store); !errors.Is(err, storage.ErrNoSpace) {
				t.Errorf("look at %v: got %v, want its answer", other, err)
			}
		}
		if err := s.Admit("acme", "unknown"); err != nil {
			t.Errorf("Admit to an unknown store: %v", err)
		}
		got := s.Breakers()
		if want := []string{"acme/b closed", "acme/a open", "zoo/a closed"}; !slices.Equal(states(s), want) {
			t.Fatalf("got %q, want %q", states(s), want)
		}
		if got[0].Cause != nil || got[1].Cause == nil || !got[1].Since.Equal(time.Now()) {
			t.Errorf("got %+v, want a cause of the one that is unavailable, as of now", got)
		}

		must(t, os.Rename(root+".unplugged", root))
		if err := s.checkMarkers(ctx); err != nil { // sees the store, whatever its breaker says
			t.Errorf("checkMarkers when it is back: %v", err)
		}
		if err := s.init(ctx, StoreName{"acme", "a"}); err != nil {
			t.Errorf("init when it is back: %v", err)
		}
		if err := s.Admit("acme", "a"); !errors.Is(err, limit.ErrOpen) {
			t.Errorf("Admit before it is asked again: got %v", err)
		}
		time.Sleep(time.Until(open.Until))
		if err := s.Admit("acme", "a"); err != nil {
			t.Errorf("Admit when it is due: %v", err)
		}
		if err := look("acme", "a"); !errors.Is(err, storage.ErrNoSpace) {
			t.Errorf("look when it is due: got %v, want its answer", err)
		}
		if want := []string{"acme/b closed", "acme/a closed", "zoo/a closed"}; !slices.Equal(states(s), want) {
			t.Errorf("at the end: got %q, want %q", states(s), want)
		}

		if err := s.close(); err != nil {
			t.Error(err)
		}
		if err := look("acme", "b"); err == nil || errors.Is(err, storage.ErrNoSpace) {
			t.Errorf("look after close: got %v, want that the driver is closed", err)
		}
	})
}

// marked writes a store's marker to root.
func marked(t *testing.T, id, root string) {
	t.Helper()
	f, err := file.Open(file.Config{ID: id, Root: root, Create: true})
	must(t, err)
	must(t, errors.Join(f.WriteMarker(t.Context()), f.Close()))
}
