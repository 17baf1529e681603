package kafka

import (
	"bytes"
	"sync"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A compressor makes LZ4 frames with blocks of 64 KiB, as Kafka's own producers do. The client's compressor has blocks
// of 4 MiB: it allocates two for a batch of any length, after each garbage collection anew.
type compressor struct{ writers sync.Pool }

var _ kgo.Compressor = (*compressor)(nil)

// Compressor returns one, for batches as the producers of this package write them.
func Compressor() kgo.Compressor { return newCompressor() }

func newCompressor() *compressor {
	return &compressor{sync.Pool{New: func() any { return lz4.NewWriter(nil) }}}
}

// Compress is the method of kgo.Compressor.
func (c *compressor) Compress(dst *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	w := c.writers.Get().(*lz4.Writer)
	defer c.writers.Put(w)
	w.Reset(dst)
	if w.Apply(lz4.BlockSizeOption(lz4.Block64Kb)) != nil {
		return nil, kgo.CodecError
	}
	if _, err := w.Write(src); err != nil {
		return nil, kgo.CodecError
	}
	if w.Close() != nil {
		return nil, kgo.CodecError
	}
	return dst.Bytes(), kgo.CodecLz4
}
