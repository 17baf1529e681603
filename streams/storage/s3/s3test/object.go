package s3test

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// keptHeaders returns the headers of a write that reads of the object return.
func (s *Server) keptHeaders(h http.Header) http.Header {
	out := http.Header{}
	for k, v := range h {
		sum := strings.HasPrefix(k, "X-Amz-Checksum-") && k != "X-Amz-Checksum-Algorithm" && k != "X-Amz-Checksum-Mode"
		if strings.HasPrefix(k, "X-Amz-Meta-") || slices.Contains(systemHeaders, k) || sum && !s.o.NoChecksums {
			out[k] = slices.Clone(v)
		}
	}
	return out
}

// systemHeaders are stored as they were sent and returned by every read.
var systemHeaders = []string{
	"Content-Type", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires",
	"X-Amz-Storage-Class", "X-Amz-Website-Redirect-Location",
}

func (s *Server) etag(b []byte) string {
	m := md5.Sum(b)
	if s.o.OddETags {
		return "odd-" + hex.EncodeToString(m[:4])
	}
	return hex.EncodeToString(m[:])
}

// checkConditions checks the conditions of a write. The caller holds s.mu.
func (s *Server) checkConditions(r *http.Request, now *object) *failure {
	if s.o.NoConditions {
		return nil
	}
	if want := r.Header.Get("If-Match"); want != "" {
		if now == nil {
			return noKey
		}
		if want != `"`+now.etag+`"` && want != now.etag {
			return preconditionFailed
		}
	}
	if r.Header.Get("If-None-Match") == "*" && now != nil {
		return preconditionFailed
	}
	return nil
}

// nullVersion is the id of an object from before versioning.
const nullVersion = "null"

// store makes o the current object at a key. The caller holds s.mu.
func (s *Server) store(bk *bucket, key string, o *object) {
	s.serial++
	o.modified = s.now()
	if s.o.Versions {
		o.version = fmt.Sprintf("v%d", s.serial)
	}
	all, known := bk.objects[key]
	if !known {
		bk.unsorted = bk.unsorted || len(bk.keys) > 0 && key < bk.keys[len(bk.keys)-1]
		bk.keys = append(bk.keys, key)
	}
	if !s.o.Versions {
		all = nil
	}
	bk.objects[key] = append(all, o)
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, bk *bucket, key string) *failure {
	if r.Header.Get("X-Amz-Copy-Source") != "" {
		return s.copy(w, r, bk, key)
	}
	o, f := s.readBody(r)
	if f != nil {
		return f
	}
	o.header = s.keptHeaders(r.Header)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.checkConditions(r, bk.current(key)); f != nil {
		return f
	}
	s.store(bk, key, o)
	o.writeHeaders(w)
	return nil
}

// writeHeaders writes the ETag and the version id of an object.
func (o *object) writeHeaders(w http.ResponseWriter) {
	w.Header().Set("ETag", `"`+o.etag+`"`)
	if o.version != "" {
		w.Header().Set("X-Amz-Version-Id", o.version)
	}
}

// source returns the object to copy. The caller holds s.mu.
func (s *Server) source(r *http.Request) (*object, *failure) {
	from, err := url.PathUnescape(strings.TrimPrefix(r.Header.Get("X-Amz-Copy-Source"), "/"))
	if err != nil {
		return nil, invalidRequest
	}
	name, key, _ := strings.Cut(from, "/")
	bk := s.buckets[name]
	if bk == nil {
		return nil, noBucket
	}
	o := bk.current(key)
	if o == nil {
		return nil, noKey
	}
	if want := r.Header.Get("X-Amz-Copy-Source-If-Match"); want != "" && want != `"`+o.etag+`"` {
		return nil, preconditionFailed
	}
	if o.tier.archived() {
		return nil, invalidState
	}
	return o, nil
}

func (s *Server) copy(w http.ResponseWriter, r *http.Request, bk *bucket, key string) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, f := s.source(r)
	if f == nil {
		f = s.checkConditions(r, bk.current(key))
	}
	if f != nil {
		return f
	}
	o := &object{bytes: from.bytes, size: from.size, etag: s.etag(from.bytes), header: from.header.Clone()}
	if r.Header.Get("X-Amz-Metadata-Directive") == "REPLACE" {
		h := s.keptHeaders(r.Header)
		for k, v := range from.header {
			if strings.HasPrefix(k, "X-Amz-Checksum-") {
				h[k] = v
			}
		}
		o.header = h
	}
	s.store(bk, key, o)
	return writeXML(w, struct {
		XMLName            xml.Name `xml:"CopyObjectResult"`
		ETag, LastModified string
	}{ETag: `"` + o.etag + `"`, LastModified: o.modified.Format(time.RFC3339)})
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, bk *bucket, key string) *failure {
	o, away := s.find(w, r, bk, key)
	switch want := r.Header.Get("If-Match"); {
	case o == nil:
		return noKey
	case want != "" && strings.Trim(want, `"`) != o.etag && !s.o.NoReadMatch:
		return preconditionFailed
	case r.Header.Get("If-None-Match") == "*" && !s.o.NoReadMatch:
		return notModified
	case away && r.Method == http.MethodGet:
		return invalidState
	}
	h, at, n, status := w.Header(), int64(0), o.size, http.StatusOK
	o.writeHeaders(w)
	h.Set("Last-Modified", o.modified.Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	if rng, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		from, to, _ := strings.Cut(rng, "-")
		at, _ = strconv.ParseInt(from, 10, 64)
		end, err := strconv.ParseInt(to, 10, 64)
		if err != nil {
			end = o.size - 1
		}
		if at >= o.size {
			return &failure{416, "InvalidRange"}
		}
		end = min(end, o.size-1)
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, end, o.size))
		n, status = end+1-at, http.StatusPartialContent
	}
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		o.write(w, at, n)
	}
	return nil
}

