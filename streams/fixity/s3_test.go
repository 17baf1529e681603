package fixity

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// A service is an S3 service with one fault. Requests for the item are those of the copy under test.
type service struct {
	*s3test.Server
	t     *testing.T
	store *s3.Store
	fail  func(w http.ResponseWriter, r *http.Request) (answered bool) // nil: no fault
	hang  func(*http.Request) bool                                     // requests that get no response; nil: none
	gets  int                                                          // of the item
}

const serviceBucket = "photos-of-acme"

func newService(t *testing.T) *service {
	s := &service{t: t}
	s.Server = s3test.New(s3test.Options{Before: s.answer})
	t.Cleanup(s.Close)
	return s
}

func ofItem(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/"+at.Item) }

func (s *service) answer(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet && ofItem(r) {
		s.gets++
	}
	return s.fail != nil && s.fail(w, r)
}

// RoundTrip fails as a transport does whose server sends no response in time.
func (s *service) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.hang == nil || !s.hang(r) {
		return s.Transport().RoundTrip(r)
	}
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(2 * time.Minute):
		return nil, fmt.Errorf("timeout awaiting response headers: %w", os.ErrDeadlineExceeded)
	}
}

// use makes the service the store of w, with the copy and its record. Without a bucket each space is one.
func (s *service) use(w *world, bucket string) {
	store, err := s3.New(s3.Config{ID: at.Account + "/" + at.Store, Endpoint: s.URL(), Bucket: bucket, PathStyle: true,
		BucketPrefix: map[bool]string{true: "acme-"}[bucket == ""], Transport: s, Restore: true,
		Credentials: s3.Credentials{AccessKey: "key", SecretKey: "secret"}})
	must(w.t, err)
	for _, name := range []string{serviceBucket, "acme-millrace"} {
		r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPut, s.URL()+"/"+name, http.NoBody)
		must(w.t, err)
		made, err := s.Transport().RoundTrip(r)
		must(w.t, err)
		made.Body.Close()
	}
	must(w.t, store.WriteMarker(w.t.Context()))
	if err := store.CreateSpace(w.t.Context(), storage.Space{Name: at.Space}); err != nil {
		w.t.Fatal(err)
	}
	s.store, w.store = store, storagetest.NewFaulty(store)
	s.put(w, good)
	w.record = w.now()
	time.Sleep(72 * time.Hour)
}

// put stores bytes without an event.
func (s *service) put(w *world, content string) {
	var err error
	w.object, err = s.store.Put(w.t.Context(), at.Space, at.Item, strings.NewReader(content),
		storage.PutOptions{Size: storage.UnknownSize})
	must(w.t, err)
}

// delete deletes the item without an event.
func (s *service) delete(w *world) {
	if _, err := s.store.Delete(w.t.Context(), at.Space, at.Item, storage.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// failure answers with an error of S3. A HEAD has no body, and so no code.
func failure(w http.ResponseWriter, r *http.Request, status int, code string) bool {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
	}
	return true
}

// flip inverts one bit of the object.
func (s *service) flip() {
	s.Rot(serviceBucket, at.Space+"/"+at.Item, func(b []byte) []byte { b[7] ^= 4; return b })
}

// What an S3 service does wrong is row 12, with the reason, and nothing that concerns the copy. It is over: the next
// check passes.
func TestFaultsOfAnS3Service(t *testing.T) {
	of := func(method string, answer func(w http.ResponseWriter, r *http.Request) bool) func(*service) {
		return func(s *service) {
			s.fail = func(w http.ResponseWriter, r *http.Request) bool {
				return r.Method == method && ofItem(r) && answer(w, r)
			}
		}
	}
	status := func(status int, code string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { return failure(w, r, status, code) }
	}
	body := func(length, sent int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", fmt.Sprint(length))
			_, _ = io.WriteString(w, good[:sent])
			if sent < length {
				panic(http.ErrAbortHandler)
			}
			return true
		}
	}
	for name, tt := range map[string]struct {
		fault  func(*service)
		detail string
	}{
		"HEAD times out": {func(s *service) {
			s.hang = func(r *http.Request) bool { return r.Method == http.MethodHead && ofItem(r) }
		}, "timeout"},
		"GET times out": {func(s *service) {
			s.hang = func(r *http.Request) bool { return r.Method == http.MethodGet && ofItem(r) }
		}, "timeout"},
		"all times out":     {func(s *service) { s.hang = func(*http.Request) bool { return true } }, "timeout"},
		"403 of HEAD":       {of(http.MethodHead, status(403, "")), "access denied"},
		"403 of GET":        {of(http.MethodGet, status(403, "AccessDenied")), "access denied"},
		"404 of the bucket": {func(s *service) { s.fail = status(404, "NoSuchBucket") }, "bucket"},
		"404 of a proxy":    {func(s *service) { s.fail = status(404, "") }, "bucket"},
		"404 of the item and the marker": {func(s *service) {
			s.fail = func(w http.ResponseWriter, r *http.Request) bool {
				return (ofItem(r) || strings.HasSuffix(r.URL.Path, "/marker.json")) && failure(w, r, 404, "NoSuchKey")
			}
		}, "marker"},
		"404 of GET only":      {of(http.MethodGet, status(404, "NoSuchKey")), "disagree"},
		"500 of GET":           {of(http.MethodGet, status(500, "InternalError")), "InternalError"},
		"503 of all":           {func(s *service) { s.fail = status(503, "SlowDown") }, ""},
		"a body without end":   {of(http.MethodGet, body(len(good), 0)), ""},
		"a body that is short": {of(http.MethodGet, body(5, 5)), ""},
		"one wrong bit on one read": {func(s *service) {
			s.fail = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodGet && ofItem(r) && s.gets <= 2 {
					s.flip() // and back
				}
				return false
			}
		}, "transport"},
		"corrupt, and 403 at the second read": {func(s *service) {
			s.flip()
			s.fail = func(w http.ResponseWriter, r *http.Request) bool {
				return r.Method == http.MethodGet && ofItem(r) && s.gets > 1 && failure(w, r, 403, "AccessDenied")
			}
		}, "access denied"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				s.use(w, serviceBucket)
				tt.fault(s)
				o := w.handle(task(w.record))
				w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
				if d := o.result.GetDetail(); o.change != nil || w.incident != "" || !strings.Contains(d, tt.detail) {
					t.Errorf("change %v, incident %q, detail %q", o.change, w.incident, d)
				}
				s.fail, s.hang = nil, nil
				if strings.HasPrefix(name, "corrupt") {
					s.flip()
				}
				time.Sleep(time.Until(o.due))
				w.is(w.handle(o.again), 1, pb.Verdict_VERDICT_PASS, true)
			})
		})
	}
}

