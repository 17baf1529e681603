package file

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// mounts runs the calling test again in a process with its own mount namespace, and reports whether this is that
// process.
func mounts(t *testing.T) bool {
	t.Helper()
	const child = "MILLRACE_TEST_MOUNTS"
	if os.Getenv(child) == t.Name() {
		return true
	}
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.timeout=100s")
	cmd.Env = append(os.Environ(), child+"="+t.Name())
	own := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: own(os.Getuid()), GidMappings: own(os.Getgid()),
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) ||
		errors.Is(err, syscall.EACCES) {
		need.Missing(t, need.Kernel("a mount of its own"), err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return false
}

// small mounts a file system in memory. resize sets how many more blocks of 4 KiB and how many more names it can hold;
// negative: many.
func small(t *testing.T) (dir string, resize func(blocks, names int)) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,nr_inodes=10000"); err != nil {
		need.Missing(t, need.Kernel("a mount of its own"), err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir, func(blocks, names int) {
		t.Helper()
		var st unix.Statfs_t
		must(t, unix.Statfs(dir, &st))
		size, inodes := int64(64<<20), uint64(10_000)
		if blocks >= 0 {
			size = int64(st.Blocks-st.Bfree+uint64(blocks)) * st.Bsize
		}
		if names >= 0 {
			inodes = st.Files - st.Ffree + uint64(names)
		}
		must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d,nr_inodes=%d", max(size, 4096), inodes)))
	}
}

// If the disk is full at any step of a write, the store is unavailable, nothing is visible and no temporary file
// remains, items can be read, and the same call works after space was freed.
func TestFullDisk(t *testing.T) {
	if !mounts(t) {
		return
	}
	bytes := strings.Repeat("0123456789", 2000)
	unsized := storage.PutOptions{Size: storage.UnknownSize,
		Properties: storage.Properties{User: map[string]string{"k": strings.Repeat("v", 5000)}}}
	kept := unsized
	kept.KeepReplaced = true
	ctx := t.Context()
	for name, call := range map[string]func(s *Store) error{
		"put a new item": func(s *Store) error {
			_, err := s.Put(ctx, sp, "e/f/new", strings.NewReader(bytes), unsized)
			return err
		},
		"put over an item": func(s *Store) error {
			_, err := s.Put(ctx, sp, "d/old", strings.NewReader(bytes), kept)
			return err
		},
		"put below an item": func(s *Store) error {
			_, err := s.Put(ctx, sp, "d/old/new", strings.NewReader(bytes), unsized)
			return err
		},
		"set properties": func(s *Store) error {
			_, err := s.SetProperties(ctx, sp, "d/old", unsized.Properties, storage.Condition{})
			return err
		},
		"delete and keep": func(s *Store) error {
			_, err := s.Delete(ctx, sp, "d/old", storage.DeleteOptions{KeepDeleted: true})
			return err
		},
		"create a space": func(s *Store) error {
			return s.CreateSpace(ctx, storage.Space{Name: "new", Properties: unsized.Properties.User})
		},
		"open": func(s *Store) error { // a second session, which needs a scratch directory
			again, err := Open(Config{ID: "1", Root: s.cfg.Root})
			if err != nil {
				return err
			}
			defer again.Close()
			if got, err := read(t, again, "d/old", ""); got != "old" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			_, err = again.Put(ctx, sp, "e/f/new", strings.NewReader("x"), unsized)
			return err
		},
	} {
		for kind, room := range map[string]func(n int) (blocks, names int){
			"blocks": func(n int) (int, int) { return n, -1 },
			"names":  func(n int) (int, int) { return -1, n },
		} {
			eachLayout(t, name+", no "+kind, func(t *testing.T, sidecars bool) {
				// Attributes need no blocks on a file system in memory.
				fits := !sidecars && name == "set properties"
				fullAt(t, sidecars, fits, call, room)
			})
		}
	}
}

// fullAt makes a call with space for 0, 1, 2 and more, until it works.
func fullAt(t *testing.T, sidecars, fits bool, call func(*Store) error, room func(n int) (blocks, names int)) {
	failures := 0
	for n := range 100 {
		dir, resize := small(t)
		s := store(t, Config{Root: dir, sidecars: sidecars})
		must(t, s.WriteMarker(t.Context()))
		was := put(t, s, "d/old", "old")
		before := stat(t, s, "d/old")
		resize(room(n))
		err := call(s)
		if err == nil {
			if failures == 0 && !fits {
				t.Error("it never failed")
			}
			return
		}
		failures++
		if retry.ClassOf(err) != retry.ClassUnavailable || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("room for %d: got %v, want ENOSPC, as unavailable", n, err)
		}
		after := stat(t, s, "d/old")
		if got := list(t, s); len(got) != 1 || after.Version != was.Version ||
			after.Properties.MediaType != before.Properties.MediaType ||
			len(after.Properties.User) > 0 || len(after.Digests) != len(before.Digests) {
			t.Errorf("room for %d: got items %q, %+v, want %+v", n, got, after, before)
		}
		if got, err := read(t, s, "d/old", ""); got != "old" || err != nil {
			t.Errorf("room for %d: got %q, %v", n, got, err)
		}
		if err := s.Marker(t.Context()); err != nil {
			t.Errorf("room for %d: marker: %v", n, err)
		}
		left, err := filepath.Glob(filepath.Join(dir, scratchDir, "*", "*"))
		kept, kerr := filepath.Glob(filepath.Join(dir, quarantineDir, "*", "*", "*"))
		if len(left)+len(kept) > 0 || err != nil || kerr != nil {
			t.Errorf("room for %d: %q and %q are left", n, left, kept)
		}
		resize(-1, -1)
		if err := call(s); err != nil {
			t.Errorf("room for %d, and then for all: %v", n, err)
		}
	}
	t.Error("it never worked")
}

