package s3

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// A signer signs requests with AWS Signature Version 4, with the same result as the signer of minio-go. That one
// derives the key of the day for each request and collects the headers twice, which takes more time than net/http takes
// for the request.
type signer struct {
	region string
	last   atomic.Pointer[signingKey]
}

// A signingKey is derived from a secret key for one day.
type signingKey struct {
	secret, day string
	scope       string
	key         []byte
	free        sync.Pool // of *signing
}

// A signing is the memory for one signature.
type signing struct {
	mac    hash.Hash // with the key
	fields []headerField
	names  []byte // of the fields
	text   []byte
}

type headerField struct{ name, value string }

const amzTime = "20060102T150405Z"

// sign adds the headers of the signature. payload is the SHA-256 of the body in hex. The query must be in the canonical
// form. All headers are signed, except User-Agent, which proxies change.
func (g *signer) sign(req *http.Request, v credentials.Value, payload string, now time.Time) {
	date := now.UTC().Format(amzTime)
	k := g.keyOf(v.SecretAccessKey, date[:len("20060102")])
	w, ok := k.free.Get().(*signing)
	if !ok {
		w = &signing{mac: hmac.New(sha256.New, k.key)}
	}
	defer k.free.Put(w)
	h := req.Header
	h["X-Amz-Date"], h["X-Amz-Content-Sha256"] = []string{date}, []string{payload}
	if v.SessionToken != "" {
		h["X-Amz-Security-Token"] = []string{v.SessionToken}
	}
	w.setFields(h, req.URL.Host)
	b := w.text[:0]
	for _, line := range []string{req.Method, req.URL.EscapedPath(), req.URL.RawQuery} {
		b = append(append(b, line...), '\n')
	}
	w.names = w.names[:0]
	for _, f := range w.fields {
		w.names = append(appendLower(w.names, f.name), ';')
		b = append(appendLower(b, f.name), ':')
		b = append(append(b, f.value...), '\n')
	}
	w.names = w.names[:len(w.names)-1]
	b = append(append(append(b, '\n'), w.names...), '\n')
	canonical := sha256.Sum256(append(b, payload...))

	b = b[:0]
	for _, line := range []string{"AWS4-HMAC-SHA256", date, k.scope} {
		b = append(append(b, line...), '\n')
	}
	b = hex.AppendEncode(b, canonical[:])
	w.mac.Reset()
	w.mac.Write(b)
	signature := w.mac.Sum(nil)

	b = b[:0]
	for _, part := range []string{"AWS4-HMAC-SHA256 Credential=", v.AccessKeyID, "/", k.scope, ", SignedHeaders="} {
		b = append(b, part...)
	}
	b = append(append(b, w.names...), ", Signature="...)
	w.text = hex.AppendEncode(b, signature)
	h["Authorization"] = []string{string(w.text)}
}

// setFields sets the fields to sign, in their order.
func (w *signing) setFields(h http.Header, host string) {
	w.fields = append(w.fields[:0], headerField{"host", host})
	for name, values := range h {
		if name != "User-Agent" {
			w.fields = append(w.fields, headerField{name, oneSpace(strings.Join(values, ","))})
		}
	}
	slices.SortFunc(w.fields, func(a, b headerField) int { return compareLower(a.name, b.name) })
}

// keyOf returns the key for a day: YYYYMMDD.
func (g *signer) keyOf(secret, day string) *signingKey {
	if k := g.last.Load(); k != nil && k.secret == secret && k.day == day {
		return k
	}
	key := []byte("AWS4" + secret)
	parts := []string{day, g.region, "s3", "aws4_request"}
	for _, part := range parts {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	k := &signingKey{secret: secret, day: day, scope: strings.Join(parts, "/"), key: key}
	g.last.Store(k)
	return k
}

// oneSpace returns a value of a header without spaces around it, and with one space instead of several.
func oneSpace(v string) string {
	if !strings.ContainsAny(v, " \t") {
		return v
	}
	return strings.Join(strings.Fields(v), " ")
}

// appendLower appends the name of a header, which is ASCII, in lower case.
func appendLower(b []byte, name string) []byte {
	for i := range len(name) {
		b = append(b, lower(name[i]))
	}
	return b
}

// compareLower compares the names of two headers in lower case.
func compareLower(a, b string) int {
	for i := range min(len(a), len(b)) {
		if c := cmp.Compare(lower(a[i]), lower(b[i])); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
