package clickhouse

import (
	"errors"
	"math"

	"github.com/ClickHouse/ch-go/proto"
)

// lowCardinality is a LowCardinality(String) column for writing. It looks a value up in the dictionary only if it
// differs from the previous value. The column of ch-go keeps all values until it is encoded.
type lowCardinality struct {
	index proto.ColStr
	seen  map[string]uint32
	keys  []uint32
	last  string
}

var (
	_ proto.ColumnOf[string] = (*lowCardinality)(nil)
	_ proto.StateEncoder     = (*lowCardinality)(nil)
)

func newLowCardinality() *lowCardinality { return &lowCardinality{seen: map[string]uint32{}} }

// Append appends one value.
func (c *lowCardinality) Append(v string) {
	if n := len(c.keys); n > 0 && v == c.last {
		c.keys = append(c.keys, c.keys[n-1])
		return
	}
	key, ok := c.seen[v]
	if !ok {
		key = uint32(len(c.seen))
		c.seen[v] = key
		c.index.Append(v)
	}
	c.keys = append(c.keys, key)
	c.last = v
}

// AppendArr appends values.
func (c *lowCardinality) AppendArr(vs []string) {
	for _, v := range vs {
		c.Append(v)
	}
}

// Type returns the ClickHouse type of the column.
func (c *lowCardinality) Type() proto.ColumnType { return "LowCardinality(String)" }

// Rows returns the number of values.
func (c *lowCardinality) Rows() int { return len(c.keys) }

// Row returns the ith value.
func (c *lowCardinality) Row(i int) string { return c.index.Row(int(c.keys[i])) }

// Reset empties the column.
func (c *lowCardinality) Reset() {
	c.index.Reset()
	clear(c.seen)
	c.keys, c.last = c.keys[:0], ""
}

// EncodeState writes the version of the key encoding.
func (c *lowCardinality) EncodeState(b *proto.Buffer) { b.PutInt64(1) }

// EncodeColumn writes the dictionary and the keys.
func (c *lowCardinality) EncodeColumn(b *proto.Buffer) {
	if len(c.keys) == 0 {
		return
	}
	// The flags mean: additional keys, and a dictionary for this block only. The low byte is the width of a key.
	const flags = 1<<9 | 1<<10
	width := 0
	switch n := len(c.seen); {
	case n > math.MaxUint16+1:
		width = 2
	case n > math.MaxUint8+1:
		width = 1
	}
	b.PutInt64(int64(flags | width))
	b.PutInt64(int64(c.index.Rows()))
	c.index.EncodeColumn(b)
	b.PutInt64(int64(len(c.keys)))
	for _, k := range c.keys {
		switch width {
		case 0:
			b.PutUInt8(uint8(k))
		case 1:
			b.PutUInt16(uint16(k))
		default:
			b.PutUInt32(k)
		}
	}
}

// WriteColumn writes the dictionary and the keys.
func (c *lowCardinality) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// DecodeColumn returns an error: the column cannot be read.
func (c *lowCardinality) DecodeColumn(*proto.Reader, int) error {
	return errors.New("the column is only written")
}
