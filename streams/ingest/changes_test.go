package ingest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
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

// Every format of an event gives the same Change.
func TestChangesForms(t *testing.T) {
	c := change("été/a b.jpg")
	j, p := asJSON(t, c), asProtobuf(t, c)
	ce := []string{"ce-specversion", "1.0", "ce-id", "7", "ce-source", "urn:camera%20%C3%A9", "ce-type", eventType}
	anyOf := protowire.AppendBytes(protowire.AppendTag(protowire.AppendString(protowire.AppendTag(nil, anyType,
		protowire.BytesType),
		"type.googleapis.com/millrace.v1.Change"), anyValue, protowire.BytesType), p)
	twice := func(b []byte) []byte {
		one := protowire.AppendBytes(protowire.AppendTag(nil, batchEvents, protowire.BytesType), b)
		return append(one, one...)
	}
	b64 := base64.StdEncoding.EncodeToString
	for name, tt := range map[string]struct {
		kind    string
		body    []byte
		headers []string
		given   string
		source  string
	}{
		"plain JSON":      {"application/json; charset=utf-8", j, nil, "", ""},
		"plain Protobuf":  {typeProtobuf, p, nil, "", ""},
		"binary JSON":     {typeJSON, j, ce, "7", "urn:camera é"},
		"binary Protobuf": {"application/x-protobuf", p, ce, "7", "urn:camera é"},
		"structured":      {typeEvent, []byte(envelope("7", `"data":`+string(j))), nil, "7", "urn:camera"},
		"structured, JSON named": {typeEvent,
			[]byte(envelope("7", `"datacontenttype":"application/json","data":`+string(j))), nil, "7", "urn:camera"},
		"structured, JSON base64": {typeEvent, []byte(envelope("7", `"data_base64":"`+b64(j)+`"`)), nil, "7", "urn:camera"},
		"structured, Protobuf": {typeEvent,
			[]byte(envelope("7", `"datacontenttype":"application/protobuf","data_base64":"`+b64(p)+`"`)),
			nil, "7", "urn:camera"},
		"batch": {typeBatch, []byte("[" + envelope("7", `"data":`+string(j)) + "," +
			envelope("7", `"data":`+string(j)) + "]"), nil, "7", "urn:camera"},
		"Protobuf event": {typeEventProtobuf, wire("7", ceBinaryData, p, ""), nil, "7", "urn:camera"},
		"Protobuf event, named": {typeEventProtobuf, wire("7", ceBinaryData, p, "application/protobuf"), nil, "7",
			"urn:camera"},
		"Protobuf event, any":  {typeEventProtobuf, wire("7", ceProtoData, anyOf, ""), nil, "7", "urn:camera"},
		"Protobuf event, text": {typeEventProtobuf, wire("7", ceTextData, j, ""), nil, "7", "urn:camera"},
		"Protobuf event, JSON": {typeEventProtobuf, wire("7", ceBinaryData, j, "application/json"), nil, "7", "urn:camera"},
		"Protobuf batch":       {typeBatchProtobuf, twice(wire("7", ceBinaryData, p, "")), nil, "7", "urn:camera"},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			w := post(handler(t, out, nil), pathChanges, tt.kind, secret, tt.body, tt.headers...)
			if w.Code != http.StatusAccepted {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			id := want(c.GetItem()).GetId()
			answer := accepted{1, []received{{0, tt.given, id, "written"}}}
			if strings.Contains(name, "batch") {
				answer.Events = append(answer.Events, received{1, tt.given, id, "repeated"})
			}
			var got accepted
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !reflect.DeepEqual(got, answer) {
				t.Errorf("got %+v, %v, want %+v", got, err, answer)
			}
			if all := out.changes(); len(all) != 1 || !proto.Equal(all[0], want(c.GetItem())) ||
				out.msgs[0].Source != tt.source {
				t.Errorf("got %v from %q, want %v from %q", all, out.msgs[0].Source, want(c.GetItem()), tt.source)
			}
		})
	}
}

func (f Fault) line() string { return fmt.Sprintf("%d %s %s: %s", f.Index, f.ID, f.Field, f.Reason) }

