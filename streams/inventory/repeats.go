package inventory

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/tally"
)

// repeats finds the items that are listed more than once. It keeps the rows in a temporary file (tally), with about 60
// bytes and the name of the item per row.
type repeats struct {
	rows  *tally.Multiset
	seed  maphash.Seed
	files []string
	tags  map[string]byte // tags of the compared values: an algorithm, or one of the names below
}

// The compared values besides digests.
const (
	tagSize    = "size"
	tagVersion = "version"
)

// newRepeats returns empty repeats with a temporary file in dir, or in os.TempDir if dir is empty. The caller must
// close it.
func newRepeats(dir string) *repeats {
	return &repeats{rows: tally.New(dir), seed: maphash.MakeSeed(), tags: map[string]byte{}}
}

// A repeat is an item that is listed more than once.
type repeat struct {
	Item    string // key of the item
	Rows    int64
	First   Position
	Again   Position // the first contradicting row, or else the last row
	Differs string   // the contradicting value: an algorithm, size or version; empty if there is none
}

// Add adds a row. item is the key of its item.
func (r *repeats) Add(item string, e Entry) error {
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
	if err := r.rows.Add([]byte(item), b); err != nil {
		return fmt.Errorf("write a listed row to a temporary file: %w", err)
	}
	return nil
}

func (r *repeats) file(name string) int {
	if n := len(r.files); n > 0 && r.files[n-1] == name {
		return n - 1
	}
	if i := slices.Index(r.files, name); i >= 0 {
		return i
	}
	r.files = append(r.files, name)
	return len(r.files) - 1
}

func (r *repeats) tag(name string) byte {
	t, ok := r.tags[name]
	if !ok {
		t = byte(min(len(r.tags), 255)) // no listing has so many algorithms
		r.tags[name] = t
	}
	return t
}

// Find calls each for every item that is listed more than once, in no particular order.
func (r *repeats) Find(ctx context.Context, each func(repeat) error) error {
	return r.rows.Each(ctx, func(part []byte) error { return r.findIn(part, each) }, nil)
}

// A listed is one row in a part of the temporary file.
type listed struct {
	item  []byte
	at    Position
	order int // order of Add
	facts []byte
}

func (r *repeats) findIn(part []byte, each func(repeat) error) error {
	var rows []listed
	for len(part) > 0 {
		n, size := binary.Uvarint(part)
		row := listed{item: part[size : size+int(n)], order: len(rows)}
		part = part[size+int(n):]
		file, size := binary.Uvarint(part)
		part = part[size:]
		line, size := binary.Uvarint(part)
		row.at = Position{r.files[file], int64(line)}
		end := size + 1 + 9*int(part[size])
		row.facts, part = part[size+1:end], part[end:]
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

// compare finds the first row that contradicts an earlier one.
func (r *repeats) compare(rows []listed) repeat {
	out := repeat{Item: string(rows[0].item), Rows: int64(len(rows)), First: rows[0].at, Again: rows[len(rows)-1].at}
	type fact struct {
		value uint64
		at    Position
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

func (r *repeats) name(tag byte) string {
	for name, t := range r.tags {
		if t == tag {
			return name
		}
	}
	return ""
}

// Close removes the temporary file.
func (r *repeats) Close() error { return r.rows.Close() }

var _ io.Closer = (*repeats)(nil)
