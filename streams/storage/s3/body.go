package s3

import (
	"bytes"
	"sync"
)

// A sharedBody is a request body in memory that is reused after the request. A transport may continue to read a body
// after an early response, or after the end of the request's context; detach prevents that.
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

// Seek implements io.Seeker. The client seeks to send the bytes again.
func (l *sharedBody) Seek(offset int64, whence int) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.Seek(offset, whence)
}

// detach waits for an active Read. Later ones return no bytes.
func (l *sharedBody) detach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.r = bytes.NewReader(nil)
}
