package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxNested is the largest nesting depth of JSON. It limits the stack for skipped values, which can have any structure.
const maxNested = 64

// An errJSON reports that JSON does not have the expected structure.
type errJSON string

func (e errJSON) Error() string { return string(e) }

// A jsonReader reads JSON token by token, so that it need not be held in memory. Strings are not longer than maxLine.
type jsonReader struct {
	dec   *json.Decoder
	lim   *limitedReader
	begin int64 // offset of the JSON in the file
}

func newJSONReader(r io.Reader, begin int64) *jsonReader {
	lim := &limitedReader{r: r}
	return &jsonReader{json.NewDecoder(lim), lim, begin}
}

// offset returns the offset in the file up to which it has been read.
func (j *jsonReader) offset() int64 { return j.begin + j.dec.InputOffset() }

func (j *jsonReader) token() (json.Token, error) {
	j.lim.left = 2 * maxLine
	t, err := j.dec.Token()
	if s, ok := t.(string); ok && len(s) > maxLine {
		return nil, errTooLong
	}
	return t, err
}

func (j *jsonReader) more() bool {
	j.lim.left = 2 * maxLine
	return j.dec.More()
}

// text reads a string; null gives an empty one.
func (j *jsonReader) text() (string, error) {
	t, err := j.token()
	s, ok := t.(string)
	if err == nil && !ok && t != nil {
		err = errJSON(fmt.Sprintf("there is %.80v, want a text", t))
	}
	return s, err
}

// open reads the beginning of an object or a list; is is false for null.
func (j *jsonReader) open(want json.Delim) (is bool, err error) {
	t, err := j.token()
	if err == nil && t != nil && t != want {
		err = errJSON(fmt.Sprintf("there is %.80v, want %v", t, want))
	}
	return err == nil && t == want, err
}

// members reads an object. It calls f with each name; f reads the value.
func (j *jsonReader) members(f func(name string) error) error {
	is, err := j.open('{')
	if !is {
		return err
	}
	for j.more() {
		name, err := j.text()
		if err != nil {
			return err
		}
		if err := f(name); err != nil {
			return err
		}
	}
	_, err = j.token() // the closing brace
	return err
}

// lists reads an object that has lists of strings as values. It converts the names, which are digests, to lower case.
func (j *jsonReader) lists(f func(name, text string) error) error {
	return j.members(func(name string) error {
		is, err := j.open('[')
		if !is {
			return err
		}
		name = strings.ToLower(name)
		for j.more() {
			text, err := j.text()
			if err != nil {
				return err
			}
			if err := f(name, text); err != nil {
				return err
			}
		}
		_, err = j.token()
		return err
	})
}

// byteRange skips an object and returns its position.
func (j *jsonReader) byteRange() (byteRange, error) {
	is, err := j.open('{')
	if !is {
		return byteRange{}, err
	}
	return byteRange{j.offset() - 1, true}, j.rest(1)
}

// skip skips a value.
func (j *jsonReader) skip() error { return j.rest(0) }

// rest skips the rest of a value at the given depth.
func (j *jsonReader) rest(depth int) error {
	for {
		t, err := j.token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth > maxNested {
			return errJSON(fmt.Sprintf("it is nested more than %d deep", maxNested))
		}
		if depth == 0 {
			return nil
		}
	}
}

// end returns an error if anything follows.
func (j *jsonReader) end() error {
	_, err := j.token()
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errJSON("something follows behind its end")
}
