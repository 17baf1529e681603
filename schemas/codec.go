package schemas

import (
	"errors"
	"fmt"
)

// ErrMalformed is what every error about an undecodable record wraps: no retry cures it.
var ErrMalformed = errors.New("malformed message")

// Content types of a record's value.
const (
	ContentProtobuf = "application/protobuf"
	ContentJSON     = "application/json"
)

// Encode turns a message into a record: Protobuf, keyed by the catalogue, with
// CloudEvents headers. A message over MaxBytes is refused.
func Encode(m Message) (Record, error) { return Record{}, fmt.Errorf("todo") }

// Decode reads the message in a record of topic. Its errors wrap ErrMalformed.
func Decode(topic Topic, headers []Header, value []byte) (Body, error) {
	return nil, fmt.Errorf("todo")
}
