package integration

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
)

// partCounter counts the parts that a service copies itself and the parts that are uploaded.
type partCounter struct{ copied, sent atomic.Int64 }

func (p *partCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut && r.URL.Query().Has("partNumber") {
		if r.Header.Get("X-Amz-Copy-Source") != "" {
			p.copied.Add(1)
		} else {
			p.sent.Add(1)
		}
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestS3PutFromSource checks that servers copy an item between stores themselves if they can prove the content, and
// that it is uploaded otherwise.
func TestS3PutFromSource(t *testing.T) {
	t.Parallel()
	for _, kind := range harness.S3Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: kind}), false, false)
			seen := &partCounter{}
			open := func() *locatedS3 {
				cfg := r.config(t)
				cfg.Transport = seen
				return r.spaced(t, cfg)
			}
			one, two := open(), open()
			const parts = 6
			content := make([]byte, parts*one.cfg.PartBytes)
			for i := range content {
				content[i] = byte(i >> 12)
			}
			put := func(s *s3.Store, from *storage.Location) storage.Object {
				t.Helper()
				o, err := s.Put(t.Context(), "s", "large", bytes.NewReader(content),
					storage.PutOptions{Size: int64(len(content)), Source: from})
				must(t, err)
				return o
			}
			o := put(one.Store, nil)
			if copied, sent := seen.copied.Load(), seen.sent.Swap(0); copied != 0 || sent != parts {
				t.Fatalf("%d parts were copied and %d sent, want all sent", copied, sent)
			}
			at, err := one.Locate(t.Context(), storage.Ref{Space: "s", Item: "large", Version: o.Version})
			must(t, err)
			put(two.Store, &at)
			copied, sent := seen.copied.Load(), seen.sent.Load()
			can := two.Features().CopiesParts
			if can && (copied != parts || sent != 0) || !can && (copied != 0 || sent != parts) {
				t.Errorf("%d parts were copied and %d sent, want all copied: %t", copied, sent, can)
			}
			t.Logf("the service copied %d of %d parts itself", copied, parts)
			body, _, err := two.Open(t.Context(), "s", "large", "")
			must(t, err)
			defer body.Close()
			if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, content) {
				t.Errorf("the object has %d bytes (%v), want the %d that were put", len(got), err, len(content))
			}
		})
	}
}
