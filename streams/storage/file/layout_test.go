package file

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// The contract holds for both layouts, for a root with attributes and sidecars, and with no or very small attributes.
func TestContractLayouts(t *testing.T) {
	t.Parallel()
	parts := []string{"Put", "PutOriginal", "Properties", "Delete", "Keep", "RaceReplace"}
	if need.Amount(0, 1, 1) > 0 {
		parts = append(parts, "PutCondition", "PutVersions", "OpenPinned", "OpenWhileChange", "PropertyValues",
			"PropertyBytes", "Nesting",
			"OddIDs", "RacePut", "RaceDelete", "RaceNeighbours")
	}
	for name, cfg := range map[string]Config{
		"sidecars":      {sidecars: true},
		"mixed":         {},
		"room for some": {maxAttr: 110},
		"room for none": {maxAttr: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storagetest.Run(t, func(t *testing.T) storage.Store {
				cfg := cfg
				cfg.Root = inMemory(t)
				var s *Store
				if name == "mixed" {
					cfg.step = func(string) error {
						if sess := s.sess; sess != nil {
							sess.useAttrs.Store(!sess.useAttrs.Load())
						}
						return nil
					}
				}
				s = open(t, cfg)
				return s
			}, storagetest.WithKept(kept), storagetest.WithTwin(twin), storagetest.Only(parts...))
		})
	}
}

func TestSelectMetadata(t *testing.T) {
	const at = 5
	meta := func(modified int64, name string) metadata {
		return metadata{Modified: modified, Digests: map[string]string{"md5": name}, MediaType: name,
			Original: &original{1, name}}
	}
	side := func(now int64, was ...int64) *sidecar {
		sc := &sidecar{Current: meta(now, "sidecar")}
		for _, at := range was {
			a := meta(at, "was")
			sc.Previous = &a
		}
		return sc
	}
	attr := func(at int64) *metadata { a := meta(at, "attr"); return &a }
	unknown := metadata{Unknown: true}
	tests := map[string]struct {
		attr    *metadata
		damaged bool
		sidecar *sidecar
		want    metadata
		exact   bool
	}{
		"nothing":                                {nil, false, nil, unknown, false},
		"the attribute of the file":              {attr(at), false, nil, meta(at, "attr"), true},
		"the same, and a sidecar of the file":    {attr(at), false, side(at), meta(at, "attr"), true},
		"the same, and one of another":           {attr(at), false, side(4, 3), meta(at, "attr"), true},
		"an attribute of other bytes":            {attr(4), false, nil, metadata{MediaType: "attr"}, false},
		"older, and a sidecar of the file":       {attr(4), false, side(at), meta(at, "sidecar"), true},
		"the same, and one that was of the file": {attr(4), false, side(6, at), meta(at, "was"), true},
		"the same, and one of other bytes":       {attr(4), false, side(3), metadata{MediaType: "attr"}, false},
		"a damaged attribute":                    {nil, true, nil, unknown, false},
		"the same, and a sidecar of the file ":   {nil, true, side(at), meta(at, "sidecar"), true},
		"the same, and a sidecar of other bytes": {nil, true, side(4), unknown, false},
		"a sidecar of the file":                  {nil, false, side(at), meta(at, "sidecar"), true},
		"a sidecar that was of the file":         {nil, false, side(6, at), meta(at, "was"), true},
		"a sidecar of other bytes":               {nil, false, side(4, 3), metadata{MediaType: "sidecar"}, false},
		"a sidecar of other bytes, which knows none": {nil, false, &sidecar{Current: metadata{Modified: 4, Unknown: true}},
			unknown, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, exact := selectMetadata(at, tt.attr, tt.damaged, tt.sidecar)
			if !reflect.DeepEqual(got, tt.want) || exact != tt.exact {
				t.Errorf("got %+v, %v, want %+v, %v", got, exact, tt.want, tt.exact)
			}
		})
	}
}

// hasAttr reports whether an item's file has the attribute.
func hasAttr(t *testing.T, s *Store, item string) bool {
	t.Helper()
	path, err := s.Path(sp, item)
	must(t, err)
	_, err = unix.Lgetxattr(path, attrName, nil)
	if err != nil && !noAttr(err) {
		t.Fatal(err)
	}
	return err == nil
}

func sidecars(t *testing.T, s *Store) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.cfg.Root, metaDir, sp, "*", "*"))
	must(t, err)
	return all
}

