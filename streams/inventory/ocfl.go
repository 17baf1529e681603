package inventory

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/encoding"
	"golang.org/x/text/transform"
)

// Bounds of an OCFL inventory: its bytes, and the bytes that are held of it.
const (
	maxOCFL     = 1 << 30
	maxOCFLHeld = 1 << 30
)

// What is held besides the bytes of a name, at most: an entry of a map that is half full, and what it leads to.
const (
	heldPath   = 128
	heldDigest = 160
	heldSum    = 96
)

// An object is an OCFL inventory (ocfl.io/1.1/spec, section 3.5), as far as it is read. It is read in parts, so that the
// states of its versions are held one at a time.
type object struct {
	*Listing
	at               Place
	algorithm, head  string
	manifest, fixity span
	versions         map[string]objectVersion
	held             int64
}

type objectVersion struct {
	created time.Time
	state   span
}

// A span says where a JSON object stands in the file.
type span struct {
	offset int64
	is     bool
}

// A content is what the object says of one digest.
type content struct {
	digest string // in lower case
	known  bool   // to the manifest
	sums   []sum  // of the fixity block, for any of its content paths
}

// A sum is another digest of a content.
type sum struct{ alg, hex string }

// ocfl reads the logical paths of one version, sorted, each with the time of the version that gave it its
// content; or the content paths of the object.
func (l *Listing) ocfl() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		o, err := l.openOCFL()
		if err == nil && l.opts.ContentPaths {
			err = o.contents(yield)
		} else if err == nil {
			err = o.logical(l.opts.Version, yield)
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(Entry{}, err)
		}
	}
}

// errStopped: the caller wants no more rows.
var errStopped = errors.New("stopped")

// openOCFL reads the file to its end, and compares it with its sum in the file beside it, where there is one.
func (l *Listing) openOCFL() (*object, error) {
	o := &object{Listing: l, at: Place{File: l.path}, versions: map[string]objectVersion{}}
	hashes, wanted, failed := map[string]hash.Hash{}, map[string]string{}, map[string]error{}
	for _, alg := range []string{"md5", "sha1", "sha256", "sha512"} { // which one counts is in the file
		side, err := l.readAll(l.path+"."+alg, maxLine)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			failed[alg] = err
			continue
		}
		hashes[alg] = newHash(alg)
		wanted[alg], _, _ = strings.Cut(strings.TrimSpace(string(side)), " ")
	}
	f, err := l.open(l.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if n := l.files[l.path].size; n > maxOCFL {
		return nil, invalid(o.at, "it has more than %d bytes", maxOCFL)
	}
	writers := make([]io.Writer, 0, len(hashes))
	for _, h := range hashes {
		writers = append(writers, h)
	}
	if err := o.scan(io.TeeReader(f, io.MultiWriter(writers...))); err != nil {
		return nil, err
	}
	if o.algorithm == "" || len(o.versions) == 0 || !o.manifest.is {
		return nil, invalid(o.at, "it is no OCFL inventory: digestAlgorithm, manifest or versions are missing")
	}
	o.algorithm = algorithmOf(o.algorithm)
	if err := failed[o.algorithm]; err != nil {
		return nil, err
	}
	if h := hashes[o.algorithm]; h != nil {
		got, want := hex.EncodeToString(h.Sum(nil)), strings.TrimSpace(wanted[o.algorithm])
		if !strings.EqualFold(want, got) {
			return nil, invalid(o.at, "its %s is %s, and %s says %.200q", o.algorithm, got, base(l.path+"."+o.algorithm), want)
		}
	}
	return o, nil
}

// scan finds out where everything stands.
func (o *object) scan(r io.Reader) error {
	buf := bufio.NewReaderSize(r, 64<<10)
	begin := int64(0)
	if bom, _ := buf.Peek(3); string(bom) == "\xef\xbb\xbf" {
		begin = 3
		_, _ = buf.Discard(3) // which are there
	}
	j := newJSONText(transform.NewReader(buf, encoding.UTF8Validator), begin)
	err := j.members(func(name string) (err error) {
		switch name {
		case "digestAlgorithm":
			o.algorithm, err = j.text()
		case "head":
			o.head, err = j.text()
		case "manifest":
			o.manifest, err = j.span()
		case "fixity":
			o.fixity, err = j.span()
		case "versions":
			err = j.members(func(name string) error { return o.version(j, name) })
		default:
			err = j.skip()
		}
		return err
	})
	if err == nil {
		err = j.end()
	}
	return o.broken(j, err)
}

