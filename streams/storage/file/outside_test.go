package file

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

const sp = "photos"

// eachLayout runs a test for both layouts.
func eachLayout(t *testing.T, name string, f func(t *testing.T, sidecars bool)) {
	t.Run(name+", attributes", func(t *testing.T) { f(t, false) })
	t.Run(name+", sidecars", func(t *testing.T) { f(t, true) })
}

// store returns an opened store that has the space.
func store(t testing.TB, cfg Config) *Store {
	t.Helper()
	s := open(t, cfg)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: sp}))
	return s
}

func put(t testing.TB, s *Store, item, content string) storage.Object {
	t.Helper()
	o, err := s.Put(t.Context(), sp, item, strings.NewReader(content), storage.PutOptions{
		Size: int64(len(content)), Properties: storage.Properties{MediaType: "text/plain"},
	})
	if err != nil {
		t.Fatalf("Put(%q): %v", item, err)
	}
	return o
}

func stat(t testing.TB, s *Store, item string) storage.Object {
	t.Helper()
	o, err := s.Stat(t.Context(), sp, item)
	if err != nil {
		t.Fatalf("Stat(%q): %v", item, err)
	}
	return o
}

func read(t testing.TB, s *Store, item, version string) (string, error) {
	t.Helper()
	r, _, err := s.Open(t.Context(), sp, item, version)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

func list(t testing.TB, s *Store) (ids []string) {
	t.Helper()
	for o, err := range s.List(t.Context(), sp, "") {
		must(t, err)
		ids = append(ids, o.Item)
	}
	return ids
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// files returns all regular files below root except those in ownDir.
func files(t testing.TB, root string) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == ownDir {
			return filepath.SkipDir
		}
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(root, path)
			all = append(all, rel)
		}
		return err
	}))
	return all
}

// The tree holds the items under their names, and everything else in ownDir.
func TestTreeOnDisk(t *testing.T) {
	s := store(t, Config{})
	want := []string{"photos/2026/may/a b.jpg", "photos/2026/may.txt", "photos/100%.txt", "photos/ü", "photos/dir",
		"photos/dir%=", "photos/.hidden"}
	for _, item := range []string{"2026/may/a b.jpg", "2026/may.txt", "100%.txt", "ü", ".hidden"} {
		put(t, s, item, "x")
		path, err := s.Path(sp, item)
		if err != nil || path != filepath.Join(s.cfg.Root, sp, item) {
			t.Errorf("Path(%q): got %q, %v", item, path, err)
		}
	}
	put(t, s, "dir", "an item")
	put(t, s, "dir/below", "an item below it")
	path, err := s.Path(sp, "dir")
	if err != nil || path != filepath.Join(s.cfg.Root, sp, "dir%=") {
		t.Errorf("Path of the item beside the directory: got %q, %v", path, err)
	}
	want = append(want[:4], "photos/dir/below", "photos/dir%=", "photos/.hidden")
	slices.Sort(want)
	got := files(t, s.cfg.Root)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got files %q, want %q", got, want)
	}
	for _, item := range list(t, s) {
		if _, err := s.Delete(t.Context(), sp, item, storage.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	left, err := os.ReadDir(filepath.Join(s.cfg.Root, sp))
	if err != nil || len(left) != 0 {
		t.Errorf("after all deletes: got %v, %v, want an empty directory", left, err)
	}
	sidecars, _ := filepath.Glob(filepath.Join(s.cfg.Root, metaDir, sp, "*", "*"))
	if len(sidecars) != 0 {
		t.Errorf("after all deletes: sidecars are left: %v", sidecars)
	}
}

// Files of other programs are items without digests.
func TestFilesOfOthers(t *testing.T) {
	s := store(t, Config{})
	dir := filepath.Join(s.cfg.Root, sp, "sub")
	must(t, os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, "new"), []byte("abc"), 0o666))
	o := stat(t, s, "sub/new")
	if o.Size != 3 || len(o.Digests) != 0 || o.Version == "" {
		t.Errorf("got %+v, want size 3 and no digests", o)
	}
	if got, err := read(t, s, "sub/new", o.Version); got != "abc" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	set, err := s.SetProperties(t.Context(), sp, "sub/new", storage.Properties{MediaType: "a/b"},
		storage.Condition{Version: o.Version})
	if err != nil || set.Properties.MediaType != "a/b" || len(set.Digests) != 0 || set.Version != o.Version {
		t.Errorf("SetProperties: got %+v, %v", set, err)
	}
	if got := stat(t, s, "sub/new"); got.Properties.MediaType != "a/b" || len(got.Digests) != 0 {
		t.Errorf("got %+v, want the properties and no digests", got)
	}
	must(t, os.Mkdir(filepath.Join(s.cfg.Root, "made by hand"), 0o777))
	if _, err := s.StatSpace(t.Context(), "made by hand"); err != nil {
		t.Errorf("a space that was made by hand: %v", err)
	}
	if _, err := s.Put(t.Context(), "made by hand", "a/b", strings.NewReader(""), storage.PutOptions{}); err != nil {
		t.Errorf("Put into it: %v", err)
	}
}

