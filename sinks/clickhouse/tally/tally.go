// Package tally compares two large multisets of keys that stand at places in Kafka: what a
// topic holds, and what a table has of it.
//
// It promises that every entry that was added is seen once, with all others of its key, in
// memory that does not grow with their number but by a few bytes for each 16 KiB: entries wait
// in one temporary file (32 bytes each, in os.TempDir), cut by their keys into parts of which one
// at a time is read back. The file has no name any more once it is open, so that no kill leaves it.
package tally

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
)

// A Key tells what is compared.
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
	buckets   = 1024
	entrySize = 32
	chunkSize = 16 << 10 // of entries that lie together in the file
	sideBit   = 1 << 15
)

// A Book holds the entries of one comparison. It is for one goroutine.
type Book struct {
	file    *os.File // nil until something is too much for memory
	end     int64
	buckets [buckets]bucket
	err     error // the first write that went wrong
}

type bucket struct {
	chunks []int64 // where its full chunks begin in the file
	open   []byte
}

// New returns an empty Book; the caller closes it.
func New() *Book { return new(Book) }

// Close lets go of the temporary file.
func (b *Book) Close() error {
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}

// Add adds one entry.
func (b *Book) Add(side Side, e Entry) error {
	if b.err != nil {
		return b.err
	}
	if e.Mark >= sideBit {
		return fmt.Errorf("mark %d is too large", e.Mark)
	}
	k := &b.buckets[bucketOf(e.Key)]
	k.open = append(k.open, e.Key[:]...)
	k.open = binary.BigEndian.AppendUint64(k.open, e.At.Offset)
	k.open = binary.BigEndian.AppendUint32(k.open, e.At.Incarnation)
	k.open = binary.BigEndian.AppendUint16(k.open, e.At.Partition)
	k.open = binary.BigEndian.AppendUint16(k.open, e.Mark|uint16(side)<<15)
	if len(k.open) < chunkSize {
		return nil
	}
	b.err = b.spill(k)
	return b.err
}

// bucketOf mixes the key: ids need not be random.
func bucketOf(k Key) int {
	x := binary.LittleEndian.Uint64(k[:8]) ^ binary.LittleEndian.Uint64(k[8:])*0x9e3779b97f4a7c15
	x *= 0xd6e8feb86659fd93
	return int(x >> 54)
}

func (b *Book) spill(k *bucket) error {
	if b.file == nil {
		f, err := os.CreateTemp("", "millrace-tally-")
		if err != nil {
			return fmt.Errorf("make a temporary file: %w", err)
		}
		if err := os.Remove(f.Name()); err != nil {
			return errors.Join(fmt.Errorf("unlink a temporary file: %w", err), f.Close())
		}
		b.file = f
	}
	if _, err := b.file.WriteAt(k.open, b.end); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	k.chunks = append(k.chunks, b.end)
	b.end += int64(len(k.open))
	k.open = k.open[:0]
	return nil
}

// Each calls f once for each key, with the entries of either side in the order of their
// places; one of the two may be empty. f must not keep them. done is told how many of all
// parts are behind it.
func (b *Book) Each(ctx context.Context, f func(topic, table []Entry) error, done func(part, parts int)) error {
	if b.err != nil {
		return b.err
	}
	var all []Entry
	var raw []byte
	for i := range b.buckets {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var err error
		if all, raw, err = b.read(&b.buckets[i], all[:0], raw); err != nil {
			return err
		}
		if err := eachKey(all, f); err != nil {
			return err
		}
		done(i+1, buckets)
	}
	return nil
}

// read returns the entries of a bucket, by key, side and place, in the memory of all.
func (b *Book) read(k *bucket, all []Entry, raw []byte) ([]Entry, []byte, error) {
	all = slices.Grow(all, (len(k.chunks)*chunkSize+len(k.open))/entrySize)
	all = decode(all, k.open)
	if len(k.chunks) > 0 && raw == nil {
		raw = make([]byte, chunkSize)
	}
	for _, at := range k.chunks {
		if _, err := b.file.ReadAt(raw, at); err != nil {
			return nil, nil, fmt.Errorf("read a temporary file: %w", err)
		}
		all = decode(all, raw)
	}
	slices.SortFunc(all, func(x, y Entry) int {
		return cmp.Or(bytes.Compare(x.Key[:], y.Key[:]), cmp.Compare(x.Mark&sideBit, y.Mark&sideBit), x.At.Compare(y.At))
	})
	return all, raw, nil
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
