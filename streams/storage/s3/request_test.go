package s3

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	minioSigner "github.com/minio/minio-go/v7/pkg/signer"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// Requests are the same as those of minio-go, and so are their signatures.
func TestRequestsAreThoseOfMinio(t *testing.T) {
	content := []byte("content")
	md5Sum, sha := md5.Sum(content), sha256.Sum256(content)
	sum, md5Text := hex.EncodeToString(sha[:]), base64.StdEncoding.EncodeToString(md5Sum[:])
	stat := func(s *Store) minio.GetObjectOptions {
		o := s.getOptions()
		o.VersionID = "a+b/c d=*~"
		return o
	}
	part := func(s *Store) minio.GetObjectOptions {
		o := s.getOptions()
		must(t, errors.Join(o.SetRange(0, 9), pin(&o, `"etag"`)))
		return o
	}
	put := func(s *Store) minio.PutObjectOptions {
		o := s.putOptions(objectHeaders{contentType: "a/b", meta: map[string]string{"a": "two  spaces", "b-c": "~"}})
		o.DisableContentSha256 = true
		return o
	}
	type calls struct {
		ours, theirs func(context.Context, *Store, location) error
	}
	requests := map[string]calls{
		"stat": {
			func(ctx context.Context, s *Store, at location) error {
				_, err := s.statObject(ctx, at, stat(s))
				return err
			},
			func(ctx context.Context, s *Store, at location) error {
				_, err := s.core.StatObject(ctx, at.bucket, at.key, stat(s))
				return err
			},
		},
		"read": {
			func(ctx context.Context, s *Store, at location) error {
				return ignore(s.getObject(ctx, at, part(s)))
			},
			func(ctx context.Context, s *Store, at location) error {
				return ignore(s.core.GetObject(ctx, at.bucket, at.key, part(s)))
			},
		},
		"put": {
			func(ctx context.Context, s *Store, at location) error {
				_, ctx, _ = s.putSmall(ctx, at, smallObject{content, md5Text, sum}, put(s))
				_, err := s.core.PutObject(ctx, at.bucket, at.key, bytes.NewReader(content), 7, md5Text, sum, put(s))
				return err
			},
			func(ctx context.Context, s *Store, at location) error {
				_, err := s.core.PutObject(ctx, at.bucket, at.key, bytes.NewReader(content), 7, md5Text, sum, put(s))
				return err
			},
		},
	}
	for name, cfg := range map[string]Config{
		"path":      {Endpoint: "http://127.0.0.1:9000", PathStyle: true},
		"host":      {Endpoint: "https://s3.example.org:443", Credentials: Credentials{SessionToken: "token"}},
		"Amazon":    {Endpoint: "https://s3.amazonaws.com", Region: "eu-west-1"},
		"encrypted": {Endpoint: "https://s3.us-east-1.amazonaws.com", Encryption: "AES256", StorageClass: "STANDARD_IA"},
		"payer":     {Endpoint: "https://s3.example.org", RequesterPays: true},
	} {
		for what, call := range requests {
			for _, key := range []string{"s/a", "a b/ü+%2F?&#=(*)~'$!@:,;", "//./../x"} {
				t.Run(name+", "+what+", "+key, func(t *testing.T) {
					var sent []*http.Request
					cfg.ID, cfg.Bucket = "1", testBucket
					cfg.Credentials.AccessKey, cfg.Credentials.SecretKey = "key", "secret"
					cfg.Transport = tripper(func(r *http.Request) (*http.Response, error) {
						if r.Body != nil {
							b, err := io.ReadAll(r.Body)
							if want := content; err != nil || !bytes.Equal(b, want) || r.ContentLength != int64(len(want)) {
								t.Errorf("body %q of %d bytes: %v", b, r.ContentLength, err)
							}
						}
						sent = append(sent, r)
						return nil, errReset
					})
					synctest.Test(t, func(t *testing.T) { // the times are the same
						s, err := New(cfg)
						must(t, err)
						if _, err := s.transport.creds.GetWithContext(nil); err != nil { // minio-go makes the first request
							t.Fatal(err)
						}
						ours := call.ours(t.Context(), s, location{testBucket, key})
						theirs := call.theirs(t.Context(), s, location{testBucket, key})
						if len(sent) != 2 || !errors.Is(ours, errReset) || !errors.Is(theirs, errReset) {
							t.Fatalf("%d requests: %v, %v", len(sent), ours, theirs)
						}
					})
					got, want := sent[0], sent[1]
					if agent := got.Header.Get("User-Agent"); agent != userAgent {
						t.Errorf("not the driver's own request, but that of %q", agent)
					}
					want.Header.Set("User-Agent", userAgent)
					if got.Method != want.Method || got.URL.String() != want.URL.String() || got.Host != want.URL.Host ||
						!reflect.DeepEqual(got.Header, want.Header) {
						t.Errorf("got\n%s %s %v\nwant\n%s %s %v", got.Method, got.URL, got.Header, want.Method, want.URL, want.Header)
					}
				})
			}
		}
	}
}

func ignore(body io.ReadCloser, _ minio.ObjectInfo, _ http.Header, err error) error {
	if err == nil {
		body.Close()
	}
	return err
}