func (o *object) version(j *jsonText, name string) error {
	v := objectVersion{}
	err := j.members(func(field string) (err error) {
		switch field {
		case "created":
			var text string
			if text, err = j.text(); err == nil {
				v.created, err = time.Parse(time.RFC3339, text)
			}
		case "state":
			v.state, err = j.span()
		default:
			err = j.skip()
		}
		return err
	})
	o.versions[name] = v
	return errors.Join(err, o.hold(len(name)+heldPath))
}

// broken says what an error of reading the file is.
func (o *object) broken(j *jsonText, err error) error {
	var syntax *json.SyntaxError
	var form errJSON
	var parse *time.ParseError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, encoding.ErrInvalidUTF8):
		return invalid(o.at, "it is not UTF-8")
	case errors.Is(err, ErrInvalid), errors.Is(err, errStopped):
		return err
	case errors.Is(err, errLong):
		return invalid(o.at, "a text in it is longer than %d bytes", maxLine)
	case errors.As(err, &syntax), errors.As(err, &form), errors.As(err, &parse), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		at := o.at
		at.Line = o.lineOf(j.offset())
		return invalid(at, "it is not the JSON of an OCFL inventory: %w", err)
	}
	return fmt.Errorf("read the listing: %w", err)
}

// lineOf returns the line in which an offset lies; 0 if that cannot be found out.
func (o *object) lineOf(offset int64) int64 {
	f, err := os.Open(o.path)
	if err != nil {
		return 0
	}
	defer f.Close()
	line, r := int64(1), bufio.NewReader(io.LimitReader(f, offset))
	for {
		switch b, err := r.ReadByte(); {
		case errors.Is(err, io.EOF):
			return line
		case err != nil:
			return 0
		case b == '\n':
			line++
		}
	}
}

// hold counts what is held.
func (o *object) hold(n int) error {
	if o.held += int64(n); o.held > maxOCFLHeld {
		return invalid(o.at, "it names so much that more than %d bytes of memory are needed", maxOCFLHeld)
	}
	return nil
}

// lists reads an object of lists of texts: f is called with each text and the name of its list.
func (o *object) lists(of span, f func(name, text string) error) error {
	return o.part(of, func(j *jsonText) error { return j.lists(f) })
}

