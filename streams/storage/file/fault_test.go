package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// If the root is gone, or another directory has its path, items are unknown, not absent.
func TestRootVanishes(t *testing.T) {
	ctx := t.Context()
	elsewhere := func(root string) string { return filepath.Join(filepath.Dir(root), "elsewhere") }
	vanish := map[string]func(root string) error{
		"moved": func(root string) error { return os.Rename(root, elsewhere(root)) },
		"an empty directory": func(root string) error {
			return errors.Join(os.Rename(root, elsewhere(root)), os.Mkdir(root, 0o777))
		},
		"a file": func(root string) error {
			return errors.Join(os.Rename(root, elsewhere(root)), os.WriteFile(root, nil, 0o666))
		},
	}
	for name, vanish := range vanish {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{Root: filepath.Join(t.TempDir(), "root"), Create: true})
			must(t, s.WriteMarker(ctx))
			was := put(t, s, "a", "content")
			must(t, vanish(s.cfg.Root))
			_, statErr := s.Stat(ctx, sp, "a")
			_, absentErr := s.Stat(ctx, "no space", "a")
			_, _, openErr := s.Open(ctx, sp, "a", "")
			_, putErr := s.Put(ctx, sp, "b", strings.NewReader(""), storage.PutOptions{})
			_, deleteErr := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
			_, spaceErr := s.StatSpace(ctx, sp)
			var listErr, spacesErr error
			for _, listErr = range s.List(ctx, sp, "") {
			}
			for _, spacesErr = range s.Spaces(ctx) {
			}
			for call, err := range map[string]error{
				"Stat": statErr, "Stat of what never was": absentErr, "Open": openErr, "Put": putErr, "Delete": deleteErr,
				"StatSpace": spaceErr,
				"List":      listErr, "Spaces": spacesErr, "Marker": s.Marker(ctx),
				"CreateSpace": s.CreateSpace(ctx, storage.Space{Name: "new"}),
				"WriteMarker": s.WriteMarker(ctx),
			} {
				if !errors.Is(err, storage.ErrNoMarker) || errors.Is(err, storage.ErrNotFound) ||
					errors.Is(err, storage.ErrNoSpace) ||
					retry.ClassOf(err) != retry.ClassUnavailable {
					t.Errorf("%s: got %v, want ErrNoMarker, as unavailable, and no fact", call, err)
				}
			}
			must(t, os.RemoveAll(s.cfg.Root), os.Rename(elsewhere(s.cfg.Root), s.cfg.Root))
			if got := stat(t, s, "a"); got.Version != was.Version {
				t.Errorf("when it is back: got %+v, want %+v", got, was)
			}
			put(t, s, "b", "")
		})
	}
}

// If another disk that is a store replaces the root, it is used without a restart.
func TestRootSwapped(t *testing.T) {
	s := store(t, Config{Root: filepath.Join(t.TempDir(), "root"), Create: true})
	put(t, s, "a", "first disk")
	second := store(t, Config{ID: "1", Root: filepath.Join(filepath.Dir(s.cfg.Root), "second"), Create: true})
	put(t, second, "a", "second disk")
	must(t, os.Rename(s.cfg.Root, s.cfg.Root+".old"), os.Rename(second.cfg.Root, s.cfg.Root))
	put(t, s, "b", "new")
	if got, err := read(t, s, "a", ""); got != "second disk" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Root+".old", scratchDir, "*")); err != nil || len(left) != 0 {
		t.Errorf("temporary directories of the session before: %v, %v", left, err)
	}
}

// If the root vanishes during a listing, the listing ends with an error.
func TestRootVanishesWhileListing(t *testing.T) {
	s := store(t, Config{Root: filepath.Join(t.TempDir(), "root"), Create: true})
	for i := range 5 {
		put(t, s, fmt.Sprintf("d%d/item", i), "x")
	}
	n := 0
	for _, err := range s.List(t.Context(), sp, "") {
		if err != nil {
			if errors.Is(err, storage.ErrNotFound) {
				t.Errorf("got %v", err)
			}
			return
		}
		if n++; n == 2 {
			must(t, os.RemoveAll(s.cfg.Root))
		}
	}
	t.Errorf("the listing ended after %d items as if that were all", n)
}

