package clickhouse

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/millrace/millrace/schemas"
)

// Every row of a log has a sum: the hash of all other columns of the row, in the order of its columns and in the format
// RowBinary of ClickHouse. verify computes it again from the row, and from the record in Kafka.

// rowBinary returns SQL for the bytes that the sum of a row covers. A row of a record that claims to be a position has
// none, so its sum is wrong.
func (t *table[T]) rowBinary() string {
	names := make([]string, len(t.columns)-1)
	for i := range names {
		names[i] = QuoteName(t.columns[i].name)
	}
	bytes := "formatRow('RowBinary', " + strings.Join(names, ", ") + ")"
	if slices.Contains(PositionTables(), t.name) {
		return "if(position = 0, " + bytes + ", '')"
	}
	return bytes
}

// sumOf returns the sum of one row.
func (t *table[T]) sumOf(r row[T]) (uint64, error) {
	block, release, err := t.block([]row[T]{r})
	if err != nil {
		return 0, err
	}
	defer release()
	sums, _ := block[len(block)-1].Data.(*proto.ColUInt64)
	return (*sums)[0], nil
}

// fillSums sets the sums of rows, in the last column.
func fillSums(columns proto.Input) error {
	last := len(columns) - 1
	sums, ok := columns[last].Data.(*proto.ColUInt64)
	if !ok {
		return fmt.Errorf("the column of sums is a %T", columns[last].Data)
	}
	var b []byte
	for i := range *sums {
		b = b[:0]
		for _, c := range columns[:last] {
			var err error
			if b, err = appendRowBinary(b, c.Data, i); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
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
