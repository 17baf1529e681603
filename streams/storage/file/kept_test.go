package file

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// replaced returns a store whose item a, in the space s, has been replaced, and the bytes "old" that it keeps.
func replaced(t *testing.T, cfg Config) (*Store, storage.Kept) {
	t.Helper()
	s := open(t, cfg)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	for _, text := range []string{"old", "new"} {
		if _, err := s.Put(t.Context(), "s", "a", strings.NewReader(text),
			storage.PutOptions{Size: int64(len(text)), KeepReplaced: true}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := listKept(t.Context(), s, "a")
	if err != nil || len(all) != 1 {
		t.Fatalf("Kept: got %+v, %v", all, err)
	}
	return s, all[0]
}

func listKept(ctx context.Context, s storage.Store, items ...string) (all []storage.Kept, err error) {
	for k, err := range storage.ListKept(ctx, s, "s", items) {
		if err != nil {
			return all, err
		}
		all = append(all, k)
	}
	return all, nil
}

// keptPath returns the path of a file in the quarantine of kept bytes.
func (s *Store) keptPath(k storage.Kept, name string) string {
	day, at, _ := strings.Cut(k.ID, "T")
	return filepath.Join(s.cfg.Root, quarantineDir, day, at, name)
}

// What cannot be understood in quarantine makes the listing end with an error, after all that can.
func TestKeptDamaged(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(t *testing.T, s *Store, k storage.Kept) error
		kept int
		err  bool
	}{
		"as it was": {func(*testing.T, *Store, storage.Kept) error { return nil }, 1, false},
		"a damaged description": {func(_ *testing.T, s *Store, k storage.Kept) error {
			return os.WriteFile(s.keptPath(k, quarantineAbout), []byte("{"), 0o600)
		}, 0, true},
		"another damaged description": {func(_ *testing.T, s *Store, k storage.Kept) error {
			dir := filepath.Join(s.cfg.Root, quarantineDir, "2026-01-01", "000000.000000000-abcdefgh")
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, quarantineAbout), nil, 0o600))
		}, 1, true},
		"no description": {func(_ *testing.T, s *Store, k storage.Kept) error {
			return os.Remove(s.keptPath(k, quarantineAbout))
		}, 0, false},
		"no bytes": {func(_ *testing.T, s *Store, k storage.Kept) error {
			return os.Remove(s.keptPath(k, quarantineBytes))
		}, 0, false},
		"bytes that are a link": {func(_ *testing.T, s *Store, k storage.Kept) error {
			path := s.keptPath(k, quarantineBytes)
			return errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path))
		}, 0, false},
		"entries of others": {func(_ *testing.T, s *Store, k storage.Kept) error {
			day := filepath.Dir(filepath.Dir(s.keptPath(k, "")))
			return errors.Join(os.MkdirAll(filepath.Join(day, "theirs"), 0o755),
				os.WriteFile(filepath.Join(filepath.Dir(s.keptPath(k, "")), "notes"), nil, 0o600))
		}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, k := replaced(t, Config{})
			must(t, tt.edit(t, s, k))
			all, err := listKept(t.Context(), s, "a")
			if len(all) != tt.kept || (err != nil) != tt.err || errors.Is(err, storage.ErrNotFound) {
				t.Errorf("got %+v, %v, want %d, an error: %t", all, err, tt.kept, tt.err)
			}
			_, err = s.StatKept(t.Context(), storage.KeptRef{Space: "s", Item: "a", ID: k.ID})
			if (err == nil) != (tt.kept == 1) {
				t.Errorf("StatKept: %v", err)
			}
		})
	}
}

// Bytes that rot in quarantine keep the digests that they had, so that a reader sees the difference.
func TestKeptRot(t *testing.T) {
	s, k := replaced(t, Config{})
	path := s.keptPath(k, quarantineBytes)
	st, err := os.Stat(path)
	if err == nil {
		err = errors.Join(os.WriteFile(path, []byte("olD"), 0o600), os.Chtimes(path, st.ModTime(), st.ModTime()))
	}
	must(t, err)
	r, got, err := s.OpenKept(t.Context(), storage.KeptRef{Space: "s", Item: "a", ID: k.ID})
	must(t, err)
	defer r.Close()
	h, err := digest.New(digest.MD5)
	must(t, err)
	if _, err := h.ReadFrom(r); err != nil || got.Object.Digests.Compare(h.Sum()) != digest.Disagree {
		t.Errorf("got %+v, %v, bytes with %v: want digests that disagree", got, err, h.Sum())
	}
}

// Bytes that expire between listing and opening are absent; those that are being read are read to their end.
func TestKeptExpires(t *testing.T) {
	s, k := replaced(t, Config{})
	ref := storage.KeptRef{Space: "s", Item: "a", ID: k.ID}
	r, _, err := s.OpenKept(t.Context(), ref)
	must(t, err)
	defer r.Close()
	for _, hold := range []string{"s", "other"} {
		done, err := s.Expire(t.Context(), storage.ExpireOptions{RetainedBefore: time.Now().Add(24 * time.Hour),
			Hold: func(space string) bool { return space == hold }})
		want := storage.Expired{Held: 1}
		if hold != "s" {
			want = storage.Expired{Retained: 1, Bytes: 3}
		}
		if err != nil || done != want {
			t.Errorf("with %q held: got %+v, %v, want %+v", hold, done, err, want)
		}
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "old" {
		t.Errorf("read %q, %v", b, err)
	}
	if _, _, err := s.OpenKept(t.Context(), ref); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("OpenKept: got %v, want ErrNotFound", err)
	}
}

// A space that the description does not name is held if the space "" is.
func TestExpireUnknownSpace(t *testing.T) {
	s, k := replaced(t, Config{})
	must(t, os.WriteFile(s.keptPath(k, quarantineAbout), []byte("{"), 0o600))
	o := storage.ExpireOptions{RetainedBefore: time.Now().Add(24 * time.Hour),
		Hold: func(space string) bool { return space == "" }}
	if done, err := s.Expire(t.Context(), o); err != nil || done != (storage.Expired{Held: 1}) {
		t.Errorf("got %+v, %v, want it held", done, err)
	}
}

// A store that can only be read lists what is kept; the space may be gone.
func TestKeptReadOnly(t *testing.T) {
	s, k := replaced(t, Config{})
	if _, err := s.Delete(t.Context(), "s", "a", storage.DeleteOptions{KeepDeleted: true}); err != nil {
		t.Fatal(err)
	}
	must(t, s.DeleteSpace(t.Context(), "s"))
	r := open(t, Config{Root: s.cfg.Root, ReadOnly: true})
	all, err := listKept(t.Context(), storage.ReadOnly(r), "a")
	if err != nil || len(all) != 2 || all[0].ID != k.ID || all[1].Reason != storage.KeptDeleted {
		t.Errorf("got %+v, %v, want the replaced and the deleted bytes", all, err)
	}
}
