// Package jsonpart reads a JSON array or object one part at a time.
//
// Memory does not grow with the number of parts: only the part at hand is held, and the caller stops when it has
// enough. encoding/json makes a value of every part before it returns.
package jsonpart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Elements calls f with each element of the array b, in order. An element is valid until f returns. An error of f ends
// the reading and is returned as it is.
func Elements(b []byte, f func(element []byte) error) error {
	return parts(b, '[', func(dec *json.Decoder, part *json.RawMessage) error {
		if err := dec.Decode(part); err != nil {
			return broken(err)
		}
		return f(*part)
	})
}

// Members calls f with each member of the object b, in order, also with those of one name. A value is valid until f
// returns. An error of f ends the reading and is returned as it is.
func Members(b []byte, f func(name string, value []byte) error) error {
	return parts(b, '{', func(dec *json.Decoder, part *json.RawMessage) error {
		name, err := dec.Token()
		if err != nil {
			return broken(err)
		}
		if err := dec.Decode(part); err != nil {
			return broken(err)
		}
		text, _ := name.(string) // the decoder accepts no other names
		return f(text, *part)
	})
}

func parts(b []byte, open json.Delim, next func(*json.Decoder, *json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	switch t, err := dec.Token(); {
	case err != nil:
		return broken(err)
	case t != open && open == '[':
		return errors.New("it is not a JSON array")
	case t != open:
		return errors.New("it is not a JSON object")
	}
	var part json.RawMessage // each part takes the place of the one before
	for dec.More() {
		if err := next(dec, &part); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil { // its end
		return broken(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows behind byte %d, where it ends", dec.InputOffset())
	}
	return nil
}

func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