// The temporary files of dead processes are removed; those of live processes stay.
func TestLeftovers(t *testing.T) {
	s := store(t, Config{})
	tmp, err := s.sess.temp()
	must(t, err)
	defer tmp.discard()
	dead := filepath.Join(s.cfg.Root, scratchDir, "dead")
	must(t, os.Mkdir(dead, 0o777), os.WriteFile(filepath.Join(dead, "1"), []byte("half a file"), 0o666))
	open(t, Config{Root: s.cfg.Root})
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a dead process: got %v, want it gone", err)
	}
	if _, err := os.Stat(filepath.Join(s.cfg.Root, tmp.path())); err != nil {
		t.Errorf("the temporary file of a living process: %v", err)
	}
	if got := list(t, s); len(got) != 0 {
		t.Errorf("List has temporary files: %q", got)
	}
}

// If a process dies after it installed the sidecar and before it renamed the file, the item is unchanged.
func TestDiesBeforeRename(t *testing.T) {
	for name, present := range map[string]bool{"a new item": false, "a replacement": true} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{sidecars: true})
			var was storage.Object
			if present {
				put(t, s, "a", "old")
				was = stat(t, s, "a")
			}
			p, err := newItemPath(sp, "a")
			must(t, err)
			tmp, err := s.sess.temp()
			must(t, err)
			w := &write{s: s, sess: s.sess, p: p, t: tmp, digests: map[string]string{"md5": "ff"}}
			w.o.Properties.MediaType, w.o.Original.Version = "never/seen", "never seen"
			at, err := s.sess.find(p)
			must(t, err, w.finalize(t.Context(), at), w.installSidecar())
			at.close()
			tmp.discard() // the process dies
			if !present {
				if _, err := s.Stat(t.Context(), sp, "a"); !errors.Is(err, storage.ErrNotFound) {
					t.Errorf("got %v, want ErrNotFound", err)
				}
				return
			}
			got := stat(t, s, "a")
			if got.Version != was.Version || got.Digests["md5"] != was.Digests["md5"] ||
				got.Properties.MediaType != was.Properties.MediaType ||
				got.Original != was.Original {
				t.Errorf("got %+v, want %+v", got, was)
			}
		})
	}
}

// If the sidecar of an item is damaged, its properties are unknown, and everything else works.
func TestSidecarDamaged(t *testing.T) {
	ctx := t.Context()
	for name, content := range map[string]string{"torn": `{"item":"a","no`, "empty": "",
		"of another item": `{"item":"b"}`} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{sidecars: true})
			put(t, s, "a", "x")
			p, _ := newItemPath(sp, "a")
			_, path := sidecarPath(p)
			spoil := func() { must(t, os.WriteFile(filepath.Join(s.cfg.Root, path), []byte(content), 0o666)) }
			spoil()
			if o := stat(t, s, "a"); !o.PropertiesUnknown || len(o.Digests) > 0 || o.Properties.MediaType != "" {
				t.Errorf("Stat: got %+v, want that nothing is known", o)
			}
			if got, err := read(t, s, "a", ""); got != "x" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			put(t, s, "a", "y")
			if o := stat(t, s, "a"); len(o.Digests) == 0 || o.PropertiesUnknown {
				t.Errorf("after another put: got %+v", o)
			}
			spoil()
			d, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{KeepDeleted: true})
			if err != nil || !d.Object.PropertiesUnknown {
				t.Errorf("Delete: %+v, %v", d, err)
			}
			put(t, s, "a", "z")
			spoil()
			props := storage.Properties{MediaType: "a/b"}
			if o, err := s.SetProperties(ctx, sp, "a", props, storage.Condition{}); err != nil || o.PropertiesUnknown {
				t.Errorf("SetProperties: %+v, %v", o, err)
			}
			if o := stat(t, s, "a"); o.PropertiesUnknown || o.Properties.MediaType != "a/b" {
				t.Errorf("then: got %+v", o)
			}
		})
	}
}

func TestIsDamaged(t *testing.T) {
	for err, want := range map[unix.Errno]bool{
		unix.EIO: true, unix.EUCLEAN: true, unix.EBADMSG: true, unix.EISDIR: true, unix.ENXIO: true,
		unix.EMFILE: false, unix.ENOMEM: false, unix.EACCES: false, unix.ESTALE: false, unix.ETIMEDOUT: false,
	} {
		if got := isDamaged(fmt.Errorf("look: %w", pathError("read", "x", err))); got != want {
			t.Errorf("%v: got %v", err, got)
		}
	}
}

