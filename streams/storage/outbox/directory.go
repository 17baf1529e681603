package outbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/denied"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// explain names the owner and the remedy in an error that reports a lack of permission.
func explain(path string, err error) error {
	err = denied.Explain(path, err)
	if remedy := denied.RemedyOf(err); remedy != "" {
		return fmt.Errorf("outbox: %w: %s", err, remedy)
	}
	return err
}

// lockDirectory locks a directory for one process that writes, or for all that read.
func lockDirectory(path string, write bool) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, explain(path, fmt.Errorf("open outbox: %w", err))
	}
	how := unix.LOCK_SH
	if write {
		how = unix.LOCK_EX
	}
	if err := flock(dir, how|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: a process has it open, or reads it as outbox check does", ErrLocked)
		}
		return nil, errors.Join(fmt.Errorf("lock outbox %s: %w", path, err), dir.Close())
	}
	return dir, nil
}

// unlockDirectory unlocks a directory. A child process that is just being started may still have a copy of the
// descriptor, so closing alone does not always unlock.
func unlockDirectory(dir *os.File) error { return errors.Join(flock(dir, unix.LOCK_UN), dir.Close()) }

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}
