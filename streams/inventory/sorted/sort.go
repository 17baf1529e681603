package sorted

import (
	"bufio"
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
)

const (
	runSize   = 32 << 20 // bytes of records that are sorted in memory
	fanIn     = 512      // runs that are merged at once
	readSize  = 32 << 10
	writeSize = 1 << 20
	markEvery = 1 << 20 // bytes between two marks of a run
)

// A sorter sorts records by the bytes of their keys in a temporary file. Its memory is bounded, apart from about 100
// bytes for each MiB of records. The file is unlinked as soon as it is open, so a killed process leaves none.
type sorter struct {
	dir  string // of the temporary files
	size int    // runSize, fanIn and markEvery
	fan  int
	step int64
	// join returns the value of a key that was added twice. The order of the two is not that of add.
	join func(key, a, b []byte) ([]byte, error)

	buffer []byte
	at     []int // the records in buffer
	out    *file // nil until the first run
}

func newSorter(dir string, join func(key, a, b []byte) ([]byte, error)) *sorter {
	return &sorter{dir: dir, size: runSize, fan: fanIn, step: markEvery, join: join}
}

// A run is a part of a file whose records are in ascending order of distinct keys.
type run struct {
	from, to int64
	records  int64
	sum      hash.Hash // of the records
	marks    []mark
	last     []byte // the last key
}

// A mark is the position of a record.
type mark struct {
	key string
	at  int64
}

// add adds a record.
func (s *sorter) add(key, value []byte) error {
	s.at = append(s.at, len(s.buffer))
	s.buffer = appendRecord(s.buffer, key, value)
	if len(s.buffer)+len(s.at)*8 < s.size {
		return nil
	}
	return s.spill()
}

func appendRecord(b, key, value []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

// record returns the record at the beginning of b.
func record(b []byte) (key, value []byte) {
	n, size := binary.Uvarint(b)
	key, b = b[size:size+int(n)], b[size+int(n):]
	n, size = binary.Uvarint(b)
	return key, b[size : size+int(n)]
}

// spill writes the records in memory to the file. They continue the last run if they come after it, so that records
// that are added in order are one run.
func (s *sorter) spill() (err error) {
	if len(s.at) == 0 {
		return nil
	}
	if s.out == nil {
		if s.out, err = newFile(s.dir, s.step); err != nil {
			return err
		}
	}
	slices.SortFunc(s.at, func(a, b int) int {
		x, _ := record(s.buffer[a:])
		y, _ := record(s.buffer[b:])
		return cmp.Or(bytes.Compare(x, y), a-b)
	})
	if first, _ := record(s.buffer[s.at[0]:]); !s.out.follows(first) {
		s.out.begin()
	}
	w := joiner{out: s.out, join: s.join}
	for _, at := range s.at {
		if err := w.add(record(s.buffer[at:])); err != nil {
			return err
		}
	}
	s.buffer, s.at = s.buffer[:0], s.at[:0]
	return w.end()
}

// finish returns the file, which has one run with all records, or none if there are none. The caller closes it. merged
// is called with the numbers of records that were read and are to be read, if runs are merged.
func (s *sorter) finish(ctx context.Context, merged func(done, all int64)) (*file, error) {
	if err := s.spill(); err != nil {
		return nil, err
	}
	if s.out == nil {
		var err error
		if s.out, err = newFile(s.dir, s.step); err != nil {
			return nil, err
		}
	}
	s.buffer, s.at = nil, nil
	if err := s.out.flush(); err != nil {
		return nil, err
	}
	for len(s.out.runs) > 1 {
		if err := s.pass(ctx, merged); err != nil {
			return nil, err
		}
	}
	out := s.out
	s.out = nil
	return out, nil
}

// pass merges groups of runs into the runs of a new file, which replaces the one before.
func (s *sorter) pass(ctx context.Context, merged func(done, all int64)) error {
	next, err := newFile(s.dir, s.step)
	if err != nil {
		return err
	}
	all, done := int64(0), int64(0)
	for _, r := range s.out.runs {
		all += r.records
	}
	read := func() {
		if done++; done%10_000 == 0 || done == all {
			merged(done, all)
		}
	}
	for group := range slices.Chunk(s.out.runs, s.fan) {
		if err = s.merge(ctx, next, group, read); err != nil {
			break
		}
	}
	if err == nil {
		err = next.flush()
	}
	if err != nil {
		return errors.Join(err, next.Close())
	}
	before := s.out
	s.out = next
	return before.Close()
}

// merge writes runs as one run.
func (s *sorter) merge(ctx context.Context, to *file, runs []*run, read func()) error {
	to.begin()
	w, h := joiner{out: to, join: s.join}, make(heads, 0, len(runs))
	for _, r := range runs {
		in := s.out.reader(r.from, r.to)
		if err := in.next(); err != nil {
			return err
		}
		h = append(h, in)
	}
	heap.Init(&h)
	for n := 0; len(h) > 0; n++ {
		if n%1000 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.add(h[0].key, h[0].value); err != nil {
			return err
		}
		read()
		switch err := h[0].next(); {
		case errors.Is(err, io.EOF):
			heap.Pop(&h)
		case err != nil:
			return err
		default:
			heap.Fix(&h, 0)
		}
	}
	return w.end()
}

// Close removes the temporary file, unless finish has returned it.
func (s *sorter) Close() error {
	if s.out == nil {
		return nil
	}
	return s.out.Close()
}

// heads are the next records of runs, as a heap.
type heads []*reader

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return bytes.Compare(h[i].key, h[j].key) < 0 }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(*reader)) }

