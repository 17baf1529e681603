package ingest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/internal/heaptest"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

const bodyLimit = 512 << 10 // an eighth of the default, so that it takes less time; memory is in proportion to it

// fill repeats parts between two ends up to the limit of a body.
func fill(begin, part, end string) []byte {
	n := (bodyLimit - len(begin) - len(end)) / len(part)
	return []byte(begin + strings.TrimSuffix(strings.Repeat(part, n), ",") + end)
}

// manyNames returns a Change with n properties with the shortest names. In Protobuf they have no values.
func manyNames(t testing.TB, n int) (asProto, asText []byte) {
	asProto = asProtobuf(t, change("a"))
	c := change("a")
	c.Properties = map[string]string{}
	name := func(i int) string { return string([]byte{byte('0' + i>>12), byte('0' + i>>6&63), byte('0' + i&63)}) }
	for i := range n {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name(i))
		asProto = protowire.AppendBytes(protowire.AppendTag(asProto, 15, protowire.BytesType), entry)
		c.Properties[name(i)] = ""
	}
	return asProto, asJSON(t, c)
}

func protobufBatch(event []byte, n int) []byte {
	one := protowire.AppendBytes(protowire.AppendTag(nil, batchEvents, protowire.BytesType), event)
	return bytes.Repeat(one, n)
}

// ofStore2 is the path of notifications of store 2.
const ofStore2 = pathNotifications + "?store=2"

// hostile returns bodies that take as much memory as possible.
func hostile(t testing.TB) map[string]struct {
	path, kind string
	body       []byte
	status     int
} {
	record := `{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"k"}}},`
	nested := string(fill(`{"Records":[`, record, `]}`)[:0]) + `{"Records":[` + strings.Repeat(record, 900) +
		strings.TrimSuffix(record, ",") + `]}`
	for range 3 {
		nested = `{"Type":"Notification","Message":` + fmt.Sprintf("%q", nested) + `}`
	}
	names, text := manyNames(t, 15_000)
	var attributes strings.Builder
	for i := 0; attributes.Len() < bodyLimit-40; i++ {
		fmt.Fprintf(&attributes, `"%x":1,`, i)
	}
	longID := strings.Repeat("\x01", 900)
	type request = struct {
		path, kind string
		body       []byte
		status     int
	}
	return map[string]request{
		"batch of numbers":          {pathChanges, typeBatch, fill("[", "1,", "]"), 413},
		"batch of objects":          {pathChanges, typeBatch, fill("[", "{},", "]"), 413},
		"batch of nested arrays":    {pathChanges, typeBatch, fill("", "[", ""), 400},
		"batch without end":         {pathChanges, typeBatch, fill("[", `{"a":1},`, ""), 413},
		"batch of strings":          {pathChanges, typeBatch, fill(`["`, "a", `"]`), 422},
		"Protobuf batch of nothing": {pathChanges, typeBatchProtobuf, bytes.Repeat([]byte{0x0a, 0}, bodyLimit/2), 413},
		"Protobuf batch of numbers": {pathChanges, typeBatchProtobuf, bytes.Repeat([]byte{0x10, 0}, bodyLimit/2), 400},
		"event of many attributes":  {pathChanges, typeEvent, []byte("{" + attributes.String() + `"id":"z"}`), 422},
		"event of one attribute":    {pathChanges, typeEvent, fill("{", `"id":"a",`, "}"), 422},
		"event of a long id":        {pathChanges, typeEvent, fill(`{"id":"`, `\u0001`, `"}`), 422},
		"event of long data": {pathChanges, typeEvent,
			[]byte(envelope("7", `"data":{"op":"`+strings.Repeat("a", bodyLimit-300)+`"}`)), 422},
		"event of long base64": {pathChanges, typeEvent,
			[]byte(envelope("7", `"data_base64":"`+strings.Repeat("AAAA", bodyLimit/4-100)+`"`)), 422},
		"Protobuf event of ids": {pathChanges, typeEventProtobuf, fill("", "\x0a\x01a", ""), 422},
		"Change of spaces":      {pathChanges, typeJSON, fill("{", " ", "}"), 422},
		"faults of long ids": {pathChanges, typeBatchProtobuf,
			protobufBatch(wire(longID, ceBinaryData, asProtobuf(t, &pb.Change{Size: -1}), ""), 500), 422},
		"smallest faults": {pathChanges, typeBatch, []byte("[" + strings.Repeat("{},", 999) + "{}]"), 422},
		"faults of repeated members": {pathChanges, typeBatch, fill("[", "{"+strings.Repeat(`"id":5,`, 255)+`"id":5},`,
			"]"), 422},
		"faults of repeated data": {pathChanges, typeBatch,
			fill("[", "{"+strings.Repeat(`"data":{"op":"x"},`, 50)+`"id":5},`, "]"), 422},
		"properties, Protobuf": {pathChanges, typeBatchProtobuf, protobufBatch(wire("7", ceBinaryData, names, ""), 4),
			202},
		"properties, JSON": {pathChanges, typeBatch,
			[]byte("[" + strings.Repeat(envelope("7", `"data":`+string(text))+",", 3) + "1]"), 422},
		"properties, base64": {pathChanges, typeEvent,
			[]byte(envelope("7",
				`"datacontenttype":"application/protobuf","data_base64":"`+base64.StdEncoding.EncodeToString(names)+`"`)), 202},
		"records of numbers": {ofStore2, typeJSON, fill(`{"Records":[`, "1,", "]}"), 400},
		"records of others":  {ofStore2, typeJSON, fill(`{"Records":[`, `{"eventName":"x"},`, "]}"), 400},
		"records":            {ofStore2, typeJSON, fill(`{"Records":[`, record, "]}"), 400},
		"records aside": {ofStore2, typeJSON, fill(`[`, `{"eventName":"ObjectTagging:Put"},`, "]"),
			400},
		"messages": {ofStore2, typeJSON, fill(`{"Messages":[`, "{},", "]}"), 400},
		"messages of test events": {ofStore2, typeJSON,
			fill(`{"Messages":[`, `{"Body":"{\"Event\":\"s3:TestEvent\"}"},`, "]}"), 202},
		"records, and again":          {ofStore2, typeJSON, fill(`{`, `"Records":[1,1,1,1,1],`, "}"), 400},
		"nested arrays":               {ofStore2, typeJSON, fill("", "[", ""), 400},
		"notifications in each other": {ofStore2, typeJSON, []byte(nested), 202},
		"a long key": {ofStore2, typeJSON, fill(`{"EventName":"s3:ObjectCreated:Put","Key":"b/`,
			"a", `"}`), 413},
		"a long message": {ofStore2, typeJSON, fill(`{"Type":"Notification","Message":"`, `\\\"`,
			`"}`), 400},
	}
}

