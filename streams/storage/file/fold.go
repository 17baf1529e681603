package file

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
)

// errFolded means that a file system or a directory treats different names as the same: a Put could replace another
// item.
var errFolded = errors.New("names are folded")

// foldProbes are pairs of different names that are the same for a file system that folds names.
var foldProbes = []struct{ what, a, b string }{
	{"upper and lower case", "probe", "PROBE"},
	{"composed and decomposed letters", "prob\u00e9", "probe\u0301"},
}

// checkFolding returns errFolded if the file system folds names. It creates files in dir, an opened empty scratch
// directory, and removes them.
func checkFolding(dir int) error {
	make := func(name string) error {
		fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o666)
		if err == nil {
			err = unix.Close(fd)
		}
		return pathError("create", name, err)
	}
	for _, p := range foldProbes {
		err := make(p.a)
		if err == nil {
			if err = make(p.b); errors.Is(err, unix.EEXIST) {
				err = fmt.Errorf("%w: the file system treats %s as the same", errFolded, p.what)
			}
		}
		_, _ = unix.Unlinkat(dir, p.a, 0), unix.Unlinkat(dir, p.b, 0) // on error the next process removes them
		if err != nil {
			return err
		}
	}
	return nil
}

// foldsOwnDir reports whether ownDir is found under another case. It writes nothing.
func (s *session) foldsOwnDir() bool {
	own, err := s.stat(ownDir)
	other, oerr := s.stat(strings.ToUpper(ownDir))
	return err == nil && oerr == nil && own.Ino == other.Ino
}

// checkDirFolding returns errFolded if an opened directory folds case, a setting of single directories in ext4, f2fs
// and tmpfs.
func checkDirFolding(dir int, path string) error {
	flags, err := unix.IoctlGetUint32(dir, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&casefold != 0 {
		return retry.Permanent(fmt.Errorf("directory %s: %w: it treats upper and lower case as the same (chattr +F)",
			path, errFolded))
	}
	return nil // a file system without these flags has no such directories
}

const casefold = 0x40000000 // FS_CASEFOLD_FL
