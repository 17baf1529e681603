package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"unicode/utf8"

	"github.com/millrace/millrace/cmd/millrace/usage"
)

// maxItem is the longest item id, in bytes.
const maxItem = 1024

// A file is a file of the folder.
type file struct {
	Item string `json:"item"`
	Size int64  `json:"size"` // bytes, when it was listed
}

// A skip is a name in the folder that cannot become an item, and the reason.
type skip struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// scan lists up to limit regular files below dir, sorted by name; 0 means all. It returns other
// names, such as links, unreadable files and names that are not UTF-8, as skipped.
func scan(ctx context.Context, dir string, limit int) (files []file, skipped []skip, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: read the folder: %w", usage.Err, err)
	}
	if !info.IsDir() {
		return nil, nil, fmt.Errorf("%w: %s is not a folder", usage.Err, dir)
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if limit > 0 && len(files) >= limit {
			return fs.SkipAll
		}
		name, relErr := filepath.Rel(dir, path)
		if relErr != nil {
			return relErr
		}
		leave := func(reason string) error {
			skipped = append(skipped, skip{printable(name), reason})
			if e != nil && e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case err != nil:
			if path == dir {
				return fmt.Errorf("%w: read the folder: %w", usage.Err, err)
			}
			return leave("cannot be read: " + reason(err))
		case !utf8.ValidString(name):
			return leave("its name is not UTF-8")
		case e.IsDir():
			return nil
		case e.Type() != 0:
			return leave("it is a " + kind(e.Type()))
		}
		item := filepath.ToSlash(name)
		if len(item) > maxItem {
			return leave(fmt.Sprintf("its name is longer than %d bytes", maxItem))
		}
		f, err := os.Open(path)
		if err != nil {
			return leave("cannot be read: " + reason(err))
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return leave("cannot be read: " + reason(err))
		}
		files = append(files, file{item, info.Size()})
		return nil
	})
	return files, skipped, err
}

// reason returns the cause of a path error without the path, which the caller prints.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// printable returns a name on one line, quoted if it has other bytes than printable text.
func printable(name string) string {
	if q := strconv.Quote(name); !utf8.ValidString(name) || len(q) != len(name)+2 {
		return q
	}
	return name
}

// harmCount is the number of items that the demo damages, each in a different way.
const harmCount = 5

// pickDistinct returns harmCount non-empty files with different contents, spread over all files.
// The result is the same for the same files.
func pickDistinct(dir string, files []file) ([]string, error) {
	var (
		picked []string
		seen   = map[[sha256.Size]byte]bool{}
	)
	step := max(1, len(files)/(harmCount+1))
	for start := range step {
		for i := (start + step/2) % step; i < len(files); i += step {
			f := files[i]
			if f.Size == 0 {
				continue
			}
			sum, err := sumOf(filepath.Join(dir, filepath.FromSlash(f.Item)))
			if err != nil {
				continue // deleted or unreadable: the write step reports it
			}
			if seen[sum] {
				continue
			}
			seen[sum] = true
			if picked = append(picked, f.Item); len(picked) == harmCount {
				return picked, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: %s holds %d distinct non-empty files that can be read, and the demo needs %d: "+
		"name a folder with more of them", usage.Err, dir, len(picked), harmCount)
}

func sumOf(path string) (sum [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return [sha256.Size]byte(h.Sum(nil)), err
}