// The metadata of a root is in attributes, on a file system without them in sidecars, also if it gets them later.
func TestLayoutOfARoot(t *testing.T) {
	for name, tt := range map[string]struct {
		cfg   Config
		want  string
		attrs bool
	}{
		"attributes":               {Config{}, `{"format":2,"store":"1"}`, true},
		"attributes since":         {Config{sidecars: true}, `{"format":2,"sidecars":true,"store":"1"}`, false},
		"no attributes":            {Config{maxAttr: -1}, `{"format":2,"sidecars":true,"store":"1"}`, false},
		"no room in an attribute ": {Config{maxAttr: 1}, `{"format":2,"store":"1"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, tt.cfg)
			must(t, s.WriteMarker(t.Context()), s.CreateSpace(t.Context(), storage.Space{Name: sp}))
			again := open(t, Config{Root: s.cfg.Root, maxAttr: tt.cfg.maxAttr})
			b, err := os.ReadFile(filepath.Join(s.cfg.Root, markerFile))
			if got := strings.TrimSpace(string(b)); err != nil || got != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
			put(t, again, "a", "x")
			if got := hasAttr(t, again, "a"); got != tt.attrs {
				t.Errorf("attribute: %v, want %v", got, tt.attrs)
			}
			if got := len(sidecars(t, again)); got != btoi(!tt.attrs) {
				t.Errorf("got %d sidecars", got)
			}
			if got := stat(t, again, "a"); len(got.Digests) != 2 || got.Properties.MediaType != "text/plain" ||
				got.PropertiesUnknown {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Test on a real file system without attributes.
func TestNoAttributes(t *testing.T) {
	if !mounts(t) {
		return
	}
	dir := t.TempDir()
	if err := unix.Mount("ramfs", dir, "ramfs", 0, ""); err != nil {
		need.Missing(t, need.Kernel("a mount of its own"), err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	s := store(t, Config{Root: dir})
	if s.sess.supportsAttrs {
		need.Missing(t, need.Kernel("a file system without attributes"), "ramfs has them")
	}
	must(t, s.WriteMarker(t.Context()))
	put(t, s, "a", "x")
	if got := stat(t, s, "a"); len(got.Digests) != 2 || got.PropertiesUnknown {
		t.Errorf("got %+v", got)
	}
	if doc, err := s.marker(s.sess); err != nil || !doc.Sidecars {
		t.Errorf("got %+v, %v", doc, err)
	}
	// A root with attributes, copied to this file system.
	must(t, s.writeMarkerFile(s.sess, markerDoc{Format: format, Store: "1"}))
	there := open(t, Config{Root: dir})
	put(t, there, "b", "x")
	if got := stat(t, there, "b"); len(got.Digests) != 2 || got.PropertiesUnknown {
		t.Errorf("got %+v", got)
	}
	// Other processes may use the root through a mount with attributes, where an attribute takes precedence.
	_, err := there.SetProperties(t.Context(), sp, "b", storage.Properties{MediaType: "a/b"}, storage.Condition{})
	if !errors.Is(err, storage.ErrUnsupported) || !retry.IsPermanent(err) || !storage.IsNotApplied(err) {
		t.Errorf("SetProperties: got %v, want ErrUnsupported, for good and not applied", err)
	}
}

// Test on a real file system with attributes of at most one block of 1 KiB.
func TestSmallAttributes(t *testing.T) {
	need.Full(t)
	s := store(t, Config{Root: loop(t, "ext4", "mkfs.ext4", "-q", "-b", "1024")})
	for n, want := range map[int]bool{10: true, 600: true, 2000: false} {
		item, long := fmt.Sprint("item", n), map[string]string{"k": strings.Repeat("v", n)}
		for _, size := range []map[string]string{nil, long, nil, long} {
			set := storage.Properties{User: size}
			o, err := s.Put(t.Context(), sp, item, strings.NewReader("x"), storage.PutOptions{Size: 1, Properties: set})
			must(t, err)
			if got := stat(t, s, item); !maps.Equal(got.Properties.User, size) || !maps.Equal(got.Digests, o.Digests) {
				t.Errorf("%d: Put: got %+v", n, got)
			}
			if got := hasAttr(t, s, item); got != (want || size == nil) {
				t.Errorf("%d: attribute: %v", n, got)
			}
			for _, size := range []map[string]string{nil, long} {
				_, err = s.SetProperties(t.Context(), sp, item, storage.Properties{User: size}, storage.Condition{})
				must(t, err)
				if got := stat(t, s, item); !maps.Equal(got.Properties.User, size) || !maps.Equal(got.Digests, o.Digests) ||
					got.Version != o.Version {
					t.Errorf("%d: SetProperties: got %+v", n, got)
				}
				if got := hasAttr(t, s, item); got != (want || size == nil) {
					t.Errorf("%d: attribute: %v", n, got)
				}
			}
		}
	}
}

// The properties of a tree that was copied or restored without attributes are unknown, not empty.
func TestRestoredWithoutAttributes(t *testing.T) {
	for name, whole := range map[string]bool{"times restored": true, "times of the restore": false} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{})
			must(t, s.WriteMarker(t.Context()))
			o := put(t, s, "d/a", "bytes")
			must(t, s.Close())
			there := filepath.Join(t.TempDir(), "root")
			must(t, os.CopyFS(there, os.DirFS(s.cfg.Root)))
			at := o.Modified.Add(time.Hour)
			if whole {
				at = o.Modified
			}
			must(t, os.Chtimes(filepath.Join(there, sp, "d/a"), time.Time{}, at))
			r := open(t, Config{Root: there})
			got := stat(t, r, "d/a")
			if !got.PropertiesUnknown || len(got.Digests) > 0 || got.Properties.MediaType != "" ||
				(got.Version == o.Version) != whole {
				t.Errorf("got %+v", got)
			}
			if content, err := read(t, r, "d/a", got.Version); content != "bytes" || err != nil {
				t.Errorf("got %q, %v", content, err)
			}
			for listed, err := range r.List(t.Context(), sp, "") {
				if err != nil || listed.Version != got.Version {
					t.Errorf("List: got %+v, %v", listed, err)
				}
			}
		})
	}
}

// The properties of a file that another program has created are unknown, not empty.
func TestPropertiesOfFilesOfOthers(t *testing.T) {
	eachLayout(t, "adopted", func(t *testing.T, sidecars bool) {
		s := store(t, Config{sidecars: sidecars})
		must(t, os.WriteFile(filepath.Join(s.cfg.Root, sp, "a"), []byte("x"), 0o666))
		if got := stat(t, s, "a"); !got.PropertiesUnknown {
			t.Errorf("got %+v", got)
		}
		_, err := s.SetProperties(t.Context(), sp, "a", storage.Properties{}, storage.Condition{})
		must(t, err)
		if got := stat(t, s, "a"); got.PropertiesUnknown {
			t.Errorf("when they are set: got %+v", got)
		}
	})
}

// Two items that are hard links of one file have their metadata in sidecars.
func TestHardLinks(t *testing.T) {
	s := store(t, Config{})
	in := func(name string) string { return filepath.Join(s.cfg.Root, sp, name) }
	must(t, os.WriteFile(in("a"), []byte("x"), 0o666), os.Link(in("a"), in("b")))
	for _, item := range []string{"a", "b"} {
		_, err := s.SetProperties(t.Context(), sp, item, storage.Properties{MediaType: "of/" + item}, storage.Condition{})
		must(t, err)
	}
	for _, item := range []string{"a", "b"} {
		if got := stat(t, s, item); got.Properties.MediaType != "of/"+item {
			t.Errorf("%s: got %+v", item, got)
		}
	}
	put(t, s, "a", "new")
	if got := stat(t, s, "b"); got.Properties.MediaType != "of/b" || got.Size != 1 {
		t.Errorf("b after a put of a: %+v", got)
	}
}

// Two items that are hard links of one file with an attribute cannot change each other's metadata. A put of one of them
// gives it a file of its own.
func TestHardLinksWithAttribute(t *testing.T) {
	ctx := t.Context()
	of := func(item string) storage.Properties { return storage.Properties{MediaType: "of/" + item} }
	for name, long := range map[string]string{"in the attribute": "", "too long for it": strings.Repeat("long", 100)} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{Root: inMemory(t), maxAttr: 200})
			_, err := s.Put(ctx, sp, "a", strings.NewReader("x"), storage.PutOptions{
				Size: 1, Properties: of("a"), Original: storage.Original{Modified: time.UnixMilli(5).UTC(), Version: "v"},
			})
			must(t, err, os.Link(filepath.Join(s.cfg.Root, sp, "a"), filepath.Join(s.cfg.Root, sp, "b")))
			want := stat(t, s, "a")
			set := of("b")
			set.MediaType += long
			_, err = s.SetProperties(ctx, sp, "b", set, storage.Condition{})
			if !errors.Is(err, storage.ErrUnsupported) || !retry.IsPermanent(err) || !storage.IsNotApplied(err) {
				t.Errorf("got %v, want ErrUnsupported, for good and not applied", err)
			}
			if left := sidecarBytes(t, s.cfg.Root); len(left) > 0 {
				t.Errorf("sidecars are left: %q", left)
			}
			if got := stat(t, s, "a"); !reflect.DeepEqual(got, want) {
				t.Errorf("a: got %+v, want %+v", got, want)
			}
			put(t, s, "b", "new")
			if _, err := s.SetProperties(ctx, sp, "b", set, storage.Condition{}); err != nil {
				t.Error(err)
			}
			if got := stat(t, s, "a"); !reflect.DeepEqual(got, want) || stat(t, s, "b").Properties.MediaType != set.MediaType {
				t.Errorf("a: got %+v, want %+v; b: %+v", got, want, stat(t, s, "b"))
			}
		})
	}
	t.Run("after another program changed the bytes", func(t *testing.T) {
		s := store(t, Config{Root: inMemory(t)})
		put(t, s, "a", "x")
		in := func(name string) string { return filepath.Join(s.cfg.Root, sp, name) }
		must(t, os.Link(in("a"), in("b")), os.WriteFile(in("a"), []byte("y"), 0o666),
			os.Chtimes(in("a"), time.Time{}, time.UnixMilli(5)))
		for _, item := range []string{"a", "b"} {
			_, err := s.SetProperties(ctx, sp, item, of(item), storage.Condition{})
			must(t, err)
		}
		for _, item := range []string{"a", "b"} {
			if got := stat(t, s, item); got.Properties.MediaType != "of/"+item {
				t.Errorf("%s: got %+v", item, got)
			}
		}
	})
}

// setFlags sets the flags of a file, as chattr does.
func setFlags(t *testing.T, path string, flags int) error {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// The properties of a file without write permission are set in a sidecar. If the file has an attribute, which would
// take precedence, nothing is changed.
func TestAttributeMayNotBeWritten(t *testing.T) {
	const immutable = 0x10 // FS_IMMUTABLE_FL
	ctx := t.Context()
	for name, tt := range map[string]struct {
		cfg     Config
		own     bool // the file was put through the store
		refused bool
	}{
		"an attribute":                {Config{}, true, true},
		"an attribute, and no room":   {Config{maxAttr: 1}, true, true},
		"an attribute, and sidecars":  {Config{sidecars: true}, true, true},
		"a file of another program":   {Config{}, false, false},
		"a file of another, sidecars": {Config{sidecars: true}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{})
			path := filepath.Join(s.cfg.Root, sp, "a")
			if tt.own {
				put(t, s, "a", "x")
			} else {
				must(t, os.WriteFile(path, []byte("x"), 0o666))
			}
			was := stat(t, s, "a")
			tt.cfg.Root = s.cfg.Root
			now := open(t, tt.cfg)
			if err := setFlags(t, path, immutable); err != nil {
				need.Missing(t, need.Kernel("files that may not be written to"), err)
			}
			defer func() { must(t, setFlags(t, path, 0)) }()
			_, err := now.SetProperties(ctx, sp, "a", storage.Properties{MediaType: "new/type"}, storage.Condition{})
			if !tt.refused {
				if got := stat(t, now, "a"); err != nil || got.Properties.MediaType != "new/type" {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if !errors.Is(err, fs.ErrPermission) || !retry.IsPermanent(err) || !storage.IsNotApplied(err) {
				t.Errorf("got %v, want that it may not be written, for good and not applied", err)
			}
			if left := sidecarBytes(t, s.cfg.Root); len(left) > 0 {
				t.Errorf("sidecars are left: %q", left)
			}
			if got := stat(t, now, "a"); !reflect.DeepEqual(got, was) {
				t.Errorf("got %+v, want %+v", got, was)
			}
		})
	}
}

// A file that a user moves or copies with its attribute keeps its digests and properties.
func TestMovedByUser(t *testing.T) {
	s := store(t, Config{})
	o, err := s.Put(t.Context(), sp, "a", strings.NewReader("x"), storage.PutOptions{
		Size: 1, Properties: storage.Properties{MediaType: "a/b"}, Original: storage.Original{Version: "v"},
	})
	must(t, err, os.Rename(filepath.Join(s.cfg.Root, sp, "a"), filepath.Join(s.cfg.Root, sp, "b")))
	got := stat(t, s, "b")
	if !maps.Equal(got.Digests, o.Digests) || got.Properties.MediaType != "a/b" || got.Original != (storage.Original{}) {
		t.Errorf("got %+v, want all of %+v but the original", got, o)
	}
	if _, err := s.Stat(t.Context(), sp, "a"); !errors.Is(err, storage.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
