package s3

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// A long upload of 12 parts in an s3test server, whose network fails from part 10 on.
const longParts = 12

func long() []byte { return bytes.Repeat(plenty[:testPart], longParts) }

type network struct {
	down bool

	mu   sync.Mutex
	sent []int // parts; guarded by mu
}

func (n *network) hook(_ http.ResponseWriter, r *http.Request) bool {
	part, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
	if err != nil || r.Method != http.MethodPut {
		return false
	}
	if n.down && part >= 10 {
		hangUp()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, part)
	return false
}

// A Put of another process resumes an interrupted upload, with the parts that the service proves to have.
func TestPutResumed(t *testing.T) {
	for name, tt := range map[string]struct {
		o       s3test.Options
		size    int64
		between func(s *Store, srv *s3test.Server, bytes []byte, o *storage.PutOptions)
		sends   int
	}{
		"the same":     {size: longParts * testPart, sends: 3},
		"no checksums": {o: s3test.Options{NoChecksums: true}, size: longParts * testPart, sends: 3},
		// no proof
		"odd ETags":       {o: s3test.Options{NoChecksums: true, OddETags: true}, size: longParts * testPart, sends: 12},
		"of unknown size": {size: storage.UnknownSize, sends: 3},
		"one byte differs": {size: longParts * testPart, sends: 4,
			between: func(_ *Store, _ *s3test.Server, b []byte, _ *storage.PutOptions) { b[testPart+7] ^= 1 }},
		"a part was lost": {size: longParts * testPart, sends: 4,
			between: func(_ *Store, srv *s3test.Server, _ []byte, _ *storage.PutOptions) { srv.CorruptPart(3) }},
		"other properties": {size: longParts * testPart, sends: 12,
			between: func(_ *Store, _ *s3test.Server, _ []byte, o *storage.PutOptions) {
				o.Properties.MediaType = "text/plain"
			}},
		"the upload is old": {size: longParts * testPart, sends: 12,
			between: func(s *Store, srv *s3test.Server, _ []byte, _ *storage.PutOptions) {
				srv.Age(8 * 24 * time.Hour)
				_, _ = s.abortStaleUploads(noTest, testBucket, "s/")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				tt.o.Before = n.hook
				s, srv := direct(t, tt.o, func(c *Config) {
					c.PartBytes, c.parallel, c.Endpoint, c.digests = testPart, 1, "https://127.0.0.1", []string{digest.MD5}
				})
				content, o := long(), storage.PutOptions{Size: tt.size}
				n.down = true
				if _, err := s.Put(t.Context(), "s", "item", bytes.NewReader(content), o); !isAmbiguous(err) {
					t.Fatalf("the first: %v", err)
				}
				if tt.between != nil {
					tt.between(s, srv, content, &o)
				}
				n.down, n.sent = false, nil
				restarted, err := New(s.cfg)
				must(t, err)
				must(t, restarted.Probe(t.Context()))
				n.sent = nil
				stored, err := restarted.Put(t.Context(), "s", "item", bytes.NewReader(content), o)
				got, _ := srv.Object(testBucket, "s/item")
				if err != nil || !bytes.Equal(got, content) || stored.Properties.MediaType != o.Properties.MediaType ||
					len(n.sent) != tt.sends {
					t.Errorf("the second: %v; %d bytes; sent %v, want %d", err, len(got), n.sent, tt.sends)
				}
				if name == "other properties" {
					return // the first upload remains until it is stale
				}
				if left := srv.Keys(testBucket, ".millrace/uploads/"); srv.Uploads() != 0 || len(left) != 0 {
					t.Errorf("%d uploads and %q are left", srv.Uploads(), left)
				}
			})
		})
	}
}

