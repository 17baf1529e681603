// Package jsonpart reads a JSON array or object one part at a time.
//
// Memory does not grow with the number of parts: only the current part is held, and the caller can stop early.
// encoding/json decodes all parts before it returns.
package jsonpart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Elements calls f with each element of the array b, in order. An element is valid until f returns. If f returns an
// error, Elements stops and returns that error unchanged.
func Elements(b []byte, f func(element []byte) error) error {
	return parts(b, '[', func(dec *json.Decoder, part *json.RawMessage) error {
		if err := dec.Decode(part); err != nil {
			return broken(err)
		}
		return f(*part)
	})
}

// Members calls f with each member of the object b, in order, including duplicate names. A value is valid until f
// returns. If f returns an error, Members stops and returns that error unchanged.
func Members(b []byte, f func(name string, value []byte) error) error {
	return parts(b, '{', func(dec *json.Decoder, part *json.RawMessage) error {
		name, err := dec.Token()
		if err != nil {
			return broken(err)
		}
		if err := dec.Decode(part); err != nil {
			return broken(err)
		}
		text, _ := name.(string) // the decoder accepts only string names
		return f(text, *part)
	})
}

func parts(b []byte, open json.Delim, next func(*json.Decoder, *json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	switch t, err := dec.Token(); {
	case err != nil:
		return broken(err)
	case t != open && open == '[':
		return errors.New("not a JSON array")
	case t != open:
		return errors.New("not a JSON object")
	}
	var part json.RawMessage // reused for each part
	for dec.More() {
		if err := next(dec, &part); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil { // the closing delimiter
		return broken(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("data after the end of the JSON value at byte %d", dec.InputOffset())
	}
	return nil
}

func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
