package file

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/storage"
)

// windowNames is how many names of one directory a listing holds, and for a moment twice as many. A directory
// of a million is read 16 times; that is two to three times the work of having all names at once,
// with 42 MiB of heap in use at most and not 250.
const windowNames = 64 << 10

// maxReads bounds how often a directory is read that others keep changing. A file moves
// beside a directory once, so what was not seen on its way is there for the next
// reading; the third is for file systems where a file that is replaced changes its slot.
const maxScans = 3

// A reading collects the entries of one directory, with those of the directories in
// it that hold the rest of split segments: the first window of those above a key.
type dirWindow struct {
	l           *lister
	dir         string
	maxKeyBytes int // bytes that ids have left
	from        lowerBound
	entries     []entry
	more        bool // there are entries behind the last one
	changed     bool // names may have been changed under way
	reported    bool // what is skipped has been told
	buf         []byte
}

// read returns the next part of what is in a directory that can lead to items, sorted. What
// is there all the time is in it, under whatever names.
func (l *lister) readWindow(ctx context.Context, path, prefix string, from lowerBound) (*dirWindow, error) {
	r := &dirWindow{l: l, dir: path, maxKeyBytes: storage.MaxItemID - len(prefix), from: from, reported: from.reported, buf: make([]byte, 64<<10)}
	for range maxScans {
		r.changed = false
		if err := r.scan(ctx, "", ""); err != nil {
			return nil, err
		}
		r.sort()
		if !r.changed {
			break
		}
		r.reported = true
	}
	if l.plain == nil {
		if err := r.addAltNames(); err != nil {
			return nil, err
		}
	}
	r.trim()
	return r, nil
}

// sort sorts the entries, each once.
func (r *dirWindow) sort() {
	slices.SortFunc(r.entries, func(a, b entry) int {
		// Of two files of one item the one under its own name counts.
		beside := btoi(strings.HasSuffix(a.path, tokenAlt)) - btoi(strings.HasSuffix(b.path, tokenAlt))
		return cmp.Or(strings.Compare(a.key, b.key), beside, strings.Compare(a.path, b.path))
	})
	r.entries = slices.Compact(r.entries)
}