// An upload with wrong bytes, or with too few parts, is aborted.
func TestPutNotLeft(t *testing.T) {
	content := long()
	for name, tt := range map[string]struct {
		r io.Reader
		o storage.PutOptions
	}{
		"wrong digest": {bytes.NewReader(content), storage.PutOptions{Size: int64(len(content)),
			Digests: digest.Set{digest.MD5: strings.Repeat("0", 32)}}},
		"too short": {bytes.NewReader(content[:9*testPart]), storage.PutOptions{Size: int64(len(content))}},
		"breaks early": {io.MultiReader(bytes.NewReader(content[:3*testPart]), failing{}),
			storage.PutOptions{Size: int64(len(content))}},
		"refused": {bytes.NewReader(content), storage.PutOptions{Size: int64(len(content)),
			Verify: func(digest.Set, int64) error { return errReset }}},
	} {
		t.Run(name, func(t *testing.T) {
			s, srv := direct(t, s3test.Options{}, func(c *Config) { c.PartBytes, c.Endpoint = testPart, "https://127.0.0.1" })
			_, err := s.Put(t.Context(), "s", "item", tt.r, tt.o)
			if left := srv.Keys(testBucket, ".millrace/uploads/"); err == nil || srv.Uploads() != 0 || len(left) != 0 {
				t.Errorf("%v; %d uploads and %q are left", err, srv.Uploads(), left)
			}
			if _, there := srv.Object(testBucket, "s/item"); there {
				t.Error("it is visible")
			}
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errReset }

// Stale uploads are aborted. Uploads in use stay, however old they are.
func TestAbortStaleUploads(t *testing.T) {
	s, srv := direct(t, s3test.Options{}, func(c *Config) { c.PartBytes, c.Endpoint = testPart, "https://127.0.0.1" })
	begin := func(key string) *upload {
		u, err := s.begin(t.Context(), location{testBucket, key}, objectHeaders{})
		must(t, err)
		return u
	}
	sweep := func(want int) {
		t.Helper()
		if n, err := s.abortStaleUploads(t.Context(), testBucket, "s/"); n != want || err != nil {
			t.Errorf("ended %d, want %d: %v", n, want, err)
		}
	}
	dead, slow, other, ours := begin("s/dead"), begin("s/slow"), begin("other/dead"), begin("s/ours")
	for _, u := range []*upload{dead, slow, other} {
		s.setActive(u.id, false) // they are other processes'
	}
	must(t, errors.Join(dead.sendPart(t.Context(), 1, 0, plenty), slow.sendPart(t.Context(), 1, 0, plenty)))
	sweep(0)
	srv.Age(8 * 24 * time.Hour)
	if err := slow.sendPart(t.Context(), 2, 0, plenty); err != nil { // progress
		t.Fatal(err)
	}
	sweep(1)
	for u, want := range map[*upload]bool{dead: false, slow: true, other: true, ours: true} {
		if there, err := u.listParts(t.Context(), func(minio.ObjectPart) {}); there != want || err != nil {
			t.Errorf("%s is there: %t, %v", u.key, there, err)
		}
	}
	srv.Age(8 * 24 * time.Hour)
	s.setActive(ours.id, false)
	sweep(2)
	if srv.Uploads() != 1 {
		t.Errorf("%d are left", srv.Uploads())
	}
}

// A listing of uploads that repeats a page ends with an error.
func TestUploadListingLoop(t *testing.T) {
	sc := &script{on: true, answer: func(w http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("uploads") || r.Method != http.MethodGet {
			return false
		}
		_, _ = io.WriteString(w,
			`<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>s/a</NextKeyMarker>`+
				`<NextUploadIdMarker>1</NextUploadIdMarker></ListMultipartUploadsResult>`)
		return true
	}}
	s, _ := direct(t, s3test.Options{Before: sc.hook})
	if _, err := s.abortStaleUploads(t.Context(), testBucket, "s/"); !errors.Is(err, storage.ErrListing) {
		t.Errorf("%v", err)
	}
}

// If two processes resume the same upload, bytes are never mixed: the stored object is that of a Put that succeeded.
func TestTwoGoOnWithOneUpload(t *testing.T) {
	for name, tt := range map[string]struct {
		o    s3test.Options
		same bool // they put the same bytes
	}{
		"the same bytes":               {s3test.Options{}, true},
		"the same, odd ETags":          {s3test.Options{NoChecksums: true, OddETags: true}, true},
		"others of that size":          {s3test.Options{}, false},
		"others, nothing is proven":    {s3test.Options{NoChecksums: true, OddETags: true}, false},
		"others, parts have only MD5s": {s3test.Options{NoChecksums: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{down: true}
				tt.o.Before = n.hook
				s, srv := direct(t, tt.o, func(c *Config) {
					c.PartBytes, c.parallel, c.Endpoint, c.digests = testPart, 1, "https://127.0.0.1", []string{digest.MD5}
				})
				o := storage.PutOptions{Size: longParts * testPart}
				if _, err := s.Put(t.Context(), "s", "item", bytes.NewReader(long()), o); !isAmbiguous(err) {
					t.Fatalf("the first: %v", err)
				}
				n.down = false
				var contents [2][]byte
				var errs [2]error
				var all sync.WaitGroup
				for i := range errs {
					if contents[i] = long(); !tt.same {
						contents[i][5*testPart] += byte(i)
						contents[i][11*testPart] += byte(i)
					}
					other, err := New(s.cfg) // of another process
					must(t, err)
					other.features.Store(s.features.Load())
					all.Go(func() {
						for try := range 5 {
							if _, errs[i] = other.Put(t.Context(), "s", "item", bytes.NewReader(contents[i]), o); errs[i] == nil {
								return
							}
							time.Sleep(retry.Policy{Wait: time.Second}.Backoff(try + 1)) // as a caller does
						}
					})
				}
				all.Wait()
				got, _ := srv.Object(testBucket, "s/item")
				whole := errs[0] == nil && bytes.Equal(got, contents[0]) || errs[1] == nil && bytes.Equal(got, contents[1])
				if !whole || errs[0] != nil || errs[1] != nil {
					t.Errorf("the Puts: %v, %v; what is stored is whole: %t", errs[0], errs[1], whole)
				}
			})
		})
	}
}
