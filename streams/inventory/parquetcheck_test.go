package inventory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/compress/uncompressed"

	"github.com/millrace/millrace/internal/heaptest"
)

// parquetOf writes a file with the rows that row returns.
func parquetOf[R any](t testing.TB, rows int, row func(i int) R, options ...parquet.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[R](&b, options...)
	all := make([]R, rows)
	for i := range all {
		all[i] = row(i)
	}
	if _, err := w.Write(all); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	return bytes.Clone(b.Bytes())
}

// readAllParquet returns the number of valid rows, and the first error.
func readAllParquet(b []byte) (rows int, err error) {
	return readParquetRows(b, func(int) {})
}

func readParquetRows(b []byte, sound func(row int)) (rows int, err error) {
	readParquet("x", bytes.NewReader(b), int64(len(b)), func(_ inventoryRow, failed error) bool {
		var f *Fault
		switch {
		case failed == nil:
			rows++
			sound(rows)
		case !errors.As(failed, &f):
			err = failed
		}
		return true
	})
	return rows, err
}

type keyRow struct {
	Key  string `parquet:"key"`
	Size *int64 `parquet:"size,optional"`
}

type plainRow struct {
	Key string `parquet:"key,plain"`
}

type wideRow struct {
	Key   string `parquet:"key,dict"`
	Other string `parquet:"other,plain"`
}

// Reading a Parquet file holds one page of each column in memory, for any size of the file and any claim in it.
func TestParquetMemory(t *testing.T) {
	const mib = 1 << 20
	long := strings.Repeat("k", 8<<10)
	gzip := parquet.Compression(&parquet.Gzip)
	large := []parquet.WriterOption{gzip, parquet.PageBufferSize(1 << 30), parquet.SkipPageBounds("key"),
		parquet.SkipPageBounds("other")}
	bomb := parquetOf(t, 3200, func(int) plainRow { return plainRow{long} }, large...)
	for name, tt := range map[string]struct {
		file []byte
		rows int
		most int64
		want string

		garbage bool // it makes much more than may be held
	}{
		"many rows": {parquetOf(t, 20_000,
			func(i int) keyRow { return keyRow{Key: fmt.Sprintf("photos/%012d.jpg", i*i)} }), 20_000, 16 * mib, "", false},
		"many groups": {parquetOf(t, 20_000, func(i int) keyRow { return keyRow{Key: fmt.Sprint(i)} },
			parquet.MaxRowsPerRowGroup(2000)), 20_000, 16 * mib, "", false},
		"a large page": {bomb, 0, 16 * mib, "a page has 26227200 bytes", false},
		"a page larger than it says": {lying(t, bomb, 3200*(8<<10+4), 1000), 0, 16 * mib, "a page is larger than it says",
			false},
		"a column that is not read": {parquetOf(t, 3200, func(int) wideRow { return wideRow{"k", long} }, large...),
			3200, 16 * mib, "", false},
		"a long value, again and again": {parquetOf(t, 1_000, func(int) wideRow { return wideRow{long, ""} }), 1_000,
			4 * mib, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var rows int
			var err error
			measure := func() int64 {
				return heaptest.Peak(func() { rows, err = readAllParquet(tt.file) })
			}
			if tt.garbage {
				measure = func() int64 {
					return heaptest.At(func(look func()) {
						rows, err = readParquetRows(tt.file, func(row int) {
							if row%20 == 0 {
								look()
							}
						})
					})
				}
			}
			got := measure()
			t.Logf("of %d bytes %d are held", len(tt.file), got)
			if got > tt.most || rows != tt.rows {
				t.Errorf("got %d rows and %d bytes, want %d and at most %d", rows, got, tt.rows, tt.most)
			}
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, ErrInvalid) ||
				!strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// lying changes the size in the header of a page, not the page.
func lying(t *testing.T, file []byte, size, says uint64) []byte {
	t.Helper()
	was := binary.AppendUvarint(nil, size<<1)
	now := binary.AppendUvarint(nil, says<<1)
	for len(now) < len(was) {
		now[len(now)-1] |= 0x80
		now = append(now, 0)
	}
	if bytes.Count(file, was) == 0 {
		t.Fatal("no page of that size")
	}
	return bytes.Replace(file, was, now, 1)
}

func TestParquetPacked(t *testing.T) {
	row := func(i int) keyRow { size := int64(i); return keyRow{fmt.Sprintf("photos/%d", i), &size} }
	for name, tt := range map[string]struct {
		codec compress.Codec
		want  string
	}{
		"not":    {&uncompressed.Codec{}, ""},
		"gzip":   {&parquet.Gzip, ""},
		"snappy": {&parquet.Snappy, ""},
		"zstd":   {&parquet.Zstd, ""},
		"lz4":    {&parquet.Lz4Raw, "packed with LZ4_RAW are not supported"},
		// the library would take all memory for one that is damaged
		"brotli": {&parquet.Brotli, "packed with BROTLI are not supported"},
	} {
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, version %d", name, version), func(t *testing.T) {
				rows, err := readAllParquet(parquetOf(t, 5000, row, parquet.Compression(tt.codec),
					parquet.DataPageVersion(version)))
				switch {
				case tt.want == "" && (err != nil || rows != 5000):
					t.Errorf("got %d rows, %v", rows, err)
				case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
					t.Errorf("got %v, want %q", err, tt.want)
				}
			})
		}
	}
}

