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
	typeJSON          = "application/json"     // a Change, or with ce- headers a CloudEvent in binary mode
	typeProtobuf      = "application/protobuf" // the same in Protobuf
	typeEvent         = "application/cloudevents+json"
	typeBatch         = "application/cloudevents-batch+json"
	typeEventProtobuf = "application/cloudevents+protobuf"
	typeBatchProtobuf = "application/cloudevents-batch+protobuf"
)

// eventType is the only accepted type of CloudEvents.
const eventType = "millrace.v1.Change"

// Bounds of an event: the length of its source and of its id in bytes, and the number of its attributes.
const (
	maxSource     = 1024
	maxGiven      = 1024
	maxAttributes = 256
)

// An event is one event of a request.
type event struct {
	index      int
	id, source string
	change     *pb.Change // nil if it cannot be decoded; then there are faults
	claim      bool       // it is about a copy that millrace writes
	faults     []Fault
	count      int // number of faults, including those that are not kept
}

// parse parses the events of a request. A problem applies to the whole request; events have faults of their own.
func (h *Handler) parse(r request) ([]event, *problem) {
	text := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(text)
	if err != nil {
		kind = text
	}
	switch kind {
	case typeJSON, typeProtobuf, "application/x-protobuf":
		return single(binary(r.Header, r.body, kind == typeJSON)), nil
	case typeEvent:
		return single(structured(0, r.body)), nil
	case typeBatch:
		return h.batch(r, jsonpart.Elements, structured)
	case typeEventProtobuf:
		return single(structuredProtobuf(0, r.body)), nil
	case typeBatchProtobuf:
		return h.batch(r, eachEvent, structuredProtobuf)
	}
	return nil, refusal(http.StatusUnsupportedMediaType, "content-type", "Content-Type is %.80q, want one of %s", text,
		strings.Join([]string{typeEvent, typeBatch, typeJSON, typeProtobuf, typeEventProtobuf, typeBatchProtobuf}, ", "))
}

func single(e event) []event { return []event{e} }

// batch parses the events of a batch one by one. It stops at the limit.
func (h *Handler) batch(
	r request, each func([]byte, func([]byte) error) error, read func(int, []byte) event,
) ([]event, *problem) {
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
		return nil, refusal(http.StatusRequestEntityTooLarge, "too-many", "the batch has more than %d events",
			h.cfg.MaxEvents)
	case err != nil:
		return nil, refusal(http.StatusBadRequest, "form", "the body is not a batch of events: %v", err)
	case len(events) == 0:
		return nil, refusal(http.StatusBadRequest, "form", "the batch is empty")
	}
	return events, nil
}

var errTooMany = errors.New("too many events")

// binary parses a CloudEvent in binary mode or, without ce- headers, a bare Change.
func binary(headers http.Header, body []byte, asJSON bool) event {
	var e event
	attributes := map[string]string{}
	for name, values := range headers {
		if name, ok := strings.CutPrefix(strings.ToLower(name), "ce-"); ok && len(values) > 0 {
			v, err := url.PathUnescape(values[0]) // the HTTP binding percent-encodes them
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

// attributes checks the required attributes of a CloudEvent.
func (e *event) attributes(a map[string]string) {
	e.id, e.source = a["id"], a["source"]
	if n := len(e.id); n > maxGiven {
		e.id = "" // or every fault of the event would repeat it
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

// data decodes the Change of an event.
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

// hasContent reports whether a Change with op reports a content, and so a size.
func hasContent(op pb.Op) bool {
	return op == pb.Op_OP_ADD || op == pb.Op_OP_UPDATE || op == pb.Op_OP_COPY
}

// hasSize reports whether a Change in JSON has a size. protojson does not distinguish between no size and 0.
func hasSize(b []byte) (is bool) {
	_ = jsonpart.Members(b, func(name string, v []byte) error { // protojson has parsed it already
		is = is || name == "size" && string(v) != "null"
		return nil
	})
	return is
}

// structured parses a CloudEvent in JSON. It ignores extensions.
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
		e.fault("data", "occurs twice: as data and as data_base64")
	case encoded:
		if n := base64.StdEncoding.DecodedLen(len(a["data_base64"])); n > schemas.MaxBytes+2 { // without the padding
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
		e.fault("data", "%s must be in data_base64", typeProtobuf)
	default:
		e.data(data, asJSON)
	}
	return e
}

// members returns the known attributes of a CloudEvent in JSON, and its data. plain reports whether it has the member
// data. The attributes are nil if raw cannot be parsed.
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
				e.fault("ce-"+name, "is not text")
				s = string(v[:min(len(v), maxSource)]) // or the attribute would be reported as missing, too
			}
			a[name] = s
		}
		return nil
	})
	switch {
	case errors.Is(err, errTooMany):
		e.fault("", "has more than %d attributes", maxAttributes)
	case err != nil:
		e.fault("", "is not a JSON object")
	default:
		return a, data, plain
	}
	return nil, nil, false
}

// isJSON reports whether the content type of an event's data is JSON. It returns unset if there is no content type.
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
