package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// List implements storage.Store. Directories are read when the listing comes to them, one of
// each level at a time. Of a large one as many names as windowNames are held in memory, and it
// is read again for those that come after them. One that may not be read is told to Config.Skipped;
// what is beside it is listed, and then the listing ends with an error.
func (s *Store) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		dir, err := spaceDir(space)
		if err == nil {
			l := &lister{root: &s.root, space: dir, after: after, yield: yield, skipped: s.skipped, window: s.window}
			err = l.list(ctx)
		}
		if err != nil {
			yield(storage.Object{}, err)
		}
	}
}

// A lister lists one space.
type lister struct {
	root          *root
	sess          *session
	space         string // its directory
	after         string
	yield         func(storage.Object, error) bool
	skipped       func(path, reason string)
	window        int                                               // how many names of a directory are held
	plain         func(item string, st *unix.Stat_t) storage.Object // of a tree in which names are ids as they are; nil elsewhere
	atEntry       bool                                              // the last file was where its entry said
	unreadableErr error                                             // of the first directory that may not be read
}

func (l *lister) list(ctx context.Context) error {
	sess, err := l.root.acquire()
	if err != nil {
		return err
	}
	defer l.root.release(sess)
	l.sess = sess
	if err := sess.checkSpace(l.space); err != nil {
		return err
	}
	more, err := l.listDir(ctx, l.space, "")
	if !more || err != nil {
		return err
	}
	// What was not found is only absent if the root and the space were there all the time.
	now, err := l.root.acquire()
	if err != nil {
		return err
	}
	defer l.root.release(now)
	if now != sess {
		return l.root.unavailable(errors.New("another directory came into its place"))
	}
	return errors.Join(sess.checkSpace(l.space), l.unreadableErr)
}

// An entry is a name in a directory that leads to items.
type entry struct {
	key  string // what it adds to the id; of a directory with the slash
	path string // below the directory; with several names where a segment is split
	dir  bool
}

func (e entry) compare(key string) int { return strings.Compare(e.key, key) }

// join is a path below the root; the root itself is ".".
func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// A bound says which keys of a directory are wanted.
type lowerBound struct {
	key      string // greater ones, and that of the directory of this name
	set      bool   // else all of them
	reported bool   // this is not the first reading: what is skipped has been told
}

func (b lowerBound) includes(name string, dir bool) bool {
	if dir {
		name += "/"
	}
	return !b.set || name > b.key
}

// dir lists what is in a directory, whose items' ids begin with prefix, in the order of
// their ids: a directory's items come where its name with a slash comes. It returns
// false when the listing is to end.
func (l *lister) listDir(ctx context.Context, path, prefix string) (bool, error) {
	from := lowerBound{key: l.startKey(prefix)}
	from.set = from.key != ""
	for {
		if ctx.Err() != nil {
			return false, storage.Ended(ctx)
		}
		w, err := l.readWindow(ctx, path, prefix, from)
		if errors.Is(err, fs.ErrPermission) {
			l.recordUnreadable(path, err)
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if more, err := l.entries(ctx, path, prefix, w.entries); !more || err != nil || !w.more {
			return more, err
		}
		from = lowerBound{key: w.entries[len(w.entries)-1].key, set: true, reported: true}
	}
}

// above returns the key above which a directory has what comes after l.after, or that very key
// of the directory that leads there.
func (l *lister) startKey(prefix string) string {
	if !strings.HasPrefix(l.after, prefix) {
		return ""
	}
	key := l.after[len(prefix):]
	if i := strings.IndexByte(key, '/'); i >= 0 { // the directory comes before what is in it
		return key[:i]
	}
	return key
}

// unreadable remembers a directory that may not be read: what is in it is unknown.
func (l *lister) recordUnreadable(path string, err error) {
	l.skipped(path, "it may not be read: what is in it is unknown")
	if l.unreadableErr == nil {
		l.unreadableErr = fmt.Errorf("list %s, of which nothing is known: %w", path, err)
	}
}

// entries lists a part of a directory.
func (l *lister) entries(ctx context.Context, path, prefix string, entries []entry) (bool, error) {
	at := -1 // the directory, opened while files are looked at
	defer func() { l.closeDir(&at) }()
	for i, e := range entries {
		id := prefix + e.key
		switch {
		case i > 0 && e.key == entries[i-1].key:
			if l.atEntry { // else this is the same file, after it moved beside a directory
				l.skipped(join(path, e.path), "the item has another file, under its own name")
			}
		case e.dir && id < l.after && !strings.HasPrefix(l.after, id):
		case e.dir:
			l.closeDir(&at)
			if more, err := l.listDir(ctx, join(path, e.path), id); !more || err != nil {
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

func (l *lister) closeDir(at *int) {
	if *at >= 0 {
		unix.Close(*at)
		*at = -1
	}
}

// file yields one item, unless its file has gone since.
func (l *lister) file(ctx context.Context, at *int, dir string, e entry, id string) (bool, error) {
	if ctx.Err() != nil {
		return false, storage.Ended(ctx)
	}
	st, err := l.stat(at, dir, e.path)
	l.atEntry = err == nil && isRegular(&st)
	if l.plain != nil && (isAbsent(err) || err == nil && !isRegular(&st)) {
		return true, nil // it went
	}
	if isAbsent(err) || err == nil && !isRegular(&st) {
		// It went, or moved beside a new directory of its name.
		_, st, err = l.sess.locate(itemPathIn(l.space, id))
		if errors.Is(err, storage.ErrNotFound) {
			return true, nil
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		l.recordUnreadable(join(dir, e.path), err)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if l.plain != nil {
		return l.yield(l.plain(id, &st), nil), nil
	}
	return l.yield(object(id, &st, metadata{}), nil), nil
}

// stat looks at dir/path. The directory stays open in at for the next one.
func (l *lister) stat(at *int, dir, path string) (st unix.Stat_t, err error) {
	if strings.Contains(path, "/") {
		return l.sess.stat(join(dir, path))
	}
	if *at < 0 {
		if *at, err = l.sess.dir(dir); err != nil {
			*at = -1
			return st, err
		}
	}
	err = retryEINTR(func() error { return unix.Fstatat(*at, path, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, pathError("stat", join(dir, path), err)
}
