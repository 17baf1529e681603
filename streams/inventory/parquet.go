package inventory

import (
	"encoding/binary"
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

// parquetRows is how many rows are read at a time.
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
	for _, group := range f.RowGroups() {
		if !groupRows(group, columns, &at, hand) {
			return
		}
	}
}

// checkFooter keeps the library from making room for a footer that is larger than the file.
func checkFooter(r io.ReaderAt, size int64) error {
	var tail [8]byte // length of the footer, and a magic number
	if size < 12 {
		return io.ErrUnexpectedEOF
	}
	if _, err := r.ReadAt(tail[:], size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n := int64(binary.LittleEndian.Uint32(tail[:])); n > size-12 {
		return fmt.Errorf("its footer of %d bytes does not fit into it", n)
	}
	return nil
}

// A parquetColumn is a column that means something.
type parquetColumn struct {
	name string
	unit time.Duration // of times; 0: no time
}

func parquetColumns(f *parquet.File) ([]parquetColumn, error) {
	paths := f.Schema().Columns()
	columns := make([]parquetColumn, len(paths))
	key := false
	for i, path := range paths {
		leaf, ok := f.Schema().Lookup(path...)
		if !ok || len(path) != 1 {
			continue
		}
		c := parquetColumn{name: plainName(path[0])}
		if c.name == "lastmodifieddate" {
			if c.unit = unitOf(leaf.Node.Type()); c.unit == 0 {
				return nil, fmt.Errorf("column %s is no time", path[0])
			}
		}
		key = key || c.name == "key"
		columns[i] = c
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

func groupRows(group parquet.RowGroup, columns []parquetColumn, at *Place, yield func(bucketRow, error) bool) bool {
	rows := group.Rows()
	defer rows.Close()
	buf := make([]parquet.Row, parquetRows)
	for {
		n, err := rows.ReadRows(buf)
		for _, values := range buf[:n] {
			at.Line++
			row := bucketRow{at: *at, size: -1}
			var fault error
			if reason := row.fromParquet(columns, values); reason != "" {
				fault = &Fault{*at, reason}
			}
			if !yield(row, fault) {
				return false
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return true
		case err != nil:
			yield(bucketRow{}, invalid(*at, "read the Parquet file: %w", err))
			return false
		}
	}
}

func (r *bucketRow) fromParquet(columns []parquetColumn, values parquet.Row) (reason string) {
	for _, v := range values {
		i := v.Column()
		if v.IsNull() || i < 0 || i >= len(columns) {
			continue
		}
		c, text := columns[i], ""
		switch v.Kind() {
		case parquet.ByteArray, parquet.FixedLenByteArray:
			text = string(v.ByteArray())
			if !utf8.ValidString(text) {
				return c.name + " is not UTF-8"
			}
		case parquet.Boolean:
			text = strconv.FormatBool(v.Boolean())
		case parquet.Int32, parquet.Int64:
			if c.unit != 0 {
				per := int64(time.Second / c.unit)
				n := v.Int64()
				r.modified = time.Unix(n/per, n%per*int64(c.unit)).UTC()
				continue
			}
			text = strconv.FormatInt(v.Int64(), 10)
		case parquet.Int96, parquet.Float, parquet.Double:
			continue
		}
		if reason := r.set(c.name, text); reason != "" {
			return reason
		}
	}
	return ""
}
