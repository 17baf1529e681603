package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// older returns a root of layout 1 with some items, closed, and their objects.
func older(t *testing.T, cfg Config) (Config, map[string]storage.Object) {
	t.Helper()
	cfg.Root, cfg.format = inMemory(t), layoutSidecars
	s := store(t, cfg)
	must(t, s.WriteMarker(t.Context()))
	want := map[string]storage.Object{}
	for i := range 20 {
		item := fmt.Sprintf("d%d/item%d", i%3, i)
		_, err := s.Put(t.Context(), sp, item, strings.NewReader(item), storage.PutOptions{
			Size: storage.UnknownSize, Properties: storage.Properties{MediaType: "a/b",
				User: map[string]string{"k": strings.Repeat("v", 50*i)}},
			Original: storage.Original{Modified: time.UnixMilli(int64(i)).UTC(), Version: "v"},
		})
		must(t, err)
		want[item] = stat(t, s, item)
	}
	must(t, s.Close())
	return Config{Root: cfg.Root}, want
}

// sameItems checks that all items are unchanged.
func sameItems(t *testing.T, s *Store, want map[string]storage.Object) {
	t.Helper()
	for item, want := range want {
		got := stat(t, s, item)
		if got.Version != want.Version || !maps.Equal(got.Digests, want.Digests) ||
			got.Properties.MediaType != want.Properties.MediaType ||
			!maps.Equal(got.Properties.User, want.Properties.User) || got.Original != want.Original || got.PropertiesUnknown {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// An upgrade moves the metadata of every item to its file. Stat returns the same as before.
func TestUpgrade(t *testing.T) {
	ctx := t.Context()
	cfg, want := older(t, Config{})
	s := open(t, cfg)
	if s.sess.useAttrs.Load() {
		t.Fatal("it has layout 2 already")
	}
	sameItems(t, s, want)
	in := func(path ...string) string { return filepath.Join(append([]string{s.cfg.Root}, path...)...) }
	// A rewritten item, a removed one, one with a damaged sidecar, and a file that is not a sidecar.
	must(t, os.WriteFile(in(sp, "d0/item0"), []byte("by hand"), 0o666), os.Rename(in(sp, "d1/item1"), in("away")))
	_, damaged := sidecarPath(itemPathIn(sp, "d2/item2"))
	must(t, os.WriteFile(in(damaged), []byte("{"), 0o666),
		os.WriteFile(filepath.Dir(in(damaged))+"/notes.txt", nil, 0o666))
	delete(want, "d0/item0")
	delete(want, "d1/item1")
	delete(want, "d2/item2")

	counts := Upgraded{Moved: 18, Absent: 1, Damaged: 1}
	before := everything(t, s.cfg.Root)
	if got, err := s.Upgrade(ctx, UpgradeOptions{DryRun: true}); err != nil || got != counts {
		t.Errorf("dry run: got %+v, %v, want %+v", got, err, counts)
	}
	if after := everything(t, s.cfg.Root); after != before || s.sess.useAttrs.Load() || hasAttr(t, s, "d2/item5") {
		t.Error("a dry run changed something")
	}
	var last Upgraded
	var total int64
	got, err := s.Upgrade(ctx, UpgradeOptions{Each: func(u Upgraded, n int64) { last, total = u, n }})
	if err != nil || got != counts || last != counts || total != 21 { // with the one that is no sidecar
		t.Errorf("got %+v (%+v of %d), %v, want %+v", got, last, total, err, counts)
	}
	sameItems(t, s, want)
	for item := range want {
		if !hasAttr(t, s, item) {
			t.Errorf("%s has no attribute", item)
		}
	}
	if o := stat(t, s, "d0/item0"); len(o.Digests) > 0 || o.Properties.MediaType != "a/b" || o.PropertiesUnknown {
		t.Errorf("the file that others rewrote: %+v", o)
	}
	if o := stat(t, s, "d2/item2"); !o.PropertiesUnknown {
		t.Errorf("the item whose sidecar is damaged: %+v", o)
	}
	must(t, os.Rename(in("away"), in(sp, "d1/item1")))
	if o := stat(t, s, "d1/item1"); o.Properties.MediaType != "a/b" || len(o.Digests) == 0 {
		t.Errorf("the file that was away: %+v", o)
	}
	if got, err := s.Upgrade(ctx, UpgradeOptions{}); err != nil || got != (Upgraded{Moved: 1, Damaged: 1}) {
		t.Errorf("again: got %+v, %v", got, err)
	}
	if left := sidecars(t, s); len(left) != 2 {
		t.Errorf("left are %q", left)
	}
}

// The switch is refused while another process, of this or an older version, uses the root, and nothing is changed.
func TestUpgradeInUse(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, root string) (end func()){
		"this version": func(t *testing.T, root string) func() {
			other := open(t, Config{Root: root})
			return func() { must(t, other.Close()) }
		},
		"an older one": func(t *testing.T, root string) func() {
			dir := filepath.Join(root, tmpDir, "older")
			must(t, os.MkdirAll(dir, 0o777))
			f, err := os.Open(dir)
			must(t, err, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
			return func() { must(t, f.Close()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, want := older(t, Config{})
			end := use(t, cfg.Root)
			s := open(t, cfg)
			if got, err := s.Upgrade(t.Context(), UpgradeOptions{}); !errors.Is(err, ErrInUse) || got != (Upgraded{}) {
				t.Errorf("got %+v, %v, want ErrInUse", got, err)
			}
			if doc, err := s.marker(s.sess); err != nil || doc.Format != layoutSidecars || hasAttr(t, s, "d2/item5") {
				t.Errorf("it was changed: %+v, %v", doc, err)
			}
			end()
			if got, err := s.Upgrade(t.Context(), UpgradeOptions{}); err != nil || got.Moved != int64(len(want)) {
				t.Errorf("got %+v, %v", got, err)
			}
			sameItems(t, s, want)
		})
	}
}

// An interrupted upgrade is continued by the next one, while other processes use the root.
func TestUpgradeEnds(t *testing.T) {
	cfg, want := older(t, Config{})
	s := open(t, cfg)
	ctx, end := context.WithCancel(t.Context())
	got, err := s.Upgrade(ctx, UpgradeOptions{Each: func(Upgraded, int64) { end() }})
	if !errors.Is(err, context.Canceled) || got.Moved == 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	other := open(t, cfg)
	sameItems(t, other, want)
	o, err := other.Put(t.Context(), sp, "d0/item0", strings.NewReader("new"), storage.PutOptions{Size: 3})
	must(t, err)
	want["d0/item0"] = o
	if _, err := s.Upgrade(t.Context(), UpgradeOptions{}); err != nil {
		t.Error(err)
	}
	sameItems(t, other, want)
	if left := sidecars(t, s); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

// Metadata that does not fit into an attribute stays in the sidecar.
func TestUpgradeWithoutRoom(t *testing.T) {
	cfg, want := older(t, Config{})
	cfg.maxAttr = 500
	s := open(t, cfg)
	got, err := s.Upgrade(t.Context(), UpgradeOptions{})
	if err != nil || got.Moved == 0 || got.Kept == 0 || got.Moved+got.Kept != int64(len(want)) {
		t.Errorf("got %+v, %v", got, err)
	}
	sameItems(t, s, want)
	if left := sidecars(t, s); len(left) != int(got.Kept) {
		t.Errorf("left are %d, want %d", len(left), got.Kept)
	}
}

// A valid attribute that cannot be changed does not fail the upgrade. The sidecar that it hides stays.
func TestUpgradeBesideHardLinks(t *testing.T) {
	s := store(t, Config{Root: inMemory(t)})
	must(t, s.WriteMarker(t.Context()))
	want := put(t, s, "a", "x")
	before := sidecar{Item: "a", Current: metadata{Modified: want.Modified.UnixNano(), MediaType: "of/before"}}
	must(t, s.sess.setSidecar(itemPathIn(sp, "a"), before),
		os.Link(filepath.Join(s.cfg.Root, sp, "a"), filepath.Join(s.cfg.Root, sp, "b")))
	if got, err := s.Upgrade(t.Context(), UpgradeOptions{}); err != nil || got != (Upgraded{Kept: 1}) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, item := range []string{"a", "b"} {
		got := stat(t, s, item)
		if !maps.Equal(got.Digests, want.Digests) || got.Properties.MediaType != want.Properties.MediaType {
			t.Errorf("got %+v, want what %+v has", got, want)
		}
	}
	must(t, os.Remove(filepath.Join(s.cfg.Root, sp, "b")))
	if got, err := s.Upgrade(t.Context(), UpgradeOptions{}); err != nil || got != (Upgraded{Moved: 1}) {
		t.Errorf("when it has one name: got %+v, %v", got, err)
	}
}

// An older version cannot write to a root of layout 2, even if it does not read the marker: it first creates a
// directory for temporary files in tmpDir.
func TestOlderVersionCannotWrite(t *testing.T) {
	refused := func(t *testing.T, root string) {
		t.Helper()
		dir := filepath.Join(root, tmpDir)
		if err := os.Mkdir(dir, 0o777); !errors.Is(err, fs.ErrExist) {
			t.Errorf("got %v, want that there is something", err)
		}
		if err := os.Mkdir(filepath.Join(dir, "older"), 0o777); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("got %v, want ENOTDIR", err)
		}
	}
	t.Run("new root", func(t *testing.T) {
		s := open(t, Config{})
		must(t, s.WriteMarker(t.Context()))
		refused(t, s.cfg.Root)
	})
	t.Run("root without a marker that an older version wrote to", func(t *testing.T) {
		root := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(root, tmpDir, "dead"), 0o777))
		s := open(t, Config{Root: root})
		must(t, s.WriteMarker(t.Context()))
		refused(t, root)
	})
	t.Run("upgraded", func(t *testing.T) {
		cfg, want := older(t, Config{})
		must(t, os.MkdirAll(filepath.Join(cfg.Root, tmpDir, "dead"), 0o777))
		s := open(t, cfg)
		_, err := s.Upgrade(t.Context(), UpgradeOptions{})
		must(t, err)
		refused(t, cfg.Root)
		sameItems(t, open(t, cfg), want)
		put(t, s, "new", "x")
	})
	t.Run("ended in between", func(t *testing.T) {
		cfg, want := older(t, Config{})
		s := open(t, cfg)
		for n := range 2 {
			upgrade := func(s *Store) error { _, err := s.Upgrade(t.Context(), UpgradeOptions{}); return err }
			if ended, err := endsAt(s, n, false, upgrade); !ended {
				t.Fatalf("after %d steps: %v", n, err)
			}
			again := open(t, cfg)
			sameItems(t, again, want)
			put(t, again, fmt.Sprint("new", n), "x")
			must(t, again.Close())
		}
		_, err := s.Upgrade(t.Context(), UpgradeOptions{})
		must(t, err)
		refused(t, cfg.Root)
		sameItems(t, s, want)
	})
	t.Run("layout 1 takes it", func(t *testing.T) {
		s := open(t, Config{format: layoutSidecars})
		must(t, s.WriteMarker(t.Context()))
		must(t, os.MkdirAll(filepath.Join(s.cfg.Root, tmpDir, "older"), 0o777))
	})
}

// An older version, which knows only format 1, refuses the marker of layout 2.
func TestMarkerOfLayoutTwo(t *testing.T) {
	s := open(t, Config{})
	must(t, s.WriteMarker(t.Context()))
	b, err := os.ReadFile(filepath.Join(s.cfg.Root, markerFile))
	if want := `{"format":2,"store":"1"}` + "\n"; err != nil || string(b) != want {
		t.Errorf("got %s, %v, want %s", b, err, want)
	}
	must(t, os.WriteFile(filepath.Join(s.cfg.Root, markerFile), []byte(`{"format":3,"store":"1"}`), 0o666))
	if err := s.Marker(t.Context()); !errors.Is(err, storage.ErrWrongMarker) {
		t.Errorf("a root of a later version: got %v, want ErrWrongMarker", err)
	}
}
