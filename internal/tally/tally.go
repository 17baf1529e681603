// Package tally groups any number of records by key.
//
// A Book partitions records by the hash of their keys. A part keeps its last 16 KiB in memory and writes the rest to a
// temporary file that all parts share. Each reads back one part at a time. Memory is bounded by about 20 MiB, the
// largest part, and 16 bytes for each 16 KiB of records. The file is unlinked after it is opened, so a killed process
// leaves no file behind.
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
	chunkSize = 16 << 10 // size at which a part's records are written to the file
)

// Book holds the records. It is not safe for concurrent use.
type Book struct {
	dir   string // directory of the temporary file
	seed  maphash.Seed
	file  *os.File // nil until a part is too large for memory
	end   int64
	parts [parts]part
	err   error // first write error
}

type part struct {
	chunks []chunk
	size   int // of all chunks
	tail   []byte
}

// chunk is a range of the file with records of one part.
type chunk struct {
	at   int64
	size int
}

// New returns an empty Book. Its temporary file is created in dir, or in os.TempDir if dir is empty. The caller must
// call Close.
func New(dir string) *Book { return &Book{dir: dir, seed: maphash.MakeSeed()} }

// Close closes the temporary file, which frees its space.
func (b *Book) Close() error {
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}

// Add adds a record. Records must be self-delimiting. After a failed write, every call returns that error.
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
			return fmt.Errorf("create a temporary file: %w", err)
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

// Each calls f once per part with the part's records, concatenated in the order in which they were added. All records
// of a key are in one part. f must not keep the slice. After each part, Each calls done, if not nil, with the number of
// parts so far and in total.
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
