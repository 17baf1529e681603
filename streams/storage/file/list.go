package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// List implements storage.Store. It reads a directory when it reaches it, one per level at a time. At most windowNames
// names of a directory are in memory; a larger directory is read again for the next ones. A directory without read
// permission is reported to Config.Skipped, and ends the listing with an error: who continues after it would take its
// items for absent.
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
	root    *root
	sess    *session
	space   string // its directory
	after   string
	yield   func(storage.Object, error) bool
	skipped func(path, reason string)
	window  int // names of one directory in memory
	// plain returns the Object of a file in a plain tree, whose names are ids; nil for the tree of a Store.
	plain   func(item string, st *unix.Stat_t) storage.Object
	atEntry bool // the last file was at the path of its entry
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
	// The listing is complete only if the root and the space were there all the time.
	now, err := l.root.acquire()
	if err != nil {
		return err
	}
	defer l.root.release(now)
	if now != sess {
		return l.root.unavailable(errors.New("the root was replaced by another directory"))
	}
	return sess.checkSpace(l.space)
}

// An entry is a directory entry that is an item, or a directory of items.
type entry struct {
	key  string // the part that it adds to the id; with a slash for a directory
	path string // relative to the directory; several names if the segment is split
	dir  bool
}

func (e entry) compare(key string) int { return strings.Compare(e.key, key) }

// join joins a directory and a name to a path relative to the root. The root itself is ".".
func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// A lowerBound selects the keys of a directory that a listing needs.
type lowerBound struct {
	key      string // keys above it, and the directory of this name
	set      bool   // false: all keys
	reported bool   // the directory was read before, and its skipped entries reported
}

func (b lowerBound) includes(name string, dir bool) bool {
	if dir {
		name += "/"
	}
	return !b.set || name > b.key
}

// listDir lists the items in a directory, whose ids begin with prefix, in the order of their ids. The items of a
// subdirectory are ordered by its name with a slash. It returns false when the caller has stopped the listing.
func (l *lister) listDir(ctx context.Context, path, prefix string) (bool, error) {
	from := lowerBound{key: l.startKey(prefix)}
	from.set = from.key != ""
	for {
		if ctx.Err() != nil {
			return false, storage.ContextErr(ctx)
		}
		w, err := l.readWindow(ctx, path, prefix, from)
		if errors.Is(err, fs.ErrPermission) {
			err = l.unreadable(path, err)
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

// startKey returns the key at which the listing of a directory starts, so that it includes all ids after l.after: keys
// above it, and the directory of this name, which may contain such ids.
func (l *lister) startKey(prefix string) string {
	if !strings.HasPrefix(l.after, prefix) {
		return ""
	}
	key := l.after[len(prefix):]
	if i := strings.IndexByte(key, '/'); i >= 0 { // the subdirectory that contains l.after
		return key[:i]
	}
	return key
}

// unreadable returns the error for a path without read permission: its items are unknown, not absent.
func (l *lister) unreadable(path string, err error) error {
	l.skipped(path, "permission denied: its items are unknown")
	return fmt.Errorf("list %s: its items are unknown: %w", path, err)
}

// entries lists the items of a window of a directory.
func (l *lister) entries(ctx context.Context, path, prefix string, entries []entry) (bool, error) {
	at := -1 // the directory, open while its files are checked
	defer func() { l.closeDir(&at) }()
	for i, e := range entries {
		id := prefix + e.key
		switch {
		case i > 0 && e.key == entries[i-1].key:
			if l.atEntry { // otherwise it is the same file, after its rename to the alternate name
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

// file yields one item, unless its file was removed meanwhile.
func (l *lister) file(ctx context.Context, at *int, dir string, e entry, id string) (bool, error) {
	if ctx.Err() != nil {
		return false, storage.ContextErr(ctx)
	}
	st, err := l.stat(at, dir, e.path)
	l.atEntry = err == nil && isRegular(&st)
	if l.plain != nil && (isAbsent(err) || err == nil && !isRegular(&st)) {
		return true, nil // removed
	}
	if isAbsent(err) || err == nil && !isRegular(&st) {
		// It was removed, or renamed to its alternate name.
		_, st, err = l.sess.locate(itemPathIn(l.space, id))
		if errors.Is(err, storage.ErrNotFound) {
			return true, nil
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		err = l.unreadable(join(dir, e.path), err)
	}
	if err != nil {
		return false, err
	}
	o := object(id, &st, metadata{})
	if l.plain != nil {
		o = l.plain(id, &st)
	}
	if l.sess.local {
		o.Changed = time.Unix(0, st.Ctim.Nano()).UTC()
	}
	return l.yield(o, nil), nil
}

// stat stats dir/path. The directory stays open in at for the next call.
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
