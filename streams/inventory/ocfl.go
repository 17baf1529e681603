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

	"github.com/millrace/millrace/schemas"
)

// Bounds of an OCFL inventory: its size, and the memory for it, in bytes.
const (
	maxOCFL     = 1 << 30
	maxOCFLHeld = 1 << 30
)

// Upper bounds of the memory for an entry besides its name, in bytes: a map entry in a half-full map, and its value.
const (
	heldPath   = 128
	heldDigest = 160
	heldSum    = 96
)

// An object is an OCFL inventory (ocfl.io/1.1/spec, section 3.5). It is read in parts, so that only the state of one
// version is in memory at a time.
type object struct {
	*Listing
	at               Position
	algorithm, head  string
	manifest, fixity byteRange
	versions         map[string]objectVersion
	held             int64
}

type objectVersion struct {
	created time.Time
	state   byteRange
}

// A byteRange is the position of a JSON object in the file; is reports that it exists.
type byteRange struct {
	offset int64
	is     bool
}

// A content is the information about one digest.
type content struct {
	digest string // in lower case
	known  bool   // the manifest has the digest
	sums   []sum  // digests of the fixity block for any of its content paths
}

// A sum is a further digest of a content.
type sum struct{ alg, hex string }

// ocfl reads the sorted logical paths of one version, each with the time of the version that introduced its content; or
// the content paths of the object.
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

// errStopped reports that the caller has ended the sequence.
var errStopped = errors.New("stopped")

