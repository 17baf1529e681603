// Package s3test is an in-memory S3 server for tests and benchmarks. It implements the part of S3 that the driver uses,
// can leave out features and inject faults, and does not verify signatures.
package s3test

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options configure a Server. The zero value supports everything except versioning.
type Options struct {
	NoConditions bool // ignore If-Match and If-None-Match of writes
	NoChecksums  bool // ignore x-amz-checksum-*
	Versions     bool // buckets have versioning
	OddETags     bool // ETags are not MD5s
	CleanKeys    bool // a//b, a/./b and x/../a/b are the key a/b, as in services with objects as files
	HideBelow    bool // do not list objects below the key of an object, as a/b below a
	NoReadMatch  bool // ignore If-Match and versionId of reads
	// Virtual objects have a size but no bytes: requests must send zeros, and reads return zeros.
	Virtual bool
	MinPart int64 // minimum size of all parts except the last, in bytes [5 MiB]
	// Unverified requests save processor time in benchmarks: checksums in requests are not compared with the bytes.
	Unverified bool
	// Clock, if set, is the clock of the service, which refuses requests that differ by more than 15 minutes.
	Clock func() time.Time
	// Before, if set, is called for every request. If it returns true, it has written the response.
	Before func(w http.ResponseWriter, r *http.Request) (answered bool)
	// After, if set, is called after every request was carried out, before the response is sent. If it returns true,
	// it has written the response.
	After func(w http.ResponseWriter, r *http.Request) (answered bool)
}

// A Server is an S3 server. It is safe for concurrent use.
type Server struct {
	o    Options
	http *httptest.Server

	mu      sync.Mutex // guards the fields below
	buckets map[string]*bucket
	uploads map[string]*upload
	serial  int
}

type bucket struct {
	objects  map[string][]*object // the versions of each key, newest last
	keys     []string
	unsorted bool // keys are not sorted
}

type object struct {
	bytes        []byte
	size         int64 // of bytes, or of a virtual object
	etag         string
	modified     time.Time
	header       http.Header // metadata, content type and checksums
	version      string
	deleteMarker bool
	tier         tier
	sum          string // CRC64NVME of a part
}

type upload struct {
	bucket, key string
	header      http.Header
	initiated   time.Time
	parts       map[int]*object
}

// New starts a server on a loopback address. The caller closes it.
func New(o Options) *Server {
	s := &Server{o: o, buckets: map[string]*bucket{}, uploads: map[string]*upload{}}
	s.http = httptest.NewServer(s)
	return s
}

// URL returns the endpoint.
func (s *Server) URL() string { return s.http.URL }

// Close stops the server.
func (s *Server) Close() { s.http.Close() }

// Object returns the bytes of the current object at a key.
func (s *Server) Object(bucket, key string) (b []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bk := s.buckets[bucket]; bk != nil {
		if o := bk.current(key); o != nil {
			return o.bytes, true
		}
	}
	return nil, false
}

// Put stores an object without metadata. It makes the bucket if there is none.
func (s *Server) Put(name, key string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bk := s.buckets[name]
	if bk == nil {
		bk = &bucket{objects: map[string][]*object{}}
		s.buckets[name] = bk
	}
	s.store(bk, key, &object{bytes: b, size: int64(len(b)), etag: s.etag(b), header: http.Header{}})
}

// Keys returns the keys of a bucket with a prefix, sorted.
func (s *Server) Keys(bucket, prefix string) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bk := s.buckets[bucket]; bk != nil {
		for _, k := range bk.sorted() {
			if strings.HasPrefix(k, prefix) && bk.current(k) != nil {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// Version turns the versioning of all buckets on or off. No request may be in progress.
func (s *Server) Version(on bool) { s.o.Versions = on }

// Uploads returns the number of incomplete multipart uploads.
func (s *Server) Uploads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uploads)
}

// Rot changes the bytes of an object, and nothing that the server reports about it but their number.
func (s *Server) Rot(bucket, key string, edit func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.buckets[bucket].current(key)
	o.bytes = edit(slices.Clone(o.bytes))
	o.size = int64(len(o.bytes))
}

// Edit changes the headers of an object.
func (s *Server) Edit(bucket, key string, f func(http.Header)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.buckets[bucket].current(key).header)
}

func (b *bucket) current(key string) *object {
	all := b.objects[key]
	if len(all) == 0 || all[len(all)-1].deleteMarker {
		return nil
	}
	return all[len(all)-1]
}

