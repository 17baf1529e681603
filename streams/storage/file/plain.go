package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// PlainConfig configures a Plain.
type PlainConfig struct {
	ID   string // the store's id, for its errors
	Root string // a directory; it may be reached through symbolic links
	// Space makes all of Root one space of this name. Empty: every directory in Root is a space.
	Space string
	// Expect is the path of a file or directory below Root that identifies the tree. It replaces the marker, because
	// nothing is written into the tree. Choose one that an empty mount point or another disk does not have:
	// bagit.txt, 0=ocfl_1.1, a README.
	Expect string
	// ExpectSHA256, if set, is the SHA-256 of the file Expect, in hex. The file must not be larger than 1 MiB.
	ExpectSHA256 string
	// Skipped is as in Config. It is also called for paths without read permission.
	Skipped func(path, reason string)
}

// A Plain is a read-only storage.Store of an ordinary directory tree that was not written with millrace. The id of an
// item is its path in the space, unchanged. A Plain writes nothing, follows no symbolic links, and does not change
// access times if the process owns the files.
//
// A version consists of the file's inode, size, modification time and change time. Programs cannot set the change time,
// so the version changes with the bytes even if the modification time is restored. A file that was moved, linked or
// given other permissions is another version of the same bytes. There are no digests and no properties.
type Plain struct {
	root
	cfg    PlainConfig
	window int
}

var _ storage.Store = (*Plain)(nil)

const maxExpected = 1 << 20

// OpenPlain opens an ordinary tree.
func OpenPlain(cfg PlainConfig) (*Plain, error) {
	switch {
	case cfg.ID == "":
		return nil, errors.New("file store has no id")
	case cfg.Root == "":
		return nil, fmt.Errorf("file store %q has no root", cfg.ID)
	case !filepath.IsLocal(cfg.Expect) || filepath.Clean(cfg.Expect) == ".":
		return nil, fmt.Errorf("file store %q expects %q: want a path below its root that identifies the tree",
			cfg.ID, cfg.Expect)
	}
	cfg.Expect, cfg.ExpectSHA256 = filepath.Clean(cfg.Expect), strings.ToLower(cfg.ExpectSHA256)
	if b, err := hex.DecodeString(cfg.ExpectSHA256); err != nil || len(b) != 0 && len(b) != sha256.Size {
		return nil, fmt.Errorf("file store %q: %q is not a sha256 in hex", cfg.ID, cfg.ExpectSHA256)
	}
	if cfg.Space != "" {
		if err := storage.CheckSpace(cfg.Space); err != nil {
			return nil, fmt.Errorf("file store %q: %w", cfg.ID, err)
		}
	}
	dir, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, err
	}
	p := &Plain{cfg: cfg, window: windowNames}
	p.root = root{dir: dir, readOnly: true, isStore: func(s *session) bool { return p.checkExpected(s) == nil }}
	if p.sess, err = openSession(dir); err != nil {
		return nil, fmt.Errorf("open root of file store %q: %w", cfg.ID, p.explain(err))
	}
	return p, nil
}

// Capabilities implements storage.Store.
func (p *Plain) Capabilities() storage.Capabilities {
	return storage.Capabilities{Kind: "file", TimeResolution: time.Nanosecond, UniqueVersions: true, ReadOnly: true}
}

