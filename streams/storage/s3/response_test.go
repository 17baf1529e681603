package s3

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// An endless response is read up to a limit, whatever its beginning and the request.
func TestResponsesAreBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		what   string
		status int
		begins string
	}{
		"text":             {"List", 200, ""},
		"text, to a write": {"Put", 500, ""},
		"a comment":        {"List", 200, "<!--"},
		"a listing":        {"List", 200, "<ListBucketResult><Name>"},
		"an error":         {"Put", 404, "<Error><Code>NoSuchKey</Code><Message>"},
	} {
		t.Run(name, func(t *testing.T) {
			if t.Parallel(); strings.HasPrefix(tt.begins, "<List") {
				need.Integration(t) // parsing all of it is slow with the race detector
			}
			sc := &script{}
			s, _ := direct(t, s3test.Options{Before: sc.hook})
			var given atomic.Int64
			sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodHead {
					return false
				}
				w.WriteHeader(tt.status)
				_, err := io.WriteString(w, tt.begins)
				for text := strings.Repeat("x", 64<<10); err == nil && given.Load() < 4*maxResponse; given.Add(int64(len(text))) {
					_, err = io.WriteString(w, text)
				}
				return true
			}
			sc.on = true
			err := operations[tt.what](t.Context(), s)
			if err == nil || given.Load() == 0 || given.Load() > 2*maxResponse { // what it means may be asked for once more
				t.Errorf("%d bytes were read: %v", given.Load(), err)
			}
		})
	}
}
