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

// Sentinels that the errors of this package wrap. Both are permanent.
var (
	// ErrMalformed reports that a record cannot be decoded or that a message is invalid.
	ErrMalformed = errors.New("malformed message")
	// ErrTooLarge reports that an encoded message is larger than MaxBytes.
	ErrTooLarge = errors.New("message is too large")
)

// Content types of the value of a record.
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

// A DecodeError is the reason why a message is invalid. It wraps ErrMalformed.
type DecodeError struct {
	Topic  Topic  // empty if the topic is not known
	Field  string // path of the field (source_record.size), or name of a header; empty for the whole message
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

// Encode returns the record of a message: Protobuf, with the key of the catalogue and CloudEvents headers.
//
// It returns a *DecodeError if Decode would reject the message, and an error that wraps ErrTooLarge if key, value and
// headers are larger than MaxBytes.
func Encode(m Message) (Record, error) {
	c, ok := codings[m.Topic]
	if !ok {
		return Record{}, &DecodeError{m.Topic, "", "the topic has no message type"}
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
	if f := c.validator.check(buf); f != nil {
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

// tail returns buf[n:] without spare capacity, so that an append to it cannot overwrite buf, and buf itself.
func tail(buf []byte, n int) (part, all []byte) { return buf[n:len(buf):len(buf)], buf }

// appendTime is a faster t.AppendFormat(buf, timeForm), at a third of the cost, for years of four digits.
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

// Size returns the size of a record in bytes: key, value and headers.
func (r Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// Decode decodes the message in a record of topic. Its errors are *DecodeError.
//
// The header content-type selects the encoding; the default is Protobuf. The headers ce_type and ce_specversion, if
// present, must match the topic. No other header is read. The id of a Change is its ChangeID, whatever the record says.
//
// In Protobuf, fields unknown to this version are kept and passed on. In JSON they are an error: they could not be
// passed on, and a misspelt name would look like a missing value. The resulting dead letter can be redriven after an
// upgrade.
func Decode(topic Topic, headers []Header, value []byte) (Body, error) {
	return decode(topic, headers, value, bytes.Clone)
}

// DecodeShared is like Decode, but does not copy: the body refers to the memory of value. The caller must not change
// value while the body is in use, and the body keeps all of value in memory.
func DecodeShared(topic Topic, headers []Header, value []byte) (Body, error) {
	return decode(topic, headers, value, func(b []byte) []byte { return b })
}

func decode(topic Topic, headers []Header, value []byte, own func([]byte) []byte) (Body, error) {
	c, ok := codings[topic]
	if !ok {
		return nil, &DecodeError{topic, "", "the topic has no message type"}
	}
	asJSON, f := c.readHeaders(headers)
	if f != nil {
		return nil, f.in(topic)
	}
	if len(value) > MaxBytes {
		return nil, &DecodeError{topic, "", fmt.Sprintf("%d bytes, at most %d", len(value), MaxBytes)}
	}
	// A record with larger headers could not be written to a delay lane.
	if n := (Record{Headers: headers}).Size(); n > MaxBytes {
		return nil, &DecodeError{topic, "", fmt.Sprintf("headers of %d bytes, at most %d", n, MaxBytes)}
	}
	body := c.make().(vtMessage)
	if asJSON {
		f = readJSON(c, body, value)
	} else {
		f = readProtobuf(c, body, value, own)
	}
	if f == nil {
		if change, ok := body.(*pb.Change); ok {
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
	if f := c.validator.check(value); f != nil {
		return f
	}
	// The decoded message refers to the memory of its input. Decode passes a copy, so that the message neither changes
	// with the fetch buffer nor keeps it in memory.
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
	return c.validator.check(b)
}

// readHeaders reports whether the value is JSON. The last of several headers with the same name counts.
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
				return false, &fault{h.Key,
					fmt.Sprintf("%.80q is neither %s nor %s", h.Value, ContentProtobuf, ContentJSON)}
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

// isContent reports whether the value of a header is mediaType. It ignores case and parameters.
func isContent(value []byte, mediaType string) bool {
	t, _, _ := strings.Cut(string(value), ";")
	return strings.EqualFold(strings.TrimSpace(t), mediaType)
}

// vtMessage is the interface that the generated code implements for every Body.
type vtMessage interface {
	Body
	SizeVT() int
	MarshalVT() ([]byte, error)
	MarshalToSizedBufferVT(b []byte) (int, error)
	UnmarshalVTUnsafe(b []byte) error
}

// A coding holds everything that is precomputed for an entry of the catalogue.
type coding struct {
	name, version, source, content []byte // values of headers
	body                           reflect.Type
	make                           func() Body
	key                            func(Body) string
	validator                      *validator
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
			body: reflect.TypeOf(b), make: e.New, key: e.Key, validator: newValidator(d),
		}
	}
	return m
}

// timeOf returns the field that Time is based on; nil if the message has none.
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
