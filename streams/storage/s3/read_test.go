package s3

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// A breaking transport breaks the bodies of GET after some bytes, and then calls then.
type breaking struct {
	next http.RoundTripper

	mu    sync.Mutex
	after int64  // 0: bodies are whole; guarded by mu
	then  func() // once, and bodies are whole from then on; nil: nothing; guarded by mu
}

func (b *breaking) broke() {
	b.mu.Lock()
	then := b.then
	if then != nil {
		b.then, b.after = nil, 0
	}
	b.mu.Unlock()
	if then != nil {
		then()
	}
}

func (b *breaking) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && b.after > 0 && req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/item") {
		resp.Body = &broken{resp.Body, b.after, b.broke}
	}
	return resp, err
}

type broken struct {
	io.ReadCloser
	left int64
	then func()
}

var errReset = errors.New("connection reset by peer")

func (b *broken) Read(p []byte) (int, error) {
	if b.left == 0 {
		b.then()
		return 0, errReset
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// After a connection breaks in a body, no byte is missing, repeated or of another version.
func TestReadOverBrokenConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		size   int
		after  int64
		o      s3test.Options
		change func(s *Store, srv *s3test.Server) // when a body broke
		want   error
	}{
		"small":                    {size: 1000, after: 300},
		"byte by byte":             {size: 40, after: 1},
		"in pieces":                {size: testPart + 1000, after: testPart / 3},
		"versions":                 {size: 1000, after: 300, o: s3test.Options{Versions: true}},
		"replaced":                 {1000, 300, s3test.Options{}, replace, storage.ErrChanged},
		"replaced, nothing pinned": {1000, 300, s3test.Options{NoReadMatch: true}, replace, storage.ErrChanged},
		"replaced, in pieces": {testPart + 1000, testPart / 3, s3test.Options{NoReadMatch: true}, replace,
			storage.ErrChanged},
		// it is still there
		"replaced, there are others": {size: 1000, after: 300, o: s3test.Options{Versions: true}, change: replace},
		"gone":                       {1000, 300, s3test.Options{}, remove, storage.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &breaking{}
				s, srv := direct(t, tt.o, func(c *Config) { b.next, c.Transport, c.PartBytes = c.Transport, b, testPart })
				o := storage.PutOptions{Size: int64(tt.size)}
				must(t, put(t.Context(), s, "item", tt.size, o))
				body, _, err := s.Open(t.Context(), "s", "item", "")
				must(t, err)
				body.Close()
				b.after = tt.after
				if tt.change != nil {
					b.then = func() { tt.change(s, srv) }
				}
				body, _, err = s.Open(t.Context(), "s", "item", "")
				must(t, err)
				defer body.Close()
				got, err := io.ReadAll(body)
				if !errors.Is(err, tt.want) || tt.want == nil && !bytes.Equal(got, plenty[:tt.size]) ||
					!bytes.HasPrefix(plenty, got) {
					t.Errorf("read %d of %d bytes (%v), want %v", len(got), tt.size, err, tt.want)
				}
			})
		})
	}
}

func replace(s *Store, _ *s3test.Server) {
	_, _ = s.Put(noTest, "s", "item", strings.NewReader("other bytes"), storage.PutOptions{Size: storage.UnknownSize})
}

func remove(s *Store, _ *s3test.Server) {
	_, _ = s.Delete(noTest, "s", "item", storage.DeleteOptions{})
}

// A read without progress ends with the error of the connection.
func TestReadThatNeverGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc := &script{}
		s, _ := direct(t, s3test.Options{Before: sc.hook})
		must(t, put(t.Context(), s, "item", 1000, storage.PutOptions{}))
		gets := 0
		sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			if gets++; gets > 1 {
				hangUp()
			}
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT")
			w.Header().Set("Content-Range", "bytes 0-999/1000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(plenty[:10])
			hangUp()
			return true
		}
		sc.on = true
		body, _, err := s.Open(t.Context(), "s", "item", "")
		must(t, err)
		defer body.Close()
		got, err := io.ReadAll(body)
		if len(got) != 10 || !isAmbiguous(err) || gets != readRetry.Attempts {
			t.Errorf("read %d bytes with %d requests: %v", len(got), gets, err)
		}
	})
}

// Stat returns its time by the service's clock, in the resolution of modification times.
func TestStatSaysWhenByTheServicesClock(t *testing.T) {
	now := time.Now().Add(10 * time.Minute).UTC().Truncate(time.Second)
	srv := server(t, s3test.Options{Clock: func() time.Time { return now }})
	s := open(t, srv)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	if _, err := s.Put(t.Context(), "s", "a", strings.NewReader("x"), storage.PutOptions{Size: 1}); err != nil {
		t.Fatal(err)
	}
	o, err := s.Stat(t.Context(), "s", "a")
	if err != nil || !o.ObservedAt.Equal(now) || o.Modified.After(o.ObservedAt) {
		t.Errorf("seen %v, modified %v, %v; the service's clock says %v", o.ObservedAt, o.Modified, err, now)
	}
}

