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
}

// An entry is a name in a directory that leads to items.
type entry struct {
	key  string // what it adds to the id; of a directory with the slash
	path string // below the directory; with several names where a segment is split
	dir  bool
}

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
			l.s.skipped(path+"/"+e.path, "the item has another file, under its own name")
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
	var st unix.Stat_t
	var err error
	if strings.Contains(e.path, "/") {
		st, err = l.sess.stat(dir + "/" + e.path)
	} else {
		if *at < 0 {
			if *at, err = l.sess.dir(dir); err != nil {
				*at = -1
			}
		}
		if err == nil {
			err = named("stat", dir+"/"+e.path, retryEINTR(func() error {
				return unix.Fstatat(*at, e.path, &st, unix.AT_SYMLINK_NOFOLLOW)
			}))
		}
	}
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

// entries returns what is in a directory that can lead to items, sorted.
func (l *lister) entries(path, prefix string) ([]entry, error) {
	r := &reading{l: l, dir: path, room: storage.MaxItemID - len(prefix)}
	if err := r.read("", ""); err != nil {
		return nil, err
	}
	slices.SortFunc(r.entries, func(a, b entry) int {
		if c := strings.Compare(a.key, b.key); c != 0 {
			return c
		}
		// Of two files of one item the one under its own name counts.
		return cmp.Compare(btoi(strings.HasSuffix(a.path, tokenBeside)), btoi(strings.HasSuffix(b.path, tokenBeside)))
	})
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
	for {
		list, err := f.ReadDir(1024)
		for _, d := range list {
			if err := r.add(sub, text, d); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", path, err)
		}
	}
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
	r.l.s.skipped(r.dir+"/"+path, reason)
	return nil
}
