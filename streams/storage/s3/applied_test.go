package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// A mutation is a mutating call on a store with item "a" in space "s" and an empty space "empty", in one bucket or with
// a bucket for each space.
type mutation struct {
	do      func(context.Context, *Store) error
	decides string // the request that applies it, in one bucket
	alone   string // the same with a bucket for each; empty: the mutation is not tried so
	shows   []int  // statuses of refusals after which a look shows that nothing was changed
}

func mutations() map[string]mutation {
	const one, complete = "PUT /archive/s/new", "POST /archive/s/new?uploadId="
	return map[string]mutation{
		"Put":                  {operations["Put"], one, "", nil},
		"Put, absent":          {operations["Put, absent"], one, "", nil},
		"Put, kept":            {operations["Put, kept"], "PUT /archive/s/a", "", nil},
		"Put, of a version":    {putVersion, "PUT /archive/s/a", "", []int{412}},
		"Put, in parts":        {operations["Put, in parts"], complete, "", nil},
		"Put, of unknown size": {operations["Put, of unknown size"], complete, "", nil},
		"Delete":               {operations["Delete"], "DELETE /archive/s/a", "", []int{404, 412}},
		"Delete, kept":         {operations["Delete, kept"], "DELETE /archive/s/a", "", []int{404, 412}},
		"CreateSpace":          {operations["CreateSpace"], "PUT /archive/.millrace/spaces/new", "PUT /b-new/", nil},
		"SetSpace": {operations["SetSpace"], "PUT /archive/.millrace/spaces/s",
			"PUT /b-millrace/.millrace/spaces/s", nil},
		"DeleteSpace": {operations["DeleteSpace"], "DELETE /archive/.millrace/spaces/empty", "DELETE /b-empty/",
			nil},
	}
}

// putVersion replaces the current version of an item by other bytes.
func putVersion(ctx context.Context, s *Store) error {
	o, err := s.Stat(ctx, "s", "a")
	if err != nil {
		o.Version = "unknown"
	}
	return put(ctx, s, "a", 10, storage.PutOptions{Condition: storage.Condition{Version: o.Version}})
}

// A harm is a failure of one request.
type harm struct {
	status int // of an S3 error response; 0: the connection breaks
	code   string
	done   bool // the request was carried out before
	late   bool // "make test" skips it
	ends   bool // the caller's context ends before the response, with the error of another call as its cause
}

func harms() map[string]harm {
	return map[string]harm{
		"refused, 400":       {400, "InvalidRequest", false, true, false},
		"refused, 403":       {403, "AccessDenied", false, false, false},
		"refused, 405":       {405, "MethodNotAllowed", false, false, false},
		"refused, 404":       {404, "NoSuchKey", false, true, false},
		"refused, 409":       {409, "OperationAborted", false, true, false},
		"refused, 412":       {412, "PreconditionFailed", false, false, false},
		"repeated, 404":      {404, "NoSuchKey", true, false, false},
		"repeated, 409":      {409, "OperationAborted", true, true, false},
		"repeated, 412":      {412, "PreconditionFailed", true, false, false},
		"no such upload":     {404, "NoSuchUpload", false, true, false},
		"request timeout":    {408, "RequestTimeout", false, true, false},
		"failed":             {500, "InternalError", false, true, false},
		"failed, but done":   {500, "InternalError", true, true, false},
		"not implemented":    {501, "NotImplemented", false, true, false},
		"the same, but done": {501, "NotImplemented", true, false, false},
		"slow down":          {503, "SlowDown", false, true, false},
		"cut":                {0, "", false, true, false},
		"cut, but done":      {0, "", true, false, false},
		"ended":              {0, "", false, true, true},
		"ended, but done":    {0, "", true, false, true},
	}
}

// A harmful transport makes one request fail and, if all is set, also the following ones.
type harmful struct {
	http.RoundTripper
	harm
	k    int // index of the first request that fails; -1: none
	all  bool
	sent []string // no lock: the store sends one request at a time
	end  context.CancelCauseFunc
}

