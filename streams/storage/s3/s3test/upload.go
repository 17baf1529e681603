package s3test

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// now returns the time by the service's clock.
func (s *Server) now() time.Time {
	if s.o.Clock != nil {
		return s.o.Clock().UTC()
	}
	return time.Now().UTC()
}

// listUploads implements ListMultipartUploads. The caller holds s.mu.
func (s *Server) listUploads(w http.ResponseWriter, name string, q url.Values) *failure {
	type one struct {
		Key       string
		UploadID  string `xml:"UploadId"`
		Initiated string
	}
	var out struct {
		XMLName            xml.Name `xml:"ListMultipartUploadsResult"`
		IsTruncated        bool
		NextKeyMarker      string `xml:",omitempty"`
		NextUploadIDMarker string `xml:"NextUploadIdMarker,omitempty"`
		Upload             []one
	}
	after := one{Key: q.Get("key-marker"), UploadID: q.Get("upload-id-marker")}
	order := func(a, b one) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.UploadID, b.UploadID)) }
	var all []one
	for id, u := range s.uploads {
		o := one{u.key, id, u.initiated.Format(time.RFC3339)}
		if u.bucket == name && strings.HasPrefix(u.key, q.Get("prefix")) && (after.Key == "" || order(o, after) > 0) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, order)
	if most, err := strconv.Atoi(q.Get("max-uploads")); err == nil && most > 0 && len(all) > most {
		all, out.IsTruncated = all[:most], true
		out.NextKeyMarker, out.NextUploadIDMarker = all[most-1].Key, all[most-1].UploadID
	}
	out.Upload = all
	return writeXML(w, out)
}

// listParts implements ListParts, with all parts in one page.
func (s *Server) listParts(w http.ResponseWriter, u *upload) *failure {
	type one struct {
		PartNumber         int
		ETag, LastModified string
		Size               int64
		ChecksumCRC64NVME  string `xml:",omitempty"`
	}
	var out struct {
		XMLName xml.Name `xml:"ListPartsResult"`
		Part    []one
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		p := u.parts[n]
		o := one{n, `"` + p.etag + `"`, p.modified.Format(time.RFC3339), p.size, p.sum}
		if s.o.NoChecksums {
			o.ChecksumCRC64NVME = ""
		}
		out.Part = append(out.Part, o)
	}
	return writeXML(w, out)
}

// copyPart implements UploadPartCopy.
func (s *Server) copyPart(w http.ResponseWriter, r *http.Request, u *upload) *failure {
	n, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
	if err != nil || n < 1 || n > 10_000 {
		return invalidRequest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from, f := s.source(r)
	if f != nil {
		return f
	}
	at, end := int64(0), from.size-1
	if rng := r.Header.Get("X-Amz-Copy-Source-Range"); rng != "" {
		if _, err := fmt.Sscanf(rng, "bytes=%d-%d", &at, &end); err != nil || end >= from.size || at > end {
			return invalidRequest
		}
	}
	o := &object{size: end + 1 - at, modified: s.now(), etag: fmt.Sprintf("%032x", at+end)}
	if from.bytes != nil {
		o.bytes = from.bytes[at : end+1]
		o.etag = s.etag(o.bytes)
		if !s.o.NoChecksums {
			o.sum = crc64(o.bytes)
		}
	}
	u.parts[n] = o
	return writeXML(w, struct {
		XMLName            xml.Name `xml:"CopyPartResult"`
		ETag, LastModified string
		ChecksumCRC64NVME  string `xml:",omitempty"`
	}{ETag: `"` + o.etag + `"`, LastModified: o.modified.Format(time.RFC3339), ChecksumCRC64NVME: o.sum})
}

// Age makes all incomplete uploads and their parts older.
func (s *Server) Age(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		u.initiated = u.initiated.Add(-by)
		for _, p := range u.parts {
			p.modified = p.modified.Add(-by)
		}
	}
}

// Parts returns the number of parts of all incomplete uploads.
func (s *Server) Parts() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		n += len(u.parts)
	}
	return n
}

// CorruptPart replaces the bytes of a part in every incomplete upload. The server then reports the checksums of the new
// bytes.
func (s *Server) CorruptPart(part int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		if p := u.parts[part]; p != nil {
			p.bytes = slices.Clone(p.bytes)
			p.bytes[0] ^= 1
			p.etag, p.sum = s.etag(p.bytes), crc64(p.bytes)
		}
	}
}
