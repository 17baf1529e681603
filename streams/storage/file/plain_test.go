package file

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/denied"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

func openPlain(t testing.TB, cfg PlainConfig) *Plain {
	t.Helper()
	if cfg.ID == "" {
		cfg.ID = "1"
	}
	if cfg.Expect == "" {
		cfg.Expect = "README"
		must(t, os.WriteFile(filepath.Join(cfg.Root, cfg.Expect), []byte("an archive"), 0o666))
	}
	p, err := OpenPlain(cfg)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// noFile reports whether an id cannot be the path of a file next to the other ids.
func noFile(id string, beside []string) bool {
	for name := range strings.SplitSeq(id, "/") {
		if !isName(name) {
			return true
		}
	}
	for _, other := range beside {
		if strings.HasPrefix(id, other+"/") || strings.HasPrefix(other, id+"/") {
			return true
		}
	}
	return id == "README"
}

// A tree that is only read keeps its owner: the remedy is the right to read. A store that is written to is given to the
// user.
func TestRemedyOfARefusal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		r    *root
		want string
	}{
		"plain":           {&openPlain(t, PlainConfig{Root: t.TempDir()}).root, "right to read"},
		"read-only store": {&open(t, Config{Root: dir, ReadOnly: true}).root, "right to read"},
		"store":           {&open(t, Config{}).root, "right to write"},
	} {
		refused := tt.r.unavailable(&fs.PathError{Op: "open", Path: "a", Err: fs.ErrPermission})
		if got := denied.RemedyOf(refused); !strings.Contains(got, tt.want) || strings.Contains(got, "chown") {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// plant writes files as another program would.
func plant(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(content), 0o666))
	}
}

func TestPlainContract(t *testing.T) {
	fill := func(t *testing.T, spaces map[string]map[string]string) storage.Store {
		root := t.TempDir()
		for space, items := range spaces {
			must(t, os.Mkdir(filepath.Join(root, space), 0o777))
			plant(t, filepath.Join(root, space), items)
		}
		return openPlain(t, PlainConfig{Root: root})
	}
	t.Run("a space is a directory", func(t *testing.T) {
		storagetest.RunReadOnly(t, fill, storagetest.WithRefused(noFile))
	})
	t.Run("small windows", func(t *testing.T) {
		storagetest.RunReadOnly(t, func(t *testing.T, spaces map[string]map[string]string) storage.Store {
			p := fill(t, spaces).(*Plain)
			p.window = 2
			return p
		}, storagetest.WithRefused(noFile), storagetest.Only("OddIDs", "ListModel"))
	})
	t.Run("read-only in millrace's layout", func(t *testing.T) {
		storagetest.RunReadOnly(t, func(t *testing.T, spaces map[string]map[string]string) storage.Store {
			s := open(t, Config{})
			must(t, s.WriteMarker(t.Context()))
			for space, items := range spaces {
				must(t, s.CreateSpace(t.Context(), storage.Space{Name: space}))
				for item, content := range items {
					_, err := s.Put(t.Context(), space, item, strings.NewReader(content),
						storage.PutOptions{Size: storage.UnknownSize})
					must(t, err)
				}
			}
			return open(t, Config{Root: s.cfg.Root, ReadOnly: true})
		}, storagetest.Only("Refuses", "Spaces", "BadNames"))
	})
}

// If the root is one space, the file that identifies it is one of its items.
func TestPlainOneSpace(t *testing.T) {
	root := t.TempDir()
	plant(t, root, map[string]string{"a/b.txt": "b", "c": "c", "lost+found/x": "x"})
	reported := map[string]string{}
	p := openPlain(t, PlainConfig{Root: root, Space: "archive",
		Skipped: func(path, reason string) { reported[path] = reason }})
	ctx := t.Context()
	var spaces, items []string
	for name, err := range p.Spaces(ctx) {
		must(t, err)
		spaces = append(spaces, name)
	}
	for o, err := range p.List(ctx, "archive", "") {
		must(t, err)
		items = append(items, o.Item)
	}
	if want := []string{"README", "a/b.txt", "c"}; !slices.Equal(items, want) ||
		!slices.Equal(spaces, []string{"archive"}) {
		t.Errorf("got spaces %q with items %q, want archive with %q", spaces, items, want)
	}
	if len(reported) != 1 || reported["lost+found"] == "" {
		t.Errorf("reported %q, want lost+found", reported)
	}
	if path, err := p.Path("archive", "a/b.txt"); err != nil || path != filepath.Join(root, "a/b.txt") {
		t.Errorf("Path: got %q, %v", path, err)
	}
	if _, err := p.Stat(ctx, "a", "b.txt"); !errors.Is(err, storage.ErrNoSpace) {
		t.Errorf("Stat in a directory that is no space: got %v", err)
	}
}

