package file

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

var (
	_ storage.Locator = (*Store)(nil)
	_ storage.Copier  = (*Store)(nil)
)

// Locate implements storage.Locator. A place holds its file open.
func (s *Store) Locate(ctx context.Context, ref storage.Ref) (storage.Place, error) {
	r, o, err := s.open(ctx, ref)
	return placeOf(r, o, err)
}

// Locate implements storage.Locator. A place holds its file open.
func (p *Plain) Locate(ctx context.Context, ref storage.Ref) (storage.Place, error) {
	r, o, err := p.open(ctx, ref)
	return placeOf(r, o, err)
}

func placeOf(r *reader, o storage.Object, err error) (storage.Place, error) {
	if err != nil {
		return storage.Place{}, err
	}
	return storage.Place{Kind: "file", Object: o, At: r, Close: r.Close}, nil
}

// How a copy was made.
const (
	byReflink = "reflink"
	byRange   = "copy_file_range"
)

// CopyFrom implements storage.Copier for files of one file system, of this store or of another one
// of this package. The kernel copies, sharing the blocks where the file system can; then the copy is read from
// the disk and judged before it becomes visible, so Copied.Read always holds. Of a source that
// changes meanwhile there is no copy.
func (s *Store) CopyFrom(ctx context.Context, space, item string, from storage.Place, o storage.PutOptions) (storage.Copied, error) {
	src, ok := from.At.(*reader)
	if !ok && !s.cfg.ReadOnly {
		return storage.Copied{}, fmt.Errorf("copy from a place of kind %q: %w", from.Kind, storage.ErrUnsupported)
	}
	done := storage.Copied{Read: true}
	var err error
	done.Object, err = s.put(ctx, space, item, o, func(t *temp) (digest.Set, error) {
		if done.How, err = t.clone(ctx, src, from.Object.Size); err != nil {
			return nil, err
		}
		done.SharesBytes = done.How == byReflink || t.s.clones
		return s.judge(ctx, t, o)
	})
	if err != nil {
		return storage.Copied{}, err
	}
	return done, nil
}

// cloneStep is how much is copied between two looks at ctx.
const cloneStep = 64 << 20

// clone has the kernel copy a file into t, which is empty.
func (t *temp) clone(ctx context.Context, src *reader, size int64) (how string, err error) {
	name, from := t.s.tmp+"/"+t.name, int(src.f.Fd())
	how = byReflink
	if err := unix.IoctlFileClone(t.fd, from); err != nil {
		if !cannot(err) {
			return "", named("clone", name, err)
		}
		how = byRange
		for off := int64(0); off < size; {
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			roff, woff, n := off, off, 0
			err := retryEINTR(func() (err error) {
				n, err = unix.CopyFileRange(from, &roff, t.fd, &woff, int(min(size-off, cloneStep)), 0)
				return err
			})
			switch {
			case err != nil && off == 0 && cannot(err):
				return "", fmt.Errorf("copy %s: %w: %w", src.f.Name(), storage.ErrUnsupported, err)
			case err != nil:
				return "", named("copy", name, err)
			case n == 0:
				return "", fmt.Errorf("%s became shorter while it was copied: %w", src.f.Name(), storage.ErrChanged)
			}
			off += int64(n)
		}
	}
	return how, src.same()
}

// cannot reports whether an error says that these files cannot be copied so, whatever is in them.
func cannot(err error) bool {
	for _, e := range [...]unix.Errno{unix.EXDEV, unix.EOPNOTSUPP, unix.ENOTTY, unix.ENOSYS, unix.EINVAL, unix.EPERM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// judge reads back what was copied, from the disk and not from memory, and judges it as
// what is streamed.
func (s *Store) judge(ctx context.Context, t *temp, o storage.PutOptions) (digest.Set, error) {
	if err := fsync(t.fd, t.name); err != nil {
		return nil, err
	}
	_ = unix.Fadvise(t.fd, 0, 0, unix.FADV_DONTNEED) // advice only
	fd, err := unix.Openat(t.s.tmpFD, t.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, named("open", t.s.tmp+"/"+t.name, err)
	}
	f := os.NewFile(uintptr(fd), t.name)
	defer f.Close()
	return s.stream(ctx, nil, f, o)
}
