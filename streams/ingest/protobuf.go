package ingest

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of io.cloudevents.v1 (CloudEvents Protobuf format 1.0): of CloudEvent, of an entry of its attributes
// and their values, of google.protobuf.Any, and of CloudEventBatch. This package decodes these few small messages
// itself, because the module with the generated code has further dependencies.
const (
	ceID          protowire.Number = 1
	ceSource      protowire.Number = 2
	ceSpecVersion protowire.Number = 3
	ceType        protowire.Number = 4
	ceAttributes  protowire.Number = 5
	ceBinaryData  protowire.Number = 6
	ceTextData    protowire.Number = 7
	ceProtoData   protowire.Number = 8

	entryKey    protowire.Number = 1
	entryValue  protowire.Number = 2
	valueString protowire.Number = 3

	anyType  protowire.Number = 1
	anyValue protowire.Number = 2

	batchEvents protowire.Number = 1
)

var errWire = errors.New("is not Protobuf")

// eachField calls f for each length-delimited field of a message. It skips other fields.
func eachField(b []byte, f func(n protowire.Number, v []byte) error) error {
	for len(b) > 0 {
		n, t, size := protowire.ConsumeTag(b)
		if size < 0 {
			return fmt.Errorf("%w: %w", errWire, protowire.ParseError(size))
		}
		b = b[size:]
		if t != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(n, t, b); size < 0 {
				return fmt.Errorf("%w: %w", errWire, protowire.ParseError(size))
			}
			b = b[size:]
			continue
		}
		v, size := protowire.ConsumeBytes(b)
		if size < 0 {
			return fmt.Errorf("%w: %w", errWire, protowire.ParseError(size))
		}
		if err := f(n, v); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// eachEvent calls f for each event of a CloudEventBatch.
func eachEvent(b []byte, f func(event []byte) error) error {
	return eachField(b, func(n protowire.Number, v []byte) error {
		if n != batchEvents {
			return nil
		}
		return f(v)
	})
}

// structuredProtobuf parses a CloudEvent in Protobuf. It ignores extensions.
func structuredProtobuf(index int, raw []byte) event {
	e := event{index: index}
	var (
		a       = map[string]string{}
		data    []byte
		of      protowire.Number // field number of data
		content string
	)
	names := map[protowire.Number]string{ceID: "id", ceSource: "source", ceSpecVersion: "specversion", ceType: "type"}
	err := eachField(raw, func(n protowire.Number, v []byte) error {
		switch n {
		case ceID, ceSource, ceSpecVersion, ceType:
			if !utf8.Valid(v) {
				return fmt.Errorf("%s is not UTF-8", names[n])
			}
			a[names[n]] = string(v)
		case ceAttributes:
			name, text, err := attribute(v)
			if name == "datacontenttype" {
				content = text
			}
			return err
		case ceBinaryData, ceTextData, ceProtoData:
			data, of = v, n
		}
		return nil
	})
	if err != nil {
		e.fault("", "is not a CloudEvent: %v", err)
		return e
	}
	e.attributes(a)
	if of == ceProtoData {
		if data, err = unwrap(data); err != nil {
			e.fault("proto_data", "%v", err)
			return e
		}
		e.data(data, false)
		return e
	}
	asJSON, err := isJSON(content, of == ceTextData)
	if err != nil {
		e.fault("ce-datacontenttype", "%v", err)
		return e
	}
	e.data(data, asJSON)
	return e
}

// attribute decodes an entry of the attributes. text is empty if the value is not a string.
func attribute(b []byte) (name, text string, err error) {
	err = eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case entryKey:
			name = string(v)
		case entryValue:
			return eachField(v, func(n protowire.Number, v []byte) error {
				if n == valueString {
					text = string(v)
				}
				return nil
			})
		}
		return nil
	})
	return name, text, err
}

// unwrap returns the encoded Change in a google.protobuf.Any.
func unwrap(b []byte) (value []byte, err error) {
	kind := ""
	err = eachField(b, func(n protowire.Number, v []byte) error {
		switch n {
		case anyType:
			kind = string(v)
		case anyValue:
			value = v
		}
		return nil
	})
	if i := strings.LastIndexByte(kind, '/'); err == nil && kind[i+1:] != eventType {
		err = fmt.Errorf("holds a %.80q, want %s", kind, eventType)
	}
	return value, err
}
