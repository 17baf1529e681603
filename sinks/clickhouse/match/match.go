// Package match compares large multisets of keys from three sides: the records of a topic, the rows in the view of a
// table, and the rows in the table.
//
// Every key is visited once, with all its entries. Entries are kept in a tally.Multiset, 40 bytes each, so memory does
// not grow with their number.
package match

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/tally"
)

// A Key identifies a message.
type Key [16]byte

// A Location is the position of a record in a topic.
type Location struct {
	Incarnation uint32
	Partition   uint16
	Offset      uint64
}

// Compare orders locations by incarnation, partition and offset.
func (a Location) Compare(b Location) int {
	return cmp.Or(cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Partition, b.Partition),
		cmp.Compare(a.Offset, b.Offset))
}

// A Side is the source of an entry.
type Side uint8

// The sides of a comparison.
const (
	Topic Side = iota
	View
	Table
)

// An Entry is a record or a row.
type Entry struct {
	Key      Key
	Location Location
	Tag      uint16 // for use by the caller; below 16,384
	Hash     uint64 // the sum of the row that the record makes, or of the stored row
}

const (
	entrySize = 40
	sideShift = 14
	maxTag    = 1<<sideShift - 1
)

// A Comparison holds entries of all sides. It is not safe for concurrent use.
type Comparison struct{ entries *tally.Multiset }

// New returns an empty Comparison. The caller closes it.
func New() *Comparison { return &Comparison{tally.New("")} }

// Close removes the temporary file.
func (b *Comparison) Close() error { return b.entries.Close() }

// Add adds an entry. A tag that is too large is an error.
func (b *Comparison) Add(side Side, e Entry) error {
	if e.Tag > maxTag {
		return fmt.Errorf("mark %d is too large", e.Tag)
	}
	var raw [entrySize]byte
	copy(raw[:], e.Key[:])
	binary.BigEndian.PutUint64(raw[16:], e.Location.Offset)
	binary.BigEndian.PutUint32(raw[24:], e.Location.Incarnation)
	binary.BigEndian.PutUint16(raw[28:], e.Location.Partition)
	binary.BigEndian.PutUint16(raw[30:], e.Tag|uint16(side)<<sideShift)
	binary.BigEndian.PutUint64(raw[32:], e.Hash)
	return b.entries.Add(e.Key[:], raw[:])
}

// Each calls f once for each key, with the entries of each side in the order of their locations. A side may be empty. f
// must not keep the slices. done is called with the number of finished parts of the keys and the number of all parts.
func (b *Comparison) Each(
	ctx context.Context, f func(topic, view, table []Entry) error, done func(part, parts int),
) error {
	var all []Entry
	return b.entries.Each(ctx, func(raw []byte) error {
		all = decode(slices.Grow(all[:0], len(raw)/entrySize), raw)
		slices.SortFunc(all, func(x, y Entry) int {
			return cmp.Or(bytes.Compare(x.Key[:], y.Key[:]), cmp.Compare(x.Tag>>sideShift, y.Tag>>sideShift),
				x.Location.Compare(y.Location))
		})
		return eachKey(all, f)
	}, done)
}

func decode(all []Entry, raw []byte) []Entry {
	for ; len(raw) >= entrySize; raw = raw[entrySize:] {
		var e Entry
		copy(e.Key[:], raw)
		e.Location.Offset = binary.BigEndian.Uint64(raw[16:])
		e.Location.Incarnation = binary.BigEndian.Uint32(raw[24:])
		e.Location.Partition = binary.BigEndian.Uint16(raw[28:])
		e.Tag = binary.BigEndian.Uint16(raw[30:])
		e.Hash = binary.BigEndian.Uint64(raw[32:])
		all = append(all, e)
	}
	return all
}

func eachKey(all []Entry, f func(topic, view, table []Entry) error) error {
	for len(all) > 0 {
		n := 0
		var ends [Table + 1]int
		for n < len(all) && all[n].Key == all[0].Key {
			for side := Side(all[n].Tag >> sideShift); side <= Table; side++ {
				ends[side] = n + 1
			}
			all[n].Tag &= maxTag
			n++
		}
		if err := f(all[:ends[Topic]], all[ends[Topic]:ends[View]], all[ends[View]:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}
