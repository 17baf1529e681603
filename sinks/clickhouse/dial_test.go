package clickhouse

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// If a connection is closed while a response is in flight, the server sees its end, not a reset.
func TestCloseDrainsConnection(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := Config{}.connect(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	server.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := server.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closing it twice: %v", err)
	}
	if _, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the server reads %v, want its end", err)
	}
	if _, err := server.Write(make([]byte, 64<<10)); err != nil { // the response in flight
		t.Errorf("the server writes: %v", err)
	}
}
