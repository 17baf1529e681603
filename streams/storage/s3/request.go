package s3

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// A copy of an item takes a GET, a PUT and a HEAD of an object. These requests are built and signed here instead of by
// minio-go, which takes more processor time for a request than net/http. A response that is not a success, or an error,
// is returned to minio-go, which decodes it: there is one decoder of errors.

// An objectRequest is a request for an object.
type objectRequest struct {
	method    string
	at        location
	versionID string
	header    http.Header // the request takes it over
	body      []byte      // must not change, also after the request
	sha256    string      // of the body, in hex
}

// emptySHA256 is the SHA-256 of no bytes.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// A failedRequest is the outcome of a request that minio-go decodes.
type failedRequest struct {
	resp *http.Response // its body is in memory
	err  error
	used atomic.Bool
}

type failedRequestKey struct{}

// maxErrorBody is the size of an error response that minio-go reads, in bytes.
const maxErrorBody = 5 << 20

// send sends a request and returns the response if it is a success. Otherwise the response is nil, and the same call of
// minio-go, with the returned context, returns the error. It sends the request itself if send cannot.
func (s *Store) send(ctx context.Context, r objectRequest) (*http.Response, context.Context) {
	req := s.build(ctx, r)
	if req == nil {
		return nil, ctx
	}
	n, _ := ctx.Value(exchangeKey{}).(*exchange)
	resp, err := s.transport.do(req, n, true)
	if err == nil && (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent) {
		return resp, ctx
	}
	if err == nil {
		var text []byte
		text, err = io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(text))
	}
	if err != nil {
		resp = nil
	}
	return nil, context.WithValue(ctx, failedRequestKey{}, &failedRequest{resp: resp, err: err})
}

// build returns a signed request, or nil if only minio-go can send it: without credentials or with those of another
// kind of signature, and for kinds of buckets that have one of their own.
func (s *Store) build(ctx context.Context, r objectRequest) *http.Request {
	bucket, key := r.at.bucket, r.at.key
	if !isBucket(bucket) || strings.HasSuffix(bucket, "--x-s3") || s3utils.CheckValidObjectName(key) != nil {
		return nil
	}
	if s.transport.creds.IsExpired() { // or not known yet: minio-go asks for them
		return nil
	}
	v, err := s.transport.creds.GetWithContext(nil)
	if err != nil || !v.SignerType.IsV4() || v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return nil
	}
	base := s.requestBase(ctx)
	if base == nil {
		return nil
	}
	host, path := base.Host, "/"+key
	if s.transport.pathStyle {
		path = "/" + bucket + path
	} else {
		host = bucket + "." + host
	}
	u := &url.URL{Scheme: base.Scheme, Host: host, Path: path}
	if !isPlainPath(path) {
		u.RawPath = s3utils.EncodePath(path)
	}
	if r.versionID != "" {
		u.RawQuery = "versionId=" + strings.ReplaceAll(url.QueryEscape(r.versionID), "+", "%20")
	}
	if n, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		for k, values := range n.headers {
			r.header[k] = values
		}
	}
	if s.cfg.RequesterPays {
		r.header[payerHeader] = []string{"requester"}
	}
	r.header["User-Agent"] = []string{userAgent}
	req := (&http.Request{
		Method: r.method, URL: u, Host: host, Header: r.header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	payload := emptySHA256
	if len(r.body) > 0 {
		// net/http sends the header and a reader of this type in one write.
		req.Body, req.ContentLength, payload = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body)), r.sha256
	}
	s.transport.signer.sign(req, v, payload, time.Now())
	return req
}

// isPlainPath reports whether a path is not changed by encoding it.
func isPlainPath(path string) bool {
	for i := range len(path) {
		if c := path[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' ||
			c == '/' || c == '-' || c == '_' || c == '.' || c == '~') {
			return false
		}
	}
	return true
}

