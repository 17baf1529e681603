package file

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
)

// errFolds is of a file system, or a directory, that takes two names for one: an item put there could replace another.
var errFolded = errors.New("names are folded")

// probes are pairs of names that differ, and that a file system takes for one if it folds names.
var foldProbes = []struct{ what, a, b string }{
	{"upper and lower case", "probe", "PROBE"},
	{"composed and decomposed letters", "prob\u00e9", "probe\u0301"},
}

// probeNames returns errFolds if the file system takes two names for one. It makes files in an opened directory of
// our own, which is empty, and removes them.
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
				err = fmt.Errorf("%w: the file system takes %s for the same", errFolded, p.what)
			}
		}
		_, _ = unix.Unlinkat(dir, p.a, 0), unix.Unlinkat(dir, p.b, 0) // else the next process removes them
		if err != nil {
			return err
		}
	}
	return nil
}

// foldsOwnDir reports whether the directory of our own is found under another case. It writes nothing.
func (s *session) foldsOwnDir() bool {
	own, err := s.stat(ownDir)
	other, oerr := s.stat(strings.ToUpper(ownDir))
	return err == nil && oerr == nil && own.Ino == other.Ino
}

// checkNames returns errFolds if an opened directory folds names: of ext4, f2fs and tmpfs each directory may, or may not.
func checkDirFolding(dir int, path string) error {
	flags, err := unix.IoctlGetUint32(dir, unix.FS_IOC_GETFLAGS)
	if err == nil && flags&casefold != 0 {
		return retry.Permanent(fmt.Errorf("directory %s: %w: it takes upper and lower case for the same (chattr +F)", path, errFolded))
	}
	return nil // a file system that has no flags has no such directory
}

const casefold = 0x40000000 // FS_CASEFOLD_FL