// checkExpected returns an error unless the root contains what identifies it.
func (p *Plain) checkExpected(s *session) error {
	if s.hasOwnDir() {
		return fmt.Errorf("root %s is a store in millrace's own layout: %w", p.dir, storage.ErrWrongMarker)
	}
	st, err := s.stat(p.cfg.Expect)
	switch {
	case isAbsent(err):
		return fmt.Errorf("root %s has no %s, which identifies it: %w", p.dir, p.cfg.Expect, storage.ErrNoMarker)
	case err != nil, p.cfg.ExpectSHA256 == "":
		return p.explain(err)
	case !isRegular(&st) || st.Size > maxExpected:
		return fmt.Errorf("%s in root %s is not a file of at most %d bytes: %w",
			p.cfg.Expect, p.dir, maxExpected, storage.ErrWrongMarker)
	}
	b, err := s.read(p.cfg.Expect)
	if err != nil {
		return p.explain(err)
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != p.cfg.ExpectSHA256 {
		return fmt.Errorf("%s in root %s has sha256 %x: %w", p.cfg.Expect, p.dir, sum, storage.ErrWrongMarker)
	}
	return nil
}

// Marker implements storage.Store.
func (p *Plain) Marker(ctx context.Context) error {
	sess, err := p.acquire()
	if err != nil {
		return err
	}
	defer p.release(sess)
	return p.checkExpected(sess)
}

// space returns the directory of a space.
func (p *Plain) space(sess *session, name string) (string, error) {
	if err := storage.CheckSpace(name); err != nil {
		return "", retry.Permanent(err)
	}
	if p.cfg.Space != "" {
		if name != p.cfg.Space {
			return "", fmt.Errorf("space %q: %w", name, storage.ErrNoSpace)
		}
		return ".", nil
	}
	if !isName(name) || name == lostFound {
		return "", fmt.Errorf("space %q: %w", name, storage.ErrNoSpace)
	}
	return name, sess.checkSpace(name)
}

// isName reports whether s can be the name of a file.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= nameMax && !strings.ContainsAny(s, "/\x00")
}

// locate finds an item's file.
func (p *Plain) locate(sess *session, space, item string) (string, unix.Stat_t, error) {
	if err := storage.CheckItem(item); err != nil {
		return "", unix.Stat_t{}, retry.Permanent(err)
	}
	dir, err := p.space(sess, space)
	if err != nil {
		return "", unix.Stat_t{}, err
	}
	absent := fmt.Errorf("item %q: %w", item, storage.ErrNotFound)
	for name := range strings.SplitSeq(item, "/") {
		if !isName(name) {
			return "", unix.Stat_t{}, absent
		}
	}
	at := join(dir, item)
	st, err := sess.stat(at)
	if isAbsent(err) || err == nil && !isRegular(&st) {
		if err := sess.checkSpace(dir); err != nil {
			return "", st, err
		}
		return "", st, absent
	}
	return at, st, err
}

// plainVersion returns the version of a file: its inode, size, modification time and change time.
func plainVersion(st *unix.Stat_t) string {
	f := func(n int64) string { return strconv.FormatInt(n, 36) }
	return f(int64(st.Ino)) + "-" + f(st.Size) + "-" + f(st.Mtim.Nano()) + "-" + f(st.Ctim.Nano())
}

func plainObject(item string, st *unix.Stat_t) storage.Object {
	return storage.Object{Item: item, Size: st.Size, Modified: modTime(st), Version: plainVersion(st)}
}

// Stat implements storage.Store.
func (p *Plain) Stat(ctx context.Context, space, item string) (storage.Object, error) {
	if ctx.Err() != nil {
		return storage.Object{}, storage.ContextErr(ctx)
	}
	sess, err := p.acquire()
	if err != nil {
		return storage.Object{}, err
	}
	defer p.release(sess)
	looked := time.Now()
	_, st, err := p.locate(sess, space, item)
	if err != nil {
		return storage.Object{}, storage.Absent(err, looked)
	}
	return plainObject(item, &st), nil
}

// Open implements storage.Store. If the file is changed while it is read, the read ends with ErrChanged.
func (p *Plain) Open(ctx context.Context, space, item, version string) (io.ReadCloser, storage.Object, error) {
	r, o, err := p.open(ctx, storage.Ref{Space: space, Item: item, Version: version})
	if err != nil {
		return nil, storage.Object{}, err
	}
	return r, o, nil
}

