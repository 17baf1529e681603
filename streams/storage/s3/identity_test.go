package s3

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// seen records the requests of a server.
type seen struct {
	mu  sync.Mutex
	all []*http.Request
}

func (s *seen) hook(_ http.ResponseWriter, r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, r.Clone(r.Context()))
	return false
}

// kind returns a short text for the kind of a request.
func kind(r *http.Request) string {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPost && q.Has("uploads"):
		return "begin"
	case r.Method == http.MethodPost && q.Has("uploadId"):
		return "complete"
	case q.Has("partNumber"):
		return "part"
	case r.Header.Get("X-Amz-Copy-Source") != "":
		return "copy"
	case r.Method == http.MethodPut && strings.Count(strings.Trim(r.URL.Path, "/"), "/") > 0:
		return "put"
	}
	return "other"
}

// Configured headers are in the right requests, and signed.
func TestHeaders(t *testing.T) {
	writes := []string{"put", "begin", "copy"}
	for name, tt := range map[string]struct {
		edit func(*Config)
		want map[string]string
		on   []string // kinds of requests; nil: all
	}{
		"requester pays, plain HTTP": {func(c *Config) { c.RequesterPays, c.Endpoint = true, "http://s3.example.org" },
			map[string]string{"X-Amz-Request-Payer": "requester"}, nil},
		"SSE": {func(c *Config) { c.Encryption = "AES256" },
			map[string]string{"X-Amz-Server-Side-Encryption": "AES256"}, writes},
		"KMS": {func(c *Config) {
			c.Encryption, c.KMSKey = "aws:kms", "key-1"
		},
			map[string]string{"X-Amz-Server-Side-Encryption": "aws:kms",
				"X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "key-1"}, writes},
		"storage class": {func(c *Config) {
			c.StorageClass = "STANDARD_IA"
		}, map[string]string{"X-Amz-Storage-Class": "STANDARD_IA"}, writes},
		"requester pays": {func(c *Config) { c.RequesterPays = true }, map[string]string{"X-Amz-Request-Payer": "requester"},
			nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := new(seen)
			s, _ := direct(t, s3test.Options{Before: got.hook}, func(c *Config) {
				c.PartBytes, c.Endpoint, c.digests = testPart, "https://127.0.0.1", []string{digest.SHA256}
			}, tt.edit)
			must(t, errors.Join(s.WriteMarker(t.Context()), s.Probe(t.Context())))
			for item, do := range map[string]string{"a": "Put, kept", "b": "Put, in parts", "c": "Locate", "d": "List",
				"e": "Spaces", "f": "Sweep", "g": "Delete"} {
				must(t, put(t.Context(), s, "a", 5, storage.PutOptions{}))
				if err := operations[do](t.Context(), s); err != nil && do != "Put, in parts" {
					t.Errorf("%s, %s: %v", item, do, err)
				}
			}
			kinds := map[string]int{}
			for _, r := range got.all {
				k := kind(r)
				kinds[k]++
				for header, want := range tt.want {
					on := tt.on == nil || slices.Contains(tt.on, k)
					if have := r.Header.Get(header); on && have != want || !on && have != "" {
						t.Errorf("%s %s (%s) has %s: %q", r.Method, r.URL, k, header, have)
					}
					if signed := r.Header.Get("Authorization"); on && !strings.Contains(signed, strings.ToLower(header)) {
						t.Errorf("%s %s (%s): %s is not signed: %s", r.Method, r.URL, k, header, signed)
					}
				}
			}
			for _, k := range []string{"put", "begin", "part", "complete", "copy", "other"} {
				if kinds[k] == 0 {
					t.Errorf("no %s among %v", k, kinds)
				}
			}
		})
	}
}

// The bucket is in the path, or in the host name.
func TestPathStyle(t *testing.T) {
	for style, want := range map[string]string{"path": "https://s3.example.org/archive/s/a",
		"host": "https://archive.s3.example.org/s/a"} {
		t.Run(style, func(t *testing.T) {
			var got string
			s, err := New(Config{ID: "1", Endpoint: "https://s3.example.org", Bucket: testBucket, PathStyle: style == "path",
				Transport: tripper(func(r *http.Request) (*http.Response, error) {
					got = r.URL.String()
					return nil, errReset
				})})
			must(t, err)
			if _, err := s.Stat(t.Context(), "s", "a"); err == nil || got != want {
				t.Errorf("asked for %s, want %s", got, want)
			}
		})
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Errors of the connection are reported with their cause. A CA of the configuration and a proxy work.
func TestTransports(t *testing.T) {
	mem := s3test.New(s3test.Options{})
	defer mem.Close()
	secure := httptest.NewUnstartedServer(mem)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	defer secure.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	var mu sync.Mutex // guards through
	var through []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		through = append(through, r.URL.Host)
		mu.Unlock()
		mem.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	name := func(u, host string) string { return strings.Replace(u, "127.0.0.1", host, 1) }
	for what, tt := range map[string]struct {
		edit  func(*Config)
		class retry.Class
		says  string // part of the error; empty: none
	}{
		"own CA": {func(c *Config) { c.Endpoint, c.CA = secure.URL, ca }, 0, ""},
		"unknown CA": {func(c *Config) { c.Endpoint = secure.URL }, retry.ClassUnavailable,
			"certificate is not trusted"},
		"wrong name": {func(c *Config) {
			c.Endpoint, c.CA = name(secure.URL, "localhost"), ca
		}, retry.ClassUnavailable, "certificate is not trusted"},
		"http on a port of TLS": {func(c *Config) {
			c.Endpoint = "http" + strings.TrimPrefix(secure.URL, "https")
		}, retry.ClassUnavailable, "S3"},
		"TLS on a port of http": {func(c *Config) {
			c.Endpoint = "https" + strings.TrimPrefix(mem.URL(), "http")
		}, retry.ClassUnavailable, "does not speak TLS"},
		"no connection": {func(c *Config) {
			c.Endpoint = "http://127.0.0.1:1"
		}, retry.ClassUnavailable, "no connection"},
		"a proxy": {func(c *Config) { c.Endpoint, c.Proxy = "http://s3.example.org", proxy.URL }, 0, ""},
		"a proxy that is away": {func(c *Config) {
			c.Endpoint, c.Proxy = "http://s3.example.org", "http://127.0.0.1:1"
		}, retry.ClassUnavailable, "no connection"},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := Config{ID: "1", Bucket: testBucket, PathStyle: true, Credentials: Credentials{AccessKey: "k", SecretKey: "s"}}
			tt.edit(&cfg)
			s, err := New(cfg)
			must(t, err)
			defer s.Close()
			if tt.says == "" {
				if err := s.makeBucket(t.Context(), testBucket); err != nil && !strings.Contains(err.Error(), "Owned") {
					t.Error(err)
				}
				if err := s.Probe(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			_, err = s.Stat(t.Context(), "s", "a")
			_, serr := s.StatSpace(t.Context(), "s")
			for _, err := range []error{err, serr} {
				if retry.ClassOf(err) != tt.class || isAbsent(err) || err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%v is %v, want %v that says %q", err, retry.ClassOf(err), tt.class, tt.says)
				}
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if len(through) == 0 || slices.ContainsFunc(through, func(h string) bool { return h != "s3.example.org" }) {
		t.Errorf("through the proxy came %q", through)
	}
	if _, err := New(Config{ID: "1", Endpoint: secure.URL, Bucket: "b", CA: []byte("none")}); err == nil {
		t.Error("a CA that is none is taken")
	}
}

// A role is that of the machine or of a token, and its keys sign the requests. Without credentials no request is sent.
func TestRoles(t *testing.T) {
	var asked []string
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		asked = append(asked, r.Method+" "+r.URL.Path+" "+r.Form.Get("Action")+" "+r.Form.Get("WebIdentityToken"))
		until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		switch {
		case r.Form.Get("Action") == "AssumeRoleWithWebIdentity":
			fmt.Fprintf(w,
				`<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">`+
					`<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>WEBKEY</AccessKeyId><SecretAccessKey>s`+
					`</SecretAccessKey><SessionToken>tok</SessionToken><Expiration>%s</Expiration></Credentials>`+
					`</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, until)
		case r.URL.Path == "/latest/api/token":
			_, _ = io.WriteString(w, "imds-token")
		case r.Header.Get("X-Aws-Ec2-Metadata-Token") != "imds-token":
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasSuffix(r.URL.Path, "/security-credentials/"):
			_, _ = io.WriteString(w, "role-1")
		default:
			fmt.Fprintf(w,
				`{"Code": "Success", "AccessKeyId": "ROLEKEY", "SecretAccessKey": "s", "Token": "tok", "Expiration": %q}`, until)
		}
	}))
	defer sts.Close()
	away := httptest.NewServer(http.NotFoundHandler())
	defer away.Close()
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("a-token"), 0o600))
	for name, tt := range map[string]struct {
		env      map[string]string
		endpoint string
		key      string // empty: no credentials
		asks     string
	}{
		"instance metadata": {nil, sts.URL, "ROLEKEY", "GET /latest/meta-data/iam/security-credentials/role-1"},
		"web identity": {map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": token,
			"AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}, sts.URL, "WEBKEY", "AssumeRoleWithWebIdentity a-token"},
		"environment": {map[string]string{"AWS_ACCESS_KEY_ID": "ENVKEY", "AWS_SECRET_ACCESS_KEY": "s"}, sts.URL,
			"ENVKEY", ""},
		"half a pair": {map[string]string{"AWS_ACCESS_KEY_ID": "ENVKEY"}, sts.URL, "ROLEKEY",
			"security-credentials/role-1"},
		"the other half": {map[string]string{"AWS_SECRET_ACCESS_KEY": "s"}, sts.URL, "ROLEKEY",
			"security-credentials/role-1"},
		"no credentials": {nil, away.URL, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
				"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
				t.Setenv(v, "")
			}
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
			t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			asked = nil
			var signed []string
			s, err := New(Config{ID: "1", Endpoint: "https://s3.example.org", Bucket: testBucket, PathStyle: true,
				Credentials: Credentials{FromEnvironment: true,
					roleEndpoint: tt.endpoint}, Transport: tripper(func(r *http.Request) (*http.Response, error) {
					signed = append(signed, r.Header.Get("Authorization")+" "+r.Header.Get("X-Amz-Security-Token"))
					return nil, errReset
				})})
			must(t, err)
			_, err = s.Stat(t.Context(), "s", "a")
			if tt.key == "" {
				if retry.ClassOf(err) != retry.ClassUnavailable || !errors.Is(err, storage.ErrCredentials) || len(signed) != 0 {
					t.Errorf("%v; requests %q", err, signed)
				}
				return
			}
			if len(signed) != 1 || !strings.Contains(signed[0], "Credential="+tt.key+"/") ||
				strings.HasSuffix(signed[0], " tok") != (tt.asks != "") {
				t.Errorf("signed %q: %v", signed, err)
			}
			if all := strings.Join(asked, "\n"); !strings.Contains(all, tt.asks) || tt.asks == "" && all != "" {
				t.Errorf("asked\n%s", all)
			}
		})
	}
}

// gone is a provider with expired credentials that it cannot renew.
type gone struct{}

func (gone) Retrieve() (credentials.Value, error) { return credentials.Value{}, nil }
func (gone) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return credentials.Value{}, nil
}
func (gone) IsExpired() bool { return true }

// A request that is signed again for requester-pays is not sent if the credentials have expired.
func TestPayerWithoutCredentials(t *testing.T) {
	made := 0
	w := &transport{requesterPays: true, creds: credentials.New(gone{}), signer: signer{region: "us-east-1"},
		next: tripper(func(*http.Request) (*http.Response, error) {
			made++
			return nil, errReset
		})}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://s3.example.org/archive/s/a", http.NoBody)
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=ROLEKEY/20261122/us-east-1/s3/aws4_request")
	resp, err := w.RoundTrip(req)
	if err == nil {
		resp.Body.Close()
	}
	if !errors.Is(err, errUnsigned) || made != 0 {
		t.Errorf("got %v after %d requests, want errUnsigned and none", err, made)
	}
}
