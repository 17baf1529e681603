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

// Open implements storage.Store. A file that is replaced or deleted while it is read is still read to its end. If it is
// changed in place, the read ends with ErrChanged. A read after the end of ctx returns the error of ctx. Reading a
// large file does not leave it in the page cache, unless it was there before.
func (s *Store) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := s.open(ctx, storage.Ref{Space: space, Item: item, Version: version})
	if err != nil {
		return nil, storage.Object{}, err
	}
	return r, o, nil
}

func (s *Store) open(ctx context.Context, ref storage.Ref) (*reader, storage.Object, error) {
	if ctx.Err() != nil {
		return nil, storage.Object{}, storage.ContextErr(ctx)
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
	fd, at, st, a, metaErr, err := sess.openWithMetadata(p)
	if err != nil {
		return nil, storage.Object{}, err
	}
	if metaErr != nil {
		a = metadata{Unknown: true}
	}
	f, o := os.NewFile(uintptr(fd), at), object(p.item, &st, a)
	if err := (storage.Condition{Version: ref.Version}).Check(o, true); err != nil {
		return nil, storage.Object{}, errors.Join(err, f.Close())
	}
	return newReader(ctx, f, o, func(st *unix.Stat_t) string { return versionOf(st.Mtim.Nano()) }), o, nil
}

// largeFile is the size, in bytes, from which files are dropped from the page cache after a read or a write. Smaller
// files stay: most of them are read for a check soon after they were written, and the kernel evicts pages that were
// used once first.
const largeFile = 1 << 20

// dropInterval is the number of bytes that are read before they are dropped from the page cache.
const dropInterval = 8 << 20

// A reader reads a file. At its end it returns ErrChanged if the version of the file has changed since it was opened.
type reader struct {
	ended     func() error // the error of the context of Open, if it has ended: reading a large file takes minutes
	f         *os.File
	version   string
	versionOf func(*unix.Stat_t) string

	dropCache bool  // drop the bytes that were read from the page cache
	off       int64 // of the next read
	dropped   int64 // the pages below this offset are dropped
}

func newReader(ctx context.Context, f *os.File, o storage.Object, versionOf func(*unix.Stat_t) string) *reader {
	ended := func() error { return storage.ContextErr(ctx) }
	r := &reader{ended: ended, f: f, version: o.Version, versionOf: versionOf}
	if o.Size >= largeFile {
		fd := int(f.Fd())
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_SEQUENTIAL) // advice only
		r.dropCache = !cached(fd)
	}
	return r
}

// cached reports whether pages of a file are in the page cache. Another process then uses the file, and its pages are
// not dropped. On kernels before 6.5 it returns false.
func cached(fd int) bool {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &unix.CachestatRange{}, &st, 0)
	return err == nil && st.Cache > 0
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ended(); err != nil {
		return 0, err
	}
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

// checkVersion returns an error that wraps ErrChanged if the version of the file has changed.
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
	if r.dropCache && r.off > 0 { // the whole file: also readahead, and pages that were dropped in part
		_ = unix.Fadvise(int(r.f.Fd()), 0, 0, unix.FADV_DONTNEED) // advice only
	}
	return r.f.Close()
}