// requestBase returns the scheme and the host of requests, without the bucket; nil if it is unknown. minio-go replaces
// the host of an Amazon endpoint by that of the region.
func (s *Store) requestBase(ctx context.Context) *url.URL {
	if u := s.base.Load(); u != nil {
		return u
	}
	if at := *s.core.EndpointURL(); s3utils.IsAmazonOutpostsEndpoint(at) || s3utils.IsAmazonExpressRegionalEndpoint(at) {
		return nil
	}
	const bucket = "bucket"
	u, err := s.core.Presign(ctx, http.MethodGet, bucket, "", time.Minute, nil) // sends no request
	if err != nil {
		return nil
	}
	host := u.Host
	if !s.transport.pathStyle {
		host = strings.TrimPrefix(host, bucket+".")
	}
	u = &url.URL{Scheme: u.Scheme, Host: host}
	s.base.Store(u)
	return u
}

// statObject is minio.Core.StatObject.
func (s *Store) statObject(ctx context.Context, at location, o minio.GetObjectOptions) (minio.ObjectInfo, error) {
	resp, ctx := s.send(ctx, objectRequest{method: http.MethodHead, at: at, versionID: o.VersionID, header: o.Header()})
	if resp == nil {
		return s.core.StatObject(ctx, at.bucket, at.key, o)
	}
	resp.Body.Close()
	return objectInfo(at, resp.Header)
}

// getObject is minio.Core.GetObject.
func (s *Store) getObject(
	ctx context.Context, at location, o minio.GetObjectOptions,
) (io.ReadCloser, minio.ObjectInfo, http.Header, error) {
	header := o.Header()
	if header.Get("Range") == "" { // minio-go verifies the checksum of a whole object
		return s.core.GetObject(ctx, at.bucket, at.key, o)
	}
	resp, ctx := s.send(ctx, objectRequest{method: http.MethodGet, at: at, versionID: o.VersionID, header: header})
	if resp == nil {
		return s.core.GetObject(ctx, at.bucket, at.key, o)
	}
	info, err := objectInfo(at, resp.Header)
	if err != nil {
		resp.Body.Close()
		return nil, info, nil, err
	}
	return resp.Body, info, resp.Header, nil
}

// A smallObject is the content of a small object, with their digests as the request has them.
type smallObject struct {
	bytes       []byte
	md5, sha256 string
}

// putSmall is minio.Core.PutObject of b. ok is false if that must be called, with the returned context.
func (s *Store) putSmall(
	ctx context.Context, at location, b smallObject, o minio.PutObjectOptions,
) (info minio.UploadInfo, _ context.Context, ok bool) {
	r := objectRequest{method: http.MethodPut, at: at, header: o.Header(), body: bytes.Clone(b.bytes), sha256: b.sha256}
	if b.md5 != "" {
		r.header["Content-Md5"] = []string{b.md5}
	}
	resp, ctx := s.send(ctx, r)
	if resp == nil {
		return info, ctx, false
	}
	_, _ = io.Copy(io.Discard, resp.Body) // otherwise the connection could not be used again
	resp.Body.Close()
	info.ETag, info.VersionID = trimETag(resp.Header.Get("Etag")), resp.Header.Get("X-Amz-Version-Id")
	return info, ctx, true
}

// objectInfo is minio.ToObjectInfo without the fields that the driver does not use.
func objectInfo(at location, h http.Header) (minio.ObjectInfo, error) {
	size, serr := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	modified, merr := http.ParseTime(h.Get("Last-Modified"))
	if serr != nil || merr != nil || h["X-Minio-Source-Mtime"] != nil {
		return minio.ToObjectInfo(at.bucket, at.key, h)
	}
	info := minio.ObjectInfo{
		ETag: trimETag(h.Get("Etag")), Size: size, LastModified: modified, ContentType: h.Get("Content-Type"),
		VersionID: h.Get("X-Amz-Version-Id"), UserMetadata: minio.StringMap{}, Headers: h,
	}
	for k, v := range h {
		name, ok := strings.CutPrefix(k, metaHeader)
		if ok && strings.HasPrefix(v[0], "=?") { // encoded, by another program
			return minio.ToObjectInfo(at.bucket, at.key, h)
		}
		if ok {
			info.UserMetadata[name] = v[0]
		}
	}
	return info, nil
}

func trimETag(quoted string) string { return strings.TrimSuffix(strings.TrimPrefix(quoted, `"`), `"`) }
