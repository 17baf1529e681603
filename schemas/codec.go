package schemas

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// What an error of this package wraps. Neither is cured by trying again.
var (
	// ErrMalformed: the record cannot be read, or the message must not be written.
	ErrMalformed = errors.New("malformed message")
	// ErrTooLarge: the encoded message is larger than MaxBytes.
	ErrTooLarge = errors.New("message is too large")
)

// Content types of a record's value.
const (
	ContentProtobuf = "application/protobuf"
	ContentJSON     = "application/json"
)

// The headers of a record: CloudEvents in binary mode.
const (
	HeaderSpecVersion = "ce_specversion"
	HeaderID          = "ce_id"
	HeaderSource      = "ce_source"
	HeaderType        = "ce_type"
	HeaderTime        = "ce_time"
	HeaderContentType = "content-type"
)

const (
	specVersion = "1.0"
	timeForm    = "2006-01-02T15:04:05.000Z" // RFC 3339 in milliseconds, UTC
)

// A DecodeError says what is wrong with one message. It wraps ErrMalformed.
type DecodeError struct {
	Topic  Topic  // empty where the topic is not known
	Field  string // path of the field (source_record.size), or a header's name; empty: all of it
	Reason string
}

func (e *DecodeError) Error() string {
	s := ErrMalformed.Error()
	if e.Topic != "" {
		s += " of " + string(e.Topic)
	}
	if e.Field != "" {
		s += ": " + e.Field
	}
	return s + ": " + e.Reason
}

// Unwrap returns ErrMalformed.
func (e *DecodeError) Unwrap() error { return ErrMalformed }

// Encode turns a message into a record: Protobuf, keyed by the catalogue, with
// CloudEvents headers.
//
// A message that Decode would refuse is refused with a *DecodeError. A record that is
// over MaxBytes, all told, is refused with an error that wraps ErrTooLarge.
func Encode(m Message) (Record, error) {
	c, ok := codings[m.Topic]
	if !ok {
		return Record{}, &DecodeError{m.Topic, "", "the topic has no message of its own"}
	}
	if reflect.TypeOf(m.Body) != c.body {
		return Record{}, &DecodeError{m.Topic, "", fmt.Sprintf("is a %T, want a %v", m.Body, c.body)}
	}
	body := m.Body.(vtMessage)
	if f := missing(body); f != nil {
		return Record{}, f.in(m.Topic)
	}
	size, key, id := body.SizeVT(), c.key(body), body.GetId()
	// One allocation holds the value, the key, the id and the time.
	buf := make([]byte, size, size+len(key)+len(id)+len(timeForm))
	if _, err := body.MarshalToSizedBufferVT(buf); err != nil {
		return Record{}, fmt.Errorf("encode %s: %w", m.Topic, err)
	}
	if f := c.shape.check(buf); f != nil {
		return Record{}, f.in(m.Topic)
	}
	r := Record{Topic: m.Topic, Value: buf[:size:size]}
	r.Key, buf = tail(append(buf, key...), len(buf))
	source := c.source
	if m.Source != "" {
		source = []byte(m.Source)
	}
	r.Headers = make([]Header, 5, 6)
	r.Headers[0] = Header{HeaderSpecVersion, c.version}
	r.Headers[1].Key = HeaderID
	r.Headers[1].Value, buf = tail(append(buf, id...), len(buf))
	r.Headers[2] = Header{HeaderSource, source}
	r.Headers[3] = Header{HeaderType, c.name}
	r.Headers[4] = Header{HeaderContentType, c.content}
	if t := timeOf(body); t != nil {
		v, _ := tail(appendTime(buf, t.AsTime()), len(buf))
		r.Headers = append(r.Headers, Header{HeaderTime, v})
	}
	if n := r.Size(); n > MaxBytes {
		return Record{}, fmt.Errorf("encode %s: %w: %d bytes, at most %d", m.Topic, ErrTooLarge, n, MaxBytes)
	}
	return r, nil
}

// tail returns the part of buf from n on, closed to appending, and buf.
func tail(buf []byte, n int) (part, all []byte) { return buf[n:len(buf):len(buf)], buf }

// appendTime is t.AppendFormat(buf, timeForm), at a third of its cost, for years of four digits.
func appendTime(buf []byte, t time.Time) []byte {
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	n := len(buf)
	buf = append(buf, timeForm...)
	digits := func(at, width, value int) {
		for i := n + at + width - 1; i >= n+at; i-- {
			buf[i] = byte('0' + value%10)
			value /= 10
		}
	}
	digits(0, 4, year)
	digits(5, 2, int(month))
	digits(8, 2, day)
	digits(11, 2, hour)
	digits(14, 2, minute)
	digits(17, 2, second)
	digits(20, 3, t.Nanosecond()/1e6)
	return buf
}

