package s3

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// A small put is sent in one write with its header. A body with a streaming signature, or a large one, is sent
// unchanged.
func TestSmallPutIsOneWrite(t *testing.T) {
	server := s3test.New(s3test.Options{})
	t.Cleanup(server.Close)
	var writes counted
	transport := &http.Transport{DialContext: writes.dial, WriteBufferSize: writeBuffer}
	t.Cleanup(transport.CloseIdleConnections)
	s, err := New(Config{
		ID: "1", Endpoint: server.URL(), BucketPrefix: "b-", PathStyle: true, Transport: transport,
		Credentials: Credentials{AccessKey: "key", SecretKey: "secret"},
	})
	must(t, err)
	must(t, s.WriteMarker(t.Context()))
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "photos"}))
	for name, tt := range map[string]struct {
		size int
		one  bool
	}{"small": {10 << 10, true}, "as large as is written at once": {writeBuffer / 2, true}, "large": {writeBuffer,
		false}, "empty": {0, true}} {
		t.Run(name, func(t *testing.T) {
			content := bytes.Repeat([]byte("x"), tt.size)
			writes.reset()
			_, err := s.Put(t.Context(), "photos", name, bytes.NewReader(content), storage.PutOptions{
				Size: int64(tt.size), Condition: storage.Condition{Absent: true},
			})
			must(t, err)
			if got, ok := server.Object("b-photos", name); !ok || !bytes.Equal(got, content) {
				t.Errorf("%d bytes are stored, want %d", len(got), len(content))
			}
			if got := writes.of("PUT"); (got == 1) != tt.one {
				t.Errorf("%d writes, want one: %v", got, tt.one)
			}
		})
	}
}

// counted counts writes by the method of their request.
type counted struct {
	mu     sync.Mutex // guards the rest
	writes map[string]int
}

func (c *counted) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &countedConn{Conn: conn, all: c}, err
}

func (c *counted) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = map[string]int{}
}

func (c *counted) of(method string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes[method]
}

type countedConn struct {
	net.Conn
	all    *counted
	method string // of the request that is being written
}

func (c *countedConn) Write(b []byte) (int, error) {
	for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE"} {
		if bytes.HasPrefix(b, []byte(method+" /")) {
			c.method = method
		}
	}
	c.all.mu.Lock()
	if c.all.writes != nil {
		c.all.writes[c.method]++
	}
	c.all.mu.Unlock()
	return c.Conn.Write(b)
}
