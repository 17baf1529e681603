package inventory

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// Bounds of a Parquet file. Writers make pages of 1 MiB; a page of one repeated value has as many values as its row
// group has rows. The library trusts the sizes and counts in a file, so this package checks them before the library
// reads them.
const (
	maxParquetFooter = 16 << 20
	maxParquetItems  = 1 << 18 // elements of all lists of the footer: columns, groups and columns of groups
	maxPageHeader    = 64 << 10
	maxPage          = 16 << 20
	maxPageValues    = 1 << 22
)

// plainDictionary is the dictionary encoding of older writers.
const plainDictionary format.Encoding = 2

var errParquet = errors.New("not what a writer of Parquet files makes")

// A thriftReader reads the compact protocol of Thrift.
type thriftReader struct {
	b     []byte
	items int // remaining limit of list elements
}

func (t *thriftReader) uvarint() (uint64, error) {
	v, n := binary.Uvarint(t.b)
	if n <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	t.b = t.b[n:]
	return v, nil
}

// number reads a signed integer.
func (t *thriftReader) number() (int64, error) {
	v, err := t.uvarint()
	return int64(v>>1) ^ -int64(v&1), err
}

func (t *thriftReader) discard(n uint64) error {
	if n > uint64(len(t.b)) {
		return io.ErrUnexpectedEOF
	}
	t.b = t.b[n:]
	return nil
}

// The kinds of fields.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftI16    = 4
	thriftI32    = 5
	thriftI64    = 6
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12
)

// fields calls f with each field of a struct; f reads its value.
func (t *thriftReader) fields(f func(id int64, kind byte) error) error {
	for id := int64(0); ; {
		if len(t.b) == 0 {
			return io.ErrUnexpectedEOF
		}
		head := t.b[0]
		if t.b = t.b[1:]; head == 0 {
			return nil
		}
		if head>>4 != 0 {
			id += int64(head >> 4)
		} else {
			var err error
			if id, err = t.number(); err != nil {
				return err
			}
		}
		if err := f(id, head&15); err != nil {
			return err
		}
	}
}

// skip skips a value and checks that it is complete.
func (t *thriftReader) skip(kind byte, depth int) error {
	if depth > maxNested {
		return fmt.Errorf("%w: it is nested more than %d deep", errParquet, maxNested)
	}
	switch kind {
	case thriftTrue, thriftFalse:
		return nil
	case thriftByte:
		return t.discard(1)
	case thriftDouble:
		return t.discard(8)
	case thriftI16, thriftI32, thriftI64:
		_, err := t.uvarint()
		return err
	case thriftBinary:
		n, err := t.uvarint()
		return errors.Join(err, t.discard(n))
	case thriftStruct:
		return t.fields(func(_ int64, kind byte) error { return t.skip(kind, depth+1) })
	case thriftList, thriftSet:
		return t.skipList(depth)
	}
	return fmt.Errorf("%w: there is a field of kind %d", errParquet, kind)
}

