// Package tally brings records of one key together, however many there are.
//
// A Book cuts records into parts by the hash of their keys. A part keeps its last 16 KiB in memory and the rest in
// a temporary file that all parts share; one part at a time is read back. So memory is bounded by some 20 MiB, one
// part, and 16 bytes for each 16 KiB of records. The file has no name once it is open: a process that is killed leaves none.
package tally

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
)

const (
	parts     = 1024
	chunkSize = 16 << 10 // from which on the records in memory go to the file
)

// A Book holds the records. It is for one goroutine.
type Book struct {
	dir   string // where the temporary file is made
	seed  maphash.Seed
	file  *os.File // nil until a part is too large for memory
	end   int64
	parts [parts]part
	err   error // of the first write that failed
}

type part struct {
	chunks []chunk
	size   int // of all chunks
	tail   []byte
}

// A chunk is a piece of a part in the file.
type chunk struct {
	at   int64
	size int
}

// New returns an empty Book, whose temporary file is made in dir, or in os.TempDir if dir is empty. The caller
// closes it.
func New(dir string) *Book { return &Book{dir: dir, seed: maphash.MakeSeed()} }

// Close removes the temporary file.
func (b *Book) Close() error {
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}

// Add adds a record, which must say itself where it ends. Once a write has failed, every call returns its error.
func (b *Book) Add(key, record []byte) error {
	if b.err != nil {
		return b.err
	}
	p := &b.parts[maphash.Bytes(b.seed, key)%parts]
	if p.tail = append(p.tail, record...); len(p.tail) >= chunkSize {
		b.err = b.spill(p)
	}
	return b.err
}

func (b *Book) spill(p *part) error {
	if b.file == nil {
		f, err := os.CreateTemp(b.dir, "millrace-tally-")
		if err != nil {
			return fmt.Errorf("make a temporary file: %w", err)
		}
		if err := os.Remove(f.Name()); err != nil {
			return errors.Join(fmt.Errorf("unlink a temporary file: %w", err), f.Close())
		}
		b.file = f
	}
	if _, err := b.file.WriteAt(p.tail, b.end); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	p.chunks = append(p.chunks, chunk{b.end, len(p.tail)})
	p.size += len(p.tail)
	b.end += int64(len(p.tail))
	p.tail = p.tail[:0]
	return nil
}

// Each calls f for each part with its records, one after the other in the order in which they were added: all records
// of a key are in one part. f must not keep them. done is called after each part with the number of parts so far
// and in all; it may be nil.
func (b *Book) Each(ctx context.Context, f func(records []byte) error, done func(part, parts int)) error {
	if b.err != nil {
		return b.err
	}
	var all []byte
	for i := range b.parts {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var err error
		if all, err = b.read(&b.parts[i], all[:0]); err != nil {
			return err
		}
		if err := f(all); err != nil {
			return err
		}
		if done != nil {
			done(i+1, parts)
		}
	}
	return nil
}

// read appends the records of a part to all.
func (b *Book) read(p *part, all []byte) ([]byte, error) {
	if need := p.size + len(p.tail); cap(all) < need {
		all = make([]byte, 0, need)
	}
	for _, c := range p.chunks {
		n := len(all)
		all = all[:n+c.size]
		if _, err := b.file.ReadAt(all[n:], c.at); err != nil {
			return nil, fmt.Errorf("read a temporary file: %w", err)
		}
	}
	return append(all, p.tail...), nil
}
