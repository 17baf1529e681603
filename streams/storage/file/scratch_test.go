package file

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A process on another machine, where locks on NFS directories are not visible, keeps the temporary files of live
// processes and removes those of dead ones.
func TestLocksOfDirectoriesAreLocal(t *testing.T) {
	s := store(t, Config{})
	here := s.sess.scratch.Load()
	tmp, err := s.sess.temp()
	must(t, err)
	defer tmp.discard()
	open(t, Config{Root: s.cfg.Root})
	if _, err := os.Stat(filepath.Join(s.cfg.Root, tmp.path())); err != nil {
		t.Errorf("the temporary file of a living process: %v", err)
	}
	put(t, s, "a", "x")
	must(t, setLock(s.sess.lockFD, livenessByte(here.path), unix.F_UNLCK, unix.F_OFD_SETLK))
	open(t, Config{Root: s.cfg.Root})
	if _, err := os.Stat(filepath.Join(s.cfg.Root, here.path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a process that holds no lock: %v", err)
	}
}

// If the scratch directory is removed, a new one is created. Files that were in it do not become visible, the error
// gives the reason, and the same call works.
func TestTemporaryDirectoryGoes(t *testing.T) {
	ctx := t.Context()
	for name, below := range map[string]string{"ours": "", "that of all": ".."} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{})
			put(t, s, "old", "old")
			for _, item := range []string{"new", "d/new", "old"} {
				removes := readerFunc(func([]byte) (int, error) {
					return 0, errors.Join(os.RemoveAll(filepath.Join(s.cfg.Root, s.sess.scratch.Load().path, below)), io.EOF)
				})
				_, err := s.Put(ctx, sp, item, io.MultiReader(strings.NewReader("half"), eofAfter{removes}),
					storage.PutOptions{Size: storage.UnknownSize})
				if err == nil || !errors.Is(err, unix.ENOENT) || retry.IsPermanent(err) || strings.Contains(err.Error(), "keep") ||
					!storage.IsNotApplied(err) {
					t.Errorf("Put(%q) while it goes: got %v, want that the file was removed, not applied", item, err)
				}
				if got := list(t, s); len(got) != 1 || got[0] != "old" {
					t.Errorf("List: got %q", got)
				}
				if got, err := read(t, s, "old", ""); got != "old" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			}
			put(t, s, "new", "x")
			if _, err := s.SetProperties(ctx, sp, "old", storage.Properties{MediaType: "a/b"}, storage.Condition{}); err != nil {
				t.Error(err)
			}
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// eofAfter returns io.EOF itself if r returns an error that wraps it.
type eofAfter struct{ r io.Reader }

func (e eofAfter) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.EOF
	}
	return n, err
}

func TestJournalled(t *testing.T) {
	for task, want := range map[string]bool{"186\n": true, "0\n": true, "<none>\n": false, "": false} {
		if got := journalled(task); got != want {
			t.Errorf("%q: got %v", task, got)
		}
	}
}

// The order of renames is used only if the journal is known to keep it.
func TestOrderIsKnown(t *testing.T) {
	need.Full(t)
	for name, tt := range map[string]struct {
		make []string
		want bool
	}{
		"ext4":                   {[]string{"mkfs.ext4", "-q"}, true},
		"ext4 without a journal": {[]string{"mkfs.ext4", "-q", "-O", "^has_journal"}, false},
		"ext2":                   {[]string{"mkfs.ext4", "-q", "-t", "ext2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t, Config{Root: loop(t, "ext4", tt.make...)})
			if s.sess.ordered != tt.want {
				t.Errorf("got %v, want %v", s.sess.ordered, tt.want)
			}
			put(t, s, "a/b", "x")
		})
	}
}
