package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxPending is the largest number of paths that some manifests of a bag have listed and others have not yet.
const maxPending = 1 << 20

// A bag holds the contents of bagit.txt and the names of the manifests.
type bag struct {
	dir       string
	version   string
	charset   string
	manifests []string // payload manifests first
	tags      int      // number of tag manifests
}

// bag reads the manifests of a bag in parallel and returns each path once, with the digests of all manifests (RFC 8493,
// section 2.1.3). Since version 1.0 every payload manifest must list every file; before, one had to.
func (l *Listing) bag() iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		b, err := l.openBag()
		if err != nil {
			yield(Entry{}, err)
			return
		}
		payload, tags := b.manifests[:len(b.manifests)-b.tags], b.manifests[len(b.manifests)-b.tags:]
		count, going := l.merge(b, payload, true, yield)
		if going {
			going = l.checkOxum(b, count, yield)
		}
		if going && len(tags) > 0 {
			l.merge(b, tags, false, yield)
		}
	}
}

func (l *Listing) openBag() (*bag, error) {
	b := &bag{dir: filepath.Dir(l.path), version: "1.0"}
	fields, err := l.tags(filepath.Join(b.dir, "bagit.txt"), "")
	switch {
	case errors.Is(err, fs.ErrNotExist) && payloadManifest.MatchString(base(l.path)):
		b.manifests = []string{l.path} // a manifest without its bag: version 1.0
		return b, nil
	case err != nil:
		return nil, err
	}
	at := Position{File: filepath.Join(b.dir, "bagit.txt")}
	for _, f := range fields {
		switch strings.ToLower(f.name) {
		case "bagit-version":
			b.version = f.value
		case "tag-file-character-encoding":
			b.charset = f.value
		}
	}
	if !slices.Contains([]string{"0.93", "0.94", "0.95", "0.96", "0.97", "1.0"}, b.version) {
		return nil, invalid(at, "BagIt %q is not supported; supported are 0.93 to 0.97 and 1.0", b.version)
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, fmt.Errorf("read the bag: %w", err)
	}
	for _, e := range entries {
		if payloadManifest.MatchString(e.Name()) {
			b.manifests = append(b.manifests, filepath.Join(b.dir, e.Name()))
		}
	}
	if len(b.manifests) == 0 {
		return nil, invalid(at, "the bag has no payload manifest")
	}
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), "tag"); ok && l.opts.TagManifests && payloadManifest.MatchString(rest) {
			b.manifests, b.tags = append(b.manifests, filepath.Join(b.dir, e.Name())), b.tags+1
		}
	}
	return b, nil
}

// A tag is one line "Name: value" of a tag file, with its continuation lines.
type tag struct {
	at          Position
	name, value string
}

// tags reads bagit.txt or bag-info.txt.
func (l *Listing) tags(path, charset string) (all []tag, err error) {
	f, err := l.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in, err := newInput(path, f, charset)
	if err != nil {
		return nil, err
	}
	for {
		line, err := in.next()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, wholeListing(err)
		}
		name, value, ok := strings.Cut(string(line), ":")
		switch {
		case len(line) > 0 && (line[0] == ' ' || line[0] == '\t') && len(all) > 0:
			all[len(all)-1].value += " " + strings.TrimSpace(string(line))
		case ok && len(all) < 10_000:
			all = append(all, tag{in.at(), strings.TrimSpace(name), strings.TrimSpace(value)})
		}
	}
}

// checkOxum compares the number of payload files with the one in bag-info.txt, if there is one.
func (l *Listing) checkOxum(b *bag, count int64, yield func(Entry, error) bool) bool {
	fields, err := l.tags(filepath.Join(b.dir, "bag-info.txt"), b.charset)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		yield(Entry{}, err)
		return false
	}
	for _, f := range fields {
		if !strings.EqualFold(f.name, "Payload-Oxum") {
			continue
		}
		octets, streams, _ := strings.Cut(f.value, ".")
		_, bad := strconv.ParseUint(octets, 10, 63)
		n, err := strconv.ParseInt(streams, 10, 64)
		reason := ""
		switch {
		case bad != nil || err != nil:
			reason = fmt.Sprintf("Payload-Oxum %q is not OCTETS.FILES", f.value)
		case n != count:
			reason = fmt.Sprintf("Payload-Oxum says %d files, and the manifests list %d", n, count)
		}
		if reason != "" && !yield(Entry{At: f.at}, &Fault{f.at, reason}) {
			return false
		}
	}
	return true
}

// A merger combines the entries of several manifests for each path.
type merger struct {
	files   []string
	pending map[string]*partialEntry
	going   bool
	yield   func(Entry, error) bool
	count   int64 // paths so far, faulty ones included
}