// part reads the part of the file that stands at a span, again.
func (o *object) part(of span, read func(j *jsonText) error) error {
	if !of.is {
		return nil
	}
	f, err := o.open(o.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.f.Seek(of.offset, io.SeekStart); err != nil {
		return fmt.Errorf("read the listing: %w", err)
	}
	j := newJSONText(f.f, of.offset) // not counted: it was when it was scanned
	return o.broken(j, read(j))
}

// sums are those of the fixity block, by content path.
func (o *object) sums() (map[string][]sum, error) {
	all := map[string][]sum{}
	err := o.part(o.fixity, func(j *jsonText) error {
		return j.members(func(alg string) error {
			return j.lists(func(d, path string) error {
				name, hex, reason := digestOf(alg, "", d)
				for _, s := range all[path] {
					if s.alg == name && s.hex != hex && reason == "" {
						reason = "the row has two digests " + name + " that differ"
					}
				}
				if reason != "" {
					return invalid(o.at, "fixity of %q: %s", path, reason)
				}
				all[path] = addSum(all[path], sum{name, hex})
				return o.hold(len(path) + len(hex) + heldPath + heldSum)
			})
		})
	})
	return all, err
}

func addSum(all []sum, s sum) []sum {
	if slices.Contains(all, s) {
		return all
	}
	return append(all, s)
}

// A place is what is known of a path.
type place struct {
	content *content
	// since and last are the versions, counted from 0, that gave it this content and that have it last.
	since, last int32
	twice       bool // in the last of them
}

// logical yields the paths of one version.
func (o *object) logical(last string, yield func(Entry, error) bool) error {
	names, err := o.versionsUpTo(last)
	if err != nil {
		return err
	}
	contents, places := map[string]*content{}, map[string]place{}
	for i, name := range names {
		v := int32(i)
		err := o.lists(o.versions[name].state, func(d, path string) error {
			c, err := o.content(contents, d)
			before, known := places[path]
			now := place{content: c, since: v, last: v, twice: known && before.last == v}
			if known && before.last == v-1 && before.content == c {
				now.since = before.since
			}
			places[path] = now
			if !known {
				err = errors.Join(err, o.hold(len(path)+heldPath))
			}
			return err
		})
		if err != nil {
			return err
		}
		for path, p := range places {
			if p.last != v {
				delete(places, path)
				o.held -= int64(len(path) + heldPath)
			}
		}
	}
	if err := o.gather(func(d, path string) (*content, error) { return contents[d], nil }); err != nil {
		return err
	}
	for _, path := range sortedKeys(places) {
		p := places[path]
		e, err := o.entry(path, p.content)
		switch {
		case err != nil:
		case p.twice:
			err = &Fault{o.at, fmt.Sprintf("%q stands in the version's state more than once", path)}
		case !p.content.known:
			err = &Fault{o.at, fmt.Sprintf("%q has content %.80q, which the manifest does not have", path, p.content.digest)}
		}
		e.Time = o.versions[names[p.since]].created
		if !yield(e, err) {
			return errStopped
		}
	}
	return nil
}

// contents yields the content paths.
func (o *object) contents(yield func(Entry, error) bool) error {
	contents, places := map[string]*content{}, map[string]*content{}
	err := o.gather(func(d, path string) (*content, error) {
		c, err := o.content(contents, d)
		if err != nil {
			return nil, err
		}
		if _, ok := places[path]; ok {
			if !yield(Entry{At: o.at, Item: path}, &Fault{o.at, fmt.Sprintf("%q stands in the manifest more than once", path)}) {
				return nil, errStopped
			}
			return nil, nil
		}
		places[path] = c
		return c, o.hold(len(path) + heldPath)
	})
	if err != nil {
		return err
	}
	for _, path := range sortedKeys(places) {
		if !yield(o.entry(path, places[path])) {
			return errStopped
		}
	}
	return nil
}

// content returns the content of a digest, one for all its paths.
func (o *object) content(all map[string]*content, d string) (*content, error) {
	if c := all[d]; c != nil {
		return c, nil
	}
	c := &content{digest: d}
	all[d] = c
	return c, o.hold(len(d) + heldDigest)
}

// gather reads the manifest, and puts the digests of the fixity block with the contents that of returns for each of its
// rows; nil: none.
func (o *object) gather(of func(d, path string) (*content, error)) error {
	sums, err := o.sums()
	if err != nil {
		return err
	}
	return o.lists(o.manifest, func(d, path string) error {
		c, err := of(d, path)
		if c == nil || err != nil {
			return err
		}
		c.known = true
		for _, s := range sums[path] {
			c.sums = addSum(c.sums, s)
		}
		return nil
	})
}

// entry is what the object says of a path with a content.
func (o *object) entry(path string, c *content) (Entry, error) {
	e := Entry{At: o.at, Item: path, Size: -1}
	reason := e.add(o.algorithm, "", c.digest)
	for _, s := range c.sums {
		if reason == "" {
			reason = e.add(s.alg, "", s.hex)
		}
	}
	if reason != "" {
		return e, &Fault{o.at, fmt.Sprintf("%q: %s", path, reason)}
	}
	return e, nil
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// versionsUpTo are the names of versions up to last (empty: the head), the oldest first.
func (o *object) versionsUpTo(last string) ([]string, error) {
	if last == "" {
		last = o.head
	}
	if _, ok := o.versions[last]; !ok {
		return nil, invalid(o.at, "there is no version %q; there are %s", last, strings.Join(slices.Sorted(maps.Keys(o.versions)), ", "))
	}
	number := func(v string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(v, "v"))
		if err != nil || !strings.HasPrefix(v, "v") {
			return -1
		}
		return n
	}
	var names []string
	for _, v := range sortedKeys(o.versions) {
		if number(v) < 1 {
			return nil, invalid(o.at, "%q is no name of a version", v)
		}
		if number(v) <= number(last) {
			names = append(names, v)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return number(a) - number(b) })
	return names, nil
}

func newHash(alg string) hash.Hash {
	switch alg {
	case "md5":
		return md5.New()
	case "sha1":
		return sha1.New()
	case "sha256":
		return sha256.New()
	case "sha512":
		return sha512.New()
	}
	return nil
}

// readAll reads a file of the listing that is held in memory.
func (l *Listing) readAll(path string, most int64) ([]byte, error) {
	f, err := l.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the listing: %w", err)
	case int64(len(data)) > most:
		return nil, invalid(Place{File: path}, "it has more than %d bytes", most)
	}
	return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), nil
}