// An Original is valid for the file that was written, and not for another file with its path.
func TestOriginalOfAnotherFile(t *testing.T) {
	s := store(t, Config{})
	original := storage.Original{Modified: time.UnixMilli(1).UTC(), Version: "v"}
	_, err := s.Put(t.Context(), sp, "a", strings.NewReader("copy"),
		storage.PutOptions{Size: storage.UnknownSize, Original: original})
	must(t, err)
	if got := stat(t, s, "a").Original; got != original {
		t.Errorf("got %+v, want %+v", got, original)
	}
	path, err := s.Path(sp, "a")
	must(t, err, os.WriteFile(path, []byte("mine"), 0o666))
	if got := stat(t, s, "a").Original; got != (storage.Original{}) {
		t.Errorf("of a file that was rewritten: got %+v", got)
	}
}

// The recorded digests are returned only while the file has the recorded modification time. A file that replaces
// another has its own attribute, or none.
func TestEvidenceS(t *testing.T) {
	touch := func(path string, o storage.Object) error { return os.Chtimes(path, time.Time{}, o.Modified) }
	tests := map[string]struct {
		harm    func(path string, o storage.Object) error
		same    bool // version and digests are unchanged
		content string
		another bool // another file replaced it
	}{
		"a byte flipped, time restored": {func(path string, o storage.Object) error {
			return errors.Join(os.WriteFile(path, []byte("gaod bytes"), 0o666), touch(path, o))
		}, true, "gaod bytes", false},
		"truncated, time restored": {func(path string, o storage.Object) error {
			return errors.Join(os.Truncate(path, 4), touch(path, o))
		}, true, "good", false},
		"emptied, time restored": {func(path string, o storage.Object) error {
			return errors.Join(os.Truncate(path, 0), touch(path, o))
		}, true, "", false},
		"replaced, time restored": {func(path string, o storage.Object) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("other"), 0o666), touch(path, o))
		}, true, "other", true},
		"rewritten": {func(path string, _ storage.Object) error {
			return os.WriteFile(path, []byte("new"), 0o666)
		}, false, "new", false},
		"touched": {func(path string, o storage.Object) error {
			return os.Chtimes(path, time.Time{}, o.Modified.Add(1))
		}, false, "good bytes", false},
		"moved away and back": {func(path string, _ storage.Object) error {
			return errors.Join(os.Rename(path, path+"2"), os.Rename(path+"2", path))
		}, true, "good bytes", false},
		"its permissions only": {func(path string, _ storage.Object) error {
			return os.Chmod(path, 0o600)
		}, true, "good bytes", false},
	}
	for name, tt := range tests {
		eachLayout(t, name, func(t *testing.T, sidecars bool) {
			s := store(t, Config{sidecars: sidecars})
			put(t, s, "a", "good bytes")
			was := stat(t, s, "a")
			path, err := s.Path(sp, "a")
			must(t, err, tt.harm(path, was))
			if !sidecars && tt.another {
				if got := stat(t, s, "a"); got.Version != was.Version || len(got.Digests) > 0 || !got.PropertiesUnknown {
					t.Errorf("got %+v, want that nothing but the version is known", got)
				}
				return
			}
			got := stat(t, s, "a")
			if got.Properties.MediaType != "text/plain" || got.Size != int64(len(tt.content)) {
				t.Errorf("got %+v, want the item's properties and size %d", got, len(tt.content))
			}
			if tt.same != (got.Version == was.Version) || tt.same != maps.Equal(got.Digests, was.Digests) ||
				!tt.same && len(got.Digests) > 0 {
				t.Errorf("got %+v after %+v, want the same version and digests: %v", got, was, tt.same)
			}
			content, err := read(t, s, "a", was.Version)
			if tt.same && (content != tt.content || err != nil) {
				t.Errorf("Open pinned to what stat said: got %q, %v, want %q", content, err, tt.content)
			}
			if !tt.same && !errors.Is(err, storage.ErrChanged) {
				t.Errorf("Open pinned to the version of before: got %v, want ErrChanged", err)
			}
			again := put(t, s, "a", "mended")
			if content, err := read(t, s, "a", again.Version); content != "mended" || err != nil ||
				!again.Modified.After(got.Modified) {
				t.Errorf("after the repair: got %q, %v, %+v", content, err, again)
			}
		})
	}
}