// find returns the object to read, and writes its headers.
func (s *Server) find(w http.ResponseWriter, r *http.Request, bk *bucket, key string) (o *object, away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o = bk.current(key)
	if id := r.URL.Query().Get("versionId"); id != "" && !s.o.NoReadMatch {
		o = nil
		for _, v := range bk.objects[key] {
			if cmp.Or(v.version, nullVersion) == id && !v.deleteMarker {
				o = v
			}
		}
	}
	if o == nil {
		return nil, false
	}
	for k, v := range o.header {
		w.Header()[k] = v
	}
	o.tier.writeHeaders(w)
	now := *o // a copy: Rot or a restoration may change o meanwhile
	return &now, o.tier.archived()
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, bk *bucket, key string) *failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := r.URL.Query().Get("versionId"); id != "" {
		bk.objects[key] = slices.DeleteFunc(bk.objects[key], func(o *object) bool {
			return cmp.Or(o.version, nullVersion) == id
		})
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	now := bk.current(key)
	if f := s.checkConditions(r, now); f != nil {
		return f
	}
	if now != nil {
		if s.o.Versions {
			s.store(bk, key, &object{deleteMarker: true})
		} else {
			delete(bk.objects, key)
			bk.keys = slices.DeleteFunc(bk.keys, func(k string) bool { return k == key })
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) onUpload(w http.ResponseWriter, r *http.Request, name, key string) *failure {
	q := r.URL.Query()
	if q.Has("uploads") {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.serial++
		id := fmt.Sprintf("u%d", s.serial)
		s.uploads[id] = &upload{name, key, s.keptHeaders(r.Header), s.now(), map[int]*object{}}
		return writeXML(w, struct {
			XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket   string
			UploadID string `xml:"UploadId"`
		}{Bucket: name, UploadID: id})
	}
	id := q.Get("uploadId")
	s.mu.Lock()
	u := s.uploads[id]
	s.mu.Unlock()
	if u == nil {
		return noUpload
	}
	switch r.Method {
	case http.MethodGet:
		return s.listParts(w, u)
	case http.MethodPut:
		if r.Header.Get("X-Amz-Copy-Source") != "" {
			return s.copyPart(w, r, u)
		}
		return s.putPart(w, r, u)
	case http.MethodPost:
		return s.complete(w, r, id, u)
	case http.MethodDelete:
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.uploads, id)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return notImplemented
}

func (s *Server) putPart(w http.ResponseWriter, r *http.Request, u *upload) *failure {
	n, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
	if err != nil || n < 1 || n > 10_000 {
		return invalidRequest
	}
	o, f := s.readBody(r)
	if f != nil {
		return f
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o.modified = s.now()
	u.parts[n] = o
	o.writeHeaders(w)
	if !s.o.NoChecksums && o.sum != "" {
		w.Header().Set("X-Amz-Checksum-Crc64nvme", o.sum)
	}
	return nil
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request, id string, u *upload) *failure {
	var in struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	b, err := io.ReadAll(r.Body)
	if err != nil || xml.Unmarshal(b, &in) != nil {
		return invalidRequest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	bk := s.buckets[u.bucket]
	if f := s.checkConditions(r, bk.current(u.key)); f != nil {
		return f
	}
	var whole bytes.Buffer
	var size int64
	sums := md5.New()
	for i, p := range in.Part {
		o := u.parts[p.PartNumber]
		if o == nil || strings.Trim(p.ETag, `"`) != o.etag {
			return &failure{400, "InvalidPart"}
		}
		if o.size < cmp.Or(s.o.MinPart, 5<<20) && i < len(in.Part)-1 {
			return &failure{400, "EntityTooSmall"}
		}
		whole.Write(o.bytes)
		size += o.size
		raw, err := hex.DecodeString(o.etag)
		if err != nil { // Options.OddETags
			raw = []byte(o.etag)
		}
		sums.Write(raw)
	}
	etag := fmt.Sprintf("%x-%d", sums.Sum(nil), len(in.Part))
	o := &object{bytes: whole.Bytes(), size: size, etag: etag, header: u.header}
	if u.header.Get("X-Amz-Checksum-Type") == "FULL_OBJECT" && !s.o.NoChecksums {
		sum := o.crc64()
		if want := r.Header.Get("X-Amz-Checksum-Crc64nvme"); want != "" && want != sum {
			return &failure{400, "BadDigest"}
		}
		o.header.Set("X-Amz-Checksum-Crc64nvme", sum)
	}
	s.store(bk, u.key, o)
	delete(s.uploads, id)
	if o.version != "" {
		w.Header().Set("X-Amz-Version-Id", o.version)
	}
	return writeXML(w, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: u.bucket, Key: u.key, ETag: `"` + o.etag + `"`})
}