// All faults of all events are listed, and nothing is written.
func TestChangesFaults(t *testing.T) {
	long := strings.Repeat("x", 1025)
	with := func(f func(*pb.Change)) []byte {
		c := change("a")
		f(c)
		return asJSON(t, c)
	}
	for name, tt := range map[string]struct {
		kind   string
		body   string
		status int
		want   []string // beginnings of faults; none: there are none
	}{
		"empty body":    {typeJSON, ``, 422, []string{"0  data: is missing"}},
		"no JSON":       {typeJSON, `{"op"`, 422, []string{"0  data: is not a millrace.v1.Change"}},
		"unknown field": {typeJSON, `{"oops":1}`, 422, []string{"0  data: is not a millrace.v1.Change"}},
		"nothing in it": {typeJSON, `{}`, 422, []string{"0  store: is missing", "0  space: is missing",
			"0  op: is missing", "0  time: is missing"}},
		"no Protobuf": {typeProtobuf, "\xff", 422, []string{"0  data: is not a millrace.v1.Change"}},
		"another account": {typeJSON, string(with(func(c *pb.Change) { c.Account = "other" })), 403,
			[]string{`0  account: is "other": the token is for "acme"`}},
		"unknown store": {typeJSON, string(with(func(c *pb.Change) { c.Store = "9" })), 422,
			[]string{`0  store: account "acme" has no store "9"`}},
		"store of another token": {typeJSON, string(with(func(c *pb.Change) { c.Store = "3" })), 403,
			[]string{`0  store: is "3": the token is for ["1" "2" "9"]`}},
		"space of a destination": {typeJSON, string(with(func(c *pb.Change) {
			c.Op, c.Store, c.Space, c.Item = pb.Op_OP_DELETE_SPACE, "2", "copies", ""
		})), 422, []string{`0  store: is "2", a destination of the space, whose copy only millrace changes`}},
		"item of a space's change": {typeJSON, string(with(func(c *pb.Change) { c.Op = pb.Op_OP_CREATE_SPACE })), 422,
			[]string{"0  item: is set, but OP_CREATE_SPACE is about a space"}},
		"out of range, all of them": {typeJSON, string(with(func(c *pb.Change) {
			c.Item, c.Size, c.Digests["md5"] = long,
				-1, "xyz"
		})), 422, []string{"0  item: ", "0  size: ", "0  digests"}},
		"size, known and not": {typeJSON, string(with(func(c *pb.Change) { c.SizeUnknown = true })), 422,
			[]string{"0  size: is 5, and size_unknown is set"}},
		"size, known and not, Protobuf": {typeProtobuf,
			string(asProtobuf(t, &pb.Change{Op: pb.Op_OP_ADD, Store: "1", Space: "photos", Item: "a", Size: 5, SizeUnknown: true,
				Time: timestamppb.New(now)})), 422, []string{"0  size: is 5, and size_unknown is set"}},
		"properties, known and not": {typeJSON,
			string(with(func(c *pb.Change) { c.Properties, c.PropertiesUnknown = map[string]string{"a": "b"}, true })), 422,
			[]string{"0  properties: are set, and properties_unknown too"}},
		"media type, known and not": {typeJSON,
			string(with(func(c *pb.Change) { c.MediaType, c.PropertiesUnknown = "text/plain", true })), 422,
			[]string{"0  media_type: is set, and properties_unknown too"}},
		"unknown properties are set": {typeJSON,
			string(with(func(c *pb.Change) { c.Op, c.PropertiesUnknown = pb.Op_OP_SET_PROPERTIES, true })), 422,
			[]string{"0  properties_unknown: is set, but OP_SET_PROPERTIES reports properties"}},
		"fields that only millrace may set": {typeJSON, string(with(func(c *pb.Change) {
			c.Origin, c.Approved, c.SourceTime, c.SourceVersion = pb.Origin_ORIGIN_REPAIR, "me", timestamppb.New(now), "v"
			c.Evidence = map[string]string{schemas.Completes: schemas.ID("c")}
		})), 422, []string{"0  origin: only millrace may set ORIGIN_REPAIR", "0  approved: ", "0  source_time: ",
			"0  source_version: ", "0  evidence.completes: only millrace may set it"}},
		"another name of an algorithm": {typeJSON, string(with(func(c *pb.Change) {
			c.Digests = map[string]string{"SHA-256": strings.Repeat("0", 64)}
		})), 422, []string{`0  digests.SHA-256: is not the name of the algorithm, which is "sha256"`}},
		"digest of an odd length": {typeJSON, string(with(func(c *pb.Change) {
			c.Digests = map[string]string{"adler32": "2de01a6"}
		})), 422, []string{"0  digests.adler32: has 7 digits, an odd number"}},
		"too large": {typeJSON,
			string(with(func(c *pb.Change) {
				c.Properties = map[string]string{"a": strings.Repeat("x",
					schemas.MaxBytes-300)}
			})), 422,
			[]string{"0  : encode changes: message is too large"}},
		"far too large": {typeJSON,
			string(with(func(c *pb.Change) { c.Properties = map[string]string{"a": strings.Repeat("x", schemas.MaxBytes)} })),
			422, []string{"0  data: has "}},
		"no event": {typeEvent, `7`, 422, []string{"0  : is not a JSON object"}},
		"null":     {typeEvent, `null`, 422, []string{"0  : is not a JSON object"}},
		"attributes missing": {typeEvent, `{"type":"x","data":{}}`, 422, []string{"0  ce-id: is missing",
			"0  ce-source: is missing", "0  ce-specversion: ",
			`0  ce-type: is "x"`, "0  store: ", "0  space: ", "0  op: ", "0  time: "}},
		"attributes no text": {typeEvent, `{"id":7,"source":"s","specversion":"1.0","type":"millrace.v1.Change"}`, 422,
			[]string{"0  ce-id: is not text", "0 7 data: is missing"}},
		"data twice": {typeEvent, envelope("7", `"data":{},"data_base64":""`), 422,
			[]string{"0 7 data: occurs twice"}},
		"no base64": {typeEvent, envelope("7", `"data_base64":"%"`), 422,
			[]string{"0 7 data_base64: illegal base64"}},
		"of another form": {typeEvent, envelope("7", `"datacontenttype":"text/xml","data":"x"`), 422,
			[]string{`0 7 ce-datacontenttype: is "text/xml"`}},
		"Protobuf as JSON": {typeEvent, envelope("7", `"datacontenttype":"application/protobuf","data":{}`), 422,
			[]string{"0 7 data: application/protobuf must be in data_base64"}},
		"Any of another": {typeEventProtobuf, string(wire("7", ceProtoData, []byte{0x0a, 1, 'x'}, "")), 422,
			[]string{`0 7 proto_data: holds a "x"`}},
		"no Protobuf event": {typeEventProtobuf, "\x0a", 422, []string{"0  : is not a CloudEvent"}},
		"a batch, all of it": {typeBatch, "[" + envelope("1", `"data":`+string(asJSON(t, change("a")))) + "," +
			envelope("2", `"data":{"op":"OP_ADD"}`) + ",7," +
			envelope("4", `"data":{"account":"other"}`) + "]", 403, []string{"1 2 store: ", "1 2 space: ", "1 2 time: ",
			"1 2 item: ", "2  : is no", "3 4 account: ",
			"3 4 store: ", "3 4 space: ", "3 4 op: ", "3 4 time: "}},
		"an empty batch":       {typeBatch, `[]`, 400, nil},
		"a batch of no array":  {typeBatch, `{}`, 400, nil},
		"an empty batch of it": {typeBatchProtobuf, ``, 400, nil},
		"a broken batch":       {typeBatchProtobuf, "\x0a\x05", 400, nil},
		"another type":         {"text/plain", `x`, 415, nil},
		"no type":              {"", `x`, 415, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			w := post(handler(t, out, nil), pathChanges, tt.kind, secret, []byte(tt.body))
			var p problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != tt.status || p.Status != tt.status ||
				!strings.HasPrefix(p.Type, "urn:millrace:problem:") ||
				w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("got %d %v %s, %v", w.Code, w.Header(), w.Body, err)
			}
			var got []string
			for _, f := range p.Faults {
				got = append(got, f.line())
			}
			slices.Sort(got)
			wanted := slices.Clone(tt.want)
			slices.Sort(wanted)
			if !slices.EqualFunc(got, wanted, strings.HasPrefix) {
				t.Errorf("got  %q\nwant %q", got, wanted)
			}
			if len(out.msgs) != 0 {
				t.Errorf("%d messages were written", len(out.msgs))
			}
		})
	}
}

