package s3

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// Mutating requests, by method and a part of the URL.
var changes = map[string]struct {
	method, has string
	size        int
	do          func(t *testing.T, s *Store, size int) error
}{
	"Put": {http.MethodPut, "/s/item", 10, func(t *testing.T, s *Store, size int) error {
		return put(t.Context(), s, "item", size, storage.PutOptions{Condition: storage.Condition{Absent: true}})
	}},
	"part": {http.MethodPut, "partNumber=1", testPart + 1, func(t *testing.T, s *Store, size int) error {
		return put(t.Context(), s, "item", size, storage.PutOptions{})
	}},
	"complete": {http.MethodPost, "/s/item?uploadId", testPart + 1, func(t *testing.T, s *Store, size int) error {
		return put(t.Context(), s, "item", size, storage.PutOptions{Condition: storage.Condition{Absent: true}})
	}},
}

// A write fails once. If the service applied it, the driver detects that; if not, it repeats the part or the
// completion; if it cannot know, the error says so. The stored object is correct in every case.
func TestWriteTwins(t *testing.T) {
	for name, c := range changes {
		for twin, how := range map[string]func(o *s3test.Options, h func(http.ResponseWriter, *http.Request) bool){
			"not done":         func(o *s3test.Options, h func(http.ResponseWriter, *http.Request) bool) { o.Before = h },
			"done, not known":  func(o *s3test.Options, h func(http.ResponseWriter, *http.Request) bool) { o.After = h },
			"not done, as 500": func(o *s3test.Options, h func(http.ResponseWriter, *http.Request) bool) { o.Before = h },
			"done, as 500":     func(o *s3test.Options, h func(http.ResponseWriter, *http.Request) bool) { o.After = h },
			"not done, in 200": func(o *s3test.Options, h func(http.ResponseWriter, *http.Request) bool) { o.Before = h },
		} {
			t.Run(name+", "+twin, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sc, o := &script{}, s3test.Options{}
					how(&o, sc.hook)
					// one request at a time
					s, srv := direct(t, o, func(c *Config) { c.PartBytes, c.parallel = testPart, 1 })
					once := false
					sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
						if once || r.Method != c.method || !strings.Contains(r.URL.RequestURI(), c.has) {
							return false
						}
						once = true
						switch {
						case strings.HasSuffix(twin, "500"):
							refuse(500, "InternalError")(w, r)
						case strings.HasSuffix(twin, "200"):
							refuse(200, "InternalError")(w, r)
						default:
							hangUp()
						}
						return true
					}
					sc.on = true
					err := c.do(t, s, c.size)
					got, there := srv.Object(testBucket, "s/item")
					lost := name == "Put" && strings.HasPrefix(twin, "not done")
					if !once || lost != (err != nil) || there != (err == nil) || there && !bytes.Equal(got, plenty[:c.size]) ||
						srv.Uploads() != 0 {
						t.Fatalf("met: %t; %v; there: %t, %d bytes; %d uploads", once, err, there, len(got), srv.Uploads())
					}
					if lost && !strings.HasSuffix(twin, "200") && !strings.Contains(err.Error(), "it is unknown") {
						t.Errorf("does not say that the outcome is unknown: %v", err)
					}
				})
			})
		}
	}
}

