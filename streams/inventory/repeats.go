package inventory

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

const (
	repeatBuckets = 256
	repeatMemory  = 8 << 20 // of all buckets, until they go to disk
)

// Repeats finds the items that are listed more than once. It holds some megabytes in memory and the rest in files
// of a temporary folder, about 60 bytes and the item's name for each row.
type Repeats struct {
	tmp     string // where the folder is made; empty: the system's place
	dir     string // empty until there is one
	seed    maphash.Seed
	buckets [repeatBuckets][]byte
	held    int // bytes of all buckets
	memory  int // how many there may be
	files   []string
	tags    map[string]byte // what is compared: an algorithm, or one of the names below
}

// What is compared besides digests.
const (
	tagSize    = "size"
	tagVersion = "version"
)

// NewRepeats returns an empty one, whose temporary folder will lie in tmp (empty: where the system has them).
// The caller closes it.
func NewRepeats(tmp string) *Repeats {
	return &Repeats{tmp: tmp, memory: repeatMemory, seed: maphash.MakeSeed(), tags: map[string]byte{}}
}

// A Repeat is an item that is listed more than once.
type Repeat struct {
	Item    string // its key
	Rows    int64
	First   Place
	Again   Place  // where it first contradicts, or where it is listed last
	Differs string // what contradicts: an algorithm, size or version; empty: nothing does
}

// Add takes a row: item is the key of its item.
func (r *Repeats) Add(item string, e Entry) error {
	b := binary.AppendUvarint(nil, uint64(len(item)))
	b = append(b, item...)
	b = binary.AppendUvarint(b, uint64(r.file(e.At.File)))
	b = binary.AppendUvarint(b, uint64(e.At.Line))
	facts := make(map[byte]uint64, len(e.Digests)+2)
	for alg, d := range e.Digests {
		facts[r.tag(alg)] = maphash.String(r.seed, d)
	}
	if e.Size >= 0 {
		facts[r.tag(tagSize)] = uint64(e.Size)
	}
	if e.Version != "" {
		facts[r.tag(tagVersion)] = maphash.String(r.seed, e.Version)
	}
	b = append(b, byte(len(facts)))
	for _, tag := range slices.Sorted(maps.Keys(facts)) {
		b = binary.BigEndian.AppendUint64(append(b, tag), facts[tag])
	}
	i := maphash.String(r.seed, item) % repeatBuckets
	r.buckets[i] = append(r.buckets[i], b...)
	if r.held += len(b); r.held > r.memory {
		return r.spill()
	}
	return nil
}

func (r *Repeats) file(name string) int {
	if n := len(r.files); n > 0 && r.files[n-1] == name {
		return n - 1
	}
	if i := slices.Index(r.files, name); i >= 0 {
		return i
	}
	r.files = append(r.files, name)
	return len(r.files) - 1
}

func (r *Repeats) tag(name string) byte {
	t, ok := r.tags[name]
	if !ok {
		t = byte(min(len(r.tags), 255)) // no listing has so many algorithms
		r.tags[name] = t
	}
	return t
}

func (r *Repeats) path(bucket int) string {
	return filepath.Join(r.dir, fmt.Sprintf("bucket-%03d", bucket))
}

// spill moves what is in memory to disk.
func (r *Repeats) spill() (err error) {
	if r.dir == "" {
		if r.dir, err = os.MkdirTemp(r.tmp, "millrace-import-"); err != nil {
			return fmt.Errorf("make a folder for what is listed: %w", err)
		}
	}
	for i, b := range r.buckets {
		f, err := os.OpenFile(r.path(i), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("put aside what is listed: %w", err)
		}
		_, err = f.Write(b)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("put aside what is listed: %w", err)
		}
		r.buckets[i] = b[:0]
	}
	r.held = 0
	return nil
}

// Find calls each with every item that is listed more than once, in no order that means anything.
func (r *Repeats) Find(each func(Repeat) error) error {
	for i := range r.buckets {
		all := r.buckets[i]
		if r.dir != "" {
			disk, err := os.ReadFile(r.path(i))
			if err != nil {
				return fmt.Errorf("read what is listed: %w", err)
			}
			all = append(disk, all...)
		}
		if err := r.findIn(all, each); err != nil {
			return err
		}
	}
	return nil
}

// A listed is one row of a bucket.
type listed struct {
	item  []byte
	at    Place
	order int // in which it was added
	facts []byte
}

func (r *Repeats) findIn(bucket []byte, each func(Repeat) error) error {
	var rows []listed
	for len(bucket) > 0 {
		n, size := binary.Uvarint(bucket)
		row := listed{item: bucket[size : size+int(n)], order: len(rows)}
		bucket = bucket[size+int(n):]
		file, size := binary.Uvarint(bucket)
		bucket = bucket[size:]
		line, size := binary.Uvarint(bucket)
		row.at = Place{r.files[file], int64(line)}
		end := size + 1 + 9*int(bucket[size])
		row.facts, bucket = bucket[size+1:end], bucket[end:]
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b listed) int {
		return cmp.Or(slices.Compare(a.item, b.item), a.order-b.order)
	})
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && slices.Equal(rows[n].item, rows[0].item) {
			n++
		}
		if n > 1 {
			if err := each(r.compare(rows[:n])); err != nil {
				return err
			}
		}
		rows = rows[n:]
	}
	return nil
}

// compare finds the first row that contradicts one before it.
func (r *Repeats) compare(rows []listed) Repeat {
	out := Repeat{Item: string(rows[0].item), Rows: int64(len(rows)), First: rows[0].at, Again: rows[len(rows)-1].at}
	type fact struct {
		value uint64
		at    Place
	}
	known := map[byte]fact{}
	for _, row := range rows {
		for f := row.facts; len(f) > 0; f = f[9:] {
			value := binary.BigEndian.Uint64(f[1:9])
			before, ok := known[f[0]]
			if ok && before.value != value {
				out.First, out.Again, out.Differs = before.at, row.at, r.name(f[0])
				return out
			}
			known[f[0]] = fact{value, row.at}
		}
	}
	return out
}

func (r *Repeats) name(tag byte) string {
	for name, t := range r.tags {
		if t == tag {
			return name
		}
	}
	return ""
}

// Close removes what was put aside.
func (r *Repeats) Close() error {
	if r.dir == "" {
		return nil
	}
	return os.RemoveAll(r.dir)
}

var _ io.Closer = (*Repeats)(nil)