func (t *thriftReader) skipList(depth int) error {
	if len(t.b) == 0 {
		return io.ErrUnexpectedEOF
	}
	n, kind := uint64(t.b[0]>>4), t.b[0]&15
	t.b = t.b[1:]
	if n == 15 {
		var err error
		if n, err = t.uvarint(); err != nil {
			return err
		}
	}
	if n > uint64(max(t.items, 0)) {
		return fmt.Errorf("%w: its lists have more than %d elements", errParquet, maxParquetItems)
	}
	t.items -= int(n)
	for range n {
		if kind == thriftTrue || kind == thriftFalse { // in lists, each takes one byte
			kind = thriftByte
		}
		if err := t.skip(kind, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// checkFooter checks that the file has a footer, and that all sizes in it are true.
func checkFooter(r io.ReaderAt, size int64) error {
	var tail [8]byte // length of the footer, and a magic number
	if size < 12 {
		return io.ErrUnexpectedEOF
	}
	if _, err := r.ReadAt(tail[:], size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	switch {
	case n > size-12:
		return fmt.Errorf("its footer of %d bytes does not fit into it", n)
	case n > maxParquetFooter:
		return fmt.Errorf("its footer has %d bytes, at most %d", n, maxParquetFooter)
	case string(tail[4:]) != "PAR1":
		return errors.New("it does not end with PAR1")
	}
	footer := make([]byte, n)
	if _, err := r.ReadAt(footer, size-8-n); err != nil {
		return err
	}
	t := &thriftReader{footer, maxParquetItems}
	if err := t.skip(thriftStruct, 0); err != nil {
		return fmt.Errorf("its footer: %w", err)
	}
	return nil
}

// A pageHeader has the relevant fields of a page header.
type pageHeader struct {
	kind, size, packed int64
	values             int64
	encoding, levels   int64 // encodings of values and of definition levels that are compressed with them
	lengths            int64 // length of the levels before the compressed data
	plain              bool  // the data after the levels is not compressed
}

// Field numbers of PageHeader for the headers of each kind of page.
const (
	fieldDataPage   = 5
	fieldDictionary = 7
	fieldDataPageV2 = 8
)

func readPageHeader(b []byte) (h pageHeader, n int, err error) {
	t := &thriftReader{b, maxParquetItems}
	err = t.fields(func(id int64, kind byte) error {
		to := map[int64]*int64{1: &h.kind, 2: &h.size, 3: &h.packed}[id]
		switch {
		case to != nil && kind == thriftI32:
			*to, err = t.number()
			return err
		case kind != thriftStruct || id != fieldDataPage && id != fieldDictionary && id != fieldDataPageV2:
			return t.skip(kind, 0)
		}
		inner := map[int64]*int64{1: &h.values, 2: &h.encoding}
		switch id {
		case fieldDataPage:
			inner[3] = &h.levels
		case fieldDataPageV2:
			var definitions, repetitions int64
			inner = map[int64]*int64{1: &h.values, 4: &h.encoding, 5: &definitions, 6: &repetitions}
			defer func() { h.lengths = definitions + repetitions }()
		}
		return t.fields(func(field int64, kind byte) error {
			if id == fieldDataPageV2 && field == 7 {
				h.plain = kind == thriftFalse
			}
			to := inner[field]
			if to == nil || kind != thriftI32 {
				return t.skip(kind, 0)
			}
			*to, err = t.number()
			return err
		})
	})
	return h, len(b) - len(t.b), err
}

// checkPages checks that the pages of a column have the sizes in their headers and are within the bounds.
func checkPages(r io.ReaderAt, size int64, m *format.ColumnMetaData, optional bool) error {
	at := m.DataPageOffset
	if m.DictionaryPageOffset != 0 {
		at = m.DictionaryPageOffset
	}
	end := at + m.TotalCompressedSize
	if at < 0 || m.TotalCompressedSize < 0 || end < at || end > size {
		return fmt.Errorf("%w: a column does not lie in the file", errParquet)
	}
	window := make([]byte, maxPageHeader)
	for at < end {
		head := window[:min(int64(len(window)), end-at)]
		if _, err := r.ReadAt(head, at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		h, n, err := readPageHeader(head)
		if errors.Is(err, io.ErrUnexpectedEOF) && len(head) == maxPageHeader {
			err = fmt.Errorf("it has more than %d bytes", maxPageHeader)
		}
		if err != nil {
			return fmt.Errorf("header of a page: %w", err)
		}
		at += int64(n)
		switch {
		case h.size < 0 || h.packed < 0 || h.values < 0 || h.packed > end-at || h.lengths < 0 || h.lengths > h.packed:
			return fmt.Errorf("%w: a page does not lie in its column", errParquet)
		case h.size > maxPage || h.packed > maxPage:
			return fmt.Errorf("a page has %d bytes, at most %d; have it made with pages of 1 MiB",
				max(h.size, h.packed), maxPage)
		case h.values > maxPageValues:
			return fmt.Errorf("a page has %d values, at most %d", h.values, maxPageValues)
		}
		page := make([]byte, h.packed)
		if _, err := r.ReadAt(page, at); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := checkPage(h, page, m.Codec, optional); err != nil {
			return err
		}
		at += h.packed
	}
	return nil
}

// checkPage checks that a page is not larger than its header says.
func checkPage(h pageHeader, page []byte, codec format.CompressionCodec, optional bool) error {
	kind := format.PageType(h.kind)
	if kind == format.IndexPage {
		return nil
	}
	if h.plain {
		codec = format.Uncompressed
	}
	values, err := unpack(codec, page[h.lengths:], h.size-h.lengths)
	if err != nil || kind == format.DictionaryPage {
		return err
	}
	levels := page[:h.lengths]
	if kind == format.DataPage && optional {
		if format.Encoding(h.levels) != format.RLE {
			return fmt.Errorf("levels in encoding %s are not supported", format.Encoding(h.levels))
		}
		if len(values) < 4 {
			return io.ErrUnexpectedEOF
		}
		n := int64(binary.LittleEndian.Uint32(values))
		if values = values[4:]; n > int64(len(values)) {
			return io.ErrUnexpectedEOF
		}
		levels, values = values[:n], values[n:]
	}
	if optional {
		if err := checkRuns(levels, 1, h.values); err != nil {
			return err
		}
	}
	switch format.Encoding(h.encoding) {
	case format.Plain:
		return nil
	case plainDictionary, format.RLEDictionary:
		if len(values) == 0 {
			return nil
		}
		return checkRuns(values[1:], uint64(values[0]), h.values)
	case format.DeltaBinaryPacked, format.DeltaLengthByteArray: // the latter begins with packed lengths
		t := &thriftReader{b: values}
		_, blockErr := t.uvarint()
		_, partsErr := t.uvarint()
		count, err := t.uvarint()
		if err := errors.Join(blockErr, partsErr, err); err != nil && len(values) > 0 {
			return err
		}
		if count > uint64(h.values) {
			return fmt.Errorf("%w: a page has more values than it says", errParquet)
		}
		return nil
	case format.RLE: // booleans
		if len(values) < 4 {
			return io.ErrUnexpectedEOF
		}
		return checkRuns(values[4:], 1, h.values)
	}
	return fmt.Errorf("values in encoding %s are not supported", format.Encoding(h.encoding))
}

// checkRuns checks that runs of values with the given number of bits do not have more values than the page, except for
// the padding of the last bit-packed run.
func checkRuns(b []byte, bits uint64, values int64) error {
	const group = 8 * 64
	count := uint64(0)
	for len(b) > 0 {
		head, n := binary.Uvarint(b)
		if n <= 0 || bits > 32 || head > math.MaxInt32 {
			return fmt.Errorf("%w: a page has an invalid run", errParquet)
		}
		b = b[n:]
		size := (bits + 7) / 8
		if head&1 == 1 {
			count += head >> 1 * 8
			size = head >> 1 * bits
		} else {
			count += head >> 1
		}
		if count > uint64(values)+group {
			return fmt.Errorf("%w: a page has more values than it says", errParquet)
		}
		b = b[min(size, uint64(len(b))):]
	}
	return nil
}

// unpack decompresses b. The result must not have more than size bytes.
func unpack(codec format.CompressionCodec, b []byte, size int64) ([]byte, error) {
	var r io.Reader
	switch codec {
	case format.Uncompressed:
		return b, nil
	case format.Snappy:
		if n, _ := binary.Uvarint(b); n > uint64(max(size, 0)) {
			return nil, fmt.Errorf("%w: a page is larger than it says", errParquet)
		}
		return parquet.Snappy.Decode(nil, b)
	case format.Gzip:
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		r = z
	case format.Zstd:
		z, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxPage))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	default:
		return nil, fmt.Errorf("pages that are packed with %s are not supported", codec)
	}
	out, err := io.ReadAll(io.LimitReader(r, size+1))
	if err == nil && int64(len(out)) > size {
		err = fmt.Errorf("%w: a page is larger than it says", errParquet)
	}
	return out, err
}
