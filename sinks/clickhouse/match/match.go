// Package match compares two large multisets of keys that stand at places in Kafka: the records of a
// topic, and the rows that a table has of it.
//
// Every entry that was added is seen once, with all others of its key. Entries wait in a
// tally.Book, 32 bytes each, so memory does not grow with their number.
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

// A Key is what is compared.
type Key [16]byte

// An At is a place in a topic.
type At struct {
	Incarnation uint32
	Partition   uint16
	Offset      uint64
}

// Compare orders places by incarnation, partition and offset.
func (a At) Compare(b At) int {
	return cmp.Or(cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
}

// A Side is one of the two that are compared.
type Side uint8

// The sides.
const (
	Topic Side = iota
	Table
)

// An Entry is one record, or one row.
type Entry struct {
	Key  Key
	At   At
	Mark uint16 // what else the caller wants to know of it; below 32,768
}

const (
	entrySize = 32
	sideBit   = 1 << 15
)

// A Book holds the entries of one comparison. It is for one goroutine.
type Book struct{ entries *tally.Book }

// New returns an empty Book; the caller closes it.
func New() *Book { return &Book{tally.New("")} }

// Close removes the temporary file.
func (b *Book) Close() error { return b.entries.Close() }

// Add adds one entry.
func (b *Book) Add(side Side, e Entry) error {
	if e.Mark >= sideBit {
		return fmt.Errorf("mark %d is too large", e.Mark)
	}
	var raw [entrySize]byte
	copy(raw[:], e.Key[:])
	binary.BigEndian.PutUint64(raw[16:], e.At.Offset)
	binary.BigEndian.PutUint32(raw[24:], e.At.Incarnation)
	binary.BigEndian.PutUint16(raw[28:], e.At.Partition)
	binary.BigEndian.PutUint16(raw[30:], e.Mark|uint16(side)<<15)
	return b.entries.Add(e.Key[:], raw[:])
}

// Each calls f once for each key, with the entries of either side in the order of their
// places; one of the two may be empty. f must not keep them. done is called after each part of the keys with the
// number of parts so far and in all.
func (b *Book) Each(ctx context.Context, f func(topic, table []Entry) error, done func(part, parts int)) error {
	var all []Entry
	return b.entries.Each(ctx, func(raw []byte) error {
		all = decode(slices.Grow(all[:0], len(raw)/entrySize), raw)
		slices.SortFunc(all, func(x, y Entry) int {
			return cmp.Or(bytes.Compare(x.Key[:], y.Key[:]), cmp.Compare(x.Mark&sideBit, y.Mark&sideBit), x.At.Compare(y.At))
		})
		return eachKey(all, f)
	}, done)
}

func decode(all []Entry, raw []byte) []Entry {
	for ; len(raw) >= entrySize; raw = raw[entrySize:] {
		var e Entry
		copy(e.Key[:], raw)
		e.At.Offset = binary.BigEndian.Uint64(raw[16:])
		e.At.Incarnation = binary.BigEndian.Uint32(raw[24:])
		e.At.Partition = binary.BigEndian.Uint16(raw[28:])
		e.Mark = binary.BigEndian.Uint16(raw[30:])
		all = append(all, e)
	}
	return all
}

func eachKey(all []Entry, f func(topic, table []Entry) error) error {
	for len(all) > 0 {
		n, m := 0, 0
		for n < len(all) && all[n].Key == all[0].Key {
			if all[n].Mark&sideBit == 0 {
				m = n + 1
			}
			all[n].Mark &^= sideBit
			n++
		}
		if err := f(all[:m], all[m:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}