func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// A joiner writes records that come in order, and joins those of one key.
type joiner struct {
	out        *file
	join       func(key, a, b []byte) ([]byte, error)
	key, value []byte
	any        bool
}

func (j *joiner) add(key, value []byte) (err error) {
	if j.any && bytes.Equal(j.key, key) {
		j.value, err = j.join(key, j.value, value)
		return err
	}
	if err := j.end(); err != nil {
		return err
	}
	j.key, j.value, j.any = append(j.key[:0], key...), append(j.value[:0], value...), true
	return nil
}

// end writes the last record.
func (j *joiner) end() error {
	if !j.any {
		return nil
	}
	j.any = false
	return j.out.write(j.key, j.value)
}

// A file is a temporary file of runs.
type file struct {
	f    *os.File
	w    *bufio.Writer
	step int64
	end  int64
	runs []*run
	buf  []byte
}

func newFile(dir string, step int64) (*file, error) {
	f, err := os.CreateTemp(dir, "millrace-sorted-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("unlink a temporary file: %w", err), f.Close())
	}
	return &file{f: f, w: bufio.NewWriterSize(f, writeSize), step: step}, nil
}

// Close removes the file.
func (f *file) Close() error { return f.f.Close() }

func (f *file) flush() error {
	if err := f.w.Flush(); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	return nil
}

// begin begins a run.
func (f *file) begin() { f.runs = append(f.runs, &run{from: f.end, to: f.end, sum: sha256.New()}) }

// follows reports whether key comes after the last run.
func (f *file) follows(key []byte) bool {
	return len(f.runs) > 0 && bytes.Compare(f.runs[len(f.runs)-1].last, key) < 0
}

// write appends a record to the last run.
func (f *file) write(key, value []byte) error {
	r := f.runs[len(f.runs)-1]
	if n := len(r.marks); n == 0 || f.end-r.marks[n-1].at >= f.step {
		r.marks = append(r.marks, mark{string(key), f.end})
	}
	f.buf = appendRecord(f.buf[:0], key, value)
	if _, err := f.w.Write(f.buf); err != nil {
		return fmt.Errorf("write a temporary file: %w", err)
	}
	r.sum.Write(f.buf)
	f.end += int64(len(f.buf))
	r.to, r.last = f.end, append(r.last[:0], key...)
	r.records++
	return nil
}

// after returns a reader of the records of the only run, from before or at the first one whose key is not less than
// key.
func (f *file) after(key string) *reader {
	if len(f.runs) == 0 {
		return f.reader(0, 0)
	}
	r := f.runs[0]
	from := r.from
	i, found := slices.BinarySearchFunc(r.marks, key, func(m mark, key string) int { return cmp.Compare(m.key, key) })
	switch {
	case found:
		from = r.marks[i].at
	case i > 0:
		from = r.marks[i-1].at
	}
	return f.reader(from, r.to)
}

// A reader reads the records of a part of a file.
type reader struct {
	r          *bufio.Reader
	key, value []byte // valid until the next call of next
}

// reader returns a reader of what was written before the last flush.
func (f *file) reader(from, to int64) *reader {
	return &reader{r: bufio.NewReaderSize(io.NewSectionReader(f.f, from, to-from), readSize)}
}

// next reads a record. After the last one it returns io.EOF.
func (r *reader) next() (err error) {
	if _, err = r.r.Peek(1); errors.Is(err, io.EOF) {
		return io.EOF
	}
	if r.key, err = r.field(r.key); err == nil {
		r.value, err = r.field(r.value)
	}
	if err != nil {
		return fmt.Errorf("read a temporary file: %w", err)
	}
	return nil
}

func (r *reader) field(b []byte) ([]byte, error) {
	n, err := binary.ReadUvarint(r.r)
	if err == nil {
		b = slices.Grow(b[:0], int(n))[:n]
		_, err = io.ReadFull(r.r, b)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}
