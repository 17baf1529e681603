package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/internal/denied"
	"github.com/millrace/millrace/internal/wholefile"
)

// claim creates the directory, locks it, and checks its version.
func (d *Dir) claim() (err error) {
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := d.recognise(); err != nil {
		return err
	}
	d.lock, err = os.OpenFile(filepath.Join(d.path, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("open the state directory's lock: %w", err)
	}
	defer func() {
		if err != nil {
			d.lock.Close()
		}
	}()
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(d.lock, 32))
		return fmt.Errorf(
			"%w: state directory %s is in use by process %s: stop it first, or name another directory with --state",
			precondition.Err, d.path, strings.TrimSpace(string(holder)))
	}
	err = checkVersion(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = WriteFile(d.Path(versionFile), fmt.Appendf(nil, "{\"version\":%d}\n", version))
	}
	if err != nil {
		return err
	}
	if err := d.lock.Truncate(0); err != nil {
		return fmt.Errorf("write the state directory's lock: %w", err)
	}
	if _, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("write the state directory's lock: %w", err)
	}
	return nil
}

// recognise refuses a directory of another version or with other contents, before anything is written to it.
func (d *Dir) recognise() error {
	if Is(d.path) {
		return checkVersion(d.path)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), wholefile.Prefix) { // a killed process can leave these
			return fmt.Errorf("%w: %s holds %s but no %s: it is not a state directory; name an empty or new one with --state",
				precondition.Err, d.path, e.Name(), versionFile)
		}
	}
	return nil
}

// checkVersion checks the version of the state directory dir. It returns fs.ErrNotExist if dir has none.
func checkVersion(dir string) error {
	file := filepath.Join(dir, versionFile)
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the state directory's version: %w", err)
	}
	var held struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &held); err != nil {
		return fmt.Errorf("%w: %s is not readable (%w): restore it or name another directory with --state",
			precondition.Err, file, err)
	}
	if held.Version != version {
		return fmt.Errorf("%w: state directory %s has version %d, this millrace reads version %d: "+
			"use the millrace that made it, or name another directory with --state",
			precondition.Err, dir, held.Version, version)
	}
	return nil
}

// Is reports whether dir is a state directory. It returns false if it cannot tell.
func Is(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, versionFile))
	return err == nil
}

// Check returns an error, which wraps precondition.Err, if the user of this process may not use the state directory
// dir, or if it has another version. It returns nil if there is none.
func Check(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	if errors.Is(err, fs.ErrPermission) {
		return explain(dir, err)
	}
	if !Is(dir) {
		return nil
	}
	return explain(dir, checkVersion(dir))
}

// explain names the owner and the remedy in an error that reports a lack of permission for the state directory.
func explain(dir string, err error) error {
	err = denied.Explain(dir, err)
	if remedy := denied.RemedyOf(err); remedy != "" {
		return fmt.Errorf("%w: state directory: %w: %s", precondition.Err, err, remedy)
	}
	return err
}

// explainWithin is explain for errors that may be about files elsewhere, such as the program of an engine. Those stay
// as they are.
func explainWithin(dir string, err error) error {
	var p *fs.PathError
	if !errors.As(err, &p) || !denied.Contains(dir, p.Path) {
		return err
	}
	return explain(dir, err)
}