// If the service returns an error in a 200 response to a copy, the object is not quarantined, so it is not replaced.
func TestCopyRefusedWithinASuccess(t *testing.T) {
	sc := &script{}
	s, srv := direct(t, s3test.Options{Before: sc.hook})
	must(t, put(t.Context(), s, "item", 10, storage.PutOptions{}))
	sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("X-Amz-Copy-Source") == "" {
			return false
		}
		refuse(200, "SlowDown")(w, r)
		return true
	}
	sc.on = true
	o := storage.PutOptions{Size: 20, KeepReplaced: true}
	_, derr := s.Delete(t.Context(), "s", "item", storage.DeleteOptions{KeepDeleted: true})
	for what, err := range map[string]error{"put": put(t.Context(), s, "item", 20, o), "delete": derr} {
		if !errors.Is(err, storage.ErrSlowDown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if b, _ := srv.Object(testBucket, "s/item"); len(b) != 10 {
		t.Errorf("%d bytes are there", len(b))
	}
}

// A delete with a lost response returns an error. Its repetition returns the result.
func TestDeleteTwins(t *testing.T) {
	for name, done := range map[string]bool{"done": true, "not done": false} {
		t.Run(name, func(t *testing.T) {
			sc := &script{}
			o := s3test.Options{Before: sc.hook}
			if done {
				o = s3test.Options{After: sc.hook}
			}
			s, _ := direct(t, o)
			must(t, put(t.Context(), s, "item", 10, storage.PutOptions{}))
			sc.answer = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodDelete {
					hangUp()
				}
				return false
			}
			sc.on = true
			_, err := s.Delete(t.Context(), "s", "item", storage.DeleteOptions{})
			if !isAmbiguous(err) {
				t.Errorf("delete: %v", err)
			}
			sc.on = false
			if _, err = s.Delete(t.Context(), "s", "item",
				storage.DeleteOptions{}); errors.Is(err, storage.ErrNotFound) != done || !done && err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

// A service may cache the Date of its responses for a second, so that a delete right after a put would be older.
func TestDeleteIsNotOlderThanTheObject(t *testing.T) {
	s, _ := direct(t, s3test.Options{Before: func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			w.Header().Set("Date", time.Now().Add(-3*time.Second).UTC().Format(http.TimeFormat))
		}
		return false
	}})
	must(t, put(t.Context(), s, "item", 10, storage.PutOptions{}))
	d, err := s.Delete(t.Context(), "s", "item", storage.DeleteOptions{})
	if err != nil || !d.Time.Equal(d.Object.Modified) {
		t.Errorf("got %v, %v, want the time of the object, %v", d.Time, err, d.Object.Modified)
	}
}

// A part that the service has stored with other bytes never becomes visible.
func TestPartStoredWrongly(t *testing.T) {
	for name, tt := range map[string]struct {
		o       s3test.Options
		reports bool // the service reports the checksum of these bytes
		times   int
		ok      bool
	}{
		"reported, once":              {s3test.Options{}, true, 1, true},
		"reported, always":            {s3test.Options{}, true, 99, false},
		"reported by its ETag, once":  {s3test.Options{NoChecksums: true}, true, 1, true},
		"reported by ETag, always":    {s3test.Options{NoChecksums: true}, true, 99, false},
		"not reported":                {s3test.Options{}, false, 1, false},
		"not reported, no checksums":  {s3test.Options{NoChecksums: true}, false, 1, false},
		"not reported, odd ETags too": {s3test.Options{OddETags: true}, false, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc := &script{}
				var srv *s3test.Server
				if tt.reports {
					tt.o.Before = sc.hook
				} else {
					tt.o.After = sc.hook
				}
				s, srv := direct(t, tt.o, func(c *Config) {
					c.PartBytes, c.parallel, c.Endpoint = testPart, 1, "https://127.0.0.1"
				})
				n := 0
				sc.answer = func(_ http.ResponseWriter, r *http.Request) bool {
					if r.URL.Query().Get("partNumber") != "1" || n == tt.times {
						return false
					}
					if n++; !tt.reports {
						srv.CorruptPart(1)
						return false
					}
					r.Header.Del("Content-Md5") // the service does not verify it
					r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
					if r.Header.Get("X-Amz-Checksum-Crc64nvme") != "" {
						r.Header.Set("X-Amz-Checksum-Crc64nvme", wrongSum)
					}
					r.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), io.LimitReader(zeros{}, testPart-1)))
					return false
				}
				sc.on = true
				err := put(t.Context(), s, "item", testPart+1, storage.PutOptions{})
				_, there := srv.Object(testBucket, "s/item")
				if (err == nil) != tt.ok || there != tt.ok || retry.ClassOf(err) != retry.Transient ||
					errors.Is(err, storage.ErrDigest) {
					t.Errorf("%v; there: %t", err, there)
				}
			})
		})
	}
}

// wrongSum is of "x" and zeros, testPart of them.
var wrongSum = s3test.CRC64(append([]byte("x"), make([]byte, testPart-1)...))