// An event is repeated if it is equal to the one before it of the same copy, and else published.
func TestChangesRepeated(t *testing.T) {
	at := timestamppb.New(now.Add(-time.Minute))
	set := func(item, colour string) *pb.Change {
		return &pb.Change{Op: pb.Op_OP_SET_PROPERTIES, Store: "1", Space: "photos", Item: item, Time: at,
			Properties: map[string]string{"colour": colour}}
	}
	acl := func(who string) *pb.Change {
		return &pb.Change{Op: pb.Op_OP_SET_ACL, Store: "1", Space: "photos", Time: at, Acl: map[string]string{who: "read"}}
	}
	add := func(etag string, size int64) *pb.Change {
		return &pb.Change{Op: pb.Op_OP_ADD, Store: "1", Space: "photos", Item: "a", Time: at, Etag: etag, Size: size}
	}
	by := func(user string) *pb.Change {
		c := add("e1", 5)
		c.User = user
		return c
	}
	for name, tt := range map[string]struct {
		events []*pb.Change
		want   []string
	}{
		"equal":          {[]*pb.Change{add("e1", 5), add("e1", 5)}, []string{"written", "repeated"}},
		"of two copies":  {[]*pb.Change{set("a", "red"), set("b", "red")}, []string{"written", "written"}},
		"properties":     {[]*pb.Change{set("a", "red"), set("a", "blue")}, []string{"written", "written"}},
		"ACL":            {[]*pb.Change{acl("ann"), acl("bob")}, []string{"written", "written"}},
		"content":        {[]*pb.Change{add("e1", 5), add("e2", 7)}, []string{"written", "written"}},
		"user of one id": {[]*pb.Change{by("ann"), by("bob")}, []string{"written", "written"}},
		"the first again": {[]*pb.Change{set("a", "red"), set("a", "blue"), set("a", "red")},
			[]string{"written", "written", "written"}},
		"equal, others between": {[]*pb.Change{set("a", "red"), set("b", "red"), acl("ann"), set("a", "red")},
			[]string{"written", "written", "written", "repeated"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, all := new(topic), []string{}
			for _, c := range tt.events {
				all = append(all, envelope("7", `"data":`+string(asJSON(t, c))))
			}
			w := post(handler(t, out, nil), pathChanges, typeBatch, secret, []byte("["+strings.Join(all, ",")+"]"))
			var answer accepted
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusAccepted {
				t.Fatalf("got %d %s, %v", w.Code, w.Body, err)
			}
			var got, ids []string
			for _, e := range answer.Events {
				if got = append(got, e.Status); e.Status == "written" {
					ids = append(ids, e.ID)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if !slices.EqualFunc(out.changes(), ids, func(c *pb.Change, id string) bool { return c.GetId() == id }) {
				t.Errorf("published %v, want %q", out.changes(), ids)
			}
		})
	}
}

// An event about an item of a destination is a claim: the role looks at the copy. A read changes nothing.
func TestChangesAboutDestinations(t *testing.T) {
	claim := schemas.Message{Topic: "foreign:http/loader", Key: []byte("acme/copies/a")}
	change := func(op pb.Op, space, store string) *pb.Change {
		c := change("a")
		c.Op, c.Space, c.Store = op, space, store
		return c
	}
	for name, tt := range map[string]struct {
		change *pb.Change
		status string
	}{
		"add":            {change(pb.Op_OP_ADD, "copies", "2"), "looked-at"},
		"delete":         {change(pb.Op_OP_DELETE, "copies", "2"), "looked-at"},
		"set properties": {change(pb.Op_OP_SET_PROPERTIES, "copies", "2"), "looked-at"},
		"read":           {change(pb.Op_OP_READ, "copies", "2"), "written"},
		"of a source":    {change(pb.Op_OP_ADD, "copies", "1"), "written"},
		"another space":  {change(pb.Op_OP_DELETE, "photos", "2"), "written"},
	} {
		t.Run(name, func(t *testing.T) {
			out := new(topic)
			w := post(handler(t, out, nil), pathChanges, typeBatch, secret,
				[]byte("["+envelope("7", `"data":`+string(asJSON(t, tt.change)))+"]"))
			var answer accepted
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusAccepted ||
				answer.Accepted != 1 || len(answer.Events) != 1 || len(out.msgs) != 1 {
				t.Fatalf("got %d %s, %v and %d messages", w.Code, w.Body, err, len(out.msgs))
			}
			e, m := answer.Events[0], out.msgs[0]
			if e.Status != tt.status || (e.ID == "") != (tt.status == "looked-at") {
				t.Errorf("got %+v, want %s", e, tt.status)
			}
			if tt.status == "written" {
				if m.Topic != schemas.Changes {
					t.Errorf("got %+v, want a Change", m)
				}
				return
			}
			value := m.Value
			if m.Value = nil; !reflect.DeepEqual(m, claim) {
				t.Errorf("got %+v, want %+v", m, claim)
			}
			for _, believed := range []string{"digests", "size", "user"} {
				if strings.Contains(string(value), believed) {
					t.Errorf("the claim has %s: %s", believed, value)
				}
			}
		})
	}
}

// The agent is the token, whatever an event says. The agent and the user that the sender gives are kept.
func TestChangesAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		agent, user, wantUser string
		open                  bool // there are no tokens
		want                  string
	}{
		"none":                  {"", "", "loader", false, "http/loader"},
		"another user":          {"", "director@acme.example", "director@acme.example", false, "http/loader"},
		"http":                  {"http", "", "loader", false, "http/loader"},
		"another token":         {"http/theirs", "ann", "ann", false, "http/loader"},
		"a checker":             {"checker", "ann", "ann", false, "http/loader"},
		"without tokens":        {"", "ann", "ann", true, "http"},
		"without tokens, given": {"http/loader", "", "", true, "http"},
	} {
		t.Run(name, func(t *testing.T) {
			out, c := new(topic), change("a")
			c.Account, c.Agent, c.User = "acme", tt.agent, tt.user
			if !tt.open {
				c.Evidence = map[string]string{"by": "hand"}
			}
			h := handler(t, out, func(c *Config) {
				if tt.open {
					c.Tokens = nil
				}
			})
			if w := post(h, pathChanges, typeJSON, secret, asJSON(t, c)); w.Code != http.StatusAccepted {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			got := out.changes()[0]
			if got.GetAgent() != tt.want || got.GetUser() != tt.wantUser || got.GetEvidence()["agent"] != tt.agent ||
				(got.GetEvidence()["by"] != "") == tt.open {
				t.Errorf("got %v, want agent %s and user %q", got, tt.want, tt.wantUser)
			}
		})
	}
}

// A missing size is unknown in JSON. Protobuf encodes a size of 0 like a missing one.
func TestChangesSize(t *testing.T) {
	text := func(op, more string) []byte {
		return []byte(`{"op":"` + op + `","store":"1","space":"photos","item":"a","time":"2026-05-04T10:00:00Z"` + more + `}`)
	}
	without := &pb.Change{Op: pb.Op_OP_ADD, Store: "1", Space: "photos", Item: "a", Time: timestamppb.New(now)}
	b64 := base64.StdEncoding.EncodeToString
	for name, tt := range map[string]struct {
		kind string
		body []byte
		want int64 // -1: unknown
	}{
		"none":               {typeJSON, text("OP_ADD", ""), -1},
		"none, update":       {typeJSON, text("OP_UPDATE", ""), -1},
		"none, copy":         {typeJSON, text("OP_COPY", ""), -1},
		"null":               {typeJSON, text("OP_ADD", `,"size":null`), -1},
		"none in an event":   {typeEvent, []byte(envelope("7", `"data":`+string(text("OP_ADD", "")))), -1},
		"none in base64":     {typeEvent, []byte(envelope("7", `"data_base64":"`+b64(text("OP_ADD", ""))+`"`)), -1},
		"none in a text":     {typeEventProtobuf, wire("7", ceTextData, text("OP_ADD", ""), ""), -1},
		"said to be unknown": {typeJSON, text("OP_ADD", `,"sizeUnknown":true`), -1},
		"0 and unknown":      {typeJSON, text("OP_ADD", `,"size":0,"sizeUnknown":true`), -1},
		"0":                  {typeJSON, text("OP_ADD", `,"size":0`), 0},
		"0 in a text":        {typeJSON, text("OP_ADD", `,"size":"0"`), 0},
		"5":                  {typeJSON, text("OP_ADD", `,"size":5`), 5},
		"of no content":      {typeJSON, text("OP_DELETE", ""), 0},
		"of properties":      {typeJSON, text("OP_SET_PROPERTIES", ""), 0},
		"none in Protobuf":   {typeProtobuf, asProtobuf(t, without), 0},
	} {
		t.Run(name, func(t *testing.T) {
			out := new(topic)
			w := post(handler(t, out, nil), pathChanges, tt.kind, secret, tt.body)
			all := out.changes()
			if w.Code != http.StatusAccepted || len(all) != 1 {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			if got := schemas.SizeOf(all[0]); got != tt.want || all[0].GetId() != schemas.ChangeID(all[0]) {
				t.Errorf("got %v, want size %d", all[0], tt.want)
			}
		})
	}
}

// The first faults are listed, and all are counted.
func TestChangesManyFaults(t *testing.T) {
	event := `{"specversion":"1.0","source":"s","type":"millrace.v1.Change"` + strings.Repeat(`,"id":5`, 150) +
		`,"data":{"op":"x"}}`
	for name, tt := range map[string]struct {
		body   string
		listed int
		detail string
	}{
		"of one event": {"[" + event + "]", 100,
			"151 faults in 1 events, of which the first 100 are listed: nothing was written"},
		"of more events": {"[" + strings.Repeat("{},", 20) + event + "]", 100,
			"251 faults in 21 events, of which the first 100 are listed: nothing was written"},
		"as many as may": {"[" + strings.Repeat("{},", 19) + "{}]", 100, "100 faults in 20 events: nothing was written"},
	} {
		t.Run(name, func(t *testing.T) {
			w := post(handler(t, new(topic), nil), pathChanges, typeBatch, secret, []byte(tt.body))
			var p problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 422 {
				t.Fatalf("got %d, %v: %.300s", w.Code, err, w.Body)
			}
			if p.Detail != tt.detail || len(p.Faults) != tt.listed {
				t.Errorf("got %q and %d faults, want %q and %d", p.Detail, len(p.Faults), tt.detail, tt.listed)
			}
		})
	}
}

// For any request, the status is a documented one, and accepted Changes can be encoded.
func FuzzChanges(f *testing.F) {
	c := change("a")
	for _, kind := range []string{typeJSON, typeProtobuf, typeEvent, typeBatch, typeEventProtobuf, typeBatchProtobuf} {
		for _, body := range [][]byte{asJSON(f, c), asProtobuf(f, c), []byte(envelope("7", `"data":`+string(asJSON(f, c)))),
			[]byte("[" + envelope("7", `"data":{}`) + "]"), wire("7", ceBinaryData, asProtobuf(f, c), ""), nil} {
			f.Add(kind, body)
		}
	}
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		out := &topic{}
		w := post(handler(t, out, nil), pathChanges, kind, secret, body)
		switch w.Code {
		case 202:
			if len(out.msgs) == 0 {
				t.Error("nothing was written")
			}
		case 400, 403, 413, 415, 422:
			if len(out.msgs) != 0 {
				t.Error("refused, and written")
			}
		default:
			t.Errorf("got %d %s", w.Code, w.Body)
		}
		for _, m := range out.msgs {
			if _, err := schemas.Encode(m); err != nil {
				t.Error(err)
			}
		}
	})
}