// An item that was replaced is deleted, replaced or archived between a check and its re-check, or while the re-check
// waits for the archive. Each is found in the end, and nothing that is over.
func TestItemChangesWhileItWaits(t *testing.T) {
	reported := func(do func(*service, *world)) func(*service, *world) {
		return func(s *service, w *world) { do(s, w); w.record = w.now() }
	}
	replaced := func(s *service, w *world) { time.Sleep(time.Minute); s.put(w, "mine") }
	deleted := func(s *service, w *world) { s.delete(w); w.bury() }
	nothing := func(*service, *world) {}
	for name, tt := range map[string]struct {
		change func(*service, *world)
		row    int32
	}{
		"nothing":                 {nothing, 13},
		"deleted":                 {deleted, 11},
		"deleted, without event":  {(*service).delete, 8},
		"replaced":                {reported(replaced), 1},
		"replaced, without event": {replaced, 13},
		"put back": {func(s *service, w *world) {
			time.Sleep(time.Minute)
			s.put(w, good)
			w.record.Manifest.Version, w.record.Audit.Version = w.object.Version, w.object.Version
		}, 1},
		"corrupt": {func(s *service, _ *world) { s.flip() }, 2},
	} {
		for archive, archived := range map[string]bool{"": false, ", during the wait for the archive": true} {
			t.Run(name+archive, func(t *testing.T) {
				s := newService(t)
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					s.use(w, serviceBucket)
					s.put(w, rot)
					time.Sleep(72 * time.Hour)
					first := w.handle(task(w.record))
					w.is(first, 13, pb.Verdict_VERDICT_UNDECIDED, false)
					if archived {
						s.waits(w, first)
					} else {
						time.Sleep(time.Until(first.due))
					}
					tt.change(s, w)
					if _, ok := s.Object(serviceBucket, at.Space+"/"+at.Item); ok {
						s.CompleteRestore(serviceBucket, at.Space+"/"+at.Item)
					}
					o := w.last(first.again)
					if r := o.result; r.GetRow() != tt.row || !r.GetFinal() || o.change != nil {
						t.Errorf("got %v, change %v, want row %d", r, o.change, tt.row)
					}
					if v := o.result.GetObject().GetVersion(); tt.row == 13 && v != w.object.Version {
						t.Errorf("version %q is replaced, want %q", v, w.object.Version)
					}
				})
			})
		}
	}
}

// waits archives the item, and checks that its re-check waits for it.
func (s *service) waits(w *world, o outcome) {
	w.t.Helper()
	s.Archive(serviceBucket, at.Space+"/"+at.Item)
	time.Sleep(time.Until(o.due))
	for range 2 {
		got, err := w.checker().Handle(w.t.Context(), &schemas.Delivery{Topic: schemas.FixityHigh, Body: o.again, Attempt: 1})
		if due := retry.Due(err); got != nil || retry.ClassOf(err) != retry.ClassWait || !due.After(time.Now()) {
			w.t.Fatalf("archived: %v, %v, due %v", got, err, due)
		}
		time.Sleep(time.Until(retry.Due(err)))
	}
}

// Of a space that is a bucket of its own, a bucket that does not answer as usual is unknown, and one that is gone is
// the incident of the space.
func TestBucketOfASpace(t *testing.T) {
	for name, tt := range map[string]struct {
		status   int
		code     string
		incident string
	}{
		"gone":      {404, "NoSuchBucket", "open"},
		"forbidden": {403, "AccessDenied", ""},
		"away":      {503, "SlowDown", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				s.use(w, "")
				s.fail = func(w http.ResponseWriter, r *http.Request) bool {
					return strings.HasPrefix(r.URL.Path, "/acme-"+at.Space) && failure(w, r, tt.status, tt.code)
				}
				next := task(w.record)
				for range 5 {
					o := w.handle(next)
					w.is(o, 12, pb.Verdict_VERDICT_UNKNOWN, false)
					if o.change != nil || w.incident != tt.incident {
						t.Errorf("change %v, incident of the space %q, want %q", o.change, w.incident, tt.incident)
					}
					time.Sleep(time.Until(o.due))
					next = o.again
				}
				s.fail = nil
				w.is(w.handle(next), 1, pb.Verdict_VERDICT_PASS, true)
				if w.incident == "open" {
					t.Error("the incident of the space is open")
				}
			})
		})
	}
}