// If the sidecar cannot be read, the item can be read, written and deleted. Its properties cannot be set, because the
// digests would be lost.
func TestUnreadableSidecar(t *testing.T) {
	ctx := t.Context()
	for name, keep := range map[string]bool{"gone": false, "kept": true} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{sidecars: true})
			_, side := sidecarPath(itemPathIn(sp, "a"))
			side = filepath.Join(s.cfg.Root, side)
			harm := func() { must(t, os.Remove(side), unix.Mknod(side, unix.S_IFSOCK|0o666, 0)) } // cannot be opened
			put(t, s, "a", "x")
			harm()
			if _, err := s.Stat(ctx, sp, "a"); err == nil || errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Stat: got %v, want that it cannot be read", err)
			}
			_, err := s.SetProperties(ctx, sp, "a", storage.Properties{MediaType: "a/b"}, storage.Condition{})
			if !errors.Is(err, unix.ENXIO) || !storage.IsNotApplied(err) {
				t.Errorf("SetProperties: got %v, want that it cannot be read, not applied", err)
			}
			if got, err := read(t, s, "a", ""); got != "x" || err != nil {
				t.Errorf("Open: got %q, %v, want the bytes", got, err)
			}
			_, err = s.Put(ctx, sp, "a", strings.NewReader("y"), storage.PutOptions{Size: 1, KeepReplaced: keep})
			if got := stat(t, s, "a"); err != nil || got.PropertiesUnknown || len(got.Digests) == 0 {
				t.Errorf("Put: got %+v, %v", got, err)
			}
			harm()
			d, err := s.Delete(ctx, sp, "a", storage.DeleteOptions{KeepDeleted: keep})
			if err != nil || !d.Object.PropertiesUnknown {
				t.Errorf("Delete: got %+v, %v", d, err)
			}
			if got := kept(t, s, sp, "a"); len(got) != 2*btoi(keep) {
				t.Errorf("kept are %q", got)
			}
		})
	}
}

// A device without a driver is not an item, like any device.
func TestDeviceWithoutDriver(t *testing.T) {
	s := store(t, Config{})
	path := filepath.Join(s.cfg.Root, sp, "a")
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 250))); err != nil {
		need.Missing(t, need.Kernel("device nodes"), err)
	}
	if _, err := s.Stat(t.Context(), sp, "a"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

// If the bytes do not fit on the disk, nothing is visible, and no temporary file remains.
func TestDoesNotFit(t *testing.T) {
	s := store(t, Config{})
	put(t, s, "d/old", "old")
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &was))
	must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: was.Max}))
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &was)
	for _, item := range []string{"d/old", "e/new"} {
		_, err := s.Put(t.Context(), sp, item, bytes.NewReader(make([]byte, 2<<20)),
			storage.PutOptions{Size: storage.UnknownSize})
		if !errors.Is(err, unix.EFBIG) {
			t.Errorf("Put(%q): got %v, want EFBIG", item, err)
		}
	}
	if got := list(t, s); len(got) != 1 {
		t.Errorf("List: got %q", got)
	}
	if got, err := read(t, s, "d/old", ""); got != "old" || err != nil {
		t.Errorf("got %q, %v, want the old bytes", got, err)
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Root, scratchDir, "*", "*")); err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %q, %v", left, err)
	}
}

func TestClassify(t *testing.T) {
	tests := map[string]struct {
		err   error
		class retry.Class
		is    error
	}{
		"disk full":       {unix.ENOSPC, retry.ClassUnavailable, unix.ENOSPC},
		"quota":           {unix.EDQUOT, retry.ClassUnavailable, unix.EDQUOT},
		"read-only":       {unix.EROFS, retry.ClassUnavailable, storage.ErrReadOnly},
		"name too long":   {unix.ENAMETOOLONG, retry.ClassPermanent, storage.ErrName},
		"input or output": {unix.EIO, retry.Transient, unix.EIO},
		"permission":      {unix.EACCES, retry.Transient, fs.ErrPermission},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := classify(fmt.Errorf("put: %w", pathError("write", "x", tt.err)))
			if retry.ClassOf(got) != tt.class || !errors.Is(got, tt.is) || !errors.Is(got, tt.err) {
				t.Errorf("got %v of class %v, want class %v and %v", got, retry.ClassOf(got), tt.class, tt.is)
			}
		})
	}
	if classify(nil) != nil {
		t.Error("no error became one")
	}
}

