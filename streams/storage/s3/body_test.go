package s3

import (
	"bytes"
	"io"
	"testing"
)

// A detached body returns no bytes, and detach waits for a concurrent Read.
func TestSharedBody(t *testing.T) {
	b := bytes.Repeat([]byte("part "), 1<<16)
	l := newSharedBody(b)
	read := make(chan int64)
	go func() {
		n, err := io.Copy(io.Discard, struct{ io.Reader }{l})
		if err != nil {
			t.Error(err)
		}
		read <- n
	}()
	l.detach()
	clear(b) // the race detector reports a concurrent read
	if n := <-read; n > int64(len(b)) {
		t.Errorf("read %d bytes of %d", n, len(b))
	}
	if n, err := l.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d, %v after the bytes were taken back", n, err)
	}
}
