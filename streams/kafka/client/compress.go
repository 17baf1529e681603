package client

import (
	"bytes"
	"sync"

	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A compressor writes LZ4 frames with blocks of 64 KiB, as the Java client does. The default compressor of
// franz-go uses blocks of 4 MiB. It allocates two of them for a batch of any size, and again after each garbage
// collection.
type compressor struct{ writers sync.Pool }

var _ kgo.Compressor = (*compressor)(nil)

// Compressor returns the compressor of all producers in this package.
func Compressor() kgo.Compressor {
	return &compressor{sync.Pool{New: func() any { return lz4.NewWriter(nil) }}}
}

// Compress implements kgo.Compressor.
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