// A service that ignores versions returns the current object; Open detects that.
func TestOpenPinsWhereTheServiceDoesNot(t *testing.T) {
	for name, o := range map[string]s3test.Options{"by ETag": {NoReadMatch: true},
		"by version": {NoReadMatch: true, Versions: true}} {
		t.Run(name, func(t *testing.T) {
			s, srv := direct(t, o)
			must(t, put(t.Context(), s, "item", 10, storage.PutOptions{}))
			seen, err := s.Stat(t.Context(), "s", "item")
			must(t, err)
			if err := drain(s.Open(t.Context(), "s", "item", seen.Version)); err != nil {
				t.Errorf("the version that is there: %v", err)
			}
			replace(s, srv)
			if err := drain(s.Open(t.Context(), "s", "item", seen.Version)); !errors.Is(err, storage.ErrChanged) {
				t.Errorf("the version that was there: %v", err)
			}
		})
	}
}

// An object of 5 GiB and one byte, more than one request may have, is put, read and quarantined.
func TestFiveGiBAndOne(t *testing.T) {
	need.Integration(t)
	s, srv := direct(t, s3test.Options{Virtual: true}, func(c *Config) {
		c.digests, c.Endpoint, c.PartBytes = []string{digest.CRC64NVME}, "https://127.0.0.1", 64<<20
	})
	const size = maxSingle + 1
	must(t, s.Probe(t.Context()))
	o, err := s.Put(t.Context(), "s", "item", io.LimitReader(zeros{}, size), storage.PutOptions{Size: size})
	if err != nil || o.Size != size || o.Digests[digest.CRC64NVME] == "" {
		t.Fatalf("put %d bytes, %v: %v", o.Size, o.Digests, err)
	}
	body, _, err := s.getRange(t.Context(), location{testBucket, "s/item"}, o.Version,
		readPlan{offset: maxSingle - 5, remaining: 6})
	must(t, err)
	defer body.Close()
	if tail, err := io.ReadAll(body); err != nil || len(tail) != 6 {
		t.Errorf("the last bytes are %d: %v", len(tail), err)
	}
	_, err = s.Delete(t.Context(), "s", "item", storage.DeleteOptions{KeepDeleted: true})
	kept := srv.Keys(testBucket, ".millrace/kept/")
	if err != nil || len(kept) != 1 || srv.Uploads() != 0 {
		t.Fatalf("kept %q, %d uploads are left: %v", kept, srv.Uploads(), err)
	}
	info, err := s.head(t.Context(), location{testBucket, kept[0]}, s.getOptions())
	if err != nil || info.Size != size {
		t.Errorf("kept %d bytes: %v", info.Size, err)
	}
}

// An object larger than one request can copy is quarantined in parts, if it still has the expected version.
func TestQuarantineInParts(t *testing.T) {
	s, srv := direct(t, s3test.Options{})
	must(t, put(t.Context(), s, "item", testPart, storage.PutOptions{Properties: storage.Properties{MediaType: "a/b"}}))
	o, err := s.Stat(t.Context(), "s", "item")
	must(t, err)
	from, to := copySource{location{testBucket, "s/item"}, o}, location{testBucket, ".millrace/kept/one"}
	must(t, s.copyParts(t.Context(), from, to))
	info, err := s.head(t.Context(), to, s.getOptions())
	if got, _ := srv.Object(to.bucket, to.key); err != nil || !bytes.Equal(got, plenty[:testPart]) ||
		info.ContentType != "a/b" {
		t.Errorf("kept %d bytes as %q: %v", len(got), info.ContentType, err)
	}
	replace(s, srv)
	to.key += "-more"
	err = s.copyParts(t.Context(), from, to)
	if _, there := srv.Object(to.bucket, to.key); !errors.Is(err, storage.ErrChanged) || there || srv.Uploads() != 0 {
		t.Errorf("after a Put: %v, kept %t, %d uploads are left", err, there, srv.Uploads())
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A read takes as many requests as ReadRequests returns.
func TestReadRequests(t *testing.T) {
	var gets atomic.Int64
	srv := server(t, s3test.Options{Before: func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			gets.Add(1)
		}
		return false
	}})
	s := open(t, srv, func(c *Config) { c.PartBytes = testPart })
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	for _, n := range []int{1, testPart, testPart + 1, len(plenty)} {
		must(t, put(t.Context(), s, "item", n, storage.PutOptions{}))
		gets.Store(0)
		must(t, drain(s.Open(t.Context(), "s", "item", "")))
		if got, want := gets.Load(), ReadRequests(int64(n), testPart); got != want {
			t.Errorf("%d bytes: %d requests, want %d", n, got, want)
		}
	}
	for size, want := range map[int64]int64{0: 1, 1: 1, 16 << 20: 1, 16<<20 + 1: 2, 1 << 30: 64} {
		if got := ReadRequests(size, DefaultPartBytes); got != want {
			t.Errorf("%d bytes: got %d, want %d", size, got, want)
		}
	}
}
