package inventory

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// parquetRows is how many values of a column are read at a time.
const parquetRows = 256

// bucketParquet reads one Parquet file of an inventory; lines are its rows.
func (l *Listing) bucketParquet(file, sum string) iter.Seq2[bucketRow, error] {
	return func(yield func(bucketRow, error) bool) {
		f, err := l.open(file)
		if err != nil {
			yield(bucketRow{}, err)
			return
		}
		defer f.Close()
		// It is read here and there, so its sum is made before.
		if err := l.checkMD5(f.hashing(), sum); err != nil {
			yield(bucketRow{}, err)
			return
		}
		readParquet(file, f.f, l.files[file].size, yield)
	}
}

// readParquet yields the rows of a Parquet file. What the library does with one that is damaged, panics
// included, is an error.
func readParquet(name string, r io.ReaderAt, size int64, yield func(bucketRow, error) bool) {
	at, yielding := Place{File: name}, false
	hand := func(row bucketRow, err error) bool {
		yielding = true
		defer func() { yielding = false }()
		return yield(row, err)
	}
	defer func() {
		if yielding {
			return // what the caller panics with is the caller's
		}
		if v := recover(); v != nil {
			yield(bucketRow{}, invalid(at, "it is not a Parquet file that can be read: %v", v))
		}
	}()
	if err := checkFooter(r, size); err != nil {
		hand(bucketRow{}, invalid(at, "it is not a Parquet file: %w", err))
		return
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		hand(bucketRow{}, invalid(at, "it is not a Parquet file: %w", err))
		return
	}
	columns, err := parquetColumns(f)
	if err != nil {
		hand(bucketRow{}, invalid(at, "%w", err))
		return
	}
	for i, group := range f.RowGroups() {
		for _, c := range columns {
			meta := &f.Metadata().RowGroups[i].Columns[c.index].MetaData
			if err := checkPages(r, size, meta, c.optional); err != nil {
				hand(bucketRow{}, invalid(at, "column %s: %w", c.name, err))
				return
			}
		}
		if !groupRows(group, columns, &at, hand) {
			return
		}
	}
}

// A parquetColumn is a column that means something.
type parquetColumn struct {
	name     string
	index    int           // among all columns
	unit     time.Duration // of times; 0: no time
	optional bool
}

// parquetColumns are those columns that mean something; no others are read.
func parquetColumns(f *parquet.File) ([]parquetColumn, error) {
	var columns []parquetColumn
	key := false
	for i, path := range f.Schema().Columns() {
		leaf, ok := f.Schema().Lookup(path...)
		c := parquetColumn{name: plainName(path[0]), index: i, optional: leaf.MaxDefinitionLevel > 0}
		if !ok || len(path) != 1 || !bucketColumn(c.name) {
			continue
		}
		if leaf.MaxRepetitionLevel > 0 || leaf.MaxDefinitionLevel > 1 {
			return nil, fmt.Errorf("column %s is a list", path[0])
		}
		if c.name == "lastmodifieddate" {
			if c.unit = unitOf(leaf.Node.Type()); c.unit == 0 {
				return nil, fmt.Errorf("column %s is no time", path[0])
			}
		}
		key = key || c.name == "key"
		columns = append(columns, c)
	}
	if !key {
		return nil, errors.New("it has no column key")
	}
	return columns, nil
}

// unitOf is the unit of a column of times: of its logical type, or of the older one, milliseconds or microseconds.
func unitOf(t parquet.Type) time.Duration {
	if l := t.LogicalType(); l != nil {
		if stamp, ok := l.Value.(*format.TimestampType); ok && stamp.Unit.Value != nil {
			return stamp.Unit.Value.Duration()
		}
	}
	if t.Kind() == parquet.Int64 {
		return time.Millisecond
	}
	return 0
}

// groupRows yields the rows of a group. Of each column one page is held.
func groupRows(group parquet.RowGroup, columns []parquetColumn, at *Place, yield func(bucketRow, error) bool) bool {
	readers := make([]*columnReader, len(columns))
	for i, c := range columns {
		readers[i] = &columnReader{column: c, pages: group.ColumnChunks()[c.index].Pages()}
	}
	defer func() {
		for _, r := range readers {
			r.close()
		}
	}()
	for range group.NumRows() {
		at.Line++
		row := bucketRow{at: *at, size: -1}
		reason := ""
		for _, r := range readers {
			v, err := r.next()
			if errors.Is(err, io.EOF) {
				err = errors.New("its columns have fewer values than it has rows")
			}
			if err != nil {
				yield(bucketRow{}, invalid(*at, "read the Parquet file: column %s: %w", r.column.name, err))
				return false
			}
			if reason == "" {
				reason = row.fromParquet(r.column, v)
			}
		}
		var fault error
		if reason != "" {
			fault = &Fault{*at, reason}
		}
		if !yield(row, fault) {
			return false
		}
	}
	for _, r := range readers {
		if _, err := r.next(); !errors.Is(err, io.EOF) {
			yield(bucketRow{}, invalid(*at, "read the Parquet file: column %s has more values than it has rows", r.column.name))
			return false
		}
	}
	return true
}

// A columnReader reads the values of one column of a group.
type columnReader struct {
	column parquetColumn
	pages  parquet.Pages
	page   parquet.Page // nil: none is open
	values parquet.ValueReader
	buf    [parquetRows]parquet.Value
	left   []parquet.Value // of buf
}

// next returns the next value, good until the next call; io.EOF after the last.
func (r *columnReader) next() (parquet.Value, error) {
	for len(r.left) == 0 {
		if r.page == nil {
			page, err := r.pages.ReadPage()
			if err != nil {
				return parquet.Value{}, err
			}
			r.page, r.values = page, page.Values()
		}
		n, err := r.values.ReadValues(r.buf[:])
		r.left = r.buf[:n]
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return parquet.Value{}, err
		case n == 0:
			parquet.Release(r.page)
			r.page = nil
		}
	}
	v := r.left[0]
	r.left = r.left[1:]
	return v, nil
}

func (r *columnReader) close() {
	if r.page != nil {
		parquet.Release(r.page)
	}
	_ = r.pages.Close() // it was only read
}

// fromParquet fills in one column.
func (r *bucketRow) fromParquet(c parquetColumn, v parquet.Value) (reason string) {
	if v.IsNull() {
		return ""
	}
	text := ""
	switch v.Kind() {
	case parquet.ByteArray, parquet.FixedLenByteArray:
		switch b := v.ByteArray(); {
		case len(b) > maxLine:
			return fmt.Sprintf("%s is longer than %d bytes", c.name, maxLine)
		case !utf8.Valid(b):
			return c.name + " is not UTF-8"
		default:
			text = string(b)
		}
	case parquet.Boolean:
		text = strconv.FormatBool(v.Boolean())
	case parquet.Int32, parquet.Int64:
		if c.unit != 0 {
			per := int64(time.Second / c.unit)
			n := v.Int64()
			r.modified = time.Unix(n/per, n%per*int64(c.unit)).UTC()
			return ""
		}
		text = strconv.FormatInt(v.Int64(), 10)
	case parquet.Int96, parquet.Float, parquet.Double:
		return ""
	}
	return r.set(c.name, text)
}
