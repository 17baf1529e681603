package inventory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxPending is how many paths may wait for the other manifests of their bag, which list them elsewhere.
const maxPending = 1 << 20

// A bag is what bagit.txt and the names of its files say.
type bag struct {
	dir       string
	version   string
	charset   string
	manifests []string // payload manifests first
	tags      int      // how many of them are tag manifests
}

// bag reads the manifests of a bag side by side: each path once, with the digests of all of them (RFC 8493,
// section 2.1.3). Since 1.0 every payload manifest lists every file; before, a file stood in at least one.
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
		b.manifests = []string{l.path} // without its bag, by the rules of 1.0
		return b, nil
	case err != nil:
		return nil, err
	}
	at := Place{File: filepath.Join(b.dir, "bagit.txt")}
	for _, f := range fields {
		switch strings.ToLower(f.name) {
		case "bagit-version":
			b.version = f.value
		case "tag-file-character-encoding":
			b.charset = f.value
		}
	}
	if !slices.Contains([]string{"0.93", "0.94", "0.95", "0.96", "0.97", "1.0"}, b.version) {
		return nil, invalid(at, "BagIt %q is not read; 0.93 to 0.97 and 1.0 are", b.version)
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

// A tag is one line "Name: value" of a tag file, with those that continue it.
type tag struct {
	at          Place
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
			return nil, whole(err)
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

// checkOxum compares the number of payload files with that in bag-info.txt, where there is one.
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

// A merger puts together what several manifests say of one path.
type merger struct {
	files   []string
	pending map[string]*half
	going   bool
	yield   func(Entry, error) bool
	count   int64 // paths that were told, right or wrong
}

// A half is an entry that not all manifests have told of.
type half struct {
	Entry
	seen []bool
	n    int
}

// merge yields the entries of manifests; going is false where the reading has ended.
func (l *Listing) merge(b *bag, files []string, payload bool, yield func(Entry, error) bool) (count int64, going bool) {
	m := &merger{files: files, pending: map[string]*half{}, going: true, yield: yield}
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
		m.rest(b.version == "1.0")
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
			m.yield(Entry{}, invalid(e.At, "the manifests of the bag list their files in too different an order; sort them"))
			m.going = false
			return
		}
		h = &half{Entry: e, seen: make([]bool, len(m.files))}
		m.pending[e.Item] = h
	} else if h.seen[i] {
		m.going = m.yield(e, &Fault{e.At, fmt.Sprintf("%q is listed more than once", e.Item)})
		return
	}
	for alg, d := range e.Digests {
		h.Digests[alg] = d
	}
	if !slices.Contains(h.seen[:i], true) {
		h.At = e.At // a row stands where the first manifest has it
	}
	h.seen[i] = true
	if h.n++; h.n == len(m.files) {
		delete(m.pending, e.Item)
		m.count++
		m.going = m.yield(h.Entry, nil)
	}
}

// rest yields what some manifests did not tell of.
func (m *merger) rest(complete bool) {
	left := make([]*half, 0, len(m.pending))
	for _, h := range m.pending {
		left = append(left, h)
	}
	slices.SortFunc(left, func(a, b *half) int {
		if a.At.File != b.At.File {
			return strings.Compare(a.At.File, b.At.File)
		}
		return int(a.At.Line - b.At.Line)
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

// manifest reads one manifest: lines "HEX PATH", blanks between them; an asterisk, as md5sum writes one, is no part of
// the path.
func (l *Listing) manifest(b *bag, path string, payload bool) iter.Seq2[Entry, error] {
	alg := payloadManifest.FindStringSubmatch(strings.TrimPrefix(base(path), "tag"))[1]
	return l.text(path, b.charset, func(in *input) iter.Seq2[Entry, error] { return manifestLines(in, alg, b.version, payload) })
}

func manifestLines(in *input, alg, version string, payload bool) iter.Seq2[Entry, error] {
	return in.each(func(line string) (Entry, error) {
		n := hexRun(line)
		name := strings.TrimLeft(line[n:], " \t")
		if n == 0 || len(name) == len(line)-n || name == "" {
			return Entry{}, in.fault("it is no line of a manifest: want HEX, a space, PATH")
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

// unpercent undoes how paths are written: LF and CR as %0A and %0D, since 1.0 the percent sign too, as %25. Any other
// percent sign stands for itself: nothing else is encoded, whatever the tool.
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