func (h *harmful) RoundTrip(req *http.Request) (*http.Response, error) {
	i := len(h.sent)
	h.sent = append(h.sent, req.Method+" "+req.URL.RequestURI())
	if h.k < 0 || i < h.k || i > h.k && !h.all {
		return h.RoundTripper.RoundTrip(req)
	}
	if h.done {
		if resp, err := h.RoundTripper.RoundTrip(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	} else if req.Body != nil {
		req.Body.Close()
	}
	if h.ends {
		h.end(storage.NotApplied(&serviceError{storage.ErrNotFound, http.StatusNotFound})) // of another call
		return nil, cmp.Or(req.Context().Err(), errReset)
	}
	if h.status == 0 {
		return nil, errReset
	}
	w := httptest.NewRecorder()
	refuse(h.status, h.code)(w, req)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

// An error is marked with NotApplied if the deciding request of the mutation was not sent, or the service refused it,
// and in no other case, whatever fails afterwards. A refusal that an earlier repetition of the request may have caused
// does not count, unless a stat shows that nothing was changed.
func TestNotAppliedIsProven(t *testing.T) {
	for name, m := range mutations() {
		for layout, decides := range map[string]string{"one bucket": m.decides, "a bucket each": m.alone} {
			if decides == "" || need.Amount(0, 1, 1) == 0 && !slices.Contains([]string{"Put", "Put, in parts",
				"Put, of a version", "Delete", "CreateSpace"}, name) {
				continue
			}
			t.Run(name+", "+layout, func(t *testing.T) {
				t.Parallel()
				m := mutation{m.do, decides, "", m.shows}
				for what, h := range harms() {
					if h.late && need.Amount(0, 1, 1) == 0 {
						continue
					}
					for k, more := 0, true; more; k++ {
						for _, all := range []bool{false, true}[:need.Amount(1, 2, 2)] {
							synctest.Test(t, func(t *testing.T) {
								more = m.harmed(t, layout, &harmful{harm: h, k: k, all: all}, what)
							})
						}
						if k > 100 {
							t.Fatal("has no end")
						}
					}
				}
			})
		}
	}
}

// harmed makes the call, and reports whether a request failed.
func (m mutation) harmed(t *testing.T, layout string, h *harmful, what string) bool {
	srv := s3test.New(s3test.Options{MinPart: testPart})
	srv.Close()
	k := h.k
	h.k, h.RoundTripper = -1, srv.Transport()
	facts := factsOf(s3test.Options{})
	s := openKnown(t, srv, &facts, func(c *Config) {
		c.Transport, c.PartBytes, c.parallel, c.digests = h, testPart, 1, []string{digest.CRC64NVME}
		if layout == "a bucket each" {
			c.Bucket, c.BucketPrefix = "", "b-"
		}
	})
	err := errors.Join(s.CreateSpace(t.Context(), storage.Space{Name: "s"}),
		put(t.Context(), s, "a", 5, storage.PutOptions{}),
		s.CreateSpace(t.Context(), storage.Space{Name: "empty"}))
	must(t, err)
	time.Sleep(2 * spaceCacheTTL)
	was := visible(srv)
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	h.sent, h.k, h.end = nil, k, end
	err = m.do(ctx, s)
	decided := slices.IndexFunc(h.sent, func(r string) bool {
		return strings.HasPrefix(r, m.decides) && (strings.Contains(m.decides, "uploadId") ||
			!strings.Contains(r, "uploadId"))
	})
	proven := h.status >= 400 && h.status < 500 && h.status != 408
	if slices.Contains([]int{404, 409, 412}, h.status) { // a proxy may have repeated the request
		proven = slices.Contains(m.shows, h.status) && !h.done && !h.all
	}
	want := err != nil && (decided < 0 || decided >= k && proven)
	if got := storage.IsNotApplied(err); got != want {
		t.Errorf("%s at request %d of %q, and later ones: %t: %v is marked: %t, want %t", what, k, h.sent, h.all, err, got,
			want)
	}
	if storage.IsNotApplied(err) && !maps.Equal(visible(srv), was) {
		t.Errorf("%s at request %d of %q: %v, and there is %v", what, k, h.sent, err, visible(srv))
	}
	return len(h.sent) > k
}

// visible returns the items and the space records of a server, with their bytes.
func visible(srv *s3test.Server) map[string]string {
	all := map[string]string{}
	for _, bucket := range []string{testBucket, "b-s", "b-new", "b-empty", "b-millrace"} {
		for _, key := range srv.Keys(bucket, "") {
			if b, _ := srv.Object(bucket, key); !strings.HasPrefix(key, controlPrefix+"kept/") &&
				!strings.HasPrefix(key, controlPrefix+"uploads/") {
				all[bucket+"/"+key] = string(b)
			}
		}
	}
	return all
}

// An error before the first mutating request is marked with NotApplied.
func TestNotAppliedBefore(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		size int
		r    func(io.Reader) io.Reader
		edit func(*storage.PutOptions)
		want error
	}{
		"the stream breaks": {10, func(r io.Reader) io.Reader {
			return io.MultiReader(r, iotest.ErrReader(boom))
		}, nil, boom},
		"it breaks in parts": {3 * testPart, func(r io.Reader) io.Reader {
			return io.MultiReader(r, iotest.ErrReader(boom))
		}, nil, boom},
		"the source changed": {10, func(r io.Reader) io.Reader {
			return io.MultiReader(r, iotest.ErrReader(storage.ErrChanged))
		}, nil, storage.ErrChanged},
		"it ends early": {10, func(r io.Reader) io.Reader {
			return io.LimitReader(r, 5)
		}, nil, storage.ErrDigest},
		"other bytes": {10, nil, func(o *storage.PutOptions) {
			o.Digests = digest.Set{digest.MD5: strings.Repeat("0", 32)}
		}, storage.ErrDigest},
		"other bytes, in parts": {3 * testPart, nil, func(o *storage.PutOptions) {
			o.Digests = digest.Set{digest.MD5: strings.Repeat("0", 32)}
		}, storage.ErrDigest},
		"the caller refuses": {10, nil, func(o *storage.PutOptions) {
			o.Verify = func(digest.Set, int64) error { return boom }
		}, boom},
		"it is there": {10, nil, func(o *storage.PutOptions) { o.Absent = true }, storage.ErrExists},
		"it is there, in parts": {3 * testPart, nil, func(o *storage.PutOptions) { o.Absent = true },
			storage.ErrExists},
		"it is another version": {10, nil, func(o *storage.PutOptions) { o.Version = `"x"` }, storage.ErrChanged},
		"properties that do not fit": {10, nil, func(o *storage.PutOptions) {
			o.Properties.User = map[string]string{"k": strings.Repeat("x", 4<<10)}
		}, storage.ErrTooLarge},
		"an unknown digest": {10, nil, func(o *storage.PutOptions) {
			o.Compute = []string{"none"}
		}, storage.ErrUnsupported},
		"an item that no store keeps": {10, nil, func(o *storage.PutOptions) { o.Size = maxObject + 1 }, storage.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			s, srv := direct(t, s3test.Options{}, func(c *Config) { c.PartBytes = testPart })
			must(t, put(t.Context(), s, "item", 5, storage.PutOptions{}))
			content := bytes.Repeat(plenty[:testPart], 3)[:tt.size]
			o := storage.PutOptions{Size: int64(tt.size)}
			if tt.edit != nil {
				tt.edit(&o)
			}
			var r io.Reader = bytes.NewReader(content)
			if tt.r != nil {
				r = tt.r(r)
				if o.Absent = tt.want == storage.ErrChanged; o.Absent {
					o.Size = storage.UnknownSize
				}
			}
			item := "item"
			if tt.r != nil {
				item = "new"
			}
			_, err := s.Put(t.Context(), "s", item, r, o)
			if !errors.Is(err, tt.want) || !storage.IsNotApplied(err) {
				t.Errorf("got %v, marked: %t; want a marked %v", err, storage.IsNotApplied(err), tt.want)
			}
			if errors.Is(err, storage.ErrExists) && !errors.Is(tt.want, storage.ErrExists) {
				t.Errorf("got %v, which says that the item is there", err)
			}
			if b, _ := srv.Object(testBucket, "s/item"); len(b) != 5 {
				t.Errorf("%d bytes are there", len(b))
			}
		})
	}
	readOnly := openKnown(t, server(t, s3test.Options{}), new(Features), func(c *Config) { c.ReadOnly = true })
	for name, m := range mutations() {
		if err := m.do(t.Context(), readOnly); !errors.Is(err, storage.ErrReadOnly) || !storage.IsNotApplied(err) {
			t.Errorf("%s of a read-only store: %v, marked: %t", name, err, storage.IsNotApplied(err))
		}
	}
	if err := readOnly.WriteMarker(t.Context()); !storage.IsNotApplied(err) {
		t.Error(fmt.Errorf("WriteMarker of a read-only store: %w", err))
	}
}
