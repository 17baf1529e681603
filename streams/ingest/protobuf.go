package ingest

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of the fields of io.cloudevents.v1 (CloudEvents Protobuf format 1.0): of CloudEvent, of an entry of its
// attributes and their values, of google.protobuf.Any, and of CloudEventBatch. They are read here, since the messages
// are few and small, and their module would bring others.
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

// each calls f for the fields of a message that have a length; others are passed over.
func each(b []byte, f func(n protowire.Number, v []byte) error) error {
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

// eachOfBatch calls f for the events of a CloudEventBatch.
func eachOfBatch(b []byte, f func(event []byte) error) error {
	return each(b, func(n protowire.Number, v []byte) error {
		if n != batchEvents {
			return nil
		}
		return f(v)
	})
}

// structuredProtobuf reads a CloudEvent in Protobuf. Extensions are left out.
func structuredProtobuf(index int, raw []byte) event {
	e := event{index: index}
	var (
		a       = map[string]string{}
		data    []byte
		of      protowire.Number // which field data is of
		content string
	)
	names := map[protowire.Number]string{ceID: "id", ceSource: "source", ceSpecVersion: "specversion", ceType: "type"}
	err := each(raw, func(n protowire.Number, v []byte) error {
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
		e.fault("", "is no CloudEvent: %v", err)
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

// attribute reads an entry of the attributes. text is empty where the value is none.
func attribute(b []byte) (name, text string, err error) {
	err = each(b, func(n protowire.Number, v []byte) error {
		switch n {
		case entryKey:
			name = string(v)
		case entryValue:
			return each(v, func(n protowire.Number, v []byte) error {
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

// unwrap returns what is in a google.protobuf.Any, which must be a Change.
func unwrap(b []byte) (value []byte, err error) {
	kind := ""
	err = each(b, func(n protowire.Number, v []byte) error {
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