func TestOpenPlainRefuses(t *testing.T) {
	root := t.TempDir()
	for name, cfg := range map[string]PlainConfig{
		"no id":                 {Root: root, Expect: "x"},
		"no root":               {ID: "1", Expect: "x"},
		"nothing expected":      {ID: "1", Root: root},
		"the root is expected":  {ID: "1", Root: root, Expect: "./."},
		"expected outside":      {ID: "1", Root: root, Expect: "../x"},
		"expected anywhere":     {ID: "1", Root: root, Expect: "/x"},
		"no digest":             {ID: "1", Root: root, Expect: "x", ExpectSHA256: "md5"},
		"a digest of no sha256": {ID: "1", Root: root, Expect: "x", ExpectSHA256: "00"},
		"a bad space":           {ID: "1", Root: root, Expect: "x", Space: "\xff"},
		"a root that is absent": {ID: "1", Root: filepath.Join(root, "absent"), Expect: "x"},
	} {
		if p, err := OpenPlain(cfg); err == nil {
			p.Close()
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestPlainMarker(t *testing.T) {
	const sum = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" // of "x"
	tests := map[string]struct {
		files  map[string]string
		expect string
		sum    string
		want   error
	}{
		"a file that is there":       {map[string]string{"bagit.txt": "x"}, "bagit.txt", "", nil},
		"a directory that is there":  {map[string]string{"data/a": "x"}, "data", "", nil},
		"a path that is there":       {map[string]string{"data/a": "x"}, "data/a", "", nil},
		"of this digest":             {map[string]string{"a": "x"}, "a", strings.ToUpper(sum), nil},
		"an empty directory":         {nil, "a", "", storage.ErrNoMarker},
		"below a file":               {map[string]string{"a": "x"}, "a/b", "", storage.ErrNoMarker},
		"of another digest":          {map[string]string{"a": "y"}, "a", sum, storage.ErrWrongMarker},
		"a directory, with a digest": {map[string]string{"a/b": "x"}, "a", sum, storage.ErrWrongMarker},
		"too large for a digest": {map[string]string{"a": strings.Repeat("x", maxExpected+1)}, "a", sum,
			storage.ErrWrongMarker},
		"a store of the other layout": {map[string]string{"a": "x", ".millrace/marker.json": "{}"}, "a", "",
			storage.ErrWrongMarker},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			plant(t, root, tt.files)
			p := openPlain(t, PlainConfig{Root: root, Expect: tt.expect, ExpectSHA256: tt.sum})
			if err := p.Marker(t.Context()); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	root := t.TempDir()
	must(t, os.Symlink("/", filepath.Join(root, "link")))
	if err := openPlain(t, PlainConfig{Root: root, Expect: "link/etc"}).Marker(t.Context()); !errors.Is(err,
		storage.ErrNoMarker) {
		t.Errorf("what is expected is behind a symbolic link: got %v, want ErrNoMarker", err)
	}
}

// If the disk of an archive is not mounted, its items are unknown, not absent, until the disk is mounted again.
func TestPlainVanishes(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	plant(t, root, map[string]string{"s/a": "x"})
	p := openPlain(t, PlainConfig{Root: root})
	ctx := t.Context()
	_, err := p.Stat(ctx, "s", "a")
	must(t, err, os.Rename(root, root+".away"), os.Mkdir(root, 0o777)) // the empty mount point
	_, statErr := p.Stat(ctx, "s", "a")
	_, _, openErr := p.Open(ctx, "s", "a", "")
	_, spaceErr := p.StatSpace(ctx, "s")
	var listErr, spacesErr error
	for _, listErr = range p.List(ctx, "s", "") {
	}
	for _, spacesErr = range p.Spaces(ctx) {
	}
	for call, err := range map[string]error{
		"Stat": statErr, "Open": openErr, "StatSpace": spaceErr, "List": listErr, "Spaces": spacesErr,
		"Marker": p.Marker(ctx),
	} {
		if !errors.Is(err, storage.ErrNoMarker) || errors.Is(err, storage.ErrNoSpace) ||
			errors.Is(err, storage.ErrNotFound) ||
			retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("%s: got %v, want ErrNoMarker, as unavailable, and no fact", call, err)
		}
	}
	must(t, os.Remove(root), os.Rename(root+".away", root))
	_, err = p.Stat(ctx, "s", "a")
	must(t, err, p.Marker(ctx), p.Close())
	if _, err := p.Stat(ctx, "s", "a"); !errors.Is(err, errClosed) {
		t.Errorf("Stat of a closed store: got %v", err)
	}
}

// The version changes with the bytes, even if the modification time is restored.
func TestPlainVersions(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	old := time.Date(2020, 1, 2, 3, 4, 5, 6, time.UTC)
	rewrite := func(path, content string) error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(content)
			err = errors.Join(err, f.Close())
		}
		return err
	}
	for name, harm := range map[string]func(path string) error{
		"a byte, in place": func(path string) error { return errors.Join(rewrite(path, "y"), os.Chtimes(path, old, old)) },
		"shortened": func(path string) error {
			return errors.Join(os.Truncate(path, 1<<20), os.Chtimes(path, old, old))
		},
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+"2", []byte(long), 0o666), os.Chtimes(path+"2", old, old),
				os.Rename(path+"2", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			plant(t, root, map[string]string{"s/a": long})
			path := filepath.Join(root, "s", "a")
			must(t, os.Chtimes(path, old, old))
			p := openPlain(t, PlainConfig{Root: root})
			was, err := p.Stat(t.Context(), "s", "a")
			must(t, err)
			if !was.Modified.Equal(old) || was.Size != int64(len(long)) || len(was.Digests) > 0 {
				t.Errorf("got %+v, want the file's size and time", was)
			}
			r, _, err := p.Open(t.Context(), "s", "a", was.Version)
			must(t, err)
			defer r.Close()
			_, err = io.ReadFull(r, make([]byte, 1000))
			must(t, err, harm(path))
			if _, err := io.ReadAll(r); name != "replaced" && !errors.Is(err, storage.ErrChanged) {
				t.Errorf("who was reading got %v, want ErrChanged", err)
			}
			if _, _, err := p.Open(t.Context(), "s", "a", was.Version); !errors.Is(err, storage.ErrChanged) {
				t.Errorf("Open of the version before: got %v, want ErrChanged", err)
			}
		})
	}
}

