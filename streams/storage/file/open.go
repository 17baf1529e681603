package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// Open implements storage.Store. A file that is replaced or deleted later is read to
// its end; one that is changed in place ends in ErrChanged. A large file that was not in the page
// cache before is not in it afterwards.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := s.open(ctx, storage.Ref{Space: space, Item: item, Version: version})
	if err != nil {
		return nil, storage.Object{}, err
	}
	return r, o, nil
}

func (s *Store) open(ctx context.Context, ref storage.Ref) (*reader, storage.Object, error) {
	if ctx.Err() != nil {
		return nil, storage.Object{}, storage.Ended(ctx)
	}
	p, err := newItemPath(ref.Space, ref.Item)
	if err != nil {
		return nil, storage.Object{}, err
	}
	sess, err := s.acquire()
	if err != nil {
		return nil, storage.Object{}, err
	}
	defer s.release(sess)
	fd, at, st, a, unread, err := sess.openWithMetadata(p)
	if err != nil {
		return nil, storage.Object{}, err
	}
	if unread != nil {
		a = metadata{Unknown: true}
	}
	f, o := os.NewFile(uintptr(fd), at), object(p.item, &st, a)
	if err := (storage.Condition{Version: ref.Version}).Check(o, true); err != nil {
		return nil, storage.Object{}, errors.Join(err, f.Close())
	}
	return newReader(f, o, func(st *unix.Stat_t) string { return versionOf(st.Mtim.Nano()) }), o, nil
}

// large is from which size on a file is read and written without a trace in the page cache. Smaller ones
// stay: what is read soon after it was written, to be checked, is most of them, and the
// kernel lets go first of pages that were used once.
const largeFile = 1 << 20

// behind is how much is read before what was read is dropped from the page cache.
const dropInterval = 8 << 20

// A reader reads a file, and tells at its end whether it was one and the same all the time.
type reader struct {
	f         *os.File
	version   string
	versionOf func(*unix.Stat_t) string

	dropCache bool  // what was read from the page cache
	off       int64 // what is read next
	dropped   int64 // up to here
}

func newReader(f *os.File, o storage.Object, versionOf func(*unix.Stat_t) string) *reader {
	r := &reader{f: f, version: o.Version, versionOf: versionOf}
	if o.Size >= largeFile {
		fd := int(f.Fd())
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_SEQUENTIAL) // advice only
		r.dropCache = !cached(fd)
	}
	return r
}

// cached reports whether anything of a file is in the page cache: somebody else reads it
// then, and it is left as it is. A kernel before 6.5 does not tell.
func cached(fd int) bool {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &unix.CachestatRange{}, &st, 0)
	return err == nil && st.Cache > 0
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.f.Read(p)
	r.off += int64(n)
	if r.dropCache && r.off-r.dropped >= dropInterval {
		r.dropPages()
	}
	if err == io.EOF {
		if err := r.checkVersion(); err != nil {
			return n, err
		}
	}
	return n, err
}

// same returns an error that wraps ErrChanged where the file is not what it was.
func (r *reader) checkVersion() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(r.f.Fd()), &st); err != nil {
		return pathError("stat", r.f.Name(), err)
	}
	if v := r.versionOf(&st); v != r.version {
		return fmt.Errorf("%s was version %s and is %s: %w", r.f.Name(), r.version, v, storage.ErrChanged)
	}
	return nil
}

func (r *reader) dropPages() {
	_ = unix.Fadvise(int(r.f.Fd()), r.dropped, r.off-r.dropped, unix.FADV_DONTNEED) // advice only
	r.dropped = r.off
}

func (r *reader) Close() error {
	if r.dropCache && r.off > 0 { // all of it, with what was read ahead, and pages that lie on a border
		_ = unix.Fadvise(int(r.f.Fd()), 0, 0, unix.FADV_DONTNEED) // advice only
	}
	return r.f.Close()
}
