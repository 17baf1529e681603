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

// parquetRows is the number of values of a column that are read at a time.
const parquetRows = 256

// s3Parquet reads one Parquet file of an inventory. The lines of positions are its rows.
func (l *Listing) s3Parquet(file, sum string) iter.Seq2[inventoryRow, error] {
	return func(yield func(inventoryRow, error) bool) {
		f, err := l.open(file)
		if err != nil {
			yield(inventoryRow{}, err)
			return
		}
		defer f.Close()
		// The file is not read sequentially, so compute its checksum first.
		if err := l.checkMD5(f.hashing(), sum); err != nil {
			yield(inventoryRow{}, err)
			return
		}
		readParquet(file, f.f, l.files[file].size, yield)
	}
}

// readParquet yields the rows of a Parquet file. It converts panics of the library about damaged files to errors.
func readParquet(name string, r io.ReaderAt, size int64, yield func(inventoryRow, error) bool) {
	at, yielding := Position{File: name}, false
	hand := func(row inventoryRow, err error) bool {
		yielding = true
		defer func() { yielding = false }()
		return yield(row, err)
	}
	defer func() {
		if yielding {
			return // the panic comes from the caller
		}
		if v := recover(); v != nil {
			yield(inventoryRow{}, invalid(at, "it is not a readable Parquet file: %v", v))
		}
	}()
	if err := checkFooter(r, size); err != nil {
		hand(inventoryRow{}, invalid(at, "it is not a Parquet file: %w", err))
		return
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipBloomFilters(true), parquet.SkipPageIndex(true))
	if err != nil {
		hand(inventoryRow{}, invalid(at, "it is not a Parquet file: %w", err))
		return
	}
	columns, err := parquetColumns(f)
	if err != nil {
		hand(inventoryRow{}, invalid(at, "%w", err))
		return
	}
	for i, group := range f.RowGroups() {
		for _, c := range columns {
			meta := &f.Metadata().RowGroups[i].Columns[c.index].MetaData
			if err := checkPages(r, size, meta, c.optional); err != nil {
				hand(inventoryRow{}, invalid(at, "column %s: %w", c.name, err))
				return
			}
		}
		if !groupRows(group, columns, &at, hand) {
			return
		}
	}
}

// A parquetColumn is a column that is read.
type parquetColumn struct {
	name     string
	index    int           // among all columns
	unit     time.Duration // unit of times; 0 for other columns
	optional bool
}

// parquetColumns returns the columns to read.
func parquetColumns(f *parquet.File) ([]parquetColumn, error) {
	var columns []parquetColumn
	key := false
	for i, path := range f.Schema().Columns() {
		leaf, ok := f.Schema().Lookup(path...)
		c := parquetColumn{name: normalName(path[0]), index: i, optional: leaf.MaxDefinitionLevel > 0}
		if !ok || len(path) != 1 || !isS3Column(c.name) {
			continue
		}
		if leaf.MaxRepetitionLevel > 0 || leaf.MaxDefinitionLevel > 1 {
			return nil, fmt.Errorf("column %s is a list", path[0])
		}
		if c.name == "lastmodifieddate" {
			if c.unit = unitOf(leaf.Node.Type()); c.unit == 0 {
				return nil, fmt.Errorf("column %s is not a time", path[0])
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

// unitOf returns the unit of a column of times, from its logical type or the older converted type; 0 for other columns.
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

// groupRows yields the rows of a row group. It holds one page of each column in memory.
func groupRows(
	group parquet.RowGroup, columns []parquetColumn, at *Position, yield func(inventoryRow, error) bool,
) bool {
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
		row := inventoryRow{at: *at, size: -1}
		reason := ""
		for _, r := range readers {
			v, err := r.next()
			if errors.Is(err, io.EOF) {
				err = errors.New("its columns have fewer values than it has rows")
			}
			if err != nil {
				yield(inventoryRow{}, invalid(*at, "read the Parquet file: column %s: %w", r.column.name, err))
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
			yield(inventoryRow{}, invalid(*at, "read the Parquet file: column %s has more values than it has rows",
				r.column.name))
			return false
		}
	}
	return true
}

// A columnReader reads the values of one column of a group.
type columnReader struct {
	column parquetColumn
	pages  parquet.Pages
	page   parquet.Page // nil if none is open
	values parquet.ValueReader
	buf    [parquetRows]parquet.Value
	left   []parquet.Value // unread part of buf
}

// next returns the next value, which is valid until the next call. It returns io.EOF after the last value.
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
	_ = r.pages.Close() // reading has finished, so an error does not matter
}

// fromParquet sets the value of one column.
func (r *inventoryRow) fromParquet(c parquetColumn, v parquet.Value) (reason string) {
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