// Entries that are not items are reported. A path without read permission is reported too, and ends the listing with an
// error: who continues behind it would take its items for absent.
func TestPlainSkipped(t *testing.T) {
	root := t.TempDir()
	plant(t, root, map[string]string{"s/a": "", "s/b/c": "", "s/d%=": "", "s/no/x": "", "s/z": "", "s/dot%2E": "",
		".hidden/x": "", "stray": "", "README": ""})
	in := func(name string) string { return filepath.Join(root, "s", name) }
	must(t, os.Symlink("a", in("link")), syscall.Mkfifo(in("fifo"), 0o666), os.WriteFile(in("bad\xff"), nil, 0o666),
		os.Mkdir(filepath.Join(root, "bad\xfe"), 0o777), os.Symlink("s", filepath.Join(root, "slink")),
		os.Mkdir(filepath.Join(root, "lost+found"), 0o777), os.Chmod(in("no"), 0))
	reported := map[string]string{}
	p := openPlain(t, PlainConfig{Root: root, Expect: "README",
		Skipped: func(path, reason string) { reported[path] += reason }})
	if os.Getuid() == 0 { // run as a user without root's permissions
		must(t, os.Chmod(root, 0o755), os.Chmod(filepath.Dir(root), 0o755)) //nolint:gosec // others are to look at it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must(t, unix.Setfsuid(65534))
		defer unix.Setfsuid(0)
	}
	var items, spaces []string
	var last error
	for o, err := range p.List(t.Context(), "s", "") {
		if last = err; err == nil {
			items = append(items, o.Item)
		}
	}
	for name, err := range p.Spaces(t.Context()) {
		must(t, err)
		spaces = append(spaces, name)
	}
	if want := []string{"a", "b/c", "d%=", "dot%2E"}; !slices.Equal(items, want) ||
		!errors.Is(last, fs.ErrPermission) {
		t.Errorf("List: got %q and then %v, want %q and that a directory may not be read", items, last, want)
	}
	if want := []string{".hidden", "s"}; !slices.Equal(spaces, want) {
		t.Errorf("Spaces: got %q, want %q", spaces, want)
	}
	want := map[string]string{
		"s/link": "it is a symbolic link", "s/fifo": "it is a fifo", "s/bad\xff": "its name is not UTF-8",
		"bad\xfe": "its name is not UTF-8",
		"s/no":    "permission denied: its items are unknown", "stray": "it is a file outside of any space",
		"slink": "it is a symbolic link", "lost+found": "it belongs to the file system",
	}
	if !maps.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}
	if _, err := p.Stat(t.Context(), "s", "no/x"); err == nil || errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Stat of what may not be looked at: got %v, want an error that is no fact", err)
	}
}
