package s3

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// All operations of a store. Space "s" has the items "a" and "large", a multipart object.
var operations = map[string]func(ctx context.Context, s *Store) error{
	"Stat": func(ctx context.Context, s *Store) error { _, err := s.Stat(ctx, "s", "a"); return err },
	"Stat, absent": func(ctx context.Context, s *Store) error {
		_, err := s.Stat(ctx, "s", "none")
		return expect(err, storage.ErrNotFound)
	},
	"Open":        func(ctx context.Context, s *Store) error { return drain(s.Open(ctx, "s", "a", "")) },
	"Open, large": func(ctx context.Context, s *Store) error { return drain(s.Open(ctx, "s", "large", "")) },
	"Put":         func(ctx context.Context, s *Store) error { return put(ctx, s, "new", 10, storage.PutOptions{}) },
	"Put, absent": func(ctx context.Context, s *Store) error {
		return put(ctx, s, "new", 10, storage.PutOptions{Condition: storage.Condition{Absent: true}})
	},
	"Put, kept": func(ctx context.Context, s *Store) error {
		return put(ctx, s, "a", 10, storage.PutOptions{KeepReplaced: true})
	},
	"Put, in parts": func(ctx context.Context, s *Store) error {
		return put(ctx, s, "new", testPart+1, storage.PutOptions{Condition: storage.Condition{Absent: true}})
	},
	"Put, of unknown size": func(ctx context.Context, s *Store) error {
		return put(ctx, s, "new", testPart+1, storage.PutOptions{Size: storage.UnknownSize})
	},
	"Delete": func(ctx context.Context, s *Store) error {
		_, err := s.Delete(ctx, "s", "a", storage.DeleteOptions{})
		return err
	},
	"Delete, kept": func(ctx context.Context, s *Store) error {
		_, err := s.Delete(ctx, "s", "a", storage.DeleteOptions{KeepDeleted: true})
		return err
	},
	"Locate": func(ctx context.Context, s *Store) error {
		_, err := s.Locate(ctx, storage.Ref{Space: "s", Item: "a"})
		return err
	},
	"List": func(ctx context.Context, s *Store) error {
		for _, err := range s.List(ctx, "s", "") {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"Spaces": func(ctx context.Context, s *Store) error {
		for _, err := range s.Spaces(ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	},
	"StatSpace": func(ctx context.Context, s *Store) error { _, err := s.StatSpace(ctx, "s"); return err },
	"StatSpace, absent": func(ctx context.Context, s *Store) error {
		_, err := s.StatSpace(ctx, "no")
		return expect(err, storage.ErrNoSpace)
	},
	"CreateSpace": func(ctx context.Context, s *Store) error { return s.CreateSpace(ctx, storage.Space{Name: "new"}) },
	"SetSpace": func(ctx context.Context, s *Store) error {
		return s.SetSpace(ctx, storage.Space{Name: "s", Properties: map[string]string{"k": "v"}})
	},
	"DeleteSpace": func(ctx context.Context, s *Store) error { return s.DeleteSpace(ctx, "empty") },
	"Marker":      func(ctx context.Context, s *Store) error { return s.Marker(ctx) },
	"WriteMarker": func(ctx context.Context, s *Store) error { return s.WriteMarker(ctx) },
	"Sweep": func(ctx context.Context, s *Store) error {
		_, err := s.abortStaleUploads(ctx, testBucket, "s/")
		return err
	},
}

// expect returns nil for the expected error.
func expect(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("found what is not there, want %w", want)
	}
	return err
}

func drain(body io.ReadCloser, _ storage.Object, err error) error {
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

var plenty = bytes.Repeat([]byte("0123456789abcdef"), (testPart+testPart/2)/16)

func put(ctx context.Context, s *Store, item string, n int, o storage.PutOptions) error {
	if o.Size == 0 {
		o.Size = int64(n)
	}
	_, err := s.Put(ctx, "s", item, bytes.NewReader(plenty[:n]), o)
	return err
}

// A fault is the response to all requests from some request on.
type fault struct {
	answer func(w http.ResponseWriter, r *http.Request)
	is     error // nil: no sentinel
	class  retry.Class
	says   string // part of the error
}

// refuse responds with an S3 error, to HEAD without a body.
func refuse(status int, code string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>no</Message></Error>`, code)
		}
	}
}

func page(status int, media string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", media)
		w.Header().Set("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT")
		w.WriteHeader(status)
		if r.Method != http.MethodHead {
			_, _ = io.WriteString(w,
				"<!DOCTYPE html>\n<html><head><title>Welcome</title></head><body><p>It works!</body></html>")
		}
	}
}

var faults = map[string]fault{
	"slow down, 503": {refuse(503, "SlowDown"), storage.ErrSlowDown, retry.Transient, "fewer requests"},
	"slow down, 429": {refuse(429, "TooManyRequests"), storage.ErrSlowDown, retry.Transient, "fewer requests"},
	"internal error": {refuse(500, "InternalError"), nil, retry.Transient, "500"},
	"wrong key": {refuse(403, "InvalidAccessKeyId"), nil, retry.ClassUnavailable,
		"store refuses the credentials"},
	"wrong secret": {refuse(403, "SignatureDoesNotMatch"), nil, retry.ClassUnavailable,
		"store refuses the credentials"},
	"access denied":        {refuse(403, "AccessDenied"), nil, retry.Transient, "403"},
	"clock skew":           {refuse(403, "RequestTimeTooSkewed"), nil, retry.ClassUnavailable, "clocks"},
	"no such bucket":       {refuse(404, "NoSuchBucket"), nil, retry.ClassUnavailable, "bucket"},
	"other endpoint":       {refuse(301, "PermanentRedirect"), nil, retry.ClassUnavailable, "another region"},
	"other region":         {refuse(400, "AuthorizationHeaderMalformed"), nil, retry.ClassUnavailable, "another region"},
	"no S3, 200":           {page(200, "text/html; charset=utf-8"), nil, retry.ClassUnavailable, "does not speak S3"},
	"no S3, 404":           {page(404, "text/html"), nil, retry.ClassUnavailable, "does not speak S3"},
	"no S3, 404, as plain": {page(404, "text/plain"), nil, retry.ClassUnavailable, "S3"},
	"a firewall's page":    {page(403, "text/html"), nil, retry.Transient, "403"},
	"a gateway's page":     {page(502, "text/html"), nil, retry.Transient, "502"},
	"cut":                  {func(http.ResponseWriter, *http.Request) { hangUp() }, nil, retry.Transient, "reset"},
}

// everywhere are the faults tested at each request of an operation. Others are tested at the first two.
var everywhere = map[string]bool{"slow down, 503": true, "wrong key": true, "no such bucket": true, "no S3, 200": true,
	"no S3, 404": true, "cut": true}

// A fault at any request of any operation is reported as such, and never as a fact about an item or a space.
func TestFaultsOfEveryRequest(t *testing.T) {
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for what, do := range operations {
				t.Run(what, func(t *testing.T) {
					for k, hit := 0, true; hit; k++ {
						synctest.Test(t, func(t *testing.T) { hit = f.from(t, k, what, do) })
						if k > 1000 {
							t.Fatal("has no end")
						}
						if k > 20 { // Probe sends hundreds of requests
							k += need.Amount(150, 50, 50)
						}
						if k > 0 && !everywhere[name] { // the others cover the classification
							break
						}
					}
				})
			}
		})
	}
}

// from applies the fault to request k of do and all later ones. It reports whether there was such a request.
func (f fault) from(t *testing.T, k int, what string, do func(context.Context, *Store) error) (hit bool) {
	sc := &script{}
	s, _ := direct(t, s3test.Options{Before: sc.hook}, func(c *Config) {
		c.PartBytes, c.parallel, c.digests, c.Endpoint = testPart, 1, []string{digest.CRC64NVME}, "https://127.0.0.1"
	})
	items := map[string]int{"a": 5}
	if strings.Contains(what, "large") {
		items["large"] = testPart + 7
	}
	for item, n := range items {
		must(t, put(t.Context(), s, item, n, storage.PutOptions{}))
	}
	text, err := json.Marshal(marker{s.cfg.ID, s.features.Load()})
	must(t, errors.Join(err, s.CreateSpace(t.Context(), storage.Space{Name: "empty"}),
		s.putControl(t.Context(), "marker.json", text)))
	time.Sleep(2 * spaceCacheTTL)
	var mu sync.Mutex // Probe sends concurrent requests
	asked, first := 0, ""
	meets := func(r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked > k && first == "" {
			first = r.Method + " " + r.URL.RequestURI()
		}
		return asked > k
	}
	sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if !meets(r) {
			return false
		}
		f.answer(w, r)
		return true
	}
	sc.on = true
	err = do(t.Context(), s)
	if hit = asked > k; !hit {
		if err != nil {
			t.Errorf("without the fault: %v", err)
		}
		return false
	}
	if err == nil {
		if !strings.HasPrefix(first, "DELETE /"+testBucket+"/.millrace/") && !strings.Contains(first, "uploadId=") {
			t.Errorf("%s met the fault, and all went well", first)
		}
		return true
	}
	for _, fact := range []error{
		storage.ErrNotFound, storage.ErrNoSpace, storage.ErrExists, storage.ErrNotEmpty, storage.ErrChanged,
		storage.ErrDigest, storage.ErrSlowDown,
		storage.ErrListing, storage.ErrNoMarker, storage.ErrWrongMarker, storage.ErrUnsupported, errRange,
	} {
		if errors.Is(err, fact) != (f.is == fact) {
			t.Errorf("%s: %v is %q: %t", first, err, fact, errors.Is(err, fact))
		}
	}
	if got := retry.ClassOf(err); got != f.class || !strings.Contains(err.Error(), f.says) {
		t.Errorf("%s: %v is %v, want %v that says %q", first, err, got, f.class, f.says)
	}
	return true
}
