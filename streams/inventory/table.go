package inventory

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"
)

func base(path string) string { return filepath.Base(path) }

// table reads a table with a header.
func (l *Listing) table(in *input, tabs bool) iter.Seq2[Entry, error] {
	rows := in.records(tabs, l.opts.Delimiter)
	return func(yield func(Entry, error) bool) {
		var cols *columns
		for row, err := range rows {
			at := in.at()
			var f *Fault
			switch {
			case err != nil && (cols == nil || !errors.As(err, &f)):
				err = wholeListing(err)
				yield(Entry{At: at}, err)
				return
			case err != nil:
				if !yield(Entry{At: at}, err) {
					return
				}
				continue
			case cols == nil:
				c, err := readHeader(row, l.opts.Columns)
				if err != nil {
					yield(Entry{At: at}, fmt.Errorf("%w: %s: %w", ErrFormat, at, err))
					return
				}
				cols, l.unreadColumns = &c, c.unread
				continue
			}
			if !yield(l.row(in, *cols, row)) {
				return
			}
		}
	}
}

// row parses one row of a table.
func (l *Listing) row(in *input, cols columns, row []string) (Entry, error) {
	at := in.at()
	if len(row) != len(cols.meaning) {
		return Entry{At: at}, in.fault("the row has %d fields, and the header %d", len(row), len(cols.meaning))
	}
	e, reason := cols.entry(row, l.opts)
	e.At = at
	if reason != "" {
		return e, in.fault("%s", reason)
	}
	return e, nil
}

// records splits a text into the fields of its rows. It skips blank lines. An error that is not a *Fault is the last.
func (in *input) records(tabs bool, delimiter rune) iter.Seq2[[]string, error] {
	if !tabs {
		return in.quoted(delimiter)
	}
	return func(yield func([]string, error) bool) {
		for {
			line, err := in.next()
			if errors.Is(err, io.EOF) {
				return
			}
			var fields []string
			if err == nil {
				if len(line) == 0 {
					continue
				}
				fields = strings.Split(string(line), "\t")
				if slices.ContainsFunc(fields, isQuoted) {
					fields, err = nil, in.fault("a field is in quotes, which TSV does not have; if they are not a part of it, "+
						"say --format csv --delimiter tab")
				}
			}
			var f *Fault
			if !yield(fields, err) || err != nil && !errors.As(err, &f) {
				return
			}
		}
	}
}

func isQuoted(field string) bool {
	return len(field) > 1 && field[0] == '"' && field[len(field)-1] == '"'
}

// quoted reads CSV (RFC 4180). An invalid row is a fault, as is a row that is not UTF-8.
func (in *input) quoted(delimiter rune) iter.Seq2[[]string, error] {
	head, _ := in.r.Peek(in.r.Size()) // reading finds its errors again
	lim := &limitedReader{r: in.r}
	r := csv.NewReader(lim)
	r.Comma, r.FieldsPerRecord, r.ReuseRecord = delimiterOf(firstLine(head), delimiter), -1, true
	return func(yield func([]string, error) bool) {
		for {
			lim.left = 2 * maxLine
			row, err := r.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			if len(row) > 0 {
				line, _ := r.FieldPos(0)
				in.line = int64(line)
			}
			var parse *csv.ParseError
			switch {
			case errors.As(err, &parse):
				in.line = int64(parse.StartLine)
				if parse.Line != parse.StartLine { // it spans several rows, which cannot be separated
					yield(nil, invalid(in.at(), "a quote that is opened there is not closed as it should be: line %d: %w",
						parse.Line, parse.Err))
					return
				}
				err = in.fault("%s", parse.Err)
			case errors.Is(err, errTooLong):
				in.line++
				yield(nil, invalid(in.at(), "a row does not end within %d bytes: a quote is not closed there or further on",
					maxLine))
				return
			case err != nil:
				yield(nil, in.damaged(err))
				return
			default:
				err = in.checkFields(row)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

func (in *input) checkFields(row []string) error {
	for _, field := range row {
		if strings.IndexByte(field, 0) >= 0 {
			return in.fault("the row has a NUL byte")
		}
		if err := in.checkText([]byte(field)); err != nil {
			return err
		}
	}
	return nil
}

func firstLine(b []byte) []byte {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return line
}

var errTooLong = errors.New("too long")

// A limitedReader limits the memory that an unclosed quote takes.
type limitedReader struct {
	r    io.Reader
	left int
}

// Read implements io.Reader.
func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLong
	}
	n, err := l.r.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// duraCloud reads the manifest of a DuraCloud space: its TSV (TsvManifestFormatter, ExtendedTsvManifestFormatter),
// and its BagIt format, lines "MD5  SPACE/CONTENT" (BagitManifestFormatter). Content ids are used unchanged.
func (l *Listing) duraCloud(in *input) iter.Seq2[Entry, error] {
	head, err := in.r.Peek(in.r.Size())
	if err != nil && !errors.Is(err, io.EOF) {
		return failed(in.damaged(err))
	}
	first := string(firstLine(head))
	if strings.Contains(first, "\t") && hexRun(first) != 32 {
		return l.table(in, true)
	}
	return in.each(func(line string) (Entry, error) {
		n := hexRun(line)
		space, item, ok := strings.Cut(strings.TrimLeft(line[n:], " \t"), "/")
		if n != 32 || len(line) == n || line[n] != ' ' && line[n] != '\t' || !ok || space == "" || item == "" {
			return Entry{}, in.fault("it is not a line of a DuraCloud manifest: want MD5, two spaces, SPACE/CONTENT")
		}
		e := Entry{Space: space, Item: item, Key: true, Size: -1}
		if reason := e.add("md5", "", line[:n]); reason != "" {
			return e, in.fault("%s", reason)
		}
		return e, nil
	})
}