// Size is what a record weighs: the bytes of its key, value and headers.
func (r Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// Decode reads the message in a record of topic. Its errors are *DecodeError.
//
// The content type is that of the header, or Protobuf without one; a ce_type, where
// there is one, must be the topic's. The value is what counts: no other header is
// read. A Change without an id gets the one that is a function of it.
//
// Fields that this version does not know are kept in Protobuf, and passed on. In JSON
// they are refused: they could not be passed on, so taking them would lose them, and
// a misspelt name would be taken for a missing value; the dead letter that a refusal makes can be
// sent again after an upgrade.
func Decode(topic Topic, headers []Header, value []byte) (Body, error) {
	return decode(topic, headers, value, bytes.Clone)
}

// DecodeShared is as Decode, and takes less memory: the body shares that of value, which must not change
// while the body is in use and is held as long.
func DecodeShared(topic Topic, headers []Header, value []byte) (Body, error) {
	return decode(topic, headers, value, func(b []byte) []byte { return b })
}

func decode(topic Topic, headers []Header, value []byte, own func([]byte) []byte) (Body, error) {
	c, ok := codings[topic]
	if !ok {
		return nil, &DecodeError{topic, "", "the topic has no message of its own"}
	}
	asJSON, f := c.readHeaders(headers)
	if f != nil {
		return nil, f.in(topic)
	}
	if len(value) > MaxBytes {
		return nil, &DecodeError{topic, "", fmt.Sprintf("%d bytes, at most %d", len(value), MaxBytes)}
	}
	if n := (Record{Headers: headers}).Size(); n > MaxBytes { // it could not wait and come back
		return nil, &DecodeError{topic, "", fmt.Sprintf("headers of %d bytes, at most %d", n, MaxBytes)}
	}
	body := c.make().(vtMessage)
	if asJSON {
		f = readJSON(c, body, value)
	} else {
		f = readProtobuf(c, body, value, own)
	}
	if f == nil {
		if change, ok := body.(*pb.Change); ok && change.Id == "" {
			change.Id = ChangeID(change)
		}
		f = missing(body)
	}
	if f != nil {
		return nil, f.in(topic)
	}
	return body, nil
}

func readProtobuf(c *coding, body vtMessage, value []byte, own func([]byte) []byte) *fault {
	if f := c.shape.check(value); f != nil {
		return f
	}
	// What is read shares the memory of what it is read from: as a rule a copy of its own, so that
	// it neither changes nor holds on to a whole fetch from the broker.
	if err := body.UnmarshalVTUnsafe(own(value)); err != nil {
		return &fault{reason: "is not a " + string(c.name) + ": " + err.Error()}
	}
	return nil
}

func readJSON(c *coding, body vtMessage, value []byte) *fault {
	if err := protojson.Unmarshal(value, body); err != nil {
		return &fault{reason: "is not the JSON of a " + string(c.name) + ": " + err.Error()}
	}
	b, err := body.MarshalVT()
	if err != nil {
		return &fault{reason: err.Error()}
	}
	return c.shape.check(b)
}

// readHeaders says whether the value is JSON. Of headers of one name the last counts.
func (c *coding) readHeaders(headers []Header) (asJSON bool, f *fault) {
	for _, h := range headers {
		switch h.Key {
		case HeaderContentType:
			switch {
			case bytes.Equal(h.Value, c.content), isContent(h.Value, ContentProtobuf):
				asJSON = false
			case isContent(h.Value, ContentJSON):
				asJSON = true
			default:
				return false, &fault{h.Key, fmt.Sprintf("%.80q is neither %s nor %s", h.Value, ContentProtobuf, ContentJSON)}
			}
		case HeaderType:
			if !bytes.Equal(h.Value, c.name) {
				return false, &fault{h.Key, fmt.Sprintf("%.80q is not %s", h.Value, c.name)}
			}
		case HeaderSpecVersion:
			if !bytes.Equal(h.Value, c.version) {
				return false, &fault{h.Key, fmt.Sprintf("%.80q is not %s", h.Value, c.version)}
			}
		}
	}
	return asJSON, nil
}

// isContent reports whether a header's value is a media type, whatever its case and parameters.
func isContent(value []byte, mediaType string) bool {
	t, _, _ := strings.Cut(string(value), ";")
	return strings.EqualFold(strings.TrimSpace(t), mediaType)
}

// vtMessage is what the generated code gives every Body.
type vtMessage interface {
	Body
	SizeVT() int
	MarshalVT() ([]byte, error)
	MarshalToSizedBufferVT(b []byte) (int, error)
	UnmarshalVTUnsafe(b []byte) error
}

// A coding is what is made once of an entry of the catalogue: its headers and its shape.
type coding struct {
	name, version, source, content []byte // values of headers
	body                           reflect.Type
	make                           func() Body
	key                            func(Body) string
	shape                          *shape
}

var codings = compile(Catalogue())

func compile(entries []Entry) map[Topic]*coding {
	m := make(map[Topic]*coding, len(entries))
	for _, e := range entries {
		if e.Raw {
			continue
		}
		b := e.New()
		d := b.ProtoReflect().Descriptor()
		m[e.Topic] = &coding{
			name: []byte(d.FullName()), version: []byte(specVersion),
			source: []byte(DefaultSource), content: []byte(ContentProtobuf),
			body: reflect.TypeOf(b), make: e.New, key: e.Key, shape: shapeOf(d),
		}
	}
	return m
}

// timeOf returns the time that a message is about; nil where it has none.
func timeOf(b Body) *timestamppb.Timestamp {
	switch b := b.(type) {
	case interface{ GetTime() *timestamppb.Timestamp }:
		return b.GetTime()
	case interface{ GetUpdated() *timestamppb.Timestamp }: // incidents
		return b.GetUpdated()
	case interface{ GetFinished() *timestamppb.Timestamp }: // results, reports, jobs
		return b.GetFinished()
	}
	return nil
}

// Time returns the time that a message is about, in UTC: when it happened, was made, or
// came to its end. It is zero where the message has none.
func Time(b Body) time.Time {
	if t := timeOf(b); t != nil {
		return t.AsTime()
	}
	return time.Time{}
}