func (b *bucket) sorted() []string {
	if b.unsorted {
		slices.Sort(b.keys)
		b.unsorted = false
	}
	return b.keys
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.o.Clock != nil {
		w.Header().Set("Date", s.o.Clock().UTC().Format(http.TimeFormat))
		at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		if err == nil && at.Sub(s.o.Clock()).Abs() > 15*time.Minute {
			skewed.write(w, r)
			return
		}
	}
	if s.o.Before != nil && s.o.Before(w, r) {
		return
	}
	rec := w
	var late *httptest.ResponseRecorder
	if s.o.After != nil {
		late = httptest.NewRecorder()
		rec = late
	}
	if err := s.serve(rec, r); err != nil {
		err.write(rec, r)
	}
	if late == nil || s.o.After(w, r) {
		return
	}
	for k, v := range late.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(late.Code)
	_, _ = w.Write(late.Body.Bytes())
}

// A failure is an error response.
type failure struct {
	status int
	code   string
}

func (f *failure) write(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(f.status)
	if r.Method != http.MethodHead && f.status != http.StatusNotModified {
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", f.code, f.code)
	}
}

var (
	noKey              = &failure{404, "NoSuchKey"}
	noBucket           = &failure{404, "NoSuchBucket"}
	noUpload           = &failure{404, "NoSuchUpload"}
	preconditionFailed = &failure{412, "PreconditionFailed"}
	notModified        = &failure{304, "NotModified"}
	notImplemented     = &failure{501, "NotImplemented"}
	invalidRequest     = &failure{400, "InvalidRequest"}
	skewed             = &failure{403, "RequestTimeTooSkewed"}
)

func (s *Server) serve(w http.ResponseWriter, r *http.Request) *failure {
	name, rawKey, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	key, err := url.PathUnescape(rawKey)
	if err != nil {
		return invalidRequest
	}
	if s.o.CleanKeys && key != "" {
		dir := strings.HasSuffix(key, "/")
		if key = strings.TrimPrefix(path.Clean("/"+key), "/"); dir {
			key += "/"
		}
	}
	switch {
	case name == "":
		return s.listBuckets(w)
	case key == "":
		return s.onBucket(w, r, name)
	}
	s.mu.Lock()
	bk := s.buckets[name]
	s.mu.Unlock()
	if bk == nil {
		return noBucket
	}
	q := r.URL.Query()
	switch {
	case q.Has("uploadId") || q.Has("uploads"):
		return s.onUpload(w, r, name, key)
	case q.Has("restore") && r.Method == http.MethodPost:
		return s.restore(w, bk, key)
	case r.Method == http.MethodPut:
		return s.put(w, r, bk, key)
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return s.get(w, r, bk, key)
	case r.Method == http.MethodDelete:
		return s.remove(w, r, bk, key)
	}
	return notImplemented
}

func (s *Server) listBuckets(w http.ResponseWriter) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	type one struct{ Name, CreationDate string }
	var out struct {
		XMLName xml.Name `xml:"ListAllMyBucketsResult"`
		Buckets []one    `xml:"Buckets>Bucket"`
	}
	for name := range s.buckets {
		out.Buckets = append(out.Buckets, one{name, "2026-01-01T00:00:00.000Z"})
	}
	return writeXML(w, out)
}

func (s *Server) onBucket(w http.ResponseWriter, r *http.Request, name string) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	bk, q := s.buckets[name], r.URL.Query()
	switch {
	case r.Method == http.MethodPut && len(q) == 0:
		if bk != nil {
			return &failure{409, "BucketAlreadyOwnedByYou"}
		}
		s.buckets[name] = &bucket{objects: map[string][]*object{}}
		return nil
	case bk == nil:
		return noBucket
	case r.Method == http.MethodHead:
		return nil
	case r.Method == http.MethodDelete:
		if len(bk.objects) > 0 {
			return &failure{409, "BucketNotEmpty"}
		}
		delete(s.buckets, name)
		w.WriteHeader(http.StatusNoContent)
		return nil
	case r.Method != http.MethodGet:
		return notImplemented
	case q.Has("location"):
		return writeXML(w, struct {
			XMLName xml.Name `xml:"LocationConstraint"`
		}{})
	case q.Has("versioning"):
		status := ""
		if s.o.Versions {
			status = "Enabled"
		}
		return writeXML(w, struct {
			XMLName xml.Name `xml:"VersioningConfiguration"`
			Status  string   `xml:",omitempty"`
		}{Status: status})
	case q.Has("uploads"):
		return s.listUploads(w, name, q)
	case q.Has("versions"):
		return s.listVersions(w, bk, q)
	}
	return s.list(w, bk, q)
}

