package clickhouse

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A column describes one column of a table: its name, its type as in system.columns, and how a row of M is appended.
type column[M any] struct {
	name, typ string
	make      func() appender[M]
}

// An appender holds the values of a column while a block is built.
type appender[M any] struct {
	data   proto.ColInput
	append func(M) error
}

func simple[M, T any, C interface {
	proto.ColInput
	Append(T)
}](name, typ string, make func() C, get func(M) T) column[M] {
	return column[M]{name, typ, func() appender[M] {
		c := make()
		return appender[M]{c, func(m M) error { c.Append(get(m)); return nil }}
	}}
}

func text[M any](name string, get func(M) string) column[M] {
	return simple(name, "String", func() *proto.ColStr { return new(proto.ColStr) }, get)
}

// lowCard is a LowCardinality(String) column, for strings with few distinct values.
func lowCard[M any](name string, get func(M) string) column[M] {
	return simple(name, "LowCardinality(String)", newLowCardinality, get)
}

func flag[M any](name string, get func(M) bool) column[M] {
	return simple(name, "Bool", func() *proto.ColBool { return new(proto.ColBool) }, get)
}

func int64s[M any](name string, get func(M) int64) column[M] {
	return simple(name, "Int64", func() *proto.ColInt64 { return new(proto.ColInt64) }, get)
}

func int32s[M any](name string, get func(M) int32) column[M] {
	return simple(name, "Int32", func() *proto.ColInt32 { return new(proto.ColInt32) }, get)
}

// uint8s is a UInt8 column. A value outside of 0 to 255 is an error.
func uint8s[M any](name string, get func(M) int32) column[M] {
	return column[M]{name, "UInt8", func() appender[M] {
		c := new(proto.ColUInt8)
		return appender[M]{c, func(m M) error {
			n := get(m)
			if n < 0 || n > 255 {
				return fmt.Errorf("%d is not within 0 and 255", n)
			}
			c.Append(uint8(n))
			return nil
		}}
	}}
}

func uint16s[M any](name string, get func(M) uint16) column[M] {
	return simple(name, "UInt16", func() *proto.ColUInt16 { return new(proto.ColUInt16) }, get)
}

func uint32s[M any](name string, get func(M) uint32) column[M] {
	return simple(name, "UInt32", func() *proto.ColUInt32 { return new(proto.ColUInt32) }, get)
}

func uint64s[M any](name string, get func(M) uint64) column[M] {
	return simple(name, "UInt64", func() *proto.ColUInt64 { return new(proto.ColUInt64) }, get)
}

// id16 is a column of ids: 32 hex digits in messages, 16 bytes in the table.
func id16[M any](name string, get func(M) string) column[M] {
	return column[M]{name, "FixedString(16)", func() appender[M] {
		c := new(proto.ColFixedStr16)
		return appender[M]{c, func(m M) error {
			id, err := parseID(get(m))
			if err == nil {
				c.Append(id)
			}
			return err
		}}
	}}
}

func parseID(s string) (id [16]byte, err error) {
	if len(s) != 32 {
		return id, fmt.Errorf("%.40q has not the 32 hex digits of an id", s)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return id, fmt.Errorf("%.40q is not hex", s)
	}
	return id, nil
}

const millis = "DateTime64(3, 'UTC')"

var errNoTime = errors.New("is missing")

// toMillis returns the time in milliseconds, rounded down.
func toMillis(t *timestamppb.Timestamp) (int64, error) {
	if t == nil {
		return 0, errNoTime
	}
	if err := t.CheckValid(); err != nil {
		return 0, err
	}
	ms := t.Seconds*1000 + int64(t.Nanos)/1e6
	if ms < MinMillis || ms > MaxMillis {
		return 0, fmt.Errorf("%s is outside of the years 1900 to 2261", t.AsTime().Format(time.RFC3339))
	}
	return ms, nil
}

// belowMillis returns the nanoseconds that toMillis drops.
func belowMillis(t *timestamppb.Timestamp) uint32 { return uint32(t.GetNanos() % 1e6) }

// timestamp is a column of times that every row must have.
func timestamp[M any](name string, get func(M) *timestamppb.Timestamp) column[M] {
	return column[M]{name, millis, func() appender[M] {
		c := newTimestamps()
		return appender[M]{c, func(m M) error {
			ms, err := toMillis(get(m))
			if err == nil {
				c.AppendRaw(proto.DateTime64(ms))
			}
			return err
		}}
	}}
}

func newTimestamps() *proto.ColDateTime64 {
	return new(proto.ColDateTime64).WithPrecision(proto.PrecisionMilli).WithLocation(time.UTC)
}

// nullableTime is a column of optional times.
func nullableTime[M any](name string, get func(M) *timestamppb.Timestamp) column[M] {
	return column[M]{name, "Nullable(" + millis + ")", func() appender[M] {
		c := newNullableTimes()
		return appender[M]{c, func(m M) error { return c.append(get(m)) }}
	}}
}