// trim keeps a window of the entries, which are sorted. Those of one key stay together.
func (r *dirWindow) trim() {
	n := r.l.window
	for n > 0 && n < len(r.entries) && r.entries[n].key == r.entries[n-1].key {
		n++
	}
	if n > 0 && n < len(r.entries) {
		clear(r.entries[n:])
		r.entries, r.more = r.entries[:n], true
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// besides adds the files beside directories that were not seen: a file goes there before
// the directory takes its name, maybe into a slot that was read by then.
func (r *dirWindow) addAltNames() error {
	at := -1
	defer func() { r.l.closeDir(&at) }()
	var more []entry
	for _, e := range r.entries {
		if !e.dir {
			continue
		}
		key := strings.TrimSuffix(e.key, "/")
		if _, seen := slices.BinarySearchFunc(r.entries, key, entry.compare); seen || !r.from.includes(key, false) {
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

// collect adds an entry, and drops the last ones where there are too many.
func (r *dirWindow) insert(e entry) {
	if r.more && e.key > r.entries[r.l.window-1].key {
		return
	}
	r.entries = append(r.entries, e)
	if r.l.window > 0 && len(r.entries) >= 2*r.l.window {
		r.sort()
		r.trim()
	}
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
func (r *dirWindow) scan(ctx context.Context, sub, text string) error {
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
	defer unix.Close(fd)
	var before, after unix.Stat_t
	at := time.Now()
	if err := unix.Fstat(fd, &before); err != nil {
		return pathError("stat", path, err)
	}
	err = r.names(ctx, fd, func(name []byte, kind byte) error {
		kind, err := kindAt(fd, name, kind)
		if err != nil {
			return ignoreAbsent(err)
		}
		return r.visit(ctx, sub, text, name, kind)
	})
	if err == nil {
		err = unix.Fstat(fd, &after)
	}
	r.changed = r.changed || changed(&before, &after, at)
	return pathError("list", path, err)
}

// names tells what is in an opened directory. Unlike os.File.ReadDir it makes nothing of a
// name that nobody wants, and most are not wanted when a directory is read once more.
func (r *dirWindow) names(ctx context.Context, fd int, tell func(name []byte, kind byte) error) error {
	buf := r.buf
	if r.buf = nil; buf == nil { // in use, by the directory above
		buf = make([]byte, 64<<10)
	}
	defer func() { r.buf = buf }()
	for {
		var n int
		err := retryEINTR(func() (err error) { n, err = unix.Getdents(fd, buf); return err })
		if err != nil || n == 0 {
			return err
		}
		if ctx.Err() != nil {
			return storage.Ended(ctx)
		}
		// struct linux_dirent64: inode and offset (8 bytes each), length (2), type (1), name up to a NUL.
		for b := buf[:n]; len(b) > 19; {
			length := int(binary.NativeEndian.Uint16(b[16:]))
			if length < 20 || length > len(b) {
				return errors.New("directory entry is spoilt")
			}
			name := b[19:length]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			if string(name) != "." && string(name) != ".." {
				if err := tell(name, b[18]); err != nil {
					return err
				}
			}
			b = b[length:]
		}
	}
}

// name takes in one name of a directory.
func (r *dirWindow) visit(ctx context.Context, sub, text string, b []byte, kind byte) error {
	isDir := kind == unix.DT_DIR
	asItIs := r.l.plain != nil || text == "" && bytes.IndexByte(b, '%') < 0
	if asItIs && r.reported && !isDir && (string(b) <= r.from.key || r.more && string(b) > r.entries[r.l.window-1].key) {
		return nil // nothing is made of it
	}
	return r.add(ctx, sub, text, string(b), kind)
}

func (r *dirWindow) add(ctx context.Context, sub, text, name string, kind byte) error {
	path := sub + name
	part, end, ok := name, "", true
	if r.l.plain == nil {
		part, end, ok = decode(name, false)
	}
	isDir := kind == unix.DT_DIR
	full := text + part
	var reason string
	switch {
	case !utf8.ValidString(name):
		reason = "its name is not UTF-8"
	case isDir && ok && end == tokenMore:
		return r.scan(ctx, path+"/", full)
	case !isDir && kind != unix.DT_REG:
		reason = "it is " + kindOf(kind)
	case r.l.plain != nil && isDir && name == lostFound && r.dir == ".":
		reason = "it is the file system's own"
	case !ok || end == tokenMore || isDir && end != "" ||
		(path != part) && segment(full, end == tokenAlt) != path:
		reason = "it has a name that this store does not give"
	case len(full)+btoi(isDir) > r.maxKeyBytes:
		reason = "its id would be too long"
	case !r.from.includes(full, isDir):
		return nil
	case isDir:
		r.insert(entry{key: full + "/", path: path, dir: true})
		return nil
	default:
		r.insert(entry{key: full, path: path})
		return nil
	}
	if !r.reported {
		r.l.skipped(join(r.dir, path), reason)
	}
	return nil
}

// kindAt is the kind of what is in a directory. Some file systems do not list it.
func kindAt(fd int, name []byte, listed byte) (byte, error) {
	if listed != unix.DT_UNKNOWN {
		return listed, nil
	}
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Fstatat(fd, string(name), &st, unix.AT_SYMLINK_NOFOLLOW) })
	return byte(st.Mode & unix.S_IFMT >> 12), err
}

// skipAbsent is nil for what went while it was listed.
func ignoreAbsent(err error) error {
	if isAbsent(err) {
		return nil
	}
	return err
}

func kindOf(dt byte) string {
	switch dt {
	case unix.DT_LNK:
		return kind(fs.ModeSymlink)
	case unix.DT_FIFO:
		return kind(fs.ModeNamedPipe)
	case unix.DT_SOCK:
		return kind(fs.ModeSocket)
	case unix.DT_BLK, unix.DT_CHR:
		return kind(fs.ModeDevice)
	}
	return fmt.Sprintf("no regular file (type %d)", dt)
}
