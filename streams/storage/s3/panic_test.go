package s3

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

var errPanic = errors.New("panic of the test")

// recovered calls f and reports whether it panicked with errPanic.
func recovered(f func() error) (panicked bool) {
	defer func() {
		if p := recover(); p == errPanic {
			panicked = true
		} else if p != nil {
			panic(p)
		}
	}()
	_ = f()
	return false
}

// panicAfter reads n bytes of plenty, repeated, and panics.
type panicAfter struct{ left int }

func (r *panicAfter) Read(b []byte) (int, error) {
	if r.left == 0 {
		panic(errPanic)
	}
	n := min(r.left, len(b))
	r.left -= n
	return copy(b[:n], bytes.Repeat(plenty[:testPart], n/testPart+1)), nil
}

// wantIdle checks that a store holds no buffers or reservations.
func wantIdle(t *testing.T, s *Store) {
	t.Helper()
	if !s.writeBuffers.available.TryAcquire(s.writeBuffers.capacity) {
		t.Error("memory of parts is not given back")
	} else {
		s.writeBuffers.available.Release(s.writeBuffers.capacity)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.puts)+len(s.putsBelow)+len(s.activeUploads) > 0 {
		t.Errorf("items are still put: %v, above %v, by uploads %v", s.puts, s.putsBelow, s.activeUploads)
	}
}

// A panic of the reader or of PutOptions.Verify that the caller recovers leaves no buffer and no reservation, and of an
// upload only the parts that the next Put resumes.
func TestReaderPanics(t *testing.T) {
	for name, tt := range map[string]struct {
		r     io.Reader
		size  int64
		judge bool
		left  int // uploads, and their records
	}{
		"at once":                  {r: &panicAfter{0}, size: 10},
		"in the first part":        {r: &panicAfter{5}, size: 3 * testPart},
		"in the third part":        {r: &panicAfter{2*testPart + 5}, size: 3 * testPart},
		"of unknown size":          {r: &panicAfter{2*testPart + 5}, size: storage.UnknownSize},
		"when a record is written": {r: &panicAfter{10*testPart + 5}, size: longParts * testPart, left: 1},
		"Verify":                   {r: bytes.NewReader(plenty[:10]), size: 10, judge: true},
		"Verify of parts":          {r: bytes.NewReader(long()), size: longParts * testPart, judge: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, srv := direct(t, s3test.Options{HideBelow: true}, func(c *Config) { c.PartBytes, c.parallel = testPart, 1 })
			o := storage.PutOptions{Size: tt.size}
			if tt.judge {
				o.Verify = func(digest.Set, int64) error { panic(errPanic) }
			}
			if !recovered(func() error { _, err := s.Put(t.Context(), "s", "a/b", tt.r, o); return err }) {
				t.Fatal("it does not panic")
			}
			wantIdle(t, s)
			records := srv.Keys(testBucket, controlPrefix+"uploads/")
			if _, there := srv.Object(testBucket, "s/a/b"); there || srv.Uploads() != tt.left || len(records) != tt.left {
				t.Errorf("there: %t, %d uploads, records %q; want %d", there, srv.Uploads(), records, tt.left)
			}
			content := long()
			if _, err := s.Put(t.Context(), "s", "a/b", bytes.NewReader(content),
				storage.PutOptions{Size: int64(len(content))}); err != nil {
				t.Fatal(err)
			}
			if b, _ := srv.Object(testBucket, "s/a/b"); !bytes.Equal(b, content) || srv.Uploads() != 0 {
				t.Errorf("%d bytes are there, and %d uploads", len(b), srv.Uploads())
			}
		})
	}
}

// A panic of the transport at any request leaves nothing behind either. Parts are sent in goroutines of the driver,
// where a panic ends the process; they are not tested.
func TestTransportPanics(t *testing.T) {
	for name, size := range map[string]int{"one request": 10, "in parts": testPart + 1} {
		t.Run(name, func(t *testing.T) {
			for k, panicked := 0, true; panicked; k++ {
				sent, on := 0, false
				s, _ := direct(t, s3test.Options{HideBelow: true}, func(c *Config) {
					next := c.Transport
					c.PartBytes, c.parallel = testPart, 1
					c.Transport = tripper(func(r *http.Request) (*http.Response, error) {
						if on && !strings.Contains(r.URL.RawQuery, "partNumber") {
							if sent++; sent == k+1 {
								panic(errPanic)
							}
						}
						return next.RoundTrip(r)
					})
				})
				on = true
				panicked = recovered(func() error {
					return put(t.Context(), s, "a/b", size, storage.PutOptions{KeepReplaced: true})
				})
				wantIdle(t, s)
			}
		})
	}
}