// nullableTimes is a Nullable(DateTime64(3, 'UTC')) column.
type nullableTimes struct {
	proto.ColInput
	nulls  *proto.ColUInt8
	values *proto.ColDateTime64
}

func newNullableTimes() *nullableTimes {
	values := newTimestamps()
	c := proto.NewColNullable[time.Time](values)
	return &nullableTimes{c, &c.Nulls, values}
}

// Reset empties the column.
func (c *nullableTimes) Reset() {
	c.nulls.Reset()
	c.values.Reset()
}

func (c *nullableTimes) append(t *timestamppb.Timestamp) error {
	if t == nil {
		c.nulls.Append(1)
		c.values.AppendRaw(0)
		return nil
	}
	ms, err := toMillis(t)
	if err == nil {
		c.nulls.Append(0)
		c.values.AppendRaw(proto.DateTime64(ms))
	}
	return err
}

// digests is a column of maps from algorithm to digest: lower-case hex in messages, bytes in the table.
func digests[M any](name string, get func(M) map[string]string) column[M] {
	return column[M]{name, "Map(LowCardinality(String), String)", func() appender[M] {
		algorithms, values := newLowCardinality(), new(proto.ColStr)
		c := &proto.ColMap[string, string]{Keys: algorithms, Values: values}
		var keys []string
		return appender[M]{c, func(m M) error {
			set := get(m)
			keys = sortedKeys(keys, set)
			for _, k := range keys {
				b, err := appendHex(values.Buf, set[k])
				if err != nil {
					return fmt.Errorf("%s: %w", k, err)
				}
				values.Pos = append(values.Pos, proto.Position{Start: len(values.Buf), End: len(b)})
				values.Buf = b
				algorithms.Append(k)
			}
			clear(keys) // they belong to the message, and the column outlives it
			c.Offsets.Append(uint64(len(values.Pos)))
			return nil
		}}
	}}
}

// appendHex appends the bytes that s encodes in hex.
func appendHex(b []byte, s string) ([]byte, error) {
	n := len(b)
	b = slices.Grow(b, len(s)/2)
	out, err := hex.AppendDecode(b, []byte(s))
	if err != nil || len(s) == 0 {
		return b[:n], fmt.Errorf("%.140q is not hex", s)
	}
	return out, nil
}

// stringMap is a Map(String, String) column, sorted by key.
func stringMap[M any](name string, get func(M) map[string]string) column[M] {
	return column[M]{name, "Map(String, String)", func() appender[M] {
		c := newStringMap()
		return appender[M]{c, func(m M) error { c.append(get(m)); return nil }}
	}}
}

type stringMapColumn struct {
	proto.ColMap[string, string]
	keys []string
}

func newStringMap() *stringMapColumn {
	return &stringMapColumn{ColMap: proto.ColMap[string, string]{Keys: new(proto.ColStr), Values: new(proto.ColStr)}}
}

func (c *stringMapColumn) append(m map[string]string) {
	c.keys = sortedKeys(c.keys, m)
	for _, k := range c.keys {
		c.Keys.Append(k)
		c.Values.Append(m[k])
	}
	clear(c.keys) // they belong to the message, and the column outlives it
	c.Offsets.Append(uint64(c.Keys.Rows()))
}

// int64Map is a Map(String, Int64) column, sorted by key.
func int64Map[M any](name string, get func(M) map[string]int64) column[M] {
	return column[M]{name, "Map(String, Int64)", func() appender[M] {
		c := proto.NewMap[string, int64](new(proto.ColStr), new(proto.ColInt64))
		var keys []string
		return appender[M]{c, func(m M) error {
			set := get(m)
			keys = sortedKeys(keys, set)
			for _, k := range keys {
				c.Keys.Append(k)
				c.Values.Append(set[k])
			}
			clear(keys) // they belong to the message, and the column outlives it
			c.Offsets.Append(uint64(c.Keys.Rows()))
			return nil
		}}
	}}
}

// arrayOf is a column of arrays with a value for each element of a row.
func arrayOf[M, E, T any, C proto.ColumnOf[T]](
	name, typ string, make func() C, elements func(M) ([]E, error), get func(E) T,
) column[M] {
	return column[M]{name, typ, func() appender[M] {
		data := make()
		c := proto.NewArray[T](data)
		return appender[M]{c, func(m M) error {
			all, err := elements(m)
			for _, e := range all {
				data.Append(get(e))
			}
			c.Offsets.Append(uint64(data.Rows()))
			return err
		}}
	}}
}

// sortedKeys returns the keys of m in order. It reuses the memory of keys.
func sortedKeys[V any](keys []string, m map[string]V) []string {
	keys = keys[:0]
	for k := range m {
		keys = append(keys, k)
	}
	if len(keys) > 1 {
		slices.SortFunc(keys, cmp.Compare[string])
	}
	return keys
}
