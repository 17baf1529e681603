package ingest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/jsonpart"
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

// Bounds of an event: the bytes of its source and of its id, and how many attributes it has.
const (
	maxSource     = 1024
	maxGiven      = 1024
	maxAttributes = 256
)

// An event is one event of a request.
type event struct {
	index      int
	id, source string
	change     *pb.Change // nil where it cannot be read; its faults say why
	faults     []Fault
	count      int // of its faults, also of those that are not kept
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
		return h.batch(r, jsonpart.Elements, structured)
	case typeEventProtobuf:
		return one(structuredProtobuf(0, r.body)), nil
	case typeBatchProtobuf:
		return h.batch(r, eachOfBatch, structuredProtobuf)
	}
	return nil, refusal(http.StatusUnsupportedMediaType, "content-type", "Content-Type is %.80q, want one of %s", text,
		strings.Join([]string{typeEvent, typeBatch, typeJSON, typeProtobuf, typeEventProtobuf, typeBatchProtobuf}, ", "))
}

func one(e event) []event { return []event{e} }

// batch reads the events of a batch one by one, and no more than one over the limit.
func (h *Handler) batch(r request, each func([]byte, func([]byte) error) error, read func(int, []byte) event) ([]event, *problem) {
	var events []event
	err := each(r.body, func(raw []byte) error {
		if len(events) == h.cfg.MaxEvents {
			return errTooMany
		}
		events = append(events, read(len(events), raw))
		return nil
	})
	switch {
	case errors.Is(err, errTooMany):
		return nil, refusal(http.StatusRequestEntityTooLarge, "too-many", "the batch has more than %d events", h.cfg.MaxEvents)
	case err != nil:
		return nil, refusal(http.StatusBadRequest, "form", "the body is no batch of events: %v", err)
	case len(events) == 0:
		return nil, refusal(http.StatusBadRequest, "form", "the batch is empty")
	}
	return events, nil
}

var errTooMany = errors.New("too many events")

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
	if n := len(e.id); n > maxGiven {
		e.id = "" // or every fault of the event repeats it
		e.fault("ce-id", "has %d bytes, at most %d", n, maxGiven)
	}
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
	if asJSON && hasContent(c.GetOp()) && c.GetSize() == 0 && !hasSize(b) {
		c.SizeUnknown = true
	}
	e.change = c
}

// hasContent reports whether changes of op report a content, which has a size.
func hasContent(op pb.Op) bool {
	return op == pb.Op_OP_ADD || op == pb.Op_OP_UPDATE || op == pb.Op_OP_COPY
}

// hasSize reports whether a Change in JSON has a size. protojson makes the same of none and of 0.
func hasSize(b []byte) (is bool) {
	_ = jsonpart.Members(b, func(name string, v []byte) error { // protojson has read it
		is = is || name == "size" && string(v) != "null"
		return nil
	})
	return is
}

// structured reads a CloudEvent in JSON. Extensions are left out.
func structured(index int, raw []byte) event {
	e := event{index: index}
	a, data, plain := e.members(raw)
	if a == nil {
		return e
	}
	e.attributes(a)
	asJSON, err := isJSON(a["datacontenttype"], true)
	if err != nil {
		e.fault("ce-datacontenttype", "%v", err)
		return e
	}
	_, encoded := a["data_base64"]
	switch {
	case plain && encoded:
		e.fault("data", "is there twice: as data and as data_base64")
	case encoded:
		if n := base64.StdEncoding.DecodedLen(len(a["data_base64"])); n > schemas.MaxBytes+2 { // without its padding
			e.fault("data_base64", "has %d bytes, at most %d", n, schemas.MaxBytes)
			return e
		}
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

// members reads the attributes of a CloudEvent in JSON that are known, and its data; plain: it has member data. The
// attributes are nil if it cannot be read.
func (e *event) members(raw []byte) (a map[string]string, data []byte, plain bool) {
	a = map[string]string{}
	n := 0
	err := jsonpart.Members(raw, func(name string, v []byte) error {
		if n++; n > maxAttributes {
			return errTooMany
		}
		switch name {
		case "data":
			data, plain = bytes.Clone(v), true
		case "id", "source", "specversion", "type", "datacontenttype", "data_base64":
			if delete(a, name); string(v) == "null" {
				return nil
			}
			var s string
			if err := json.Unmarshal(v, &s); err != nil {
				e.fault("ce-"+name, "is no text")
				s = string(v[:min(len(v), maxSource)]) // so that it is not missing too
			}
			a[name] = s
		}
		return nil
	})
	switch {
	case errors.Is(err, errTooMany):
		e.fault("", "has more than %d attributes", maxAttributes)
	case err != nil:
		e.fault("", "is no JSON object")
	default:
		return a, data, plain
	}
	return nil, nil, false
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
