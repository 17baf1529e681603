// Package tally groups records by key, however many there are, in bounded memory.
//
// A Multiset hashes keys into parts. A part keeps its last 16 KiB in memory, and the rest in a temporary file that all
// parts share. Each reads back one part at a time. So memory is bounded by about 20 MiB, plus one part, plus 16
// bytes for each 16 KiB of records. The file is unlinked as soon as it is open, so a killed process leaves none.
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
	chunkSize = 16 << 10 // size at which the buffer of a part is written to the file
)

// A Multiset holds records. It is not safe for concurrent use.
type Multiset struct {
	dir   string // of the temporary file
	seed  maphash.Seed
	file  *os.File // nil until the first buffer is full
	end   int64
	parts [parts]part
	err   error // of the first failed write
}

type part struct {
	chunks []chunk
	size   int // sum of the chunks
	buffer []byte
}

// A chunk is a part of the file.
type chunk struct {
	at   int64
	size int
}

// New returns an empty Multiset. Its temporary file is created in dir, or in os.TempDir if dir is empty. The caller
// closes the Multiset.
func New(dir string) *Multiset { return &Multiset{dir: dir, seed: maphash.MakeSeed()} }

// Close removes the temporary file.
func (b *Multiset) Close() error {
	if b.file == nil {
		return nil
	}
	return b.file.Close()
}

// Add adds a record, which must be self-delimiting. After a failed write, every call returns its error.
func (b *Multiset) Add(key, record []byte) error {
	if b.err != nil {
		return b.err
	}
	p := &b.parts[maphash.Bytes(b.seed, key)%parts]
	if p.buffer = append(p.buffer, record...); len(p.buffer) >= chunkSize {
		b.err = b.spill(p)
	}
	return b.err
}

func (b *Multiset) spill(p *part) error {
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
	if _, err := b.file.WriteAt(p.buffer, b.end); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	p.chunks = append(p.chunks, chunk{b.end, len(p.buffer)})
	p.size += len(p.buffer)
	b.end += int64(len(p.buffer))
	p.buffer = p.buffer[:0]
	return nil
}

// Each calls f for each part, with its records one after the other in the order in which they were added. All
// records of a key are in one part. f must not keep the slice. done, if not nil, is called after each part with the
// number of finished parts and the number of all parts.
func (b *Multiset) Each(ctx context.Context, f func(records []byte) error, done func(part, parts int)) error {
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
func (b *Multiset) read(p *part, all []byte) ([]byte, error) {
	if need := p.size + len(p.buffer); cap(all) < need {
		all = make([]byte, 0, need)
	}
	for _, c := range p.chunks {
		n := len(all)
		all = all[:n+c.size]
		if _, err := b.file.ReadAt(all[n:], c.at); err != nil {
			return nil, fmt.Errorf("read a temporary file: %w", err)
		}
	}
	return append(all, p.buffer...), nil
}
