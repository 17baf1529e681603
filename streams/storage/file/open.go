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

var _ storage.Ranger = (*Store)(nil)

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

// OpenRange implements storage.Ranger.
func (s *Store) OpenRange(ctx context.Context, ref storage.Ref, rg storage.Range) (io.ReadCloser, storage.Object, error) {
	r, o, err := s.open(ctx, ref)
	if err == nil {
		err = r.limit(rg, o.Size)
	}
	if err != nil {
		return nil, storage.Object{}, err
	}
	return r, o, nil
}

func (s *Store) open(ctx context.Context, ref storage.Ref) (*reader, storage.Object, error) {
	if ctx.Err() != nil {
		return nil, storage.Object{}, context.Cause(ctx)
	}
	p, err := newPlace(ref.Space, ref.Item)
	if err != nil {
		return nil, storage.Object{}, err
	}
	sess, err := s.enter()
	if err != nil {
		return nil, storage.Object{}, err
	}
	defer s.leave(sess)
	fd, at, st, a, unread, err := sess.look(p)
	if err != nil {
		return nil, storage.Object{}, err
	}
	if unread != nil {
		a = aspect{Unknown: true}
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
const large = 1 << 20

// behind is how much is read before what was read is dropped from the page cache.
const behind = 8 << 20

// A reader reads a file, and tells at its end whether it was one and the same all the time.
type reader struct {
	f         *os.File
	version   string
	versionOf func(*unix.Stat_t) string
	left      int64 // of a range; negative: to the end of the file

	drop    bool // what was read from the page cache
	ranged  bool
	base    int64 // where the reading began
	off     int64 // what is read next
	dropped int64 // up to here
}

func newReader(f *os.File, o storage.Object, versionOf func(*unix.Stat_t) string) *reader {
	r := &reader{f: f, version: o.Version, versionOf: versionOf, left: -1}
	if o.Size >= large {
		fd := int(f.Fd())
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_SEQUENTIAL) // advice only
		r.drop = !cached(fd)
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

// limit has the reader read a range only.
func (r *reader) limit(rg storage.Range, size int64) error {
	err := rg.Check(size)
	if err == nil {
		_, err = r.f.Seek(rg.Offset, io.SeekStart)
	}
	if err != nil {
		return errors.Join(err, r.Close())
	}
	r.left, r.base, r.off, r.dropped, r.ranged = rg.Len(size), rg.Offset, rg.Offset, rg.Offset, true
	return nil
}

func (r *reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, r.end()
	}
	if r.left > 0 {
		p = p[:min(int64(len(p)), r.left)]
	}
	n, err := r.f.Read(p)
	r.off += int64(n)
	if r.left > 0 {
		r.left -= int64(n)
	}
	if r.drop && r.off-r.dropped >= behind {
		r.forget()
	}
	if err == io.EOF {
		return n, r.end()
	}
	return n, err
}

// end is the end of what is read: io.EOF, where the file is still what it was and all of it came.
func (r *reader) end() error {
	if err := r.same(); err != nil {
		return err
	}
	if r.left > 0 {
		return io.ErrUnexpectedEOF
	}
	return io.EOF
}

// same returns an error that wraps ErrChanged where the file is not what it was.
func (r *reader) same() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(r.f.Fd()), &st); err != nil {
		return named("stat", r.f.Name(), err)
	}
	if v := r.versionOf(&st); v != r.version {
		return fmt.Errorf("%s was version %s and is %s: %w", r.f.Name(), r.version, v, storage.ErrChanged)
	}
	return nil
}

func (r *reader) forget() {
	_ = unix.Fadvise(int(r.f.Fd()), r.dropped, r.off-r.dropped, unix.FADV_DONTNEED) // advice only
	r.dropped = r.off
}

func (r *reader) Close() error {
	if r.drop && r.off > r.base { // with what was read ahead, and pages that lie on a border
		if r.dropped = r.base; !r.ranged {
			r.off = r.dropped // to the end
		}
		r.forget()
	}
	return r.f.Close()
}
