package outbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	damagedSuffix = ".damaged"
	partialSuffix = ".partial"
)

// Salvage saves the readable records of a damaged outbox, and returns the Inspection from before. If to is set,
// it writes a new outbox in that directory, which must not exist and must be outside dir, and leaves the old one
// unchanged; until the copy is complete it has the suffix .partial. If to is empty, it repairs dir itself and renames
// the damaged segments to NAME.damaged; after a kill, call it again. A sound outbox is left unchanged.
func Salvage(ctx context.Context, dir, to string) (Inspection, error) {
	if to != "" {
		return salvageCopy(ctx, dir, to)
	}
	in, err := Inspect(ctx, dir)
	if err != nil || len(in.Damage) == 0 {
		return in, err
	}
	return in, salvageInPlace(dir)
}

func salvageInPlace(dir string) error {
	f, err := Open(Config{Dir: dir, Salvage: true})
	if err != nil {
		return err
	}
	return f.Close()
}

func salvageCopy(ctx context.Context, dir, to string) (in Inspection, err error) {
	d, err := readDirectory(dir)
	if err != nil {
		return in, err
	}
	defer func() { err = errors.Join(err, d.close()) }() // the lock is held until then
	if in, err = inspect(ctx, dir, d, d.lock != nil); err != nil || len(in.Damage) == 0 {
		return in, err
	}
	to = filepath.Clean(to)
	if err := checkOutside(dir, to); err != nil {
		return in, fmt.Errorf("salvage into %s: %w", to, err)
	}
	if _, err := os.Lstat(to); !isNotExist(err) {
		return in, errors.Join(fmt.Errorf("salvage into %s: it must not exist", to), err)
	}
	partial := to + partialSuffix
	switch err := os.Mkdir(partial, 0o700); {
	case errors.Is(err, fs.ErrExist):
		return in, fmt.Errorf("salvage into %s (remove it if it is left over from an earlier call): %w", partial, err)
	case err != nil:
		return in, fmt.Errorf("salvage into %s: %w", to, err)
	}
	err = salvageInto(ctx, d, partial)
	if err == nil {
		err = os.Rename(partial, to)
	}
	if err != nil {
		return in, errors.Join(fmt.Errorf("salvage outbox %s: %w", dir, err), os.RemoveAll(partial))
	}
	return in, syncDirectory(filepath.Dir(to))
}

// checkOutside returns an error if to is inside dir.
func checkOutside(dir, to string) error {
	var real [2]string
	for i, path := range []string{dir, filepath.Dir(to)} {
		path, err := filepath.EvalSymlinks(path)
		if err == nil {
			real[i], err = filepath.Abs(path)
		}
		if err != nil {
			return err
		}
	}
	rel, err := filepath.Rel(real[0], real[1])
	if err == nil && filepath.IsLocal(rel) {
		err = errors.New("it is inside the outbox")
	}
	return err
}

// salvageInto copies an outbox to another directory and salvages the copy.
func salvageInto(ctx context.Context, d *directory, to string) error {
	names, err := d.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, ok := segmentNumber(name); ok || name == rejectedName || name == undecidedName {
			if err := copyFile(ctx, filepath.Join(d.path, name), filepath.Join(to, name)); err != nil {
				return err
			}
		}
	}
	if err := salvageInPlace(to); err != nil {
		return err
	}
	names, err = (&directory{path: to}).Names()
	for _, name := range names {
		if strings.HasSuffix(name, damagedSuffix) { // the old outbox keeps it
			err = errors.Join(err, os.Remove(filepath.Join(to, name)))
		}
	}
	return errors.Join(err, ctx.Err(), syncDirectory(to))
}

func syncDirectory(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func copyFile(ctx context.Context, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, readerFunc(func(b []byte) (int, error) {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		return in.Read(b)
	}))
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
