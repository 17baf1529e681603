// Package s3test is an S3 server in memory that costs next to nothing: for tests and to measure clients against. It
// believes every signature.
package s3test

import (
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

// Options say what the server cannot do. The zero value can do all.
type Options struct {
	NoConditions bool // If-Match and If-None-Match of writes are ignored
	NoChecksums  bool // x-amz-checksum-* is ignored
	Versions     bool // buckets have versions
	OddETags     bool // ETags are no MD5
	CleanKeys    bool // a//b, a/./b and x/../a/b are the key a/b, as where objects are files
	HideBelow    bool // what lies below an object's key, as a/b below a, is kept and not listed
	NoReadMatch  bool // If-Match and versionId of reads are ignored
	// Virtual objects have a size and no bytes: what is put must be zeros, and zeros come back.
	Virtual bool
	MinPart int64 // bytes that all parts of an upload but the last have, at least [5 MiB]
	// Clock, where it is set, is the service's, which refuses requests that differ from it by more than 15 minutes.
	Clock func() time.Time
	// Before, where it is set, sees every request; what it answers (true) the server does not.
	Before func(w http.ResponseWriter, r *http.Request) (answered bool)
	// After, where it is set, sees every request that was carried out, before it is answered; what it answers (true)
	// the server does not.
	After func(w http.ResponseWriter, r *http.Request) (answered bool)
}

// A Server is one service.
type Server struct {
	o    Options
	http *httptest.Server

	mu      sync.Mutex // guards the rest
	buckets map[string]*bucket
	uploads map[string]*upload
	serial  int
}

type bucket struct {
	objects  map[string][]*object // newest last
	keys     []string
	unsorted bool // keys are not sorted
}

type object struct {
	bytes        []byte
	size         int64 // of a virtual one, else that of bytes
	etag         string
	modified     time.Time
	header       http.Header // of metadata, type and checksums
	version      string
	deleteMarker bool // a delete marker
	tier         tier
	sum          string // crc64nvme of a part
}

type upload struct {
	bucket, key string
	header      http.Header
	initiated   time.Time
	parts       map[int]*object
}

// New starts a server on loopback. Close ends it.
func New(o Options) *Server {
	s := &Server{o: o, buckets: map[string]*bucket{}, uploads: map[string]*upload{}}
	s.http = httptest.NewServer(s)
	return s
}

// URL is the endpoint.
func (s *Server) URL() string { return s.http.URL }

// Close ends the server.
func (s *Server) Close() { s.http.Close() }

// Object returns the bytes of a key as it is now.
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

// Keys returns the keys of a bucket below a prefix, sorted.
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

// Uploads is how many uploads in parts are not completed.
func (s *Server) Uploads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.uploads)
}

// Damage changes a byte of an object, and nothing that is known of it.
func (s *Server) Damage(bucket, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.buckets[bucket].current(key)
	o.bytes = slices.Clone(o.bytes)
	o.bytes[len(o.bytes)/2] ^= 1
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
		if at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date")); err == nil && at.Sub(s.o.Clock()).Abs() > 15*time.Minute {
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

// A failure is an answer that is no success.
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
	return listed{Key: url.QueryEscape(key), LastModified: at, ETag: `"` + o.etag + `"`, Size: o.size, StorageClass: "STANDARD"}
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
		within := common != "" && strings.HasPrefix(k, common) || // of a prefix that was told, or by the page before
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

// above says whether an object lies above a key, and below a prefix.
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
			if o := all[i]; !o.deleteMarker {
				e, latest := entry(k, o), i == len(all)-1
				e.VersionID, e.IsLatest = o.version, &latest
				out.Version = append(out.Version, e)
			}
		}
		out.NextKeyMarker = url.QueryEscape(k)
	}
	if !out.IsTruncated {
		out.NextKeyMarker = ""
	}
	return writeXML(w, out)
}
