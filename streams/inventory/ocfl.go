package inventory

import (
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
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxOCFL is the size of the largest OCFL inventory that is read; it is held in memory.
const maxOCFL = 1 << 30

// An object is an OCFL inventory (ocfl.io/1.1/spec, section 3.5), as far as it is read.
type object struct {
	ID        string                         `json:"id"`
	Algorithm string                         `json:"digestAlgorithm"`
	Head      string                         `json:"head"`
	Manifest  map[string][]string            `json:"manifest"`
	Fixity    map[string]map[string][]string `json:"fixity"`
	Versions  map[string]struct {
		Created time.Time           `json:"created"`
		State   map[string][]string `json:"state"`
	} `json:"versions"`
}

// ocfl reads the logical paths of one version, sorted, each with the time of the version that gave it its
// content; or the content paths of the object.
func (l *Listing) ocfl() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		o, err := l.openOCFL()
		if err != nil {
			yield(Entry{}, err)
			return
		}
		at := Place{File: l.path}
		o.entries(at, l.opts, yield)
	}
}

func (o *object) entries(at Place, opts Options, yield func(Entry, error) bool) {
	extra, err := o.fixity(at)
	switch {
	case err != nil:
		yield(Entry{}, err)
	case opts.ContentPaths:
		o.contents(at, extra, yield)
	default:
		o.logical(at, opts.Version, extra, yield)
	}
}

func (l *Listing) openOCFL() (*object, error) {
	at := Place{File: l.path}
	data, err := l.readAll(l.path, maxOCFL)
	if err != nil {
		return nil, err
	}
	o, err := parseOCFL(at, data)
	if err != nil {
		return nil, err
	}
	return o, l.checkSidecar(o, data)
}

func parseOCFL(at Place, data []byte) (*object, error) {
	o := new(object)
	if !utf8.Valid(data) {
		return nil, invalid(at, "it is not UTF-8")
	}
	if err := json.Unmarshal(data, o); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at.Line = int64(1 + bytes.Count(data[:min(len(data), int(syntax.Offset))], []byte("\n")))
		}
		return nil, invalid(at, "it is not the JSON of an OCFL inventory: %w", err)
	}
	if o.Algorithm == "" || len(o.Versions) == 0 || o.Manifest == nil {
		return nil, invalid(at, "it is no OCFL inventory: digestAlgorithm, manifest or versions are missing")
	}
	o.Algorithm = algorithmOf(o.Algorithm)
	return o, nil
}

// checkSidecar compares the inventory with its sum in the file beside it, where there is one.
func (l *Listing) checkSidecar(o *object, data []byte) error {
	path := l.path + "." + o.Algorithm
	side, err := l.readAll(path, maxLine)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	h := newHash(o.Algorithm)
	if h == nil {
		return nil
	}
	h.Write(data)
	got := hex.EncodeToString(h.Sum(nil))
	if want, _, _ := strings.Cut(strings.TrimSpace(string(side)), " "); !strings.EqualFold(strings.TrimSpace(want), got) {
		return invalid(Place{File: l.path}, "its %s is %s, and %s says %.200q", o.Algorithm, got, base(path), want)
	}
	return nil
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

// fixity is the fixity block, by content path: algorithms and digests.
func (o *object) fixity(at Place) (map[string]Entry, error) {
	all := map[string]Entry{}
	for _, alg := range slices.Sorted(maps.Keys(o.Fixity)) {
		for _, d := range slices.Sorted(maps.Keys(o.Fixity[alg])) {
			for _, path := range o.Fixity[alg][d] {
				e := all[path]
				if reason := e.add(alg, "", d); reason != "" {
					return nil, invalid(at, "fixity of %q: %s", path, reason)
				}
				all[path] = e
			}
		}
	}
	return all, nil
}

// entry is what the object says of a path whose content has a digest. Digests of the fixity block come from the
// first of its content paths that has some.
func (o *object) entry(at Place, path, d string, extra map[string]Entry) (Entry, error) {
	e := Entry{At: at, Item: path, Size: -1}
	if reason := e.add(o.Algorithm, "", d); reason != "" {
		return e, &Fault{at, fmt.Sprintf("%q: %s", path, reason)}
	}
	for _, content := range o.Manifest[d] {
		for _, alg := range extra[content].Digests.Algorithms() {
			if reason := e.add(alg, "", extra[content].Digests[alg]); reason != "" {
				return e, &Fault{at, fmt.Sprintf("%q: %s", path, reason)}
			}
		}
	}
	return e, nil
}

func (o *object) contents(at Place, extra map[string]Entry, yield func(Entry, error) bool) {
	digests := map[string]string{}
	for _, d := range slices.Sorted(maps.Keys(o.Manifest)) {
		for _, path := range o.Manifest[d] {
			if _, ok := digests[path]; ok {
				if !yield(Entry{At: at, Item: path}, &Fault{at, fmt.Sprintf("%q stands in the manifest more than once", path)}) {
					return
				}
				continue
			}
			digests[path] = d
		}
	}
	for _, path := range slices.Sorted(maps.Keys(digests)) {
		if !yield(o.entry(at, path, digests[path], extra)) {
			return
		}
	}
}

// versions are the names of versions up to last (empty: the head), the oldest first.
func (o *object) versions(at Place, last string) ([]string, error) {
	if last == "" {
		last = o.Head
	}
	if _, ok := o.Versions[last]; !ok {
		return nil, invalid(at, "there is no version %q; there are %s", last, strings.Join(slices.Sorted(maps.Keys(o.Versions)), ", "))
	}
	number := func(v string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(v, "v"))
		if err != nil || !strings.HasPrefix(v, "v") {
			return -1
		}
		return n
	}
	var names []string
	for v := range o.Versions {
		if number(v) < 1 {
			return nil, invalid(at, "%q is no name of a version", v)
		}
		if number(v) <= number(last) {
			names = append(names, v)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return number(a) - number(b) })
	return names, nil
}

func (o *object) logical(at Place, version string, extra map[string]Entry, yield func(Entry, error) bool) {
	names, err := o.versions(at, version)
	if err != nil {
		yield(Entry{}, err)
		return
	}
	type content struct {
		digest string
		since  time.Time
	}
	state := map[string]content{}
	var twice []string
	for _, v := range names {
		now := map[string]content{}
		twice = twice[:0]
		for _, d := range slices.Sorted(maps.Keys(o.Versions[v].State)) {
			for _, path := range o.Versions[v].State[d] {
				c := content{d, o.Versions[v].Created}
				if before := state[path]; strings.EqualFold(before.digest, d) {
					c.since = before.since
				}
				if _, ok := now[path]; ok {
					twice = append(twice, path)
				}
				now[path] = c
			}
		}
		state = now
	}
	for _, path := range slices.Sorted(maps.Keys(state)) {
		e, err := o.entry(at, path, state[path].digest, extra)
		switch {
		case err != nil:
		case slices.Contains(twice, path):
			err = &Fault{at, fmt.Sprintf("%q stands in the version's state more than once", path)}
		case o.Manifest[state[path].digest] == nil:
			err = &Fault{at, fmt.Sprintf("%q has content %.80q, which the manifest does not have", path, state[path].digest)}
		}
		e.Time = state[path].since
		if !yield(e, err) {
			return
		}
	}
}
