package s3bench

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/url"
	"strconv"
	"time"
)

// handle carries out a request.
func (c *conn) handle(r *request, body []byte) {
	switch {
	case r.bucket == "":
		c.writeError("501 Not Implemented", "NotImplemented")
	case r.key == "":
		c.onBucket(r)
	case r.method == "GET" || r.method == "HEAD":
		c.get(r)
	case r.method == "PUT" && len(r.query["uploadId"]) == 0:
		c.put(r, body)
	case r.method == "DELETE":
		c.remove(r)
	default:
		c.writeError("501 Not Implemented", "NotImplemented")
	}
}

func (c *conn) writeError(status, code string) {
	c.writeXML(status, fmt.Appendf(nil, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code))
}

func (c *conn) writeXML(status string, body []byte) {
	c.startHeader(status, len(body))
	c.header = append(c.header, "Content-Type: application/xml\r\n"...)
	c.endHeader()
	c.body = body
}

// writeStatus writes a response without a body.
func (c *conn) writeStatus(status string) {
	c.startHeader(status, 0)
	c.endHeader()
}

func (c *conn) onBucket(r *request) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	b := c.s.buckets[r.bucket]
	switch {
	case r.method == "PUT" && b != nil:
		c.writeError("409 Conflict", "BucketAlreadyOwnedByYou")
	case r.method == "PUT":
		c.s.buckets[r.bucket] = &bucket{objects: map[string]*object{}}
		c.writeStatus("200 OK")
	case b == nil:
		c.writeError("404 Not Found", "NoSuchBucket")
	case r.method == "DELETE": // also removes its objects
		delete(c.s.buckets, r.bucket)
		c.writeStatus("204 No Content")
	case r.method == "HEAD":
		c.writeStatus("200 OK")
	case r.method != "GET" || r.query.Has("uploads") || r.query.Has("versions"):
		c.writeError("501 Not Implemented", "NotImplemented")
	case r.query.Has("location"):
		c.writeXML("200 OK", []byte("<LocationConstraint></LocationConstraint>"))
	case r.query.Has("versioning"):
		c.writeXML("200 OK", []byte("<VersioningConfiguration></VersioningConfiguration>"))
	default:
		c.list(b, r.query)
	}
}

