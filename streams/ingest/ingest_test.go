package ingest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
)

const (
	secret = "0123456789abcdef-acme"
	other  = "0123456789abcdef-other"
)

// A topic keeps what is published, and fails as it is told.
type topic struct {
	mu   sync.Mutex
	msgs []schemas.Message
	fail error
	done bool // carried out, and then reported as failed
	wait chan struct{}
}

func (p *topic) Publish(ctx context.Context, msgs ...schemas.Message) error {
	if p.wait != nil {
		select {
		case <-p.wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail == nil || p.done {
		p.msgs = append(p.msgs, msgs...)
	}
	return p.fail
}

func (p *topic) changes() (all []*pb.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.msgs {
		c, _ := m.Body.(*pb.Change)
		all = append(all, c)
	}
	return all
}

// HasStore implements Stores: acme has stores 1 and 2.
func (p *topic) HasStore(account, store string) bool {
	return account == "acme" && (store == "1" || store == "2")
}

var now = time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)

func handler(t testing.TB, p *topic, more func(*Config)) *Handler {
	t.Helper()
	cfg := Config{Tokens: []Token{{"loader", "acme", secret}, {"theirs", "other", other}}, Now: func() time.Time { return now }}
	if more != nil {
		more(&cfg)
	}
	h, err := New(cfg, p, p, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func post(h http.Handler, path, kind, token string, body []byte, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(body)))
	r.Header.Set("Content-Type", kind)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func change(item string) *pb.Change {
	return &pb.Change{Op: pb.Op_OP_ADD, Store: "1", Space: "photos", Item: item, Size: 5, Time: timestamppb.New(now.Add(-time.Hour)),
		Digests: map[string]string{"md5": "5d41402abc4b2a76b9719d911017c592"}, Provenance: pb.Provenance_PROVENANCE_VERIFIED, Id: "made up"}
}

// want is what is published of change(item).
func want(item string) *pb.Change {
	c := change(item)
	c.Account, c.Origin, c.Provenance, c.User, c.Agent = "acme", pb.Origin_ORIGIN_CLIENT, pb.Provenance_PROVENANCE_CLAIMED, "loader", "http"
	c.Id = schemas.ChangeID(c)
	return c
}

func asJSON(t testing.TB, c *pb.Change) []byte {
	t.Helper()
	b, err := protojson.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func asProtobuf(t testing.TB, c *pb.Change) []byte {
	t.Helper()
	b, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func envelope(id, data string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"urn:camera","type":"millrace.v1.Change","subject":"x","extension":7,%s}`, id, data)
}

// wire writes a CloudEvent in Protobuf, whose data is of a field.
func wire(id string, of protowire.Number, data []byte, content string) []byte {
	var b []byte
	text := func(b []byte, n protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	b = text(text(text(text(b, ceID, id), ceSource, "urn:camera"), ceSpecVersion, "1.0"), ceType, eventType)
	if content != "" {
		value := text(nil, valueString, content)
		b = text(b, ceAttributes, string(text(text(nil, entryKey, "datacontenttype"), entryValue, string(value))))
	}
	return protowire.AppendVarint(protowire.AppendTag(text(b, of, string(data)), 99, protowire.VarintType), 1)
}

// Every form of an event comes to the same Change.
func TestChangesForms(t *testing.T) {
	c := change("été/a b.jpg")
	j, p := asJSON(t, c), asProtobuf(t, c)
	ce := []string{"ce-specversion", "1.0", "ce-id", "7", "ce-source", "urn:camera%20%C3%A9", "ce-type", eventType}
	anyOf := protowire.AppendBytes(protowire.AppendTag(protowire.AppendString(protowire.AppendTag(nil, anyType, protowire.BytesType),
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
		"plain JSON":              {"application/json; charset=utf-8", j, nil, "", ""},
		"plain Protobuf":          {typeProtobuf, p, nil, "", ""},
		"binary JSON":             {typeJSON, j, ce, "7", "urn:camera é"},
		"binary Protobuf":         {"application/x-protobuf", p, ce, "7", "urn:camera é"},
		"structured":              {typeEvent, []byte(envelope("7", `"data":`+string(j))), nil, "7", "urn:camera"},
		"structured, JSON named":  {typeEvent, []byte(envelope("7", `"datacontenttype":"application/json","data":`+string(j))), nil, "7", "urn:camera"},
		"structured, JSON base64": {typeEvent, []byte(envelope("7", `"data_base64":"`+b64(j)+`"`)), nil, "7", "urn:camera"},
		"structured, Protobuf": {typeEvent, []byte(envelope("7", `"datacontenttype":"application/protobuf","data_base64":"`+b64(p)+`"`)),
			nil, "7", "urn:camera"},
		"batch":                 {typeBatch, []byte("[" + envelope("7", `"data":`+string(j)) + "," + envelope("7", `"data":`+string(j)) + "]"), nil, "7", "urn:camera"},
		"Protobuf event":        {typeEventProtobuf, wire("7", ceBinaryData, p, ""), nil, "7", "urn:camera"},
		"Protobuf event, named": {typeEventProtobuf, wire("7", ceBinaryData, p, "application/protobuf"), nil, "7", "urn:camera"},
		"Protobuf event, any":   {typeEventProtobuf, wire("7", ceProtoData, anyOf, ""), nil, "7", "urn:camera"},
		"Protobuf event, text":  {typeEventProtobuf, wire("7", ceTextData, j, ""), nil, "7", "urn:camera"},
		"Protobuf event, JSON":  {typeEventProtobuf, wire("7", ceBinaryData, j, "application/json"), nil, "7", "urn:camera"},
		"Protobuf batch":        {typeBatchProtobuf, twice(wire("7", ceBinaryData, p, "")), nil, "7", "urn:camera"},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			w := post(handler(t, out, nil), pathChanges, tt.kind, secret, tt.body, tt.headers...)
			if w.Code != http.StatusAccepted {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			id := want(c.GetItem()).GetId()
			told := Accepted{1, []Received{{0, tt.given, id, "written"}}}
			if strings.Contains(name, "batch") {
				told.Events = append(told.Events, Received{1, tt.given, id, "repeated"})
			}
			var got Accepted
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !reflect.DeepEqual(got, told) {
				t.Errorf("got %+v, %v, want %+v", got, err, told)
			}
			if all := out.changes(); len(all) != 1 || !proto.Equal(all[0], want(c.GetItem())) || out.msgs[0].Source != tt.source {
				t.Errorf("got %v from %q, want %v from %q", all, out.msgs[0].Source, want(c.GetItem()), tt.source)
			}
		})
	}
}

func (f Fault) line() string { return fmt.Sprintf("%d %s %s: %s", f.Index, f.ID, f.Field, f.Reason) }

// Everything that is wrong is said, of each event, and nothing is written.
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
		"empty body":                {typeJSON, ``, 422, []string{"0  data: is missing"}},
		"no JSON":                   {typeJSON, `{"op"`, 422, []string{"0  data: is not a millrace.v1.Change"}},
		"unknown field":             {typeJSON, `{"oops":1}`, 422, []string{"0  data: is not a millrace.v1.Change"}},
		"nothing in it":             {typeJSON, `{}`, 422, []string{"0  store: is missing", "0  space: is missing", "0  op: is missing", "0  time: is missing"}},
		"no Protobuf":               {typeProtobuf, "\xff", 422, []string{"0  data: is not a millrace.v1.Change"}},
		"another account":           {typeJSON, string(with(func(c *pb.Change) { c.Account = "other" })), 403, []string{`0  account: is "other": the token is for "acme"`}},
		"unknown store":             {typeJSON, string(with(func(c *pb.Change) { c.Store = "9" })), 422, []string{`0  store: account "acme" has no store "9"`}},
		"of tomorrow":               {typeJSON, string(with(func(c *pb.Change) { c.Time = timestamppb.New(now.Add(6 * time.Minute)) })), 422, []string{"0  time: is 2026-05-04T10:06:00Z, more than 5m0s"}},
		"item of a space's change":  {typeJSON, string(with(func(c *pb.Change) { c.Op = pb.Op_OP_CREATE_SPACE })), 422, []string{"0  item: is set, but OP_CREATE_SPACE is about a space"}},
		"out of range, all of them": {typeJSON, string(with(func(c *pb.Change) { c.Item, c.Size, c.Digests["md5"] = long, -1, "xyz" })), 422, []string{"0  item: ", "0  size: ", "0  digests"}},
		"what only we say": {typeJSON, string(with(func(c *pb.Change) {
			c.Origin, c.Approved, c.SourceTime, c.SourceVersion = pb.Origin_ORIGIN_REPAIR, "me", timestamppb.New(now), "v"
		})), 422, []string{"0  origin: ORIGIN_REPAIR", "0  approved: ", "0  source_time: ", "0  source_version: "}},
		"too large": {typeJSON, string(with(func(c *pb.Change) { c.Properties = map[string]string{"a": strings.Repeat("x", schemas.MaxBytes-300)} })), 422,
			[]string{"0  : encode changes: message is too large"}},
		"far too large": {typeJSON, string(with(func(c *pb.Change) { c.Properties = map[string]string{"a": strings.Repeat("x", schemas.MaxBytes)} })), 422, []string{"0  data: has "}},
		"no event":      {typeEvent, `7`, 422, []string{"0  : is no JSON object"}},
		"null":          {typeEvent, `null`, 422, []string{"0  : is no JSON object"}},
		"attributes missing": {typeEvent, `{"type":"x","data":{}}`, 422, []string{"0  ce-id: is missing", "0  ce-source: is missing", "0  ce-specversion: ",
			`0  ce-type: is "x"`, "0  store: ", "0  space: ", "0  op: ", "0  time: "}},
		"attributes no text": {typeEvent, `{"id":7,"source":"s","specversion":"1.0","type":"millrace.v1.Change"}`, 422,
			[]string{"0  ce-id: is no text", "0  ce-id: is missing", "0  data: is missing"}},
		"data twice":        {typeEvent, envelope("7", `"data":{},"data_base64":""`), 422, []string{"0 7 data: is there twice"}},
		"no base64":         {typeEvent, envelope("7", `"data_base64":"%"`), 422, []string{"0 7 data_base64: illegal base64"}},
		"of another form":   {typeEvent, envelope("7", `"datacontenttype":"text/xml","data":"x"`), 422, []string{`0 7 ce-datacontenttype: is "text/xml"`}},
		"Protobuf as JSON":  {typeEvent, envelope("7", `"datacontenttype":"application/protobuf","data":{}`), 422, []string{"0 7 data: application/protobuf goes into data_base64"}},
		"Any of another":    {typeEventProtobuf, string(wire("7", ceProtoData, []byte{0x0a, 1, 'x'}, "")), 422, []string{`0 7 proto_data: holds a "x"`}},
		"no Protobuf event": {typeEventProtobuf, "\x0a", 422, []string{"0  : is no CloudEvent"}},
		"a batch, all of it": {typeBatch, "[" + envelope("1", `"data":`+string(asJSON(t, change("a")))) + "," + envelope("2", `"data":{"op":"OP_ADD"}`) + ",7," +
			envelope("4", `"data":{"account":"other"}`) + "]", 403, []string{"1 2 store: ", "1 2 space: ", "1 2 time: ", "1 2 item: ", "2  : is no", "3 4 account: ",
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
				!strings.HasPrefix(p.Type, "urn:millrace:problem:") || w.Header().Get("Content-Type") != "application/problem+json" {
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

func TestTokens(t *testing.T) {
	body := asJSON(t, change("a"))
	for name, tt := range map[string]struct {
		authorization string
		status        int
	}{
		"bearer":            {"Bearer " + secret, 202},
		"in lower case":     {"bearer " + secret, 202},
		"as a password":     {"Basic " + base64.StdEncoding.EncodeToString([]byte("x:"+secret)), 202},
		"none":              {"", 401},
		"wrong":             {"Bearer " + secret + "x", 401},
		"a part":            {"Bearer " + secret[:16], 401},
		"empty":             {"Bearer ", 401},
		"another scheme":    {"Digest " + secret, 401},
		"of an account":     {"Bearer " + other, 422}, // in which there is no such store
		"user, not a token": {"Basic " + base64.StdEncoding.EncodeToString([]byte(secret+":")), 401},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			w := post(handler(t, out, nil), pathChanges, typeJSON, "", body, "Authorization", tt.authorization)
			if w.Code != tt.status || (w.Header().Get("WWW-Authenticate") != "") != (tt.status == 401) || (len(out.msgs) > 0) != (tt.status == 202) {
				t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
			}
		})
	}
	open := handler(t, &topic{}, func(c *Config) { c.Tokens = nil })
	if w := post(open, pathChanges, typeJSON, "", body); w.Code != 422 || !strings.Contains(w.Body.String(), `"account"`) {
		t.Errorf("without tokens and account: got %d %s", w.Code, w.Body)
	}
	c := change("a")
	c.Account = "acme"
	if w := post(open, pathChanges, typeJSON, "", asJSON(t, c)); w.Code != 202 {
		t.Errorf("without tokens: got %d %s", w.Code, w.Body)
	}
	for name, tokens := range map[string][]Token{
		"short": {{"a", "acme", "short"}}, "no account": {{"a", "", secret}}, "no name": {{"", "acme", secret}},
		"one secret of two": {{"a", "acme", secret}, {"b", "other", secret}},
	} {
		if _, err := New(Config{Tokens: tokens}, &topic{}, &topic{}, nil, slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if s := fmt.Sprintf("%v %+v %#v", Token{"a", "acme", secret}, Token{"a", "acme", secret}, Token{"a", "acme", secret}); strings.Contains(s, secret) {
		t.Errorf("it prints %s", s)
	}
}

// What Kafka does not acknowledge is not acknowledged either, whether or not it was written.
func TestPublishFaults(t *testing.T) {
	body := asJSON(t, change("a"))
	for name, tt := range map[string]struct {
		out        *topic
		status     int
		retryAfter string
	}{
		"failed":                             {&topic{fail: errors.New("no leader")}, 503, "5"},
		"written, and reported as failed":    {&topic{fail: errors.New("timed out"), done: true}, 503, "5"},
		"refused for good":                   {&topic{fail: retry.Permanent(errors.New("too large"))}, 500, ""},
		"does not answer":                    {&topic{wait: make(chan struct{})}, 503, "5"},
		"notification: failed":               {&topic{fail: errors.New("no leader")}, 503, "5"},
		"notification: written and reported": {&topic{fail: errors.New("timed out"), done: true}, 503, "5"},
	} {
		t.Run(name, func(t *testing.T) {
			h := handler(t, tt.out, func(c *Config) { c.PublishTimeout = 20 * time.Millisecond })
			path, sent := pathChanges, body
			if strings.HasPrefix(name, "notification") {
				path, sent = pathNotifications, []byte(notification("photos", "a"))
			}
			w := post(h, path, typeJSON, secret, sent)
			if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retryAfter {
				t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
			}
			tt.out.fail, tt.out.wait = nil, nil
			if w := post(h, path, typeJSON, secret, sent); w.Code != 202 {
				t.Errorf("again: got %d %s", w.Code, w.Body)
			}
			if all := tt.out.changes(); tt.out.done && path == pathChanges && (len(all) != 2 || all[0].GetId() != all[1].GetId()) {
				t.Errorf("got %v: want one id twice", all)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	big := strings.Repeat(" ", 3000)
	many := "[" + strings.Repeat("{},", 5) + "{}]"
	for name, tt := range map[string]struct {
		kind, body string
		headers    []string
		status     int
	}{
		"a body too large": {typeJSON, big, nil, 413},
		"too many events":  {typeBatch, many, nil, 413},
		"compressed":       {typeJSON, "x", []string{"Content-Encoding", "gzip"}, 415},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			w := post(handler(t, out, func(c *Config) { c.MaxBody, c.MaxEvents = 2000, 5 }), pathChanges, tt.kind, secret, []byte(tt.body), tt.headers...)
			if w.Code != tt.status || len(out.msgs) != 0 {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
	t.Run("no length told", func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, pathChanges, io.MultiReader(strings.NewReader(big)))
		r.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		handler(t, &topic{}, func(c *Config) { c.MaxBody = 2000 }).ServeHTTP(w, r)
		if w.Code != 413 {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	})
	t.Run("busy", func(t *testing.T) {
		out := &topic{wait: make(chan struct{})}
		h := handler(t, out, func(c *Config) { c.Concurrency = 1 })
		first := make(chan int)
		go func() { first <- post(h, pathChanges, typeJSON, secret, asJSON(t, change("a"))).Code }()
		for len(h.slots) == 0 { // until it is in
			runtime.Gosched()
		}
		w := post(h, pathChanges, typeJSON, secret, asJSON(t, change("b")))
		if w.Code != 503 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("got %d %v", w.Code, w.Header())
		}
		close(out.wait)
		if code := <-first; code != 202 {
			t.Errorf("the first got %d", code)
		}
	})
	for path, method := range map[string]string{"/": "GET", "/v1/changes/": "POST", "/v1": "POST"} {
		w := httptest.NewRecorder()
		handler(t, &topic{}, nil).ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != 404 {
			t.Errorf("%s %s: got %d", method, path, w.Code)
		}
	}
	w := httptest.NewRecorder()
	handler(t, &topic{}, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, pathChanges, nil))
	if w.Code != 405 || w.Header().Get("Allow") != "POST" {
		t.Errorf("GET: got %d %v", w.Code, w.Header())
	}
}

// A body that does not come is not waited for, on a real connection.
func TestSlowBody(t *testing.T) {
	s := httptest.NewServer(handler(t, &topic{}, func(c *Config) { c.ReadTimeout = 50 * time.Millisecond }))
	defer s.Close()
	body, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = feed.Write([]byte("{")) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+pathChanges, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func notification(bucket, key string) string {
	return fmt.Sprintf(`{"Records":[{"eventSource":"minio:s3","eventName":"s3:ObjectCreated:Put","s3":{"bucket":{"name":%q},"object":{"key":%q}}}]}`, bucket, key)
}

func TestNotifications(t *testing.T) {
	two := `[{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"a+1"}}},{"eventName":"ObjectTagging:Put"},
		{"eventName":"ObjectRemoved:Delete","s3":{"bucket":{"name":"b"},"object":{"key":"c"}}}]`
	for name, tt := range map[string]struct {
		query, body string
		status      int
		topic       schemas.Topic
		keys        []string
		told        string
	}{
		"one":                 {"", notification("photos", "x%2Fa"), 202, "foreign:webhook/acme/", []string{"photos/x%2Fa"}, `{"accepted":1,"ignored":0}`},
		"of a store":          {"?store=2", notification("photos", "a"), 202, "foreign:webhook/acme/2", []string{"photos/a"}, `{"accepted":1,"ignored":0}`},
		"several":             {"", two, 202, "foreign:webhook/acme/", []string{"b/a 1", "b/c"}, `{"accepted":2,"ignored":1}`},
		"a test":              {"", `{"Service":"S3","Event":"s3:TestEvent"}`, 202, "", nil, `{"accepted":0,"ignored":0}`},
		"SNS asks":            {"", `{"Type":"SubscriptionConfirmation","SubscribeURL":"https://example.org"}`, 202, "", nil, `{"accepted":0,"ignored":0}`},
		"unknown store":       {"?store=9", notification("photos", "a"), 422, "", nil, ""},
		"another's account":   {"?account=other&store=1", notification("photos", "a"), 202, "foreign:webhook/acme/1", []string{"photos/a"}, `{"accepted":1,"ignored":0}`},
		"nothing":             {"", "", 400, "", nil, ""},
		"no notification":     {"", `{"a":1}`, 400, "", nil, ""},
		"a record too large":  {"", notification("photos", strings.Repeat("x", schemas.MaxBytes)), 413, "", nil, ""},
		"a good and a broken": {"", `[{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"a"}}},{}]`, 400, "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			w := post(handler(t, out, nil), pathNotifications+tt.query, "text/plain", secret, []byte(tt.body))
			if w.Code != tt.status || tt.status == 202 && strings.TrimSpace(w.Body.String()) != tt.told {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			var keys []string
			for _, m := range out.msgs {
				keys = append(keys, string(m.Key))
				if m.Topic != tt.topic || m.Body != nil || len(m.Value) == 0 {
					t.Errorf("got %+v, want topic %s", m, tt.topic)
				}
			}
			if !slices.Equal(keys, tt.keys) {
				t.Errorf("keys %q, want %q", keys, tt.keys)
			}
		})
	}
	for _, tt := range [][2]string{{"", ""}, {"acme", ""}, {"acme", "2"}} {
		if a, s, ok := Webhook(WebhookTopic(tt[0], tt[1])); !ok || a != tt[0] || s != tt[1] {
			t.Errorf("%v: got %q, %q, %v", tt, a, s, ok)
		}
	}
	if _, _, ok := Webhook(schemas.Foreign("events")); ok {
		t.Error("a topic is taken for a webhook")
	}
}

// Whatever is sent, the answer is one of those that are documented, and what is taken can be encoded.
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