// No body takes more memory than its request counts with.
func TestRequestMemory(t *testing.T) {
	all := hostile(t)
	defer runtime.KeepAlive(all) // or freed bodies would hide new allocations
	for name, tt := range all {
		t.Run(name, func(t *testing.T) {
			if len(tt.body) > bodyLimit {
				t.Fatalf("the body has %d bytes", len(tt.body))
			}
			h := handler(t, &topic{}, nil)
			r := httptest.NewRequest(http.MethodPost, tt.path, bytes.NewReader(tt.body))
			r.Header.Set("Content-Type", tt.kind)
			r.Header.Set("Authorization", "Bearer "+secret)
			w := &discarding{header: http.Header{}}
			got, most := heaptest.Peak(func() { h.ServeHTTP(w, r) }), h.weight(len(tt.body))
			t.Logf("body of %d bytes: %d alive at most, %.1f times; answer %d of %d bytes", len(tt.body), got,
				float64(got)/float64(len(tt.body)), w.status, w.bytes)
			if got > most {
				t.Errorf("%d bytes are alive, at most %d", got, most)
			}
			if w.status != tt.status {
				t.Errorf("got %d, want %d: %s", w.status, tt.status, w.begin)
			}
		})
	}
}

// All requests together stay within the memory limit. A request over it is rejected with Retry-After.
func TestMemoryOfAllRequests(t *testing.T) {
	body := asJSON(t, change("a"))
	weight := (&Handler{cfg: Config{MaxEvents: 1000, Memory: 1 << 30}}).weight(len(body))
	for name, tt := range map[string]struct {
		memory int64
		wait   time.Duration
		freed  bool // while the second waits
		status int
	}{
		"enough for two":         {2 * weight, time.Millisecond, false, 202},
		"enough for one":         {2*weight - 1, time.Millisecond, false, 503},
		"too little for one":     {weight / 2, time.Millisecond, false, 503},
		"for one, and then free": {weight, time.Minute, true, 202},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := &topic{wait: make(chan struct{})}
				h := handler(t, out, func(c *Config) { c.Memory, c.memoryTimeout = tt.memory, tt.wait })
				first, second := make(chan int), make(chan *httptest.ResponseRecorder)
				go func() { first <- post(h, pathChanges, typeJSON, secret, body).Code }()
				synctest.Wait()
				go func() { second <- post(h, pathChanges, typeJSON, secret, body) }()
				synctest.Wait()
				if tt.freed || tt.status == 202 {
					close(out.wait)
				}
				w := <-second
				if w.Code != tt.status || (w.Header().Get("Retry-After") == "1") != (tt.status == 503) {
					t.Errorf("got %d %v %s, want %d", w.Code, w.Header(), w.Body, tt.status)
				}
				if tt.status == 503 {
					close(out.wait)
				}
				if code := <-first; code != 202 {
					t.Errorf("the first got %d", code)
				}
			})
		})
	}
}

