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

// windowNames is the number of names of one directory that a listing holds, and up to twice as many while it reads.
// A directory with a million entries is read 16 times. That takes two to three times as long as reading it once, but
// at most 42 MiB of heap instead of 250.
const windowNames = 64 << 10

// maxScans bounds how often a directory is scanned while it changes. A file moves to its alternate name at most once,
// so the second scan finds a file that the first one missed; the third scan is for file systems that move the entry of
// a replaced file.
const maxScans = 3

// A dirWindow collects a window of the entries of one directory: the first entries above a key. Directories that hold
// the rest of split segments are read as part of it.
type dirWindow struct {
	l           *lister
	dir         string
	maxKeyBytes int // bytes that the prefix leaves of the longest id
	from        lowerBound
	entries     []entry
	more        bool // there are entries after the last one
	changed     bool // names may have changed during the scan
	reported    bool // skipped entries have been reported
	buf         []byte
}

// readWindow returns the next window of the entries of a directory that can lead to items, sorted. An entry that exists
// during the whole call is included, even if it is renamed to its alternate name meanwhile.
func (l *lister) readWindow(ctx context.Context, path, prefix string, from lowerBound) (*dirWindow, error) {
	r := &dirWindow{
		l: l, dir: path, maxKeyBytes: storage.MaxItemID - len(prefix),
		from: from, reported: from.reported, buf: make([]byte, 64<<10),
	}
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

// sort sorts the entries and removes duplicates.
func (r *dirWindow) sort() {
	slices.SortFunc(r.entries, func(a, b entry) int {
		// If an item has two files, the one under its own name comes first and is used.
		alt := btoi(strings.HasSuffix(a.path, tokenAlt)) - btoi(strings.HasSuffix(b.path, tokenAlt))
		return cmp.Or(strings.Compare(a.key, b.key), alt, strings.Compare(a.path, b.path))
	})
	r.entries = slices.Compact(r.entries)
}

// trim drops the entries above the window. The entries must be sorted; those of one key stay together.
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

// addAltNames adds files with alternate names that the scan has missed. Such a file is renamed before the directory is
// created under its own name, and its new entry may be in a part of the directory that was already read.
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

// insert adds an entry, and drops the last ones if there are too many.
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

// changed reports whether a directory may have changed between two stats, the first of which was made at the time at.
// If the directory was changed so shortly before at that a later change could have the same timestamp, it returns true.
func changed(before, after *unix.Stat_t, at time.Time) bool {
	tick := 20 * time.Millisecond // above the resolution of the kernel's file timestamps
	if before.Ctim.Nsec == 0 {
		tick = 2 * time.Second // for file systems with coarse timestamps
	}
	return before.Mtim != after.Mtim || before.Ctim != after.Ctim ||
		at.Sub(time.Unix(0, before.Ctim.Nano())).Abs() <= tick
}

// scan reads the directory dir/sub. text is the beginning of a split segment that the names in sub continue.
func (r *dirWindow) scan(ctx context.Context, sub, text string) error {
	path := r.dir
	if sub != "" {
		path += "/" + sub[:len(sub)-1]
	}
	fd, err := r.l.sess.dir(path)
	if isAbsent(err) {
		return nil // removed meanwhile
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

// names calls visit for each entry of an opened directory. Unlike os.File.ReadDir it does not allocate, because most
// names are outside of the window when a directory is read again.
func (r *dirWindow) names(ctx context.Context, fd int, visit func(name []byte, kind byte) error) error {
	buf := r.buf
	if r.buf = nil; buf == nil { // in use by the scan of the parent directory
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
			return storage.ContextErr(ctx)
		}
		// struct linux_dirent64: inode and offset (8 bytes each), length (2), type (1), name up to a NUL.
		for b := buf[:n]; len(b) > 19; {
			length := int(binary.NativeEndian.Uint16(b[16:]))
			if length < 20 || length > len(b) {
				return errors.New("directory entry is malformed")
			}
			name := b[19:length]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			if string(name) != "." && string(name) != ".." {
				if err := visit(name, b[18]); err != nil {
					return err
				}
			}
			b = b[length:]
		}
	}
}

// visit handles one entry of a directory. It returns early, before a string is allocated, if the name is outside of the
// window and cannot be an escaped one.
func (r *dirWindow) visit(ctx context.Context, sub, text string, b []byte, kind byte) error {
	isDir := kind == unix.DT_DIR
	asItIs := r.l.plain != nil || text == "" && bytes.IndexByte(b, '%') < 0
	if asItIs && r.reported && !isDir && (string(b) <= r.from.key || r.more && string(b) > r.entries[r.l.window-1].key) {
		return nil
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
		reason = "it belongs to the file system"
	case !ok || end == tokenMore || isDir && end != "" ||
		(path != part) && segment(full, end == tokenAlt) != path:
		reason = "its name is not one that this store writes"
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

// kindAt returns the type (DT_*) of a directory entry. Some file systems do not return it with the entry.
func kindAt(fd int, name []byte, listed byte) (byte, error) {
	if listed != unix.DT_UNKNOWN {
		return listed, nil
	}
	var st unix.Stat_t
	err := retryEINTR(func() error { return unix.Fstatat(fd, string(name), &st, unix.AT_SYMLINK_NOFOLLOW) })
	return byte(st.Mode & unix.S_IFMT >> 12), err
}

// ignoreAbsent returns nil if err says that a file is absent, which may have been removed meanwhile.
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