func writeXML(w http.ResponseWriter, v any) *failure {
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(v)
	return nil
}

type listed struct {
	XMLName      xml.Name
	Key          string
	LastModified string
	ETag         string
	Size         int64
	StorageClass string
	VersionID    string `xml:"VersionId,omitempty"`
	IsLatest     *bool  `xml:",omitempty"`
}

func entry(key string, o *object) listed {
	at := o.modified.Format("2006-01-02T15:04:05.000Z")
	return listed{
		Key: url.QueryEscape(key), LastModified: at, ETag: `"` + o.etag + `"`, Size: o.size, StorageClass: "STANDARD",
	}
}

func page(q url.Values) int {
	n, err := strconv.Atoi(q.Get("max-keys"))
	if err != nil || n <= 0 || n > 1000 {
		n = 1000
	}
	return n
}

// list answers ListObjectsV2.
func (s *Server) list(w http.ResponseWriter, bk *bucket, q url.Values) *failure {
	type prefix struct{ Prefix string }
	var out struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		EncodingType          string
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		KeyCount              int
		Contents              []listed
		CommonPrefixes        []prefix
	}
	out.EncodingType = "url"
	after := max(q.Get("start-after"), q.Get("continuation-token"))
	keys, under, delimiter := bk.sorted(), q.Get("prefix"), q.Get("delimiter")
	i, _ := slices.BinarySearch(keys, max(after, under))
	common := ""
	for ; i < len(keys) && strings.HasPrefix(keys[i], under); i++ {
		k := keys[i]
		o := bk.current(k)
		within := common != "" && strings.HasPrefix(k, common) || // below a prefix of this page or of the page before
			delimiter != "" && strings.HasSuffix(after, delimiter) && strings.HasPrefix(k, after)
		if k <= after || o == nil || within || s.o.HideBelow && bk.hasAncestor(k, under) {
			continue
		}
		if len(out.Contents)+len(out.CommonPrefixes) == page(q) {
			out.IsTruncated = true
			break
		}
		if at := strings.Index(k[len(under):], delimiter); delimiter != "" && at >= 0 {
			common = k[:len(under)+at+len(delimiter)]
			out.CommonPrefixes = append(out.CommonPrefixes, prefix{url.QueryEscape(common)})
			out.NextContinuationToken = common
			continue
		}
		out.Contents = append(out.Contents, entry(k, o))
		out.NextContinuationToken = k
	}
	if !out.IsTruncated {
		out.NextContinuationToken = ""
	}
	out.KeyCount = len(out.Contents) + len(out.CommonPrefixes)
	return writeXML(w, out)
}

// hasAncestor reports whether there is an object above a key and below a prefix.
func (b *bucket) hasAncestor(key, under string) bool {
	for i, c := range key {
		if c == '/' && i > 0 && i < len(key)-1 && i >= len(under) && b.current(key[:i]) != nil {
			return true
		}
	}
	return false
}

func (s *Server) listVersions(w http.ResponseWriter, bk *bucket, q url.Values) *failure {
	var out struct {
		XMLName             xml.Name `xml:"ListVersionsResult"`
		EncodingType        string
		IsTruncated         bool
		NextKeyMarker       string `xml:",omitempty"`
		NextVersionIDMarker string `xml:"NextVersionIdMarker,omitempty"`
		Version             []listed
	}
	out.EncodingType = "url"
	after, under := q.Get("key-marker"), q.Get("prefix")
	for _, k := range bk.sorted() {
		if k <= after || !strings.HasPrefix(k, under) {
			continue
		}
		if len(out.Version) >= page(q) {
			out.IsTruncated = true
			break
		}
		all := bk.objects[k]
		for i := len(all) - 1; i >= 0; i-- {
			e, latest := entry(k, all[i]), i == len(all)-1
			if e.VersionID, e.IsLatest = cmp.Or(all[i].version, nullVersion), &latest; all[i].deleteMarker {
				e.XMLName.Local = "DeleteMarker"
			}
			out.Version = append(out.Version, e)
		}
		out.NextKeyMarker = url.QueryEscape(k)
	}
	if !out.IsTruncated {
		out.NextKeyMarker = ""
	}
	return writeXML(w, out)
}
