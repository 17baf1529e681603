package clickhouse

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
)

// Every row of a log has two hashes. The column hash is the hash of the record's value in Kafka. The column sum is
// the hash of all other columns of the row, hash included, in the order of the table and in ClickHouse's format
// RowBinary. So hash shows which bytes the row was made from, and sum shows whether the row is as it was inserted.
// Rows that are older than these columns have the sum 0.
//
// Columns that were added after rows had sums follow hash (table.added), and zero bytes at the end of these columns
// are not summed. An empty value is encoded as zero bytes, so an old row without the column keeps its sum, and a new
// row with an empty value has the same sum. The omitted bytes can be restored in only one way, so different rows
// never have the same bytes. TestSummedColumns has the list of the columns.

// withHashes appends the columns hash and sum.
func withHashes[T any](columns []column[row[T]]) []column[row[T]] {
	return append(columns,
		uint64s("hash", func(x row[T]) uint64 { return x.Hash }),
		uint64s("sum", func(row[T]) uint64 { return 0 }), // see fillSums
	)
}

// added appends columns that rows with sums may lack. They must never be reordered or removed; later ones follow
// them.
func (t *table[T]) added(columns ...column[row[T]]) *table[T] {
	t.columns, t.addedCount = slices.Insert(t.columns, len(t.columns)-1, columns...), len(columns)
	return t
}

// rowBinary returns SQL for the bytes that the sum of a row covers.
func (t *table[T]) rowBinary() string {
	names := make([]string, len(t.columns)-1)
	for i := range names {
		names[i] = QuoteName(t.columns[i].name)
	}
	format := func(names []string) string { return "formatRow('RowBinary', " + strings.Join(names, ", ") + ")" }
	if t.addedCount == 0 {
		return format(names)
	}
	first := len(names) - t.addedCount
	return "concat(" + format(names[:first]) + ", trim(TRAILING '\\0' FROM " + format(names[first:]) + "))"
}

// fillSums sets the sums of rows, in the last column. The last added columns before it were added after rows had
// sums.
func fillSums(columns proto.Input, added int) error {
	last := len(columns) - 1
	sums, ok := columns[last].Data.(*proto.ColUInt64)
	if !ok {
		return fmt.Errorf("the column of sums is a %T", columns[last].Data)
	}
	var b []byte
	for i := range *sums {
		b = b[:0]
		first := 0 // index of the first byte of the added columns
		for k, c := range columns[:last] {
			if k == last-added {
				first = len(b)
			}
			var err error
			if b, err = appendRowBinary(b, c.Data, i); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
		if added > 0 {
			b = append(b[:first], bytes.TrimRight(b[first:], "\x00")...)
		}
		(*sums)[i] = schemas.Hash(b)
	}
	return nil
}

// appendRowBinary appends the ith value of a column in the format RowBinary.
func appendRowBinary(b []byte, column proto.ColInput, i int) ([]byte, error) {
	le := binary.LittleEndian
	switch c := column.(type) {
	case *proto.ColStr:
		return appendText(b, c.RowBytes(i)), nil
	case *lowCardinality:
		return appendText(b, c.index.RowBytes(int(c.keys[i]))), nil
	case *proto.ColFixedStr16:
		return append(b, (*c)[i][:]...), nil
	case *proto.ColBool:
		if (*c)[i] {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case *proto.ColUInt8:
		return append(b, (*c)[i]), nil
	case *proto.ColUInt16:
		return le.AppendUint16(b, (*c)[i]), nil
	case *proto.ColUInt32:
		return le.AppendUint32(b, (*c)[i]), nil
	case *proto.ColUInt64:
		return le.AppendUint64(b, (*c)[i]), nil
	case *proto.ColInt32:
		return le.AppendUint32(b, uint32((*c)[i])), nil
	case *proto.ColInt64:
		return le.AppendUint64(b, uint64((*c)[i])), nil
	case *proto.ColDateTime64:
		return le.AppendUint64(b, uint64(c.Data[i])), nil
	case *nullableTimes:
		if (*c.nulls)[i] != 0 {
			return append(b, 1), nil
		}
		return le.AppendUint64(append(b, 0), uint64(c.values.Data[i])), nil
	case *stringMapColumn:
		return appendElements(b, c.Offsets, i, c.Keys, c.Values)
	case *proto.ColMap[string, string]:
		return appendElements(b, c.Offsets, i, c.Keys, c.Values)
	case *proto.ColMap[string, int64]:
		return appendElements(b, c.Offsets, i, c.Keys, c.Values)
	case *proto.ColArr[string]:
		return appendElements(b, c.Offsets, i, c.Data)
	case *proto.ColArr[uint8]:
		return appendElements(b, c.Offsets, i, c.Data)
	case *proto.ColArr[time.Time]:
		return appendElements(b, c.Offsets, i, c.Data)
	}
	return b, fmt.Errorf("a %T has no form in RowBinary here", column)
}

func appendText(b, text []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// appendElements appends the ith value of an array, or of a map given as its keys and values.
func appendElements(b []byte, offsets proto.ColUInt64, i int, columns ...proto.ColInput) ([]byte, error) {
	first, end := elementRange(offsets, i)
	b = binary.AppendUvarint(b, uint64(end-first))
	for k := first; k < end; k++ {
		for _, c := range columns {
			var err error
			if b, err = appendRowBinary(b, c, k); err != nil {
				return b, err
			}
		}
	}
	return b, nil
}

// elementRange returns the range of the elements of the ith value.
func elementRange(offsets proto.ColUInt64, i int) (first, end int) {
	if i > 0 {
		first = int(offsets[i-1])
	}
	return first, int(offsets[i])
}