// If a file is changed in place while it is read, the read ends with ErrChanged, not with EOF.
func TestChangedInPlace(t *testing.T) {
	s := store(t, Config{})
	put(t, s, "a", strings.Repeat("x", 1<<20))
	r, _, err := s.Open(t.Context(), sp, "a", "")
	must(t, err)
	defer r.Close()
	_, err = io.ReadFull(r, make([]byte, 100))
	path, perr := s.Path(sp, "a")
	must(t, err, perr, os.WriteFile(path, []byte(strings.Repeat("y", 1<<20)), 0o666))
	if _, err := io.ReadAll(r); !errors.Is(err, storage.ErrChanged) {
		t.Errorf("got %v, want ErrChanged", err)
	}
}

// Versions increase even if the clock stops or goes back.
func TestVersionsGrow(t *testing.T) {
	now := time.Now()
	s := store(t, Config{now: func() time.Time { now = now.Add(-time.Second); return now }})
	var last storage.Object
	for range 5 {
		o := put(t, s, "a", "same")
		if o.Version <= last.Version || !o.Modified.After(last.Modified) {
			t.Errorf("got %s of %v after %s of %v", o.Version, o.Modified, last.Version, last.Modified)
		}
		if got := stat(t, s, "a"); got.Version != o.Version || len(got.Digests) == 0 {
			t.Errorf("Stat: got %+v, want version %s with digests", got, o.Version)
		}
		last = o
	}
	other := open(t, Config{Root: s.cfg.Root, now: func() time.Time { return now.Add(-time.Minute) }})
	if o := put(t, other, "a", "same"); !o.Modified.After(last.Modified) {
		t.Errorf("another process: got %v after %v", o.Modified, last.Modified)
	}
	future := now.Add(4 * time.Minute)
	path, err := s.Path(sp, "a")
	must(t, err, os.Chtimes(path, time.Time{}, future))
	d, err := s.Delete(t.Context(), sp, "a", storage.DeleteOptions{})
	if err != nil || !d.Time.Truncate(time.Millisecond).After(future.Truncate(time.Millisecond)) {
		t.Errorf("Delete of a file from the future: got %v, %v, want later than %v", d.Time, err, future)
	}
}

