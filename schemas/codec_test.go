package schemas_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// change returns a Change like those of the emit decorator.
func change() *pb.Change {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "2020/summer/img_0001.jpg",
		Version: "1712345678123456789-12345", Size: 12345,
		Digests: map[string]string{
			"md5":    "d41d8cd98f00b204e9800998ecf8427e",
			"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		},
		Provenance: pb.Provenance_PROVENANCE_VERIFIED, MediaType: "image/jpeg",
		Properties: map[string]string{"creator": "someone"},
		Time:       timestamppb.New(time.Date(2026, 5, 4, 3, 2, 1, 987e6, time.UTC)),
		User:       "ann", Agent: "emit", Origin: pb.Origin_ORIGIN_CLIENT,
	}
	c.Id = schemas.ChangeID(c)
	return c
}

func headersOf(r schemas.Record) map[string]string {
	m := map[string]string{}
	for _, h := range r.Headers {
		m[h.Key] = string(h.Value)
	}
	return m
}

func TestEncode(t *testing.T) {
	c := change()
	got, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c})
	must(t, err)
	if want := "acme/photos/2020%2Fsummer%2Fimg_0001.jpg"; string(got.Key) != want {
		t.Errorf("key: got %q, want %q", got.Key, want)
	}
	want := map[string]string{
		"ce_specversion": "1.0", "ce_id": c.GetId(), "ce_source": "millrace", "ce_type": "millrace.v1.Change",
		"ce_time": "2026-05-04T03:02:01.987Z", "content-type": "application/protobuf",
	}
	if got := headersOf(got); !maps.Equal(got, want) {
		t.Errorf("headers: got %v, want %v", got, want)
	}
	var read pb.Change
	if err := proto.Unmarshal(got.Value, &read); err != nil || !proto.Equal(&read, c) {
		t.Errorf("value: got %v (%v), want %v", &read, err, c)
	}
	// Slices of one allocation must not have spare capacity.
	for _, b := range [][]byte{got.Key, got.Value, got.Headers[1].Value} {
		if cap(b) != len(b) {
			t.Errorf("%.20q has a spare capacity of %d bytes", b, cap(b)-len(b))
		}
	}
}

func TestEncodeSource(t *testing.T) {
	got, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: change(), Source: "host/copier"})
	must(t, err)
	if got := headersOf(got)["ce_source"]; got != "host/copier" {
		t.Errorf("ce_source: got %q", got)
	}
}

func TestEncodeRefuses(t *testing.T) {
	large := change()
	large.Properties = map[string]string{"k": strings.Repeat("x", schemas.MaxBytes)}
	nearly := change()
	nearly.Properties = map[string]string{"k": strings.Repeat("x", schemas.MaxBytes-proto.Size(change()))}
	badText := change()
	badText.User = "a\xffb"
	for name, tt := range map[string]struct {
		message schemas.Message
		want    error
	}{
		"too large":                {schemas.Message{Topic: schemas.Changes, Body: large}, schemas.ErrTooLarge},
		"too large with its key":   {schemas.Message{Topic: schemas.Changes, Body: nearly}, schemas.ErrTooLarge},
		"not UTF-8":                {schemas.Message{Topic: schemas.Changes, Body: badText}, schemas.ErrMalformed},
		"another topic's message":  {schemas.Message{Topic: schemas.Admin, Body: change()}, schemas.ErrMalformed},
		"no message":               {schemas.Message{Topic: schemas.Changes}, schemas.ErrMalformed},
		"a nil message":            {schemas.Message{Topic: schemas.Changes, Body: (*pb.Change)(nil)}, schemas.ErrMalformed},
		"topic of others' records": {schemas.Message{Topic: schemas.Dead, Body: change()}, schemas.ErrMalformed},
		"unknown topic":            {schemas.Message{Topic: "nonsense", Body: change()}, schemas.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := schemas.Encode(tt.message); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

const byHand = `{"op": "OP_ADD", "account": "acme", "store": "1", "space": "photos", "item": "a.jpg", "size": 3, ` +
	`"time": "2026-05-04T03:02:01Z"}`

// The id of a Change is computed, whether the record has none or that of another one.
func TestDecodeByHand(t *testing.T) {
	headers := []schemas.Header{{Key: "content-type", Value: []byte("Application/JSON; charset=utf-8")}}
	want := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a.jpg", Size: 3,
		Time: timestamppb.New(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)),
	}
	want.Id = schemas.ChangeID(want)
	for _, value := range []string{byHand, `{"id": "` + schemas.ID("another") + `",` + byHand[1:]} {
		got, err := schemas.Decode(schemas.Changes, headers, []byte(value))
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
}

// A message of Decode has its own memory; one of DecodeShared refers to the value.
func TestDecodeShared(t *testing.T) {
	c := &pb.Change{
		Op: pb.Op_OP_ADD, Account: "acme", Store: "1", Space: "photos", Item: "a.jpg",
		Time: timestamppb.New(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)),
	}
	c.Id = schemas.ChangeID(c)
	rec, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: c})
	must(t, err)
	for name, tt := range map[string]struct {
		decode func(schemas.Topic, []schemas.Header, []byte) (schemas.Body, error)
		after  string // the item after the value has changed
	}{"copied": {schemas.Decode, "a.jpg"}, "shared": {schemas.DecodeShared, "b.jpg"}} {
		value := bytes.Clone(rec.Value)
		got, err := tt.decode(schemas.Changes, rec.Headers, value)
		must(t, err)
		if !proto.Equal(got, c) {
			t.Errorf("%s: got %v, want %v", name, got, c)
		}
		copy(value, bytes.Replace(value, []byte("a.jpg"), []byte("b.jpg"), 1))
		if item := got.(*pb.Change).GetItem(); item != tt.after {
			t.Errorf("%s: the item is %s after the value has changed, want %s", name, item, tt.after)
		}
	}
}

