package s3

import (
	"bytes"
	"sync"
)

// lent reads bytes in memory that is used again after the request that carries them. A transport may go on reading
// the body of a request that was answered early or whose context is done.
type sharedBody struct {
	mu sync.Mutex
	r  *bytes.Reader // guarded by mu
}

func newSharedBody(b []byte) *sharedBody { return &sharedBody{r: bytes.NewReader(b)} }

func (l *sharedBody) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Read(p)
}

// Seek lets the client send the bytes again.
func (l *sharedBody) Seek(offset int64, whence int) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Seek(offset, whence)
}

// back waits for a read that is under way. None reads the bytes after it.
func (l *sharedBody) detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.r = bytes.NewReader(nil)
}
