package file

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

func TestCheckFolding(t *testing.T) {
	for name, tt := range map[string]struct {
		there string // the file that the other name of a pair leads to
		want  bool
	}{
		"no folding":            {"", false},
		"case":                  {"PROBE", true},
		"normalisation":         {"probe\u0301", true},
		"another name is there": {"other", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.there != "" {
				must(t, os.WriteFile(filepath.Join(dir, tt.there), nil, 0o666))
			}
			fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			must(t, err)
			defer unix.Close(fd)
			if err := checkFolding(fd); errors.Is(err, errFolded) != tt.want || err != nil != tt.want {
				t.Errorf("got %v, want errFolds: %v", err, tt.want)
			}
		})
	}
}

// refusesFolded checks that a store in dir is refused by init, open and writes, and that no item is replaced.
func refusesFolded(t *testing.T, dir string) {
	t.Helper()
	ctx := t.Context()
	s, err := Open(Config{ID: "1", Root: dir})
	must(t, err)
	defer s.Close()
	if err := s.WriteMarker(ctx); !errors.Is(err, errFolded) || retry.ClassOf(err) != retry.ClassUnavailable {
		t.Errorf("WriteMarker: got %v, want that names are folded", err)
	}
	if err := s.Marker(ctx); !errors.Is(err, storage.ErrNoMarker) {
		t.Errorf("Marker: got %v, want none", err)
	}
	// As left by another machine, where the names are not folded.
	must(t, os.MkdirAll(filepath.Join(dir, sp), 0o777), os.WriteFile(filepath.Join(dir, sp, "a"), []byte("one"), 0o666),
		os.MkdirAll(filepath.Join(dir, ownDir), 0o777), os.WriteFile(filepath.Join(dir, markerFile),
			[]byte(`{"format":2,"store":"1"}`), 0o666))
	_, err = s.Put(ctx, sp, "A", strings.NewReader("two"), storage.PutOptions{Size: 3})
	if !errors.Is(err, errFolded) || !storage.IsNotApplied(err) {
		t.Errorf("Put: got %v, want that names are folded", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, sp, "a")); string(b) != "one" || err != nil {
		t.Errorf("the file has %q, %v", b, err)
	}
	for _, cfg := range []Config{{ID: "1", Root: dir}, {ID: "1", Root: dir, ReadOnly: true}} {
		if again, err := Open(cfg); !errors.Is(err, errFolded) {
			t.Errorf("Open: got %v, want that names are folded", err)
			if err == nil {
				again.Close()
			}
		}
	}
}

// A file system on which a name and its upper case are the same is refused.
func TestFoldingFileSystem(t *testing.T) {
	need.Full(t)
	t.Run("ntfs, ignoring case", func(t *testing.T) {
		at := t.TempDir()
		image, dir := filepath.Join(at, "image"), filepath.Join(at, "mnt")
		must(t, os.Mkdir(dir, 0o777), os.WriteFile(image, nil, 0o600), os.Truncate(image, 32<<20))
		for _, args := range [][]string{{"mkntfs", "-Q", "-F", "-q", image},
			{"lowntfs-3g", "-o", "ignore_case", image, dir}} {
			if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
				need.Missing(t, need.Kernel("ntfs-3g, and FUSE"), strings.TrimSpace(err.Error()+": "+string(out)))
			}
		}
		defer unmount(t, dir)
		refusesFolded(t, dir)
	})
	t.Run("vfat", func(t *testing.T) { refusesFolded(t, loop(t, "vfat", "mkfs.vfat")) })
}

// Refused starts and writes leave no scratch directory, lock or open descriptor.
func TestRefusedStartLeavesNothing(t *testing.T) {
	s := store(t, Config{})
	must(t, s.WriteMarker(t.Context()), s.Close())
	was := foldProbes
	defer func() { foldProbes = was }()
	// as on a file system that folds all names
	foldProbes = append(foldProbes[:0:0], struct{ what, a, b string }{"a name", "probe", "probe"})
	fds := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	before := fds()
	for range 3 {
		if r, err := Open(Config{ID: "1", Root: s.cfg.Root}); !errors.Is(err, errFolded) {
			t.Errorf("Open: got %v, want that names are folded", err)
			if err == nil {
				r.Close()
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Root, scratchDir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left are %q, %v", left, err)
	}
	if after := fds(); after > before {
		t.Errorf("got %d descriptors after %d", after, before)
	}
	foldProbes = was
	again := open(t, Config{Root: s.cfg.Root})
	here := again.sess.scratch.Load()
	must(t, os.RemoveAll(filepath.Join(s.cfg.Root, here.path)))
	foldProbes = append(foldProbes[:0:0], struct{ what, a, b string }{"a name", "probe", "probe"})
	for range 3 {
		if _, err := again.Put(t.Context(), sp, "a", strings.NewReader(""),
			storage.PutOptions{}); !errors.Is(err, errFolded) {
			t.Errorf("Put: got %v, want that names are folded", err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Root, scratchDir, "*")); err != nil || len(left) > 0 {
		t.Errorf("after the directory went: left are %q, %v", left, err)
	}
}

// A single directory that folds names accepts no items.
func TestFoldingDirectory(t *testing.T) {
	need.Full(t)
	dir := loop(t, "ext4", "mkfs.ext4", "-q", "-O", "casefold")
	s := store(t, Config{Root: dir})
	put(t, s, "plain/a", "x")
	folds := filepath.Join(dir, sp, "folds")
	must(t, os.Mkdir(folds, 0o777))
	if out, err := exec.CommandContext(t.Context(), "chattr", "+F", folds).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, os.WriteFile(filepath.Join(folds, "b"), []byte("b"), 0o666)) // as another program has left it
	for _, item := range []string{"folds/a", "folds/below/a", "folds/B"} {
		_, err := s.Put(t.Context(), sp, item, strings.NewReader("x"), storage.PutOptions{Size: 1})
		_, setErr := s.SetProperties(t.Context(), sp, item, storage.Properties{}, storage.Condition{})
		_, delErr := s.Delete(t.Context(), sp, item, storage.DeleteOptions{})
		for call, err := range map[string]error{"Put": err, "SetProperties": setErr, "Delete": delErr} {
			if call != "Put" && item == "folds/below/a" {
				continue // its directory does not exist
			}
			if !errors.Is(err, errFolded) || !retry.IsPermanent(err) || !storage.IsNotApplied(err) {
				t.Errorf("%s(%q): got %v, want that names are folded", call, item, err)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(folds, "b")); string(b) != "b" || err != nil {
		t.Errorf("the file of the other program: %q, %v", b, err)
	}
}