func TestReadOnly(t *testing.T) {
	ctx := t.Context()
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, sp), 0o777), os.WriteFile(filepath.Join(root, sp, "a"), []byte("x"), 0o666))
	s := open(t, Config{Root: root, ReadOnly: true, Create: true})
	if got, err := read(t, s, "a", ""); got != "x" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, putErr := s.Put(ctx, sp, "b", strings.NewReader(""), storage.PutOptions{})
	_, setErr := s.SetProperties(ctx, sp, "a", storage.Properties{}, storage.Condition{})
	_, deleteErr := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	for call, err := range map[string]error{
		"Put": putErr, "SetProperties": setErr, "Delete": deleteErr, "WriteMarker": s.WriteMarker(ctx),
		"DeleteSpace": s.DeleteSpace(ctx, sp),
		"CreateSpace": s.CreateSpace(ctx, storage.Space{Name: "n"}), "SetSpace": s.SetSpace(ctx, storage.Space{Name: sp}),
	} {
		if !errors.Is(err, storage.ErrReadOnly) || !retry.IsPermanent(err) {
			t.Errorf("%s: got %v, want a permanent ErrReadOnly", call, err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, ownDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a read-only store made a directory of its own: %v", err)
	}
}

// A call waits for a lock of another process until its context ends.
func TestLockedByAnother(t *testing.T) {
	s := store(t, Config{})
	other := open(t, Config{Root: s.cfg.Root})
	unlock, err := other.lock(t.Context(), other.sess, sp, "a")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := s.Put(ctx, sp, "a", strings.NewReader(""),
		storage.PutOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's end", err)
	}
	put(t, s, "b", "another item is not locked")
	unlock()
	put(t, s, "a", "now")
}

// After the lock file was removed, processes with the old file do not write concurrently with those with a new file.
func TestLocksRemoved(t *testing.T) {
	s := store(t, Config{})
	must(t, s.WriteMarker(t.Context()))
	put(t, s, "a", "one")
	must(t, os.Remove(filepath.Join(s.cfg.Root, lockFile)))
	other := open(t, Config{Root: s.cfg.Root})
	if _, err := s.lock(t.Context(), s.sess, sp, "a"); retry.ClassOf(err) != retry.ClassUnavailable {
		t.Fatalf("got %v, want that it is unavailable", err)
	}
	// The next call opens the new file.
	d, err := s.Delete(t.Context(), sp, "a", storage.DeleteOptions{})
	must(t, err)
	if got := put(t, other, "a", "two").Modified; got.UnixMilli() <= d.Time.UnixMilli() {
		t.Errorf("deleted at %v, and put by another process at %v", d.Time, got)
	}
	unlock, err := s.lock(t.Context(), s.sess, sp, "a")
	must(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = other.Put(ctx, sp, "a", strings.NewReader(""), storage.PutOptions{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Put by another process while it is locked: got %v", err)
	}
}

// No call leaves a descriptor open.
func TestNoDescriptorLeak(t *testing.T) {
	count := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	ctx := t.Context()
	before := count()
	s := store(t, Config{})
	for i := range 20 {
		o := put(t, s, fmt.Sprint("d/", i), "x")
		_, err := s.Put(ctx, sp, "d/x", io.MultiReader(strings.NewReader("x"), iotestErr{}),
			storage.PutOptions{Size: storage.UnknownSize})
		if err == nil {
			t.Error("got no error of a broken stream")
		}
		for _, version := range []string{o.Version, "", "1"} {
			read(t, s, o.Item, version)
		}
		list(t, s)
		for range s.List(ctx, sp, "") {
			break
		}
		s.Stat(ctx, sp, "none")
		if i%2 == 0 {
			_, err := s.Delete(ctx, sp, o.Item, storage.DeleteOptions{KeepDeleted: true})
			must(t, err)
		}
	}
	must(t, s.Close())
	if after := count(); after > before {
		t.Errorf("got %d descriptors after %d", after, before)
	}
}

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, errors.New("broken") }