// Entries that are not items are reported and do not affect items.
func TestSkipped(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	s := store(t, Config{Skipped: func(path, reason string) {
		mu.Lock()
		defer mu.Unlock()
		got[path] = reason
	}})
	put(t, s, "item", "x")
	root := s.cfg.Root
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o666))
	in := func(names ...string) string { return filepath.Join(append([]string{root, sp}, names...)...) }
	must(t,
		os.Symlink(filepath.Join(outside, "secret"), in("link")), os.Symlink(outside, in("dirlink")),
		os.Symlink("item", in("inside")),
		os.Symlink(outside, filepath.Join(root, "spacelink")),
		syscall.Mkfifo(in("fifo"), 0o666), os.WriteFile(in("bad\xff"), nil, 0o666), os.Mkdir(in("baddir\xfe"), 0o777),
		os.WriteFile(in("baddir\xfe", "x"), nil, 0o666), os.WriteFile(in("dot%2E"), nil, 0o666), os.Mkdir(in("d%="), 0o777),
		os.WriteFile(in("end%+"), nil, 0o666), os.WriteFile(in("item%="), nil, 0o666),
		os.WriteFile(filepath.Join(root, "stray"), nil, 0o666), os.Mkdir(filepath.Join(root, "lost+found"), 0o777),
		os.Mkdir(filepath.Join(root, "%2Ex"), 0o777))
	deep := in(strings.Split(strings.Repeat("0123456789/", 100)+"x", "/")...)
	must(t, os.MkdirAll(deep, 0o777), os.WriteFile(filepath.Join(deep, strings.Repeat("y", 100)), nil, 0o666))
	if got, want := list(t, s), []string{"item"}; !slices.Equal(got, want) {
		t.Errorf("List: got %q, want %q", got, want)
	}
	var spaces []string
	for name, err := range s.Spaces(t.Context()) {
		must(t, err)
		spaces = append(spaces, name)
	}
	if want := []string{sp}; !slices.Equal(spaces, want) {
		t.Errorf("Spaces: got %q, want %q", spaces, want)
	}
	const form = "its name is not one that this store writes"
	want := map[string]string{
		sp + "/link": "it is a symbolic link", sp + "/dirlink": "it is a symbolic link",
		sp + "/inside": "it is a symbolic link",
		sp + "/fifo":   "it is a fifo", sp + "/bad\xff": "its name is not UTF-8", sp + "/baddir\xfe": "its name is not UTF-8",
		sp + "/dot%2E": form, sp + "/d%=": form, sp + "/end%+": form,
		sp + "/item%=": "the item has another file, under its own name",
		sp + "/" + strings.Repeat("0123456789/", 100)[:1099] + "/x/" + strings.Repeat("y", 100): "its id would be too long",
		"stray": "it is a file outside of any space", "spacelink": "it is a symbolic link",
		"%2Ex": "its name is not one that this store writes for a space",
	}
	for path, reason := range want {
		if len(path) > 1000 { // longer paths are not possible
			continue
		}
		if got[path] != reason {
			t.Errorf("%q: got reason %q, want %q", path, got[path], reason)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d skipped, want %d: %q", len(got), len(want), got)
	}
	for _, item := range []string{"link", "inside", "dirlink/secret", "fifo"} {
		if _, err := s.Stat(t.Context(), sp, item); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("Stat(%q): got %v, want ErrNotFound", item, err)
		}
		if _, _, err := s.Open(t.Context(), sp, item, ""); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("Open(%q): got %v, want ErrNotFound", item, err)
		}
		if _, err := s.Put(t.Context(), sp, item, strings.NewReader("x"),
			storage.PutOptions{Size: 1}); !errors.Is(err, storage.ErrName) {
			t.Errorf("Put(%q): got %v, want ErrName", item, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(outside, "secret")); string(b) != "secret" || len(files(t, outside)) != 1 {
		t.Errorf("what is outside of the root was touched: %q, %v", b, err)
	}
	if err := s.DeleteSpace(t.Context(), "spacelink"); !errors.Is(err, storage.ErrNoSpace) {
		t.Errorf("DeleteSpace of a symbolic link: got %v, want ErrNoSpace", err)
	}
	if _, err := s.Delete(t.Context(), sp, "item", storage.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	// item%= is the item's file now.
	if _, err := s.Delete(t.Context(), sp, "item", storage.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := s.DeleteSpace(t.Context(), sp); !errors.Is(err, storage.ErrNotEmpty) {
		t.Errorf("DeleteSpace of a directory with files that are no items: got %v, want ErrNotEmpty", err)
	}
}

// While another program, such as Samba, holds a lease on a file, its metadata cannot be read. The attempt makes the
// kernel ask that program to give up the lease. The error is transient and not an absence.
func TestLeaseOfAnotherProgram(t *testing.T) {
	s := store(t, Config{})
	put(t, s, "a", "x")
	f, err := os.OpenFile(filepath.Join(s.cfg.Root, sp, "a"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		need.Missing(t, need.Kernel("leases"), err)
	}
	_, err = s.Stat(t.Context(), sp, "a")
	if !errors.Is(err, unix.EAGAIN) || errors.Is(err, storage.ErrNotFound) || retry.ClassOf(err) != retry.Transient {
		t.Errorf("got %v, want EAGAIN, as transient, and no fact", err)
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	must(t, err)
	if got := stat(t, s, "a"); got.Properties.MediaType != "text/plain" {
		t.Errorf("got %+v", got)
	}
}
