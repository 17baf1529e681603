package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A directory larger than the window is listed completely and in order, from any start, and each entry that is not an
// item is reported once.
func TestListWindows(t *testing.T) {
	t.Parallel()
	n := need.Amount(100, 500, 500)
	root := inMemory(t)
	reported := map[string]int{}
	skipped := func(path, _ string) { reported[path]++ }
	s := store(t, Config{Root: root, Skipped: skipped})
	p := openPlain(t, PlainConfig{Root: root, Expect: sp, Skipped: skipped})
	var want []string
	items := map[string]string{}
	for i := range n {
		item := fmt.Sprintf("%03d", i)
		if i%5 == 0 {
			item += "/x"
		}
		want, items[item] = append(want, item), ""
	}
	plant(t, filepath.Join(root, sp), items)
	must(t, os.Symlink("x", filepath.Join(root, sp, "050-link")))
	slices.Sort(want)
	for _, window := range []int{2, 3, 7, n / 5, n - 1, n, n + 1, 2 * n} {
		for _, i := range []int{0, 1, 50, 51, n} {
			after := ""
			if i > 0 {
				after = want[i-1]
			}
			for kind, l := range map[string]*lister{
				"millrace": {root: &s.root, space: sp, skipped: skipped, window: window},
				"plain":    {root: &p.root, space: sp, skipped: skipped, window: window, plain: plainObject},
			} {
				clear(reported)
				var got []string
				l.after, l.yield = after, func(o storage.Object, err error) bool { got = append(got, o.Item); return err == nil }
				must(t, l.list(t.Context()))
				if !slices.Equal(got, want[i:]) {
					t.Fatalf("%s, window %d, after %q: got %d items %.60q, want %d", kind, window, after, len(got), got, n-i)
				}
				if len(reported) != 1 || reported[sp+"/050-link"] != 1 {
					t.Errorf("%s, window %d, after %q: reported %v, want the link once", kind, window, after, reported)
				}
			}
		}
	}
}

func TestContractSmallWindows(t *testing.T) {
	t.Parallel()
	only := []string{"List", "ListModel"}
	if need.Amount(0, 1, 1) > 0 {
		only = append(only, "OddIDs")
	}
	storagetest.Run(t, func(t *testing.T) storage.Store {
		s := open(t, Config{Root: inMemory(t)})
		s.window = 2
		return s
	}, storagetest.Only(only...))
}

// A large file that was not in the page cache is not in it after a read; one that was stays.
func TestReadingLeavesPageCacheAlone(t *testing.T) {
	dir, err := os.MkdirTemp(".", "cache") //nolint:usetesting // TempDir may be in memory
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := store(t, Config{Root: dir})
	o, err := s.Put(t.Context(), sp, "a", bytes.NewReader(make([]byte, 20<<20)), storage.PutOptions{Size: 20 << 20})
	must(t, err)
	path, err := s.Path(sp, "a")
	must(t, err)
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	pages := func() uint64 {
		var st unix.Cachestat_t
		if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &st, 0); err != nil {
			need.Missing(t, need.Kernel("cachestat"), err)
		}
		return st.Cache
	}
	if n := pages(); n > 0 {
		need.Missing(t, need.Kernel("a file system with a page cache that can be left"), fmt.Sprintf("%d pages stay", n))
	}
	for range 2 {
		content, err := read(t, s, "a", o.Version)
		must(t, err)
		if n := pages(); n > 0 || len(content) != 20<<20 {
			t.Errorf("after %d bytes were read, by us alone: %d pages are in the page cache", len(content), n)
		}
	}
	_, err = io.Copy(io.Discard, f)
	was := pages()
	_, rerr := read(t, s, "a", o.Version)
	must(t, err, rerr)
	if n := pages(); n < was-was/50 || was == 0 { // the kernel may take some for others at any time
		t.Errorf("%d pages are left of the %d that were cached", n, was)
	}
}

// A kernel or a sandbox that refuses cachestat, as systemd's did before it knew the call, keeps no file from being
// read.
func TestReadWithoutCachestat(t *testing.T) {
	const size = 3 * largeFile
	s := store(t, Config{Root: t.TempDir()})
	o, err := s.Put(t.Context(), sp, "a", bytes.NewReader(make([]byte, size)), storage.PutOptions{Size: size})
	must(t, err)
	type result struct {
		n                 int
		forbidden, called error
		read              error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread ends with its filter
		var r result
		if r.forbidden = forbid(unix.SYS_CACHESTAT); r.forbidden == nil {
			r.called = unix.Cachestat(0, &unix.CachestatRange{}, &unix.Cachestat_t{}, 0)
			var content string
			content, r.read = read(t, s, "a", o.Version)
			r.n = len(content)
		}
		done <- r
	}()
	r := <-done
	if r.forbidden != nil {
		need.Missing(t, need.Kernel("seccomp"), r.forbidden)
	}
	if !errors.Is(r.called, unix.EPERM) {
		t.Fatalf("cachestat is not refused: %v", r.called)
	}
	if r.read != nil || r.n != size {
		t.Errorf("read %d bytes of %d: %v", r.n, size, r.read)
	}
}

// forbid makes a system call fail with EPERM on this thread.
func forbid(call uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}