// The key of a signature is derived again for another day and another secret.
func TestSignatureKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := signer{region: "us-east-1"}
		for range 2 {
			for _, secret := range []string{"one", "two", "two"} {
				got := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://s3.example.org/b/k", http.NoBody)
				want := got.Clone(t.Context())
				want.Header.Set("X-Amz-Content-Sha256", emptySHA256)
				want = minioSigner.SignV4(*want, "key", secret, "", "us-east-1")
				g.sign(got, credentials.Value{AccessKeyID: "key", SecretAccessKey: secret}, emptySHA256, time.Now())
				if a, b := got.Header.Get("Authorization"), want.Header.Get("Authorization"); a != b {
					t.Errorf("got %q, want %q", a, b)
				}
			}
			time.Sleep(24 * time.Hour)
		}
	})
}

// A request that is not a success is sent once, and minio-go decodes the response.
func TestFailedRequestIsSentOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		code   string
		is     error
	}{
		"absent": {404, "NoSuchKey", storage.ErrNotFound}, "changed": {412, "PreconditionFailed", storage.ErrChanged},
		"slow down": {503, "SlowDown", storage.ErrSlowDown}, "cut": {0, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			sc := &script{on: true}
			sc.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if n++; tt.status == 0 {
					hangUp()
				}
				refuse(tt.status, tt.code)(w, r)
				return true
			}
			s, _ := direct(t, s3test.Options{Before: func(w http.ResponseWriter, r *http.Request) bool {
				return strings.HasSuffix(r.URL.Path, "/s/a") && sc.hook(w, r)
			}})
			at := location{testBucket, "s/a"}
			b := []byte("content")
			sum := sha256.Sum256(b)
			for what, call := range map[string]func() error{
				"stat": func() error {
					_, err := s.statObject(t.Context(), at, s.getOptions())
					return s.translate(t.Context(), anItem, "stat", err)
				},
				"read": func() error {
					_, _, err := s.getRange(t.Context(), at, "", readPlan{remaining: 10})
					return err
				},
				"put": func() error {
					p := payload{b, digest.Set{digest.SHA256: hex.EncodeToString(sum[:])}}
					_, err := s.putObject(t.Context(), at, p, &Features{SHA256: true}, s.putOptions(objectHeaders{}))
					return err
				},
			} {
				n = 0
				err := call()
				if err == nil || tt.is != nil && !errors.Is(err, tt.is) || (tt.is == nil) != isAmbiguous(err) || n != 1 {
					t.Errorf("%s: got %v after %d requests, want %v after one", what, err, n, tt.is)
				}
			}
		})
	}
}

// The fields of an object that the driver uses are those of minio-go.
func TestObjectInfoIsThatOfMinio(t *testing.T) {
	usual := map[string]string{
		"Etag": `"900150983cd24fb0d6963f7d28e17f72"`, "Content-Length": "12", "Content-Type": "image/tiff",
		"Last-Modified": "Wed, 21 Oct 2026 07:28:00 GMT", "X-Amz-Version-Id": "v1", "X-Amz-Meta-Some-Name": "value",
		"X-Amz-Checksum-Sha256": "AA==",
	}
	for name, change := range map[string]map[string]string{
		"usual": {}, "no version": {"X-Amz-Version-Id": ""}, "no type": {"Content-Type": ""},
		"no length":                  {"Content-Length": ""},
		"a length that is no number": {"Content-Length": "x"}, "no time": {"Last-Modified": ""},
		"a time without a leading zero": {"Last-Modified": "Wed, 1 Oct 2026 07:28:00 GMT"},
		"a time of MinIO":               {"X-Minio-Source-Mtime": "2020-01-02T03:04:05.6Z"},
		"encoded metadata":              {"X-Amz-Meta-Some-Name": "=?UTF-8?b?w7w=?="},
		"no ETag":                       {"Etag": ""}, "an ETag without quotes": {"Etag": "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			all := maps.Clone(usual)
			maps.Copy(all, change)
			h := http.Header{}
			for k, v := range all {
				if v != "" {
					h.Set(k, v)
				}
			}
			got, gerr := objectInfo(location{"b", "k"}, h.Clone())
			want, werr := minio.ToObjectInfo("b", "k", h.Clone())
			if fmt.Sprint(gerr) != fmt.Sprint(werr) || got.ETag != want.ETag || got.Size != want.Size ||
				!got.LastModified.Equal(want.LastModified) || got.VersionID != want.VersionID ||
				!maps.Equal(got.UserMetadata, want.UserMetadata) || !reflect.DeepEqual(got.Headers, want.Headers) {
				t.Errorf("got %+v, %v, want %+v, %v", got, gerr, want, werr)
			}
			p, _, gerr := decode(got)
			q, _, werr := decode(want)
			if !reflect.DeepEqual(p, q) || gerr != nil || werr != nil {
				t.Errorf("got properties %+v, %v, want %+v, %v", p, gerr, q, werr)
			}
		})
	}
}

func TestParseContentRange(t *testing.T) {
	for text, want := range map[string]struct {
		from, size int64
		ok         bool
	}{
		"bytes 0-9/100": {0, 100, true}, "bytes 5-9/10": {5, 10, true}, "": {}, "bytes */10": {}, "bytes 0-9/*": {},
		"items 0-9/10": {},
	} {
		from, size, ok := parseContentRange(text)
		if ok != want.ok || ok && (from != want.from || size != want.size) {
			t.Errorf("%q: got %d, %d, %t, want %+v", text, from, size, ok, want)
		}
	}
}