// A partialEntry is an entry that some manifests have not listed yet.
type partialEntry struct {
	Entry
	seen []bool
	n    int
}

// merge yields the entries of manifests. going is false if the caller or an error has ended the sequence.
func (l *Listing) merge(b *bag, files []string, payload bool, yield func(Entry, error) bool) (count int64, going bool) {
	m := &merger{files: files, pending: map[string]*partialEntry{}, going: true, yield: yield}
	var (
		pulls []func() (Entry, error, bool)
		stops []func()
	)
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for _, file := range files {
		next, stop := iter.Pull2(l.manifest(b, file, payload))
		pulls, stops = append(pulls, next), append(stops, stop)
	}
	for open := len(pulls); open > 0 && m.going; {
		for i, next := range pulls {
			if next == nil {
				continue
			}
			e, err, ok := next()
			if !ok {
				pulls[i] = nil
				open--
				continue
			}
			if m.add(i, e, err); !m.going {
				break
			}
		}
	}
	if m.going {
		m.flush(b.version == "1.0")
	}
	return m.count, m.going
}

func (m *merger) add(i int, e Entry, err error) {
	var f *Fault
	switch {
	case err != nil:
		m.count++
		m.going = m.yield(e, err) && errors.As(err, &f)
		return
	case len(m.files) == 1:
		m.count++
		m.going = m.yield(e, nil)
		return
	}
	h := m.pending[e.Item]
	if h == nil {
		if len(m.pending) == maxPending {
			m.yield(Entry{},
				invalid(e.At, "the manifests of the bag list their files in very different orders; sort them"))
			m.going = false
			return
		}
		h = &partialEntry{Entry: e, seen: make([]bool, len(m.files))}
		m.pending[e.Item] = h
	} else if h.seen[i] {
		m.going = m.yield(e, &Fault{e.At, fmt.Sprintf("%q is listed more than once", e.Item)})
		return
	}
	for alg, d := range e.Digests {
		h.Digests[alg] = d
	}
	if !slices.Contains(h.seen[:i], true) {
		h.At = e.At // the position is the one in the first manifest
	}
	h.seen[i] = true
	if h.n++; h.n == len(m.files) {
		delete(m.pending, e.Item)
		m.count++
		m.going = m.yield(h.Entry, nil)
	}
}

// flush yields the entries that some manifests do not list.
func (m *merger) flush(complete bool) {
	left := slices.SortedFunc(maps.Values(m.pending), func(a, b *partialEntry) int {
		return cmp.Or(cmp.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line))
	})
	for _, h := range left {
		m.count++
		var err error
		if complete {
			i := slices.Index(h.seen, false)
			err = &Fault{h.At, fmt.Sprintf("%q is not in %s, or not as often", h.Item, base(m.files[i]))}
		}
		if m.going = m.yield(h.Entry, err); !m.going {
			return
		}
	}
}

// manifest reads one manifest: lines "HEX PATH", separated by blanks. An asterisk before the path, as md5sum writes it,
// is not a part of the path.
func (l *Listing) manifest(b *bag, path string, payload bool) iter.Seq2[Entry, error] {
	alg := payloadManifest.FindStringSubmatch(strings.TrimPrefix(base(path), "tag"))[1]
	return l.text(path, b.charset, func(in *input) iter.Seq2[Entry, error] {
		return manifestLines(in, alg, b.version, payload)
	})
}

func manifestLines(in *input, alg, version string, payload bool) iter.Seq2[Entry, error] {
	return in.each(func(line string) (Entry, error) {
		n := hexRun(line)
		name := strings.TrimLeft(line[n:], " \t")
		if n == 0 || len(name) == len(line)-n || name == "" {
			return Entry{}, in.fault("it is not a line of a manifest: want HEX, a space, PATH")
		}
		name = unpercent(strings.TrimPrefix(name, "*"), version == "1.0")
		e := Entry{Item: strings.TrimPrefix(name, "./"), Size: -1}
		if reason := e.add(alg, "", line[:n]); reason != "" {
			return e, in.fault("%s", reason)
		}
		if slash := strings.ReplaceAll(e.Item, `\`, "/"); payload && !strings.HasPrefix(slash, "data/") {
			return e, in.fault("%q is not below data/", e.Item)
		}
		return e, nil
	})
}

// unpercent decodes a path: %0A and %0D are LF and CR and, if sign is true (since version 1.0), %25 is the percent
// sign. Any other percent sign stands for itself, because nothing else is encoded.
func unpercent(name string, sign bool) string {
	if !strings.Contains(name, "%") {
		return name
	}
	pairs := []string{"%0A", "\n", "%0a", "\n", "%0D", "\r", "%0d", "\r"}
	if sign {
		pairs = append(pairs, "%25", "%")
	}
	return strings.NewReplacer(pairs...).Replace(name)
}
