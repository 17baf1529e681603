package s3

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// between returns a store with a space "s", and its server; way makes the requests, by next.
func between(t *testing.T, way func(r *http.Request, next http.RoundTripper) (*http.Response, error)) (*Store, *s3test.Server) {
	return direct(t, s3test.Options{}, func(c *Config) {
		next := c.Transport
		c.Transport = tripper(func(r *http.Request) (*http.Response, error) { return way(r, next) })
		c.PartBytes, c.parallel, c.digests = testPart, 1, []string{digest.CRC64NVME}
	})
}

// An upload was completed by a request whose answer was lost, and the caller goes while the service is asked about it: at
// each of the requests that follow.
func TestCompletedAndTheCallerIsGone(t *testing.T) {
	for gone, more := 1, true; more; gone++ {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			after := 0 // requests since the upload was completed
			s, srv := between(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
				completes := r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
				if after > 0 || completes {
					after++
				}
				if after == gone+1 {
					cancel()
					return nil, context.Canceled
				}
				resp, err := next.RoundTrip(r)
				switch {
				case err != nil:
					return nil, err
				case after == 1:
					return answered(r, resp, 504, "GatewayTimeout"), nil
				case after == 2 && gone > 1: // the first look
					resp.Body.Close()
					return nil, errReset
				}
				return resp, err
			})
			err := put(ctx, s, "new", len(plenty), storage.PutOptions{})
			if _, there := srv.Object(testBucket, "s/new"); !there || storage.IsNotApplied(err) || ctx.Err() != nil && err == nil {
				t.Errorf("gone at request %d: there: %t; %v, marked: %t", gone, there, err, storage.IsNotApplied(err))
			}
			more = ctx.Err() != nil
		})
	}
}

// answered gives another answer than a request got.
func answered(r *http.Request, resp *http.Response, status int, code string) *http.Response {
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	w := httptest.NewRecorder()
	refuse(status, code)(w, r)
	resp = w.Result()
	resp.Request = r
	return resp
}