// Metadata that exceeds the limit of S3 is refused before any request.
func TestMetadataTooLong(t *testing.T) {
	sc := &script{}
	s, _ := direct(t, s3test.Options{Before: sc.hook})
	asked := 0
	sc.answer = func(http.ResponseWriter, *http.Request) bool { asked++; return false }
	sc.on = true
	for name, v := range map[string]string{"plain": strings.Repeat("v", maxMetadata),
		"UTF-8": strings.Repeat("ä", maxMetadata/2)} {
		p := storage.Properties{User: map[string]string{"k": v}}
		if err := put(t.Context(), s, "item", 10, storage.PutOptions{Properties: p}); !errors.Is(err, storage.ErrTooLarge) ||
			!retry.IsPermanent(err) || !strings.Contains(err.Error(), "2048") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if asked != 0 {
		t.Errorf("%d requests were made", asked)
	}
	if err := put(t.Context(), s, "a\xff", 10, storage.PutOptions{}); !errors.Is(err, storage.ErrName) || asked != 0 {
		t.Errorf("a key that is no UTF-8: %v, %d requests", err, asked)
	}
}

// An empty item is an item.
func TestNoBytes(t *testing.T) {
	s, _ := direct(t, s3test.Options{})
	for _, size := range []int64{storage.UnknownSize, 0} {
		if _, err := s.Put(t.Context(), "s", "item", strings.NewReader(""), storage.PutOptions{Size: size}); err != nil {
			t.Fatal(err)
		}
		body, o, err := s.Open(t.Context(), "s", "item", "")
		must(t, err)
		got, err := io.ReadAll(body)
		body.Close()
		if err != nil || len(got) != 0 || o.Size != 0 {
			t.Errorf("size %d: %d bytes of %d: %v", size, len(got), o.Size, err)
		}
	}
}

// There are never more parts than S3 allows, and they hold the largest object.
func TestParts(t *testing.T) {
	for _, size := range []int64{1, 16 << 20, 10_000 * minPart, 10_000*minPart + 1, 10_001 * minPart, maxObject,
		storage.UnknownSize} {
		for _, usual := range []int64{minPart, 16 << 20} {
			if size >= 0 && size <= usual {
				continue
			}
			first, all, n := firstPartSize(usual, size), int64(0), 0
			want := size
			if size < 0 {
				want = maxObject - 200<<30 // with parts of 5 MiB not quite
			}
			for ; all < want; n++ {
				p := nthPartSize(n+1, first, size)
				if p < minPart || p > maxSingle {
					t.Fatalf("part %d has %d bytes", n+1, p)
				}
				all += p
			}
			if n > maxParts {
				t.Errorf("%d bytes with parts of %d take %d parts", size, usual, n)
			}
		}
	}
}

// An error because of clock skew names it, also if the response has no body. Each response says how far the clock of
// the service is ahead.
func TestClockSkew(t *testing.T) {
	var off, ahead time.Duration
	s, _ := direct(t, s3test.Options{Clock: func() time.Time { return time.Now().Add(off) }},
		func(c *Config) { c.Clock = func(d time.Duration) { ahead = d } })
	for _, off = range []time.Duration{0, 10 * time.Minute, -16 * time.Minute} {
		if _, err := s.StatSpace(t.Context(), "s"); err == nil && off < 0 {
			t.Error("the service answered in spite of its clock")
		}
		if (ahead - off).Abs() > 10*time.Second {
			t.Errorf("a clock that is %v ahead is said to be %v ahead", off, ahead)
		}
	}
	_, err := s.Stat(t.Context(), "s", "item")
	_, lerr := s.StatSpace(t.Context(), "s")
	for _, err := range []error{err, lerr, put(t.Context(), s, "item", 10, storage.PutOptions{})} {
		if retry.ClassOf(err) != retry.ClassUnavailable || !strings.Contains(err.Error(), "clocks") {
			t.Errorf("%v", err)
		}
	}
}

func TestClockOffset(t *testing.T) {
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ended := begun.Add(time.Hour) // of a slow upload
	for name, tt := range map[string]struct{ at, want time.Duration }{
		"at the start":     {0, 0},
		"before the start": {-time.Minute, -time.Minute},
		"at the end":       {time.Hour, 0},
		"after the end":    {time.Hour + time.Minute, time.Minute},
	} {
		if got := clockOffset(begun.Add(tt.at), begun, ended); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// Some services send valid responses with the media type of HTML. They are accepted.
func TestSuccessHeadedAsHTML(t *testing.T) {
	s, _ := direct(t, s3test.Options{After: func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut || r.Method == http.MethodPost {
			w.Header().Set("Content-Type", "text/html; charset=UTF-8")
		}
		return false
	}}, func(c *Config) { c.PartBytes, c.parallel = testPart, 1 })
	for item, n := range map[string]int{"small": 5, "large": testPart + 7} {
		if err := put(t.Context(), s, item, n, storage.PutOptions{}); err != nil {
			t.Errorf("%s: %v", item, err)
		}
	}
}

// After inconsistent responses to a write, the object is checked again. If they remain inconsistent, Put returns an
// error.
func TestInconsistentResponses(t *testing.T) {
	for name, tt := range map[string]struct {
		header, value string
		times         int
		ok            bool
	}{
		"digest, once":   {"X-Amz-Checksum-Crc64nvme", wrongSum, 1, true},
		"digest, always": {"X-Amz-Checksum-Crc64nvme", wrongSum, 99, false},
		"size, once":     {"Content-Length", "4", 1, true},
		"size, always":   {"Content-Length", "4", 99, false},
		"absent, once":   {"", "", 1, true},
		"absent, always": {"", "", 99, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc := &script{}
				s, srv := direct(t, s3test.Options{Before: sc.hook})
				n := 0
				sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method != http.MethodHead || n == tt.times {
						return false
					}
					if n++; tt.header == "" {
						w.WriteHeader(http.StatusNotFound)
						return true
					}
					h := w.Header()
					md5 := md5.Sum(plenty[:5])
					h.Set("ETag", `"`+hex.EncodeToString(md5[:])+`"`)
					h.Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
					h.Set("Content-Length", "5")
					h.Set(tt.header, tt.value)
					return true
				}
				sc.on = true
				err := put(t.Context(), s, "item", 5, storage.PutOptions{})
				if got, _ := srv.Object(testBucket, "s/item"); !bytes.Equal(got, plenty[:5]) {
					t.Errorf("%d bytes are there", len(got))
				}
				if want := min(tt.times, statRetry.Attempts); (err == nil) != tt.ok || n != want {
					t.Errorf("%v after %d wrong answers, want %t after %d", err, n, tt.ok, want)
				}
				if err != nil && (retry.ClassOf(err) != retry.Transient || errors.Is(err, storage.ErrDigest)) {
					t.Errorf("%v is taken for a fact", err)
				}
			})
		})
	}
}

// Parts with a verified checksum are signed with their content only if a third party could change them in transit.
func TestPartsAreSigned(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"https://s3.example.org": false, "http://127.0.0.1:9000": false, "http://[::1]:9000": false,
		"http://localhost:9000": false,
		"http://s3.example.org": true, "http://10.0.0.1:9000": true,
	} {
		t.Run(endpoint, func(t *testing.T) {
			sc := &script{}
			s, _ := direct(t, s3test.Options{Before: sc.hook}, func(c *Config) { c.Endpoint, c.PartBytes = endpoint, testPart })
			var parts, signed atomic.Int64
			sc.answer = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut && r.URL.Query().Has("partNumber") {
					parts.Add(1)
					if r.Header.Get("X-Amz-Content-Sha256") != "UNSIGNED-PAYLOAD" {
						signed.Add(1)
					}
				}
				return false
			}
			sc.on = true
			must(t, put(t.Context(), s, "item", testPart+10, storage.PutOptions{}))
			if parts.Load() != 2 || (signed.Load() == 2) != want || (signed.Load() == 0) == want {
				t.Errorf("%d of %d parts are signed, want all: %t", signed.Load(), parts.Load(), want)
			}
		})
	}
}
