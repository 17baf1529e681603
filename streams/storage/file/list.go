package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// List implements storage.Store. It holds the names of one directory of each level in
// memory, and at most one directory open. Directories are read when the listing comes
// to them.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		if err := s.list(ctx, space, after, yield); err != nil {
			yield(storage.Object{}, err)
		}
	}
}

func (s *Store) list(ctx context.Context, space, after string, yield func(storage.Object, error) bool) error {
	dir, err := spaceDir(space)
	if err != nil {
		return err
	}
	sess, err := s.enter()
	if err != nil {
		return err
	}
	defer s.leave(sess)
	if err := sess.hasSpace(dir); err != nil {
		return err
	}
	l := &lister{s: s, sess: sess, space: dir, after: after, yield: yield}
	more, err := l.dir(ctx, dir, "")
	if !more || err != nil {
		return err
	}
	// What was not found is only absent if the root and the space were there all the time.
	now, err := s.enter()
	if err != nil {
		return err
	}
	defer s.leave(now)
	if now != sess {
		return s.gone(errors.New("another directory came into its place"))
	}
	return sess.hasSpace(dir)
}

// A lister lists one space.
type lister struct {
	s     *Store
	sess  *session
	space string // its directory
	after string
	yield func(storage.Object, error) bool
	named bool // the last file was where its entry said
}

// An entry is a name in a directory that leads to items.
type entry struct {
	key  string // what it adds to the id; of a directory with the slash
	path string // below the directory; with several names where a segment is split
	dir  bool
}

func (e entry) compare(key string) int { return strings.Compare(e.key, key) }

