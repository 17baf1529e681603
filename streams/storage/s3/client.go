package s3

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Credentials say who asks. The zero value asks without a signature.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string
	// FromEnvironment takes the role that the machine or the pod has: instance metadata, a container's role or
	// a web identity token, as AWS's own tools do; before them keys in the environment or in their file.
	FromEnvironment bool
}

func (c Credentials) provider() (*credentials.Credentials, error) {
	switch {
	case c.FromEnvironment && (c.AccessKey != "" || c.SecretKey != ""):
		return nil, errors.New("credentials: keys and the environment's exclude each other")
	case c.FromEnvironment:
		return credentials.NewChainCredentials([]credentials.Provider{
			new(credentials.EnvAWS), new(credentials.FileAWSCredentials), &credentials.IAM{Client: &http.Client{Timeout: 10 * time.Second}},
		}), nil
	case (c.AccessKey == "") != (c.SecretKey == ""):
		return nil, errors.New("credentials: wants both keys, or none")
	}
	return credentials.NewStaticV4(c.AccessKey, c.SecretKey, c.SessionToken), nil
}

// client returns a client that makes each request once: who calls knows whether it may be made again.
func (s *Store) client(u *url.URL) (*minio.Core, error) {
	who, err := s.cfg.Credentials.provider()
	if err != nil {
		return nil, err
	}
	transport := s.cfg.Transport
	if transport == nil {
		if s.http, err = s.transport(); err != nil {
			return nil, err
		}
		transport = s.http
	}
	lookup := minio.BucketLookupDNS
	if s.cfg.PathStyle || net.ParseIP(u.Hostname()) != nil {
		lookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds: who, Secure: u.Scheme == "https", Transport: &wire{transport}, Region: s.cfg.Region, BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return nil, err
	}
	core.SetAppInfo("millrace", "1")
	return core, nil
}

// writeBuffer is what is written at once.
const writeBuffer = 64 << 10

// transport bounds what can be bounded: a body may take as long as it likes while bytes come.
func (s *Store) transport() (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute, ExpectContinueTimeout: 10 * time.Second,
		DisableCompression: true, // or bytes are not those that are stored
		WriteBufferSize:    writeBuffer, ReadBufferSize: 64 << 10,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if len(s.cfg.CA) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(s.cfg.CA) {
			return nil, errors.New("ca: no certificate in it")
		}
		t.TLSClientConfig.RootCAs = pool
	}
	if s.cfg.Proxy != "" {
		proxy, err := url.Parse(s.cfg.Proxy)
		if err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		t.Proxy = http.ProxyURL(proxy)
	}
	return t, nil
}

// A note goes with a request: headers that the client has no option for, and what the answer said.
type note struct {
	send http.Header // none of x-amz-, which would have to be signed
	body []byte      // what the request carries, where that is in memory and small; else nil

	mu   sync.Mutex
	date time.Time // of the answer, by the service's clock
}

type noteKey struct{}

// noted returns a context whose requests carry headers, in pairs, and whose answers are noted.
func noted(ctx context.Context, pairs ...string) (context.Context, *note) {
	n := &note{send: http.Header{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		n.send.Set(pairs[i], pairs[i+1])
	}
	return context.WithValue(ctx, noteKey{}, n), n
}

// carrying returns a context whose one request carries b. The client hides its bytes behind readers of its own, and a
// request whose bytes are not seen to be in memory goes in two packets, for the service to wait for the second.
func carrying(ctx context.Context, b []byte) context.Context {
	if len(b) == 0 || len(b) > writeBuffer/2 {
		return ctx
	}
	n, ok := ctx.Value(noteKey{}).(*note)
	if !ok {
		ctx, n = noted(ctx)
	}
	n.body = b
	return ctx
}

func (n *note) answered() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.date
}

// A wire adds notes to requests.
type wire struct{ next http.RoundTripper }

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	n, ok := req.Context().Value(noteKey{}).(*note)
	if !ok {
		return w.next.RoundTrip(req)
	}
	whole := n.body != nil && req.Body != nil && req.ContentLength == int64(len(n.body)) // else it was encoded to be signed
	if len(n.send) > 0 || whole {
		req = req.Clone(req.Context())
		for k, v := range n.send {
			req.Header[k] = v
		}
	}
	if whole {
		defer req.Body.Close()
		req.Body = io.NopCloser(bytes.NewReader(n.body))
	}
	resp, err := w.next.RoundTrip(req)
	if err == nil {
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			n.mu.Lock()
			n.date = at
			n.mu.Unlock()
		}
	}
	return resp, err
}