func TestParquetEncodings(t *testing.T) {
	type dict struct {
		Key    string `parquet:"key,dict"`
		Latest *bool  `parquet:"is_latest,optional,dict"`
		Size   int64  `parquet:"size,delta"`
	}
	latest := true
	rows, err := readAllParquet(parquetOf(t, 3000, func(i int) dict { return dict{fmt.Sprint(i % 7), &latest, int64(i)} }))
	if rows != 3000 || err != nil {
		t.Errorf("got %d rows, %v", rows, err)
	}
	type delta struct {
		Key string `parquet:"key,delta"` // each value as what follows the one before: they can be of any length together
	}
	_, err = readAllParquet(parquetOf(t, 10, func(i int) delta { return delta{strings.Repeat("k", i)} }))
	if err == nil || !strings.Contains(err.Error(), "encoding DELTA_BYTE_ARRAY are not supported") {
		t.Errorf("got %v", err)
	}
}

func TestCheckRuns(t *testing.T) {
	for name, tt := range map[string]struct {
		runs   []byte
		bits   uint64
		values int64
		fits   bool
	}{
		"none":                          {nil, 1, 0, true},
		"one run":                       {[]byte{10 << 1, 1}, 1, 10, true},
		"a run of too many":             {binary.AppendUvarint(nil, 1000<<1), 1, 10, false},
		"a run of two thousand million": {binary.AppendUvarint(nil, (1<<31-1)<<1), 0, 10, false},
		"packed in eights":              {[]byte{2<<1 | 1, 0, 0}, 1, 10, true},
		"packed, too many":              {binary.AppendUvarint(nil, 100<<1|1), 1, 10, false},
		"of too many bits":              {[]byte{2, 0}, 33, 10, false},
		"a number without end":          {[]byte{0xff}, 1, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := checkRuns(tt.runs, tt.bits, tt.values); (err == nil) != tt.fits {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A footer with sizes that are too large does not take memory for them.
func TestCheckFooter(t *testing.T) {
	whole := func(footer ...byte) []byte {
		b := append([]byte("PAR1"), footer...)
		return append(binary.LittleEndian.AppendUint32(b, uint32(len(footer))), "PAR1"...)
	}
	for name, tt := range map[string]struct {
		file []byte
		want error
	}{
		"nothing in it": {whole(0), nil},
		"a number":      {whole(0x15, 2, 0), nil},
		"a text of 1 GiB": {whole(append([]byte{0x18}, append(binary.AppendUvarint(nil, 1<<30), 0)...)...),
			io.ErrUnexpectedEOF},
		"a list of 1 << 30": {whole(append([]byte{0x19, 0xfc}, append(binary.AppendUvarint(nil, 1<<30), 0)...)...),
			errParquet},
		"nested without end": {whole(bytes.Repeat([]byte{0x1c}, 1000)...), errParquet},
		"without its last":   {whole(0x15, 2), io.ErrUnexpectedEOF},
		"of kinds unknown":   {whole(0x1e, 0), errParquet},
		"too short":          {[]byte("PAR1"), io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			if err := checkFooter(bytes.NewReader(tt.file), int64(len(tt.file))); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}