func (p *Plain) open(ctx context.Context, ref storage.Ref) (*reader, storage.Object, error) {
	if ctx.Err() != nil {
		return nil, storage.Object{}, storage.ContextErr(ctx)
	}
	sess, err := p.acquire()
	if err != nil {
		return nil, storage.Object{}, err
	}
	defer p.release(sess)
	for range maxTries {
		at, _, err := p.locate(sess, ref.Space, ref.Item)
		if err != nil {
			return nil, storage.Object{}, err
		}
		const flags = unix.O_RDONLY | unix.O_NONBLOCK
		fd, err := sess.tree.open(at, flags|unix.O_NOATIME)
		if errors.Is(err, unix.EPERM) { // O_NOATIME needs the owner of the file
			fd, err = sess.tree.open(at, flags)
		}
		if isAbsent(err) {
			continue // removed meanwhile: try again
		}
		if err != nil {
			return nil, storage.Object{}, err
		}
		return plainReader(ctx, os.NewFile(uintptr(fd), at), ref)
	}
	return nil, storage.Object{}, fmt.Errorf("open item %q: its file keeps changing", ref.Item)
}

func plainReader(ctx context.Context, f *os.File, ref storage.Ref) (*reader, storage.Object, error) {
	var st unix.Stat_t
	err := pathError("stat", f.Name(), unix.Fstat(int(f.Fd()), &st))
	o := plainObject(ref.Item, &st)
	if err == nil && !isRegular(&st) {
		err = fmt.Errorf("open %s: it is no longer a regular file: %w", f.Name(), storage.ErrChanged)
	}
	if err == nil {
		err = (storage.Condition{Version: ref.Version}).Check(o, true)
	}
	if err != nil {
		return nil, storage.Object{}, errors.Join(err, f.Close())
	}
	return newReader(ctx, f, o, plainVersion), o, nil
}

// List implements storage.Store, as Store.List.
func (p *Plain) List(ctx context.Context, space, after string) iter.Seq2[storage.Object, error] {
	return func(yield func(storage.Object, error) bool) {
		if err := p.list(ctx, space, after, yield); err != nil {
			yield(storage.Object{}, err)
		}
	}
}

func (p *Plain) list(ctx context.Context, space, after string, yield func(storage.Object, error) bool) error {
	sess, err := p.acquire()
	if err != nil {
		return err
	}
	dir, err := p.space(sess, space)
	p.release(sess)
	if err != nil {
		return err
	}
	l := &lister{
		root: &p.root, space: dir, after: after, yield: yield,
		skipped: p.skipped, window: p.window, plain: plainObject,
	}
	return l.list(ctx)
}

func (p *Plain) skipped(path, reason string) {
	if p.cfg.Skipped != nil {
		p.cfg.Skipped(path, reason)
	}
}

// Spaces implements storage.Store.
func (p *Plain) Spaces(ctx context.Context) iter.Seq2[string, error] {
	return storage.Names(ctx, func() ([]string, error) { return p.spaceNames(ctx) })
}

func (p *Plain) spaceNames(ctx context.Context) ([]string, error) {
	sess, err := p.acquire()
	if err != nil {
		return nil, err
	}
	defer p.release(sess)
	if p.cfg.Space != "" {
		return []string{p.cfg.Space}, nil
	}
	fd, err := sess.dir(".")
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var names []string
	r := &dirWindow{l: &lister{sess: sess}}
	err = r.names(ctx, fd, func(b []byte, kind byte) error {
		name := string(b)
		switch kind, err := kindAt(fd, b, kind); {
		case err != nil:
			return ignoreAbsent(err)
		case kind == unix.DT_REG && name == p.cfg.Expect:
		case kind == unix.DT_REG:
			p.skipped(name, "it is a file outside of any space")
		case kind != unix.DT_DIR:
			p.skipped(name, "it is "+kindOf(kind))
		case !utf8.ValidString(name):
			p.skipped(name, "its name is not UTF-8")
		case name == lostFound:
			p.skipped(name, "it belongs to the file system")
		default:
			names = append(names, name)
		}
		return nil
	})
	slices.Sort(names)
	return names, pathError("list", p.dir, err)
}

// StatSpace implements storage.Store.
func (p *Plain) StatSpace(ctx context.Context, space string) (storage.Space, error) {
	sess, err := p.acquire()
	if err != nil {
		return storage.Space{}, err
	}
	defer p.release(sess)
	if _, err := p.space(sess, space); err != nil {
		return storage.Space{}, err
	}
	return storage.Space{Name: space, PropertiesUnknown: true}, nil
}
