package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// between returns a store with a space "s", and its server. way sends the requests with next.
func between(
	t *testing.T, way func(r *http.Request, next http.RoundTripper) (*http.Response, error),
) (*Store, *s3test.Server) {
	return direct(t, s3test.Options{}, func(c *Config) {
		next := c.Transport
		c.Transport = tripper(func(r *http.Request) (*http.Response, error) { return way(r, next) })
		c.PartBytes, c.parallel, c.digests = testPart, 1, []string{digest.CRC64NVME}
	})
}

// The response to the completion of an upload is lost, and the caller's context ends at each of the following requests.
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
				case after == 2 && gone > 1: // the first stat
					resp.Body.Close()
					return nil, errReset
				}
				return resp, err
			})
			err := put(ctx, s, "new", len(plenty), storage.PutOptions{})
			if _, there := srv.Object(testBucket, "s/new"); !there || storage.IsNotApplied(err) ||
				ctx.Err() != nil && err == nil {
				t.Errorf("gone at request %d: there: %t; %v, marked: %t", gone, there, err, storage.IsNotApplied(err))
			}
			more = ctx.Err() != nil
		})
	}
}

func TestRejectionOf(t *testing.T) {
	for name, tt := range map[string]struct {
		about  subject
		status int
		code   string
		want   rejection
	}{
		"malformed":                   {anItem, 400, "InvalidRequest", rejected},
		"not allowed":                 {anItem, 403, "AccessDenied", rejected},
		"absent":                      {anItem, 404, "NoSuchKey", rejectedOrRepeated},
		"absent, by an unknown code":  {anItem, 404, "NoSuchUpload", rejectedOrRepeated},
		"not supported":               {anItem, 405, "MethodNotAllowed", rejected},
		"too slow":                    {anItem, 408, "RequestTimeout", maybeApplied},
		"two at once":                 {anItem, 409, "OperationAborted", maybeApplied},
		"two at once, on condition":   {anItem, 409, "ConditionalRequestConflict", maybeApplied},
		"a bucket that is there":      {aBucket, 409, "BucketAlreadyOwnedByYou", maybeApplied},
		"a bucket that is not empty":  {aBucket, 409, "BucketNotEmpty", rejected},
		"the condition does not hold": {anItem, 412, "PreconditionFailed", rejectedOrRepeated},
		"too many requests":           {anItem, 429, "TooManyRequests", rejected},
		"failed":                      {anItem, 500, "InternalError", maybeApplied},
		"slow down":                   {anItem, 503, "SlowDown", maybeApplied},
	} {
		t.Run(name, func(t *testing.T) {
			err := translate(t.Context(), tt.about, "do", minio.ErrorResponse{StatusCode: tt.status, Code: tt.code})
			if got := rejectionOf(err); got != tt.want {
				t.Errorf("%v: got %d, want %d", err, got, tt.want)
			}
		})
	}
	if got := rejectionOf(errReset); got != maybeApplied {
		t.Errorf("no answer: got %d", got)
	}
}

// A proxy repeats each PUT and DELETE after it lost the first response. The caller sees the second response, which the
// first request has caused. The error is the expected sentinel, and is not marked with NotApplied.
func TestProxyRepeats(t *testing.T) {
	there := storage.PutOptions{Condition: storage.Condition{Absent: true}}
	for name, tt := range map[string]struct {
		do   func(ctx context.Context, s *Store) error
		want error
		made func(srv *s3test.Server) bool
	}{
		"Put of what is absent": {
			func(ctx context.Context, s *Store) error { return put(ctx, s, "new", 10, there) }, storage.ErrExists,
			func(srv *s3test.Server) bool { b, _ := srv.Object(testBucket, "s/new"); return len(b) == 10 },
		},
		"Put of a version": {
			putVersion, storage.ErrChanged,
			func(srv *s3test.Server) bool { b, _ := srv.Object(testBucket, "s/a"); return len(b) == 10 },
		},
		"Delete": {
			operations["Delete"], storage.ErrNotFound,
			func(srv *s3test.Server) bool { _, ok := srv.Object(testBucket, "s/a"); return !ok },
		},
	} {
		t.Run(name, func(t *testing.T) {
			on := false
			s, srv := between(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
				if !on || r.Method != http.MethodPut && r.Method != http.MethodDelete {
					return next.RoundTrip(r)
				}
				var body []byte
				if r.Body != nil {
					body, _ = io.ReadAll(r.Body)
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				if resp, err := next.RoundTrip(r); err == nil {
					resp.Body.Close()
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				return next.RoundTrip(r)
			})
			must(t, put(t.Context(), s, "a", 5, storage.PutOptions{}))
			on = true
			err := tt.do(t.Context(), s)
			if !errors.Is(err, tt.want) || storage.IsNotApplied(err) || !tt.made(srv) {
				t.Errorf("got %v, marked: %t, made: %t; want %v, which is not marked, and that it is made",
					err, storage.IsNotApplied(err), tt.made(srv), tt.want)
			}
		})
	}
}

// A Put that is refused because of a concurrent one is marked with NotApplied after one stat.
func TestRejectedPutIsCheckedOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		size   int // of the bytes of the other Put
		marked bool
	}{
		"other bytes":    {5, true},
		"the same bytes": {10, false}, // they may be of this Put
	} {
		t.Run(name, func(t *testing.T) {
			sent := []string{}
			s, _ := between(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
				sent = append(sent, r.Method)
				return next.RoundTrip(r)
			})
			must(t, put(t.Context(), s, "a", tt.size, storage.PutOptions{}))
			sent = sent[:0]
			err := put(t.Context(), s, "a", 10, storage.PutOptions{Condition: storage.Condition{Absent: true}})
			if !errors.Is(err, storage.ErrExists) || storage.IsNotApplied(err) != tt.marked ||
				!slices.Equal(sent, []string{"PUT", "HEAD"}) {
				t.Errorf("got %v, marked: %t, by %q; want ErrExists, marked: %t, by a PUT and a HEAD", err,
					storage.IsNotApplied(err), sent, tt.marked)
			}
		})
	}
}

// answered replaces the response to a request.
func answered(r *http.Request, resp *http.Response, status int, code string) *http.Response {
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	w := httptest.NewRecorder()
	refuse(status, code)(w, r)
	resp = w.Result()
	resp.Request = r
	return resp
}