func TestDecodeHeaders(t *testing.T) {
	binary, err := proto.Marshal(change())
	must(t, err)
	type headers map[string]string
	for name, tt := range map[string]struct {
		headers headers
		value   []byte
		field   string // of the error; empty: none
	}{
		"none":                      {nil, binary, ""},
		"protobuf":                  {headers{"content-type": "application/protobuf"}, binary, ""},
		"protobuf, with parameters": {headers{"content-type": "application/protobuf; v=1"}, binary, ""},
		"others":                    {headers{"traceparent": "00-1", "ce_id": "x", "ce_source": "/me"}, binary, ""},
		"JSON": {headers{"content-type": "application/json", "ce_type": "millrace.v1.Change"},
			[]byte(byHand), ""},
		"unknown content type": {headers{"content-type": "text/plain"}, binary, "content-type"},
		"empty content type":   {headers{"content-type": ""}, binary, "content-type"},
		"another message":      {headers{"ce_type": "millrace.v1.Job"}, binary, "ce_type"},
		"another version":      {headers{"ce_type": "millrace.v2.Change"}, binary, "ce_type"},
		"another specversion":  {headers{"ce_specversion": "0.3"}, binary, "ce_specversion"},
	} {
		t.Run(name, func(t *testing.T) {
			var hs []schemas.Header
			for _, k := range slices.Sorted(maps.Keys(tt.headers)) {
				hs = append(hs, schemas.Header{Key: k, Value: []byte(tt.headers[k])})
			}
			body, err := schemas.Decode(schemas.Changes, hs, tt.value)
			wantFault(t, body, err, tt.field)
		})
	}
}

// wantFault checks that err is about field or, if field is empty, that there is a body and no error.
func wantFault(t *testing.T, body schemas.Body, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil || body == nil {
			t.Errorf("got %v, %v, want a message", body, err)
		}
		return
	}
	var de *schemas.DecodeError
	if !errors.As(err, &de) || !errors.Is(err, schemas.ErrMalformed) || body != nil {
		t.Fatalf("got %v, %v, want a DecodeError", body, err)
	}
	if de.Topic != schemas.Changes || de.Field != field || de.Reason == "" {
		t.Errorf("got %+v, want one about %s", de, field)
	}
}

func TestDecodeGarbage(t *testing.T) {
	asJSON := []schemas.Header{{Key: "content-type", Value: []byte("application/json")}}
	binary, err := proto.Marshal(change())
	must(t, err)
	for name, tt := range map[string]struct {
		topic   schemas.Topic
		headers []schemas.Header
		value   []byte
	}{
		"empty":                 {schemas.Changes, nil, nil},
		"cut short":             {schemas.Changes, nil, binary[:len(binary)-1]},
		"JSON without a header": {schemas.Changes, nil, []byte(byHand)},
		"field number 0":        {schemas.Changes, nil, append(slices.Clone(binary), 0, 0)},
		"group that never ends": {schemas.Changes, nil, protowire.AppendTag(slices.Clone(binary), 99,
			protowire.StartGroupType)},
		"protobuf as JSON":      {schemas.Changes, asJSON, binary},
		"unknown field in JSON": {schemas.Changes, asJSON, []byte(strings.Replace(byHand, "{", `{"itm": "a",`, 1))},
		"two documents":         {schemas.Changes, asJSON, []byte(byHand + byHand)},
		"number as a word": {schemas.Changes, asJSON,
			[]byte(strings.Replace(byHand, `"size": 3`, `"size": "many"`, 1))},
		"over the limit":         {schemas.Changes, nil, make([]byte, schemas.MaxBytes+1)},
		"others' records' topic": {schemas.Dead, nil, binary},
		"unknown topic":          {"nonsense", nil, binary},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := schemas.Decode(tt.topic, tt.headers, tt.value)
			var de *schemas.DecodeError
			if body != nil || !errors.As(err, &de) || de.Topic != tt.topic {
				t.Errorf("got %v, %v, want a DecodeError of %s", body, err, tt.topic)
			}
		})
	}
}

// Fields that this version does not know are passed on.
func TestUnknownFieldsAreKept(t *testing.T) {
	value, err := proto.Marshal(change())
	must(t, err)
	unknown := protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "of tomorrow")
	body, err := schemas.Decode(schemas.Changes, nil, append(value, unknown...))
	must(t, err)
	r, err := schemas.Encode(schemas.Message{Topic: schemas.Changes, Body: body})
	must(t, err)
	var got pb.Change
	if err := proto.Unmarshal(r.Value, &got); err != nil || string(got.ProtoReflect().GetUnknown()) != string(unknown) {
		t.Errorf("got %x (%v), want %x", got.ProtoReflect().GetUnknown(), err, unknown)
	}
}

// A message shares no memory with the record that it was decoded from.
func TestDecodeCopies(t *testing.T) {
	value, err := proto.Marshal(change())
	must(t, err)
	got, err := schemas.Decode(schemas.Changes, nil, value)
	must(t, err)
	clear(value)
	if !proto.Equal(got, change()) {
		t.Errorf("got %v, want %v", got, change())
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