// dir lists what is in a directory, whose items' ids begin with prefix, in the order of
// their ids: a directory's items come where its name with a slash comes. It returns
// false when the listing is to end.
func (l *lister) dir(ctx context.Context, path, prefix string) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	entries, err := l.entries(path, prefix)
	if err != nil {
		return false, err
	}
	at := -1 // the directory, opened while files are looked at
	defer func() { l.shut(&at) }()
	for i, e := range entries {
		id := prefix + e.key
		switch {
		case i > 0 && e.key == entries[i-1].key:
			if l.named { // else this is the same file, after it moved beside a directory
				l.s.skipped(path+"/"+e.path, "the item has another file, under its own name")
			}
		case e.dir && id < l.after && !strings.HasPrefix(l.after, id):
		case e.dir:
			l.shut(&at)
			if more, err := l.dir(ctx, path+"/"+e.path, id); !more || err != nil {
				return false, err
			}
		case id <= l.after:
		default:
			if more, err := l.file(ctx, &at, path, e, id); !more || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

func (l *lister) shut(at *int) {
	if *at >= 0 {
		unix.Close(*at)
		*at = -1
	}
}

// file yields one item, unless its file has gone since.
func (l *lister) file(ctx context.Context, at *int, dir string, e entry, id string) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	st, err := l.stat(at, dir, e.path)
	l.named = err == nil && isRegular(&st)
	if isAbsent(err) || err == nil && !isRegular(&st) {
		// It went, or moved beside a new directory of its name.
		_, st, err = l.sess.locate(placeIn(l.space, id))
		if errors.Is(err, storage.ErrNotFound) {
			return true, nil
		}
	}
	if err != nil {
		return false, err
	}
	return l.yield(object(id, &st, aspect{}), nil), nil
}

// stat looks at dir/path. The directory stays open in at for the next one.
func (l *lister) stat(at *int, dir, path string) (st unix.Stat_t, err error) {
	if strings.Contains(path, "/") {
		return l.sess.stat(dir + "/" + path)
	}
	if *at < 0 {
		if *at, err = l.sess.dir(dir); err != nil {
			*at = -1
			return st, err
		}
	}
	err = retryEINTR(func() error { return unix.Fstatat(*at, path, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, named("stat", dir+"/"+path, err)
}

// maxReads bounds how often a directory is read that others keep changing. A file moves
// beside a directory once, so what was not seen on its way is there for the next
// reading; the third is for file systems where a file that is replaced changes its slot.
const maxReads = 3

// entries returns what is in a directory that can lead to items, sorted. What is there
// all the time is in it, under whatever names.
func (l *lister) entries(path, prefix string) ([]entry, error) {
	r := &reading{l: l, dir: path, room: storage.MaxItemID - len(prefix)}
	for range maxReads {
		r.moved = false
		if err := r.read("", ""); err != nil {
			return nil, err
		}
		r.sort()
		if !r.moved {
			break
		}
		r.again = true
	}
	if err := r.besides(); err != nil {
		return nil, err
	}
	return r.entries, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A reading collects the entries of one directory, with those of the directories in
// it that hold the rest of split segments.
type reading struct {
	l       *lister
	dir     string
	room    int // bytes that ids have left
	entries []entry
	moved   bool // names may have been changed under way
	again   bool // all is read once more: what is skipped has been told
}

// sort sorts the entries, each once.
func (r *reading) sort() {
	slices.SortFunc(r.entries, func(a, b entry) int {
		// Of two files of one item the one under its own name counts.
		beside := btoi(strings.HasSuffix(a.path, tokenBeside)) - btoi(strings.HasSuffix(b.path, tokenBeside))
		return cmp.Or(strings.Compare(a.key, b.key), beside, strings.Compare(a.path, b.path))
	})
	r.entries = slices.Compact(r.entries)
}

// besides adds the files beside directories that were not seen: a file goes there before
// the directory takes its name, maybe into a slot that was read by then.
func (r *reading) besides() error {
	at := -1
	defer func() { r.l.shut(&at) }()
	var more []entry
	for _, e := range r.entries {
		if !e.dir {
			continue
		}
		key := strings.TrimSuffix(e.key, "/")
		if _, seen := slices.BinarySearchFunc(r.entries, key, entry.compare); seen {
			continue
		}
		path := segment(key, true)
		st, err := r.l.stat(&at, r.dir, path)
		if err != nil && !isAbsent(err) {
			return err
		}
		if err == nil && isRegular(&st) {
			more = append(more, entry{key: key, path: path})
		}
	}
	if len(more) > 0 {
		r.entries = append(r.entries, more...)
		r.sort()
	}
	return nil
}

// changed reports whether a directory may have been changed between two looks at it, the
// first of them at a time: a change so shortly before that another one could bear the
// same time counts too.
func changed(before, after *unix.Stat_t, at time.Time) bool {
	tick := 20 * time.Millisecond // of the kernel's clock for files, and more
	if before.Ctim.Nsec == 0 {
		tick = 2 * time.Second // of file systems with coarse times
	}
	return before.Mtim != after.Mtim || before.Ctim != after.Ctim ||
		at.Sub(time.Unix(0, before.Ctim.Nano())).Abs() <= tick
}

// read reads dir/sub, whose names go on from text.
func (r *reading) read(sub, text string) error {
	path := r.dir
	if sub != "" {
		path += "/" + sub[:len(sub)-1]
	}
	fd, err := r.l.sess.dir(path)
	if isAbsent(err) {
		return nil // emptied and removed since
	}
	if err != nil {
		return err
	}
	// By this name the standard library finds the kinds that a file system leaves out.
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd))
	defer f.Close()
	var before unix.Stat_t
	at := time.Now()
	if err := unix.Fstat(fd, &before); err != nil {
		return named("stat", path, err)
	}
	for {
		list, err := f.ReadDir(1024)
		for _, d := range list {
			if err := r.add(sub, text, d); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return named("stat", path, r.look(fd, &before, at))
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", path, err)
		}
	}
}

// look finds out whether the directory has changed since it was looked at before.
func (r *reading) look(fd int, before *unix.Stat_t, at time.Time) error {
	var after unix.Stat_t
	err := unix.Fstat(fd, &after)
	r.moved = r.moved || changed(before, &after, at)
	return err
}

func (r *reading) add(sub, text string, d fs.DirEntry) error {
	name, path := d.Name(), sub+d.Name()
	part, end, ok := decode(name, false)
	full := text + part
	var reason string
	switch {
	case !utf8.ValidString(name):
		reason = "its name is not UTF-8"
	case d.IsDir() && ok && end == tokenMore:
		return r.read(path+"/", full)
	case !d.IsDir() && !d.Type().IsRegular():
		reason = "it is " + kind(d.Type())
	case !ok || end == tokenMore || d.IsDir() && end != "" ||
		(path != part) && segment(full, end == tokenBeside) != path:
		reason = "it has a name that this store does not give"
	case len(full)+btoi(d.IsDir()) > r.room:
		reason = "its id would be too long"
	case d.IsDir():
		r.entries = append(r.entries, entry{key: full + "/", path: path, dir: true})
		return nil
	default:
		r.entries = append(r.entries, entry{key: full, path: path})
		return nil
	}
	if !r.again {
		r.l.s.skipped(r.dir+"/"+path, reason)
	}
	return nil
}
