package client

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Compressing a small batch allocates little, even just after a garbage collection. The test is not parallel,
// since the memory of other tests would count.
func TestCompressorIsSmall(t *testing.T) {
	short := []byte(strings.Repeat("acme/photos/2026/img.jpg ", 40))
	dst, c := new(bytes.Buffer), Compressor()
	var before, after runtime.MemStats
	c.Compress(dst, short)
	runtime.GC()
	runtime.GC() // the second collection empties a sync.Pool
	runtime.ReadMemStats(&before)
	dst.Reset()
	c.Compress(dst, short)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 512<<10 {
		t.Errorf("%d bytes were allocated for a batch of %d", n, len(short))
	}
}

func TestCompressor(t *testing.T) {
	for name, src := range map[string]string{
		"one byte":        "a",
		"short":           strings.Repeat("acme/photos/2026/img.jpg ", 40),
		"many blocks":     strings.Repeat("acme/photos/2026/img.jpg ", 40_000),
		"a block exactly": strings.Repeat("0123456789abcdef", 4<<10),
	} {
		t.Run(name, func(t *testing.T) {
			c := Compressor()
			for range 2 { // with a new and a reused writer
				out, codec := c.Compress(new(bytes.Buffer), []byte(src))
				got, err := kgo.DefaultDecompressor().Decompress(out, codec)
				if err != nil || codec != kgo.CodecLz4 || string(got) != src {
					t.Errorf("%d bytes came back as %d, codec %d, %v", len(src), len(got), codec, err)
				}
			}
		})
	}
}