// Every request releases its memory, also after a failure.
func TestMemoryIsFreed(t *testing.T) {
	body := asJSON(t, change("a"))
	for name, tt := range map[string]struct {
		body []byte
		fail func(*topic)
	}{
		"acknowledged":             {body, func(*topic) {}},
		"not acknowledged":         {body, func(p *topic) { p.fail = errors.New("no leader") }},
		"written, and not known":   {body, func(p *topic) { p.fail, p.done = errors.New("no leader"), true }},
		"refused":                  {[]byte("{}"), func(*topic) {}},
		"not in time acknowledged": {body, func(p *topic) { p.wait = make(chan struct{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			out := new(topic)
			tt.fail(out)
			h := handler(t, out, func(c *Config) { c.Memory, c.publishTimeout = 1000, time.Millisecond })
			for range 3 {
				post(h, pathChanges, typeJSON, secret, tt.body)
			}
			if !h.memory.TryAcquire(1000) {
				t.Error("memory is still taken")
			}
		})
	}
}

// A request keeps its slot and its memory until its response is read.
func TestAnswersAreCounted(t *testing.T) {
	good := asJSON(t, change("a"))
	weight := (&Handler{cfg: Config{MaxEvents: 1000, Memory: 1 << 30}}).weight(len(good))
	for name, tt := range map[string]struct {
		body        []byte
		concurrency int
		memory      int64
	}{
		"acknowledged, places":  {good, 2, 1 << 20},
		"acknowledged, memory":  {good, 20, 3*weight - 1},
		"refused, places":       {[]byte("{}"), 2, 1 << 20},
		"not an event, a place": {[]byte("["), 2, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := handler(t, new(topic), func(c *Config) {
					c.Concurrency, c.Memory, c.memoryTimeout = tt.concurrency, tt.memory, time.Millisecond
				})
				begun, let := make(chan bool), make(chan bool)
				var g errgroup.Group
				for range 2 {
					g.Go(func() error {
						r := httptest.NewRequest(http.MethodPost, pathChanges, bytes.NewReader(tt.body))
						r.Header.Set("Content-Type", typeJSON)
						r.Header.Set("Authorization", "Bearer "+secret)
						h.ServeHTTP(&unread{httptest.NewRecorder(), begun, let}, r)
						return nil
					})
					<-begun
				}
				if w := post(h, pathChanges, typeJSON, secret, good); w.Code != http.StatusServiceUnavailable {
					t.Errorf("got %d %s while two answers are not read", w.Code, w.Body)
				}
				close(let)
				_ = g.Wait() // which has no errors
				if w := post(h, pathChanges, typeJSON, secret, good); w.Code != http.StatusAccepted {
					t.Errorf("got %d %s after they were", w.Code, w.Body)
				}
			})
		})
	}
}

// unread is a ResponseWriter that blocks in its first write until it is released.
type unread struct {
	*httptest.ResponseRecorder
	begun, let chan bool
}

func (u *unread) Write(b []byte) (int, error) {
	select {
	case u.begun <- true:
	case <-u.let:
	}
	<-u.let
	return u.ResponseRecorder.Write(b)
}

// A client that does not read its response is disconnected after the timeout.
func TestAnswerThatIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handler(t, new(topic), nil)
		conns := &oneConn{conns: make(chan net.Conn, 1)}
		server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(conns) }()
		client, conn := net.Pipe()
		conns.conns <- conn
		body := "[" + strings.Repeat("{},", 500) + "{}]"
		_, err := fmt.Fprintf(client,
			"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
			pathChanges, typeBatch, secret, len(body), body)
		must(t, err)
		synctest.Wait()
		if len(h.slots) != 1 {
			t.Error("its place is free, and its answer is not read")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(h.slots) != 0 || !h.memory.TryAcquire(h.cfg.Memory) {
			t.Error("its place or its memory is still taken after 10 s")
		}
		if err := errors.Join(client.Close(), server.Close()); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// oneConn is a listener for the connections that are put into it.
type oneConn struct {
	conns chan net.Conn
	once  sync.Once
}

func (o *oneConn) Accept() (net.Conn, error) {
	if c, ok := <-o.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (o *oneConn) Close() error {
	o.once.Do(func() { close(o.conns) })
	return nil
}

func (o *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// discarding is a ResponseWriter that only counts bytes.
type discarding struct {
	header http.Header
	status int
	bytes  int
	begin  []byte
}

func (d *discarding) Header() http.Header { return d.header }

func (d *discarding) WriteHeader(status int) { d.status = status }

func (d *discarding) Write(b []byte) (int, error) {
	if d.bytes < 300 {
		d.begin = append(d.begin, b[:min(len(b), 300)]...)
	}
	d.bytes += len(b)
	return len(b), nil
}
