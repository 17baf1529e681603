package s3

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Credentials sign the requests. The zero value sends requests without a signature.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string
	// FromEnvironment uses the first credentials found in: the environment variables, the AWS configuration files, and
	// the role of the machine or the container (web identity token, container role, instance metadata).
	FromEnvironment bool
	// roleEndpoint replaces the AWS endpoint for roles: http://host[:port]. For tests.
	roleEndpoint string
}

func (c Credentials) provider() (*credentials.Credentials, error) {
	switch {
	case c.FromEnvironment && (c.AccessKey != "" || c.SecretKey != ""):
		return nil, errors.New("credentials: keys and from_environment exclude each other")
	case c.FromEnvironment:
		return credentials.NewChainCredentials([]credentials.Provider{
			completeKeys{new(credentials.EnvAWS)}, new(credentials.FileAWSCredentials),
			&credentials.IAM{Client: &http.Client{Timeout: 10 * time.Second}, Endpoint: c.roleEndpoint},
		}), nil
	case (c.AccessKey == "") != (c.SecretKey == ""):
		return nil, errors.New("credentials: want both keys or none")
	}
	return credentials.NewStaticV4(c.AccessKey, c.SecretKey, c.SessionToken), nil
}

// completeKeys returns the credentials of a provider only if both keys are set. A chain would accept a single key and
// not try the next providers.
type completeKeys struct{ credentials.Provider }

func (p completeKeys) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := p.Provider.RetrieveWithCredContext(cc)
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return credentials.Value{}, err
	}
	return v, err
}

// newClient returns a client that sends each request once. The driver decides about retries.
func (s *Store) newClient(u *url.URL) (*minio.Core, error) {
	creds, err := s.cfg.Credentials.provider()
	if err != nil {
		return nil, err
	}
	transport := s.cfg.Transport
	if transport == nil {
		if s.http, err = s.httpTransport(); err != nil {
			return nil, err
		}
		transport = s.http
	}
	lookup := minio.BucketLookupDNS
	if s.cfg.PathStyle || net.ParseIP(u.Hostname()) != nil {
		lookup = minio.BucketLookupPath
	}
	s.transport = s.wrapTransport(transport, creds, lookup == minio.BucketLookupPath)
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds: creds, Secure: u.Scheme == "https", Region: s.cfg.Region, BucketLookup: lookup, MaxRetries: 1,
		Transport: s.transport,
	})
	if err != nil {
		return nil, err
	}
	core.SetAppInfo("millrace", "1")
	return core, nil
}

// userAgent is that of requests that minio-go does not send.
const userAgent = "millrace/1"

// writeBuffer is the size of the write buffer of a connection, in bytes.
const writeBuffer = 64 << 10

// httpTransport returns a transport with timeouts for everything except the transfer of bodies, which has no limit.
func (s *Store) httpTransport() (*http.Transport, error) {
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute, ExpectContinueTimeout: 10 * time.Second,
		DisableCompression: true, // otherwise bodies may differ from the stored bytes
		WriteBufferSize:    writeBuffer, ReadBufferSize: 64 << 10,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if len(s.cfg.CA) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(s.cfg.CA) {
			return nil, errors.New("ca: it contains no certificate")
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
