package s3

import (
	"bytes"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// The service copies the parts of an object that it already stores, if it proves them. Otherwise they are sent.
func TestPutFromSource(t *testing.T) {
	const size = testPart + 9 // two parts
	for name, tt := range map[string]struct {
		o            s3test.Options
		answer       func(w http.ResponseWriter, r *http.Request) // to the first request to copy
		copied, sent int
	}{
		"proven by checksums":  {s3test.Options{}, nil, 2, 0},
		"proven by ETags":      {s3test.Options{NoChecksums: true}, nil, 2, 0},
		"odd ETags":            {s3test.Options{OddETags: true}, nil, 2, 0},
		"nothing proven":       {s3test.Options{OddETags: true, NoChecksums: true}, nil, 1, 2},
		"not known to it":      {s3test.Options{}, refuse(501, "NotImplemented"), 1, 2},
		"forbidden":            {s3test.Options{}, refuse(403, "AccessDenied"), 1, 2},
		"changed":              {s3test.Options{}, refuse(412, "PreconditionFailed"), 1, 2},
		"an error":             {s3test.Options{}, refuse(500, "InternalError"), 1, 2},
		"an error within 200":  {s3test.Options{}, refuse(200, "InternalError"), 1, 2},
		"connection broken":    {s3test.Options{}, func(http.ResponseWriter, *http.Request) { hangUp() }, 1, 2},
		"copies another range": {s3test.Options{}, nil, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sc := &script{}
				tt.o.Before = sc.hook
				s, srv := direct(t, tt.o, func(c *Config) { c.PartBytes, c.parallel = testPart, 1 })
				facts := s.Features()
				facts.CopiesParts = true // as probed before
				s.features.Store(&facts)
				content := append(bytes.Repeat([]byte("x"), testPart), plenty[:size-testPart]...)
				from, err := s.Put(t.Context(), "s", "from", bytes.NewReader(content), storage.PutOptions{Size: size})
				must(t, err)
				at, err := s.Locate(t.Context(), storage.Ref{Space: "s", Item: "from", Version: from.Version})
				must(t, err)
				copied, sent := 0, 0
				sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
					switch {
					case r.Method != http.MethodPut || !r.URL.Query().Has("partNumber"):
					case r.Header.Get("X-Amz-Copy-Source") == "":
						sent++
					default:
						copied++
						if name == "copies another range" {
							r.Header.Set("X-Amz-Copy-Source-Range", "bytes=1-5242880")
						}
						if tt.answer != nil {
							tt.answer(w, r)
							return true
						}
					}
					return false
				}
				sc.on = true
				o := storage.PutOptions{Size: size, Source: &at, Digests: from.Digests}
				if _, err := s.Put(t.Context(), "s", "to", bytes.NewReader(content), o); err != nil {
					t.Fatal(err)
				}
				if got, _ := srv.Object(testBucket, "s/to"); !bytes.Equal(got, content) || srv.Uploads() != 0 {
					t.Errorf("%d bytes are there, and %d uploads", len(got), srv.Uploads())
				}
				if copied != tt.copied || sent != tt.sent {
					t.Errorf("%d parts were asked to be copied and %d sent, want %d and %d", copied, sent, tt.copied, tt.sent)
				}
			})
		})
	}
}

// An object at another service, or of another size, is sent.
func TestCopySourceOf(t *testing.T) {
	s, _ := direct(t, s3test.Options{})
	there := locator{s.cfg.Endpoint, copySource{object: storage.Object{Size: 9}}}
	for name, tt := range map[string]struct {
		source *storage.Location
		want   bool
	}{
		"nowhere":         {nil, false},
		"there":           {&storage.Location{Handle: there}, true},
		"another driver":  {&storage.Location{Handle: 1}, false},
		"another service": {&storage.Location{Handle: locator{"https://elsewhere", there.copySource}}, false},
		"another size": {&storage.Location{
			Handle: locator{s.cfg.Endpoint, copySource{object: storage.Object{Size: 8}}},
		}, false},
	} {
		if got := s.copySourceOf(storage.PutOptions{Source: tt.source, Size: 9}); (got != nil) != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