// list implements ListObjectsV2. The caller holds server.mu.
func (c *conn) list(b *bucket, q url.Values) {
	limit, err := strconv.Atoi(q.Get("max-keys"))
	if err != nil || limit <= 0 || limit > 1000 {
		limit = 1000
	}
	if q.Get("list-type") != "2" || q.Get("delimiter") != "" {
		c.writeError("501 Not Implemented", "NotImplemented")
		return
	}
	escape := func(out []byte, key string) []byte { return append(out, url.QueryEscape(key)...) }
	if q.Get("encoding-type") != "url" {
		escape = func(out []byte, key string) []byte {
			w := bytes.NewBuffer(out)
			_ = xml.EscapeText(w, []byte(key)) // never fails on a buffer
			return w.Bytes()
		}
	}
	out := make([]byte, 0, 256+limit*256)
	out = append(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>"...)
	if q.Has("encoding-type") {
		out = append(out, "<EncodingType>url</EncodingType>"...)
	}
	last, n := "", 0
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := max(q.Get("start-after"), q.Get("continuation-token"))
	more := b.page(q.Get("prefix"), after, limit, func(key string, o *object) {
		at, etag, size := made, "d41d8cd98f00b204e9800998ecf8427e", 0
		if o != nil {
			at, etag, size = o.modified, o.etag, len(o.bytes)
		}
		out = append(out, "<Contents><Key>"...)
		out = escape(out, key)
		out = append(out, "</Key><LastModified>"...)
		out = at.UTC().AppendFormat(out, "2006-01-02T15:04:05.000Z")
		out = append(out, "</LastModified><ETag>&quot;"...)
		out = append(out, etag...)
		out = append(out, "&quot;</ETag><Size>"...)
		out = strconv.AppendInt(out, int64(size), 10)
		out = append(out, "</Size><StorageClass>STANDARD</StorageClass></Contents>"...)
		last, n = key, n+1
	})
	out = fmt.Appendf(out, "<KeyCount>%d</KeyCount><IsTruncated>%t</IsTruncated>", n, more)
	if more {
		out = append(out, "<NextContinuationToken>"...)
		w := bytes.NewBuffer(out)
		_ = xml.EscapeText(w, []byte(last))
		out = append(w.Bytes(), "</NextContinuationToken>"...)
	}
	c.writeXML("200 OK", append(out, "</ListBucketResult>"...))
}

// find returns an object. If there is none, it writes the error and returns nil.
func (c *conn) find(r *request) *object {
	c.s.mu.RLock()
	defer c.s.mu.RUnlock()
	b := c.s.buckets[r.bucket]
	if b == nil {
		c.writeError("404 Not Found", "NoSuchBucket")
		return nil
	}
	o := b.objects[r.key]
	if o == nil {
		c.writeError("404 Not Found", "NoSuchKey")
	}
	return o
}

func (c *conn) get(r *request) {
	o := c.find(r)
	if o == nil {
		return
	}
	if r.ifMatch != "" && r.ifMatch != o.etag {
		c.writeError("412 Precondition Failed", "PreconditionFailed")
		return
	}
	b, size := o.bytes, int64(len(o.bytes))
	if !r.ranged {
		c.startHeader("200 OK", len(b))
	} else {
		if r.from >= size {
			c.writeError("416 Requested Range Not Satisfiable", "InvalidRange")
			return
		}
		end := size
		if r.to >= 0 {
			end = min(size, r.to+1)
		}
		b = b[r.from:max(end, r.from)]
		c.startHeader("206 Partial Content", len(b))
		c.header = fmt.Appendf(c.header, "Content-Range: bytes %d-%d/%d\r\n", r.from, end-1, size)
	}
	c.header = append(c.header, o.header...)
	c.endHeader()
	c.body = b
}

func (c *conn) put(r *request, body []byte) {
	o := &object{bytes: body, modified: time.Now()}
	// Digests in the request are not verified. The ETag is the MD5 in the request; it is computed only if the request has
	// no digest.
	switch md5, err := base64.StdEncoding.DecodeString(r.md5); {
	case err == nil && len(md5) == 16:
		o.etag = hex.EncodeToString(md5)
	case r.sha256 != "":
		o.etag = "sha256-" + r.sha256
	default:
		o.etag = etag(body)
	}
	o.formatHeader(r.objectHeader)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	b := c.s.buckets[r.bucket]
	if b == nil {
		c.writeError("404 Not Found", "NoSuchBucket")
		return
	}
	now := b.objects[r.key]
	switch {
	case r.ifMatch != "" && now == nil:
		c.writeError("404 Not Found", "NoSuchKey")
	case r.ifMatch != "" && r.ifMatch != now.etag, r.ifNone == "*" && now != nil:
		c.writeError("412 Precondition Failed", "PreconditionFailed")
	default:
		b.put(r.key, o)
		c.startHeader("200 OK", 0)
		c.header = append(c.header, o.header[:bytes.IndexByte(o.header, '\n')+1]...) // its ETag
		c.endHeader()
	}
}

func (c *conn) remove(r *request) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	b := c.s.buckets[r.bucket]
	switch {
	case b == nil:
		c.writeError("404 Not Found", "NoSuchBucket")
	case b.objects[r.key] == nil:
		c.writeStatus("204 No Content")
	case r.ifMatch != "" && r.ifMatch != b.objects[r.key].etag:
		c.writeError("412 Precondition Failed", "PreconditionFailed")
	default:
		b.remove(r.key)
		c.writeStatus("204 No Content")
	}
}
