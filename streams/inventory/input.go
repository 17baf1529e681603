package inventory

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"os"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/ianaindex"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// maxLine is the length of the longest line or record that is read: no message may be longer.
const maxLine = 256 << 10

// An input is the text of one file: decompressed, in UTF-8 as far as its encoding is known, without a BOM.
type input struct {
	name string
	r    *bufio.Reader
	// transcoded: the text was in another encoding, and what that could not say is U+FFFD now.
	transcoded bool

	line int64
	buf  []byte
}

// text reads a file with parse.
func (l *Listing) text(path, charset string, parse func(*input) iter.Seq2[Entry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		f, err := l.open(path)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer f.Close()
		in, err := newInput(path, f, charset)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		parse(in)(yield)
	}
}

// A source is an open file of a listing: it counts, and can hash, what is read.
type source struct {
	f    *os.File // not embedded: copying from it would pass by what is below
	told func(int64)
	md5  hash.Hash // nil: not wanted
}

// open opens a file of the listing, which must be as it was when it was opened first.
func (l *Listing) open(path string) (*source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the listing: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read the listing: %w", err)
	}
	now := stamp{info.Size(), info.ModTime()}
	if before, ok := l.files[path]; ok && before != now {
		f.Close()
		return nil, fmt.Errorf("%w: %s was changed while it was being imported", ErrInvalid, path)
	}
	l.files[path] = now
	return &source{f: f, told: l.opts.Told}, nil
}

// Close closes the file.
func (s *source) Close() error { return s.f.Close() }

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.f.Read(p)
	if s.md5 != nil {
		s.md5.Write(p[:n])
	}
	if s.told != nil && n > 0 {
		s.told(int64(n))
	}
	return n, err
}

// newInput finds out how a text is packed and encoded. charset is an IANA name; empty: UTF-8, or what a BOM says.
func newInput(name string, r io.Reader, charset string) (*input, error) {
	in := &input{name: name}
	raw := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := raw.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, in.damaged(err)
		}
		raw = bufio.NewReaderSize(z, 64<<10)
	}
	enc, err := encodingOf(name, charset)
	if err != nil {
		return nil, err
	}
	bom, err := raw.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, in.damaged(err)
	}
	switch {
	case bytes.HasPrefix(bom, []byte("\xef\xbb\xbf")):
		_, err = raw.Discard(3)
		if err != nil {
			return nil, in.damaged(err)
		}
	case bytes.HasPrefix(bom, []byte("\xff\xfe")), bytes.HasPrefix(bom, []byte("\xfe\xff")):
		enc = unicode.UTF16(unicode.LittleEndian, unicode.UseBOM)
	}
	if enc != nil {
		in.transcoded = true
		raw = bufio.NewReaderSize(transform.NewReader(raw, enc.NewDecoder()), 64<<10)
	}
	in.r = raw
	return in, nil
}

// encodingOf looks up an encoding; nil for UTF-8.
func encodingOf(name, charset string) (encoding.Encoding, error) {
	if charset == "" {
		return nil, nil
	}
	enc, err := ianaindex.IANA.Encoding(charset)
	if err != nil || enc == nil {
		return nil, invalid(Place{File: name}, "the encoding %q is not known here", charset)
	}
	if canonical, err := ianaindex.IANA.Name(enc); err == nil && (canonical == "UTF-8" || canonical == "US-ASCII") {
		return nil, nil // bytes that are neither are found in each row
	}
	return enc, nil
}

// damaged says that a file could not be read to its end.
func (in *input) damaged(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return invalid(in.at(), "the compressed file is cut short")
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.As(err, &corrupt):
		return invalid(in.at(), "decompress: %w", err)
	}
	return fmt.Errorf("read the listing: %s: %w", in.at(), err)
}

func (in *input) at() Place { return Place{in.name, in.line} }

func (in *input) fault(format string, args ...any) *Fault {
	return &Fault{in.at(), fmt.Sprintf(format, args...)}
}

// next returns the next line without its end, good until the next call: a *Fault where it is not text, io.EOF after
// the last.
func (in *input) next() ([]byte, error) {
	in.buf = in.buf[:0]
	in.line++
	long := false
	for {
		part, err := in.r.ReadSlice('\n')
		if long = long || len(in.buf)+len(part) > maxLine; !long {
			in.buf = append(in.buf, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, in.damaged(err)
		case err != nil && len(in.buf) == 0 && !long:
			return nil, io.EOF
		}
		break
	}
	if long {
		return nil, in.fault("the line is longer than %d bytes", maxLine)
	}
	line := bytes.TrimSuffix(bytes.TrimSuffix(in.buf, []byte("\n")), []byte("\r"))
	if bytes.IndexByte(line, 0) >= 0 {
		return nil, in.fault("there is a NUL in the line; sums made with --zero are not read")
	}
	return line, in.legible(line)
}

// legible says whether a text could be read in the encoding that it should have.
func (in *input) legible(text []byte) error {
	switch {
	case !utf8.Valid(text):
		return in.fault("the line is not UTF-8")
	case in.transcoded && bytes.ContainsRune(text, utf8.RuneError):
		return in.fault("the line holds bytes that its encoding does not have")
	}
	return nil
}

// each reads every line that is not blank. A line that is wrong is a fault, and so is what parse returns as one.
func (in *input) each(parse func(line string) (Entry, error)) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for {
			line, err := in.next()
			if errors.Is(err, io.EOF) {
				return
			}
			var e Entry
			if err == nil {
				if len(bytes.TrimSpace(line)) == 0 {
					continue
				}
				e, err = parse(string(line))
				if errors.Is(err, errNoRow) {
					continue
				}
			}
			e.At = in.at()
			var f *Fault
			if !yield(e, err) || err != nil && !errors.As(err, &f) {
				return
			}
		}
	}
}

// errNoRow is what parsers return for lines that say nothing of an item.
var errNoRow = errors.New("no row")

// sum returns the MD5 of what was read, and reads the rest for it.
func (s *source) sum() (string, error) {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return "", fmt.Errorf("read the listing: %w", err)
	}
	return hex.EncodeToString(s.md5.Sum(nil)), nil
}

func (s *source) hashing() *source {
	s.md5 = md5.New()
	return s
}