// openOCFL reads the whole file and compares it with its checksum in the file beside it, if there is one.
func (l *Listing) openOCFL() (*object, error) {
	o := &object{Listing: l, at: Position{File: l.path}, versions: map[string]objectVersion{}}
	hashes, wanted, failed := map[string]hash.Hash{}, map[string]string{}, map[string]error{}
	for _, alg := range []string{"md5", "sha1", "sha256", "sha512"} { // the file names the algorithm
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
		return nil, invalid(o.at, "it is not an OCFL inventory: digestAlgorithm, manifest or versions are missing")
	}
	o.algorithm = schemas.AlgorithmName(o.algorithm)
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

// scan determines the positions of all parts.
func (o *object) scan(r io.Reader) error {
	buf := bufio.NewReaderSize(r, 64<<10)
	begin := int64(0)
	if bom, _ := buf.Peek(3); string(bom) == "\xef\xbb\xbf" {
		begin = 3
		_, _ = buf.Discard(3) // Peek has returned them
	}
	j := newJSONReader(transform.NewReader(buf, encoding.UTF8Validator), begin)
	err := j.members(func(name string) (err error) {
		switch name {
		case "digestAlgorithm":
			o.algorithm, err = j.text()
		case "head":
			o.head, err = j.text()
		case "manifest":
			o.manifest, err = j.byteRange()
		case "fixity":
			o.fixity, err = j.byteRange()
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
	return o.readError(j, err)
}

func (o *object) version(j *jsonReader, name string) error {
	v := objectVersion{}
	err := j.members(func(field string) (err error) {
		switch field {
		case "created":
			var text string
			if text, err = j.text(); err == nil {
				v.created, err = time.Parse(time.RFC3339, text)
			}
		case "state":
			v.state, err = j.byteRange()
		default:
			err = j.skip()
		}
		return err
	})
	o.versions[name] = v
	return errors.Join(err, o.reserve(len(name)+heldPath))
}

// readError converts an error of reading the file.
func (o *object) readError(j *jsonReader, err error) error {
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
	case errors.Is(err, errTooLong):
		return invalid(o.at, "a text in it is longer than %d bytes", maxLine)
	case errors.As(err, &syntax), errors.As(err, &form), errors.As(err, &parse),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		at := o.at
		at.Line = o.lineOf(j.offset())
		return invalid(at, "it is not the JSON of an OCFL inventory: %w", err)
	}
	return fmt.Errorf("read the listing: %w", err)
}

// lineOf returns the line at an offset; 0 if it cannot be determined.
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

// reserve counts n bytes of memory. It returns an error at the limit.
func (o *object) reserve(n int) error {
	if o.held += int64(n); o.held > maxOCFLHeld {
		return invalid(o.at, "it has so many names that more than %d bytes of memory are needed", maxOCFLHeld)
	}
	return nil
}

// lists reads an object that has lists of strings as values. It calls f with each string and the name of its list.
func (o *object) lists(of byteRange, f func(name, text string) error) error {
	return o.part(of, func(j *jsonReader) error { return j.lists(f) })
}

// part reads a part of the file again.
func (o *object) part(of byteRange, read func(j *jsonReader) error) error {
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
	j := newJSONReader(f.f, of.offset) // not counted as progress: scan has counted it
	return o.readError(j, read(j))
}

// sums returns the digests of the fixity block, by content path.
func (o *object) sums() (map[string][]sum, error) {
	all := map[string][]sum{}
	err := o.part(o.fixity, func(j *jsonReader) error {
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
				return o.reserve(len(path) + len(hex) + heldPath + heldSum)
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

// A pathState is the state of a logical path.
type pathState struct {
	content *content
	// since is the version that introduced the content, and last the last version that has it, counted from 0.
	since, last int32
	twice       bool // the last version lists the path twice
}

// logical yields the paths of one version.
func (o *object) logical(last string, yield func(Entry, error) bool) error {
	names, err := o.versionsUpTo(last)
	if err != nil {
		return err
	}
	contents, paths := map[string]*content{}, map[string]pathState{}
	for i, name := range names {
		v := int32(i)
		err := o.lists(o.versions[name].state, func(d, path string) error {
			c, err := o.content(contents, d)
			before, known := paths[path]
			now := pathState{content: c, since: v, last: v, twice: known && before.last == v}
			if known && before.last == v-1 && before.content == c {
				now.since = before.since
			}
			paths[path] = now
			if !known {
				err = errors.Join(err, o.reserve(len(path)+heldPath))
			}
			return err
		})
		if err != nil {
			return err
		}
		for path, p := range paths {
			if p.last != v {
				delete(paths, path)
				o.held -= int64(len(path) + heldPath)
			}
		}
	}
	if err := o.gather(func(d, path string) (*content, error) { return contents[d], nil }); err != nil {
		return err
	}
	for _, path := range sortedKeys(paths) {
		p := paths[path]
		e, err := o.entry(path, p.content)
		switch {
		case err != nil:
		case p.twice:
			err = &Fault{o.at, fmt.Sprintf("%q occurs in the version's state more than once", path)}
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
	contents, paths := map[string]*content{}, map[string]*content{}
	err := o.gather(func(d, path string) (*content, error) {
		c, err := o.content(contents, d)
		if err != nil {
			return nil, err
		}
		if _, ok := paths[path]; ok {
			fault := &Fault{o.at, fmt.Sprintf("%q occurs in the manifest more than once", path)}
			if !yield(Entry{At: o.at, Item: path}, fault) {
				return nil, errStopped
			}
			return nil, nil
		}
		paths[path] = c
		return c, o.reserve(len(path) + heldPath)
	})
	if err != nil {
		return err
	}
	for _, path := range sortedKeys(paths) {
		if !yield(o.entry(path, paths[path])) {
			return errStopped
		}
	}
	return nil
}

// content returns the content of a digest. All paths with the digest share it.
func (o *object) content(all map[string]*content, d string) (*content, error) {
	if c := all[d]; c != nil {
		return c, nil
	}
	c := &content{digest: d}
	all[d] = c
	return c, o.reserve(len(d) + heldDigest)
}

// gather reads the manifest and adds the digests of the fixity block to contents. It calls of for each row of the
// manifest to get the content, or nil to skip the row.
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

// entry returns the entry for a path with a content.
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

// versionsUpTo returns the names of the versions up to last, the oldest first. If last is empty, it is the head.
func (o *object) versionsUpTo(last string) ([]string, error) {
	if last == "" {
		last = o.head
	}
	if _, ok := o.versions[last]; !ok {
		return nil, invalid(o.at, "there is no version %q; there are %s",
			last, strings.Join(slices.Sorted(maps.Keys(o.versions)), ", "))
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
			return nil, invalid(o.at, "%q is not the name of a version", v)
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

// readAll reads a file of the listing into memory. It returns an error if the file has more than most bytes.
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
		return nil, invalid(Position{File: path}, "it has more than %d bytes", most)
	}
	return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), nil
}
