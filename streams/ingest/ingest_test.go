package ingest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
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
	hook   = "0123456789abcdef-hook"
)

// A topic keeps published messages, and fails on request.
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

// IsDestination implements Stores: millrace copies the space copies to store 2.
func (p *topic) IsDestination(account, space, store string) bool {
	return account == "acme" && space == "copies" && store == "2"
}

var now = time.Date(2026, 5, 4, 10, 0, 0, 0, time.UTC)

func handler(t testing.TB, p *topic, more func(*Config)) *Handler {
	t.Helper()
	cfg := Config{Tokens: []Token{{"loader", "acme", []string{"1", "2", "9"}, secret},
		{"hook", "acme", []string{"2"}, hook}, {"theirs", "other", []string{"1"}, other}}}
	if more != nil {
		more(&cfg)
	}
	h, err := New(cfg, p, p, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	must(t, err)
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
	return &pb.Change{Op: pb.Op_OP_ADD, Store: "1", Space: "photos", Item: item, Size: 5,
		Time:    timestamppb.New(now.Add(-time.Hour)),
		Digests: map[string]string{"md5": "5d41402abc4b2a76b9719d911017c592"}, Provenance: pb.Provenance_PROVENANCE_VERIFIED,
		Id: "made up"}
}

// want returns the message that is published for change(item).
func want(item string) *pb.Change {
	c := change(item)
	c.Account, c.Origin, c.Provenance, c.User, c.Agent = "acme", pb.Origin_ORIGIN_CLIENT,
		pb.Provenance_PROVENANCE_CLAIMED, "loader", "http/loader"
	c.Id = schemas.ChangeID(c)
	return c
}

func asJSON(t testing.TB, c *pb.Change) []byte {
	t.Helper()
	b, err := protojson.Marshal(c)
	must(t, err)
	return b
}

func asProtobuf(t testing.TB, c *pb.Change) []byte {
	t.Helper()
	b, err := proto.Marshal(c)
	must(t, err)
	return b
}

func envelope(id, data string) string {
	return fmt.Sprintf(
		`{"specversion":"1.0","id":%q,"source":"urn:camera","type":"millrace.v1.Change","subject":"x","extension":7,%s}`,
		id, data)
}

// wire encodes a CloudEvent in Protobuf with its data in the given field.
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
		"of another store":  {"Bearer " + hook, 403},
		"user, not a token": {"Basic " + base64.StdEncoding.EncodeToString([]byte(secret+":")), 401},
	} {
		t.Run(name, func(t *testing.T) {
			out := &topic{}
			w := post(handler(t, out, nil), pathChanges, typeJSON, "", body, "Authorization", tt.authorization)
			if w.Code != tt.status || (w.Header().Get("WWW-Authenticate") != "") != (tt.status == 401) ||
				(len(out.msgs) > 0) != (tt.status == 202) {
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
	one := []string{"1"}
	for name, tokens := range map[string][]Token{
		"short": {{"a", "acme", one, "short"}}, "no account": {{"a", "", one, secret}},
		"no name": {{"", "acme", one, secret}}, "no stores": {{"a", "acme", nil, secret}},
		"one secret of two": {{"a", "acme", one, secret}, {"b", "other", one, secret}},
	} {
		if _, err := New(Config{Tokens: tokens}, &topic{}, &topic{}, nil, slog.New(slog.DiscardHandler)); err == nil ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if s := fmt.Sprintf("%v %+v %#v", Token{"a", "acme", []string{"1"}, secret}, Token{"a", "acme", []string{"1"}, secret},
		Token{"a", "acme", []string{"1"}, secret}); strings.Contains(s, secret) {
		t.Errorf("it prints %s", s)
	}
}

// A request is not acknowledged if Kafka does not acknowledge it, even if it was written.
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
			h := handler(t, tt.out, func(c *Config) { c.publishTimeout = 20 * time.Millisecond })
			path, sent := pathChanges, body
			if strings.HasPrefix(name, "notification") {
				path, sent = pathNotifications+"?store=2", []byte(notification("photos", "a"))
			}
			w := post(h, path, typeJSON, secret, sent)
			if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retryAfter {
				t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
			}
			tt.out.fail, tt.out.wait = nil, nil
			if w := post(h, path, typeJSON, secret, sent); w.Code != 202 {
				t.Errorf("again: got %d %s", w.Code, w.Body)
			}
			if all := tt.out.changes(); tt.out.done && path == pathChanges &&
				(len(all) != 2 || all[0].GetId() != all[1].GetId()) {
				t.Errorf("got %v: want one id twice", all)
			}
		})
	}
}

// A request whose client disconnects while Kafka is slow is published all the same: some clients never repeat one.
func TestClientThatDisconnects(t *testing.T) {
	for path, body := range map[string]string{
		pathChanges:                    string(asJSON(t, change("a"))),
		pathNotifications + "?store=2": notification("photos", "a"),
	} {
		t.Run(path, func(t *testing.T) {
			out := &topic{wait: make(chan struct{})}
			h := handler(t, out, nil)
			handled := make(chan struct{})
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(handled)
				go func() { // once the server has seen that the client is gone
					<-r.Context().Done()
					close(out.wait)
				}()
				h.ServeHTTP(w, r)
			}))
			defer s.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, strings.NewReader(body))
			must(t, err)
			r.Header.Set("Authorization", "Bearer "+secret)
			r.Header.Set("Content-Type", typeJSON)
			go func() {
				for len(h.slots) == 0 { // until it is in
					runtime.Gosched()
				}
				cancel()
			}()
			if resp, err := http.DefaultClient.Do(r); err == nil {
				resp.Body.Close()
				t.Fatalf("got %d, want no answer", resp.StatusCode)
			}
			<-handled
			out.mu.Lock()
			defer out.mu.Unlock()
			if len(out.msgs) != 1 {
				t.Errorf("published %d messages, want 1", len(out.msgs))
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
			w := post(handler(t, out, func(c *Config) { c.MaxBody, c.MaxEvents = 2000, 5 }), pathChanges, tt.kind, secret,
				[]byte(tt.body), tt.headers...)
			if w.Code != tt.status || len(out.msgs) != 0 {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		})
	}
	t.Run("unknown length", func(t *testing.T) {
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

// The wait for a body is limited, on a real connection.
func TestSlowBody(t *testing.T) {
	s := httptest.NewServer(handler(t, &topic{}, func(c *Config) { c.readTimeout = 50 * time.Millisecond }))
	defer s.Close()
	body, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = feed.Write([]byte("{")) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+pathChanges, body)
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
