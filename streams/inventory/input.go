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

// maxLine is the largest length of a line or record in bytes. It is that of a message.
const maxLine = 256 << 10

// An input is the text of one file: decompressed, without BOM, and converted to UTF-8 if its encoding is known.
type input struct {
	name string
	r    *bufio.Reader
	// transcoded reports that the text was in another encoding. Invalid bytes have become U+FFFD.
	transcoded bool

	line int64
	buf  []byte
}

// text reads a text file with parse.
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

// A source is an open file of a listing. It counts the bytes that are read and optionally hashes them.
type source struct {
	f        *os.File // not embedded, because io.Copy would then bypass Read
	progress func(int64)
	md5      hash.Hash // nil if not needed
}

// open opens a file of the listing. It is an error if the file has changed since it was opened first.
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
	now := fileState{info.Size(), info.ModTime()}
	if before, ok := l.files[path]; ok && before != now {
		f.Close()
		return nil, fmt.Errorf("%w: %s was changed while it was being imported", ErrInvalid, path)
	}
	l.files[path] = now
	return &source{f: f, progress: l.opts.Progress}, nil
}

// Close closes the file.
func (s *source) Close() error { return s.f.Close() }

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.f.Read(p)
	if s.md5 != nil {
		s.md5.Write(p[:n])
	}
	if s.progress != nil && n > 0 {
		s.progress(int64(n))
	}
	return n, err
}

// newInput detects the compression and encoding of a text. charset is an IANA name; if it is empty, the encoding is
// that of the BOM, or UTF-8.
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

// encodingOf returns the encoding of a charset; nil for UTF-8.
func encodingOf(name, charset string) (encoding.Encoding, error) {
	if charset == "" {
		return nil, nil
	}
	enc, err := ianaindex.IANA.Encoding(charset)
	if err != nil || enc == nil {
		return nil, invalid(Position{File: name}, "the encoding %q is unknown", charset)
	}
	if canonical, err := ianaindex.IANA.Name(enc); err == nil && (canonical == "UTF-8" || canonical == "US-ASCII") {
		return nil, nil // each row is checked later
	}
	return enc, nil
}

// damaged returns the error of a file that could not be read to its end.
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

func (in *input) at() Position { return Position{in.name, in.line} }

func (in *input) fault(format string, args ...any) *Fault {
	return &Fault{in.at(), fmt.Sprintf(format, args...)}
}

// next returns the next line without its end. The line is valid until the next call. The error is a *Fault if the line
// is not text, and io.EOF after the last line.
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
		return nil, in.fault("the line has a NUL byte; sums made with --zero are not supported")
	}
	return line, in.checkText(line)
}

// checkText returns a *Fault if the text is not valid in its encoding.
func (in *input) checkText(text []byte) error {
	switch {
	case !utf8.Valid(text):
		return in.fault("the line is not UTF-8")
	case in.transcoded && bytes.ContainsRune(text, utf8.RuneError):
		return in.fault("the line has bytes that are invalid in its encoding")
	}
	return nil
}

// each parses every line that is not blank. Faults are those of reading the line and those that parse returns.
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

// errNoRow is returned by parsers for lines without an item.
var errNoRow = errors.New("no row")

// sum returns the MD5 of the whole file. It reads the rest of the file.
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