// If the file system becomes read-only, as after a disk error, items can be read, also after a restart, and writes
// report that the store is unavailable.
func TestReadOnlyDisk(t *testing.T) {
	if !mounts(t) {
		return
	}
	ctx := t.Context()
	dir, _ := small(t)
	first := store(t, Config{Root: dir})
	must(t, first.WriteMarker(ctx))
	put(t, first, "a", "x")
	must(t, first.Close(), unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	s := open(t, Config{Root: dir})
	if got, err := read(t, s, "a", ""); got != "x" || err != nil || s.Marker(ctx) != nil || len(list(t, s)) != 1 {
		t.Errorf("got %q, %v, marker %v", got, err, s.Marker(ctx))
	}
	_, putErr := s.Put(ctx, sp, "b", strings.NewReader(""), storage.PutOptions{})
	_, setErr := s.SetProperties(ctx, sp, "a", storage.Properties{}, storage.Condition{})
	_, deleteErr := s.Delete(ctx, sp, "a", storage.DeleteOptions{})
	for call, err := range map[string]error{
		"Put": putErr, "SetProperties": setErr, "Delete": deleteErr, "DeleteSpace": s.DeleteSpace(ctx, sp),
		"CreateSpace": s.CreateSpace(ctx, storage.Space{Name: "n"}), "SetSpace": s.SetSpace(ctx, storage.Space{Name: sp}),
	} {
		if !errors.Is(err, storage.ErrReadOnly) || retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("%s: got %v, want ErrReadOnly, as unavailable", call, err)
		}
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	put(t, s, "b", "when it can be written again")
}

// If the disk of an open store is unmounted, by force or lazily, its items are unknown, and nothing is written into the
// mount point.
func TestUnmounted(t *testing.T) {
	if !mounts(t) {
		return
	}
	ctx := t.Context()
	dir := t.TempDir()
	mount := func() {
		t.Helper()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			need.Missing(t, need.Kernel("a mount of its own"), err)
		}
	}
	mount()
	s := store(t, Config{Root: dir})
	must(t, s.WriteMarker(ctx))
	put(t, s, "a", "x")
	must(t, unix.Unmount(dir, unix.MNT_DETACH))
	_, statErr := s.Stat(ctx, sp, "a")
	_, putErr := s.Put(ctx, sp, "b", strings.NewReader(""), storage.PutOptions{})
	for call, err := range map[string]error{"Stat": statErr, "Put": putErr, "Marker": s.Marker(ctx)} {
		if !errors.Is(err, storage.ErrNoMarker) || retry.ClassOf(err) != retry.ClassUnavailable {
			t.Errorf("%s: got %v, want ErrNoMarker, as unavailable", call, err)
		}
	}
	if names, err := os.ReadDir(dir); len(names) > 0 || err != nil {
		t.Errorf("the mount point has %v, %v", names, err)
	}
	mount() // another disk, which is empty
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	if _, err := s.Stat(ctx, sp, "a"); !errors.Is(err, storage.ErrNoMarker) || errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Stat on another disk: got %v, want ErrNoMarker", err)
	}
}

// loop makes a file system in a file and mounts it, which only root may do.
func loop(t *testing.T, kind string, mkfs ...string) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		need.Missing(t, need.Kernel("loop devices"), "not run as root")
	}
	at := t.TempDir()
	image, dir := filepath.Join(at, "image"), filepath.Join(at, "mnt")
	must(t, os.Mkdir(dir, 0o777), os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20))
	for _, args := range [][]string{append(mkfs, image), {"mount", "-t", kind, "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			need.Missing(t, need.Kernel("a file system made by "+strings.Join(mkfs, " ")), fmt.Sprintf("%v: %s", err, out))
		}
	}
	t.Cleanup(func() { unmount(t, dir) })
	return dir
}

func unmount(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil { //nolint:noctx // the test's may have ended
		t.Errorf("%v: %s", err, out)
	}
}
