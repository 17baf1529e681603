package integration

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/converge"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// hooks are functions that are called once at a request for a key to the S3 store.
type hooks struct {
	mu      sync.Mutex // guards what follows
	before  map[string]func()
	after   map[string]func()
	statted map[string]chan struct{} // closed at a HEAD request for a key
}

// serveS3 starts the S3 service, which has its own clock.
func (w *convergeWorld) serveS3(t *testing.T) {
	t.Helper()
	w.s3 = s3test.New(s3test.Options{
		Versions: true,
		Clock:    func() time.Time { return time.Now().Add(time.Duration(w.clock.Load())) },
		Before: func(rw http.ResponseWriter, r *http.Request) bool {
			if w.s3Away.Load() {
				rw.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			w.hooks.call(w.hooks.before, r)
			return false
		},
		After: func(_ http.ResponseWriter, r *http.Request) bool {
			w.hooks.call(w.hooks.after, r)
			return false
		},
	})
	t.Cleanup(w.s3.Close)
	requestS3(t, w.s3, http.MethodPut, clockBucket, nil)
}

// requestS3 makes a request to a server, as another program does. The path begins with the bucket.
func requestS3(t *testing.T, s *s3test.Server, method, path string, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+"/"+path, bytes.NewReader(body))
	must(t, err)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: status %d", method, path, resp.StatusCode)
	}
}

// hookKey is a request that a hook may wait for: a method and the key of an item.
func hookKey(method string, p converge.ItemRef) string { return method + " " + p.Space + "/" + p.Item }

func (h *hooks) call(set map[string]func(), r *http.Request) {
	key := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/"+clockBucket+"/")
	h.mu.Lock()
	f := set[key]
	delete(set, key)
	if c := h.statted[key]; c != nil {
		close(c)
		delete(h.statted, key)
	}
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

// set calls f at the next request of a method for an item.
func (h *hooks) set(set map[string]func(), method string, p converge.ItemRef, f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set[hookKey(method, p)] = f
}

// unset reports whether the function for a method and an item has not been called, and removes it.
func (h *hooks) unset(set map[string]func(), method string, p converge.ItemRef) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, is := set[hookKey(method, p)]
	delete(set, hookKey(method, p))
	return is
}

// next returns a channel that is closed at the next request of a method for an item.
func (h *hooks) next(method string, p converge.ItemRef) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan struct{})
	h.statted[hookKey(method, p)] = c
	return c
}
