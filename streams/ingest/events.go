package ingest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// The content types of requests.
const (
	typeJSON          = "application/json"     // a Change; with ce- headers a CloudEvent in binary mode
	typeProtobuf      = "application/protobuf" // the same
	typeEvent         = "application/cloudevents+json"
	typeBatch         = "application/cloudevents-batch+json"
	typeEventProtobuf = "application/cloudevents+protobuf"
	typeBatchProtobuf = "application/cloudevents-batch+protobuf"
)

// eventType is the only type of CloudEvents that is taken.
const eventType = "millrace.v1.Change"

// maxSource bounds the source of an event that is passed on.
const maxSource = 1024

// An event is one event of a request.
type event struct {
	index      int
	id, source string
	change     *pb.Change // nil where it cannot be read; its faults say why
	faults     []Fault
}

// parse reads the events of a request. A problem is one of all of it.
func (h *Handler) parse(r request) ([]event, *problem) {
	text := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(text)
	if err != nil {
		kind = text
	}
	switch kind {
	case typeJSON, typeProtobuf, "application/x-protobuf":
		return one(binary(r.Header, r.body, kind == typeJSON)), nil
	case typeEvent:
		return one(structured(0, r.body)), nil
	case typeBatch:
		var all []json.RawMessage
		if err := json.Unmarshal(r.body, &all); err != nil {
			return nil, refusal(http.StatusBadRequest, "form", "the body is no JSON array of events: %v", err)
		}
		return batch(all, h.cfg.MaxEvents, structured)
	case typeEventProtobuf:
		return one(structuredProtobuf(0, r.body)), nil
	case typeBatchProtobuf:
		all, err := splitProtobuf(r.body)
		if err != nil {
			return nil, refusal(http.StatusBadRequest, "form", "the body is no CloudEventBatch: %v", err)
		}
		return batch(all, h.cfg.MaxEvents, structuredProtobuf)
	}
	return nil, refusal(http.StatusUnsupportedMediaType, "content-type", "Content-Type is %.80q, want one of %s", text,
		strings.Join([]string{typeEvent, typeBatch, typeJSON, typeProtobuf, typeEventProtobuf, typeBatchProtobuf}, ", "))
}

func one(e event) []event { return []event{e} }

func batch[T ~[]byte](all []T, most int, read func(int, []byte) event) ([]event, *problem) {
	if len(all) == 0 {
		return nil, refusal(http.StatusBadRequest, "form", "the batch is empty")
	}
	if len(all) > most {
		return nil, refusal(http.StatusRequestEntityTooLarge, "too-many", "the batch has %d events, at most %d", len(all), most)
	}
	events := make([]event, len(all))
	for i, raw := range all {
		events[i] = read(i, raw)
	}
	return events, nil
}

// binary reads a CloudEvent in binary mode or, without any ce- header, a bare Change.
func binary(headers http.Header, body []byte, asJSON bool) event {
	var e event
	attributes := map[string]string{}
	for name, values := range headers {
		if name, ok := strings.CutPrefix(strings.ToLower(name), "ce-"); ok && len(values) > 0 {
			v, err := url.PathUnescape(values[0]) // the HTTP binding has them percent-encoded
			if err != nil || !utf8.ValidString(v) {
				e.fault("ce-"+name, "is not percent-encoded UTF-8")
			}
			attributes[name] = v
		}
	}
	if len(attributes) > 0 {
		e.attributes(attributes)
	}
	e.data(body, asJSON)
	return e
}

// attributes checks those that every CloudEvent has.
func (e *event) attributes(a map[string]string) {
	e.id, e.source = a["id"], a["source"]
	for _, name := range []string{"id", "source"} {
		if a[name] == "" {
			e.fault("ce-"+name, "is missing")
		}
	}
	if v := a["specversion"]; v != "1.0" {
		e.fault("ce-specversion", "is %.40q, want 1.0", v)
	}
	if v := a["type"]; v != eventType {
		e.fault("ce-type", "is %.80q, want %s", v, eventType)
	}
	if len(e.source) > maxSource {
		e.fault("ce-source", "has %d bytes, at most %d", len(e.source), maxSource)
	}
}

// data reads the Change of an event.
func (e *event) data(b []byte, asJSON bool) {
	c := new(pb.Change)
	var err error
	switch {
	case len(b) == 0:
		e.fault("data", "is missing")
		return
	case len(b) > schemas.MaxBytes:
		e.fault("data", "has %d bytes, at most %d", len(b), schemas.MaxBytes)
		return
	case asJSON:
		err = protojson.Unmarshal(b, c)
	default:
		err = proto.Unmarshal(b, c)
	}
	if err != nil {
		e.fault("data", "is not a %s: %s", eventType, strings.ReplaceAll(err.Error(), "\u00a0", " "))
		return
	}
	e.change = c
}

// structured reads a CloudEvent in JSON. Extensions are left out.
func structured(index int, raw []byte) event {
	e := event{index: index}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		e.fault("", "is no JSON object")
		return e
	}
	a := map[string]string{}
	for _, name := range []string{"id", "source", "specversion", "type", "datacontenttype", "data_base64"} {
		v, ok := fields[name]
		if !ok || string(v) == "null" {
			continue
		}
		var s string
		if err := json.Unmarshal(v, &s); err != nil {
			e.fault("ce-"+name, "is no text")
			s = string(v) // so that it is not missing too
		}
		a[name] = s
	}
	e.attributes(a)
	asJSON, err := isJSON(a["datacontenttype"], true)
	if err != nil {
		e.fault("ce-datacontenttype", "%v", err)
		return e
	}
	data, plain := fields["data"]
	_, encoded := a["data_base64"]
	switch {
	case plain && encoded:
		e.fault("data", "is there twice: as data and as data_base64")
	case encoded:
		b, err := base64.StdEncoding.DecodeString(a["data_base64"])
		if err != nil {
			e.fault("data_base64", "%v", err)
			return e
		}
		e.data(b, asJSON)
	case plain && !asJSON:
		e.fault("data", "%s goes into data_base64", typeProtobuf)
	default:
		e.data(data, asJSON)
	}
	return e
}

// isJSON reads the content type of an event's data; unset is what holds where there is none.
func isJSON(text string, unset bool) (bool, error) {
	if text == "" {
		return unset, nil
	}
	kind, _, err := mime.ParseMediaType(text)
	switch {
	case err == nil && (kind == typeJSON || strings.HasSuffix(kind, "+json")):
		return true, nil
	case err == nil && (kind == typeProtobuf || kind == "application/x-protobuf"):
		return false, nil
	}
	return false, fmt.Errorf("is %.80q, want %s or %s", text, typeJSON, typeProtobuf)
}
