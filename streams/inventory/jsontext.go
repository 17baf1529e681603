package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxNested is how deep JSON may be nested: what is passed over has no form that is known.
const maxNested = 64

// An errJSON says that JSON is of another form than is wanted.
type errJSON string

func (e errJSON) Error() string { return string(e) }

// A jsonText reads JSON token by token, so that it need not be held. No text in it is longer than maxLine.
type jsonText struct {
	dec   *json.Decoder
	lim   *limited
	begin int64 // of the text in the file
}

func newJSONText(r io.Reader, begin int64) *jsonText {
	lim := &limited{r: r}
	return &jsonText{json.NewDecoder(lim), lim, begin}
}

// offset is how far the file is read.
func (j *jsonText) offset() int64 { return j.begin + j.dec.InputOffset() }

func (j *jsonText) token() (json.Token, error) {
	j.lim.left = 2 * maxLine
	t, err := j.dec.Token()
	if s, ok := t.(string); ok && len(s) > maxLine {
		return nil, errLong
	}
	return t, err
}

func (j *jsonText) more() bool {
	j.lim.left = 2 * maxLine
	return j.dec.More()
}

// text reads a string; null is none.
func (j *jsonText) text() (string, error) {
	t, err := j.token()
	s, ok := t.(string)
	if err == nil && !ok && t != nil {
		err = errJSON(fmt.Sprintf("there is %.80v, want a text", t))
	}
	return s, err
}

// open reads the beginning of an object or a list; null is none.
func (j *jsonText) open(want json.Delim) (is bool, err error) {
	t, err := j.token()
	if err == nil && t != nil && t != want {
		err = errJSON(fmt.Sprintf("there is %.80v, want %v", t, want))
	}
	return err == nil && t == want, err
}

// members reads an object: f is called with each name, and reads the value.
func (j *jsonText) members(f func(name string) error) error {
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
	_, err = j.token() // its end
	return err
}

// lists reads an object whose members are lists of texts. Names are in lower case: they are digests.
func (j *jsonText) lists(f func(name, text string) error) error {
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

// span passes over an object, and says where it stands.
func (j *jsonText) span() (span, error) {
	is, err := j.open('{')
	if !is {
		return span{}, err
	}
	return span{j.offset() - 1, true}, j.rest(1)
}

// skip passes over a value.
func (j *jsonText) skip() error { return j.rest(0) }

// rest passes over what is left of the value that is nested so deep.
func (j *jsonText) rest(depth int) error {
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

// end says whether nothing follows.
func (j *jsonText) end() error {
	_, err := j.token()
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errJSON("something follows behind its end")
}
