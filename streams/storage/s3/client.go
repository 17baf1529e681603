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

// Credentials say who asks. The zero value asks without a signature.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string
	// FromEnvironment takes the role that the machine or the pod has: instance metadata, a container's role or
	// a web identity token, as AWS's own tools do; before them keys in the environment or in their file.
	FromEnvironment bool
	// roleEndpoint is where a role is asked for, where that is not AWS's own: http://host[:port].
	roleEndpoint string
}

func (c Credentials) provider() (*credentials.Credentials, error) {
	switch {
	case c.FromEnvironment && (c.AccessKey != "" || c.SecretKey != ""):
		return nil, errors.New("credentials: keys and the environment's exclude each other")
	case c.FromEnvironment:
		return credentials.NewChainCredentials([]credentials.Provider{
			completeKeys{new(credentials.EnvAWS)}, new(credentials.FileAWSCredentials),
			&credentials.IAM{Client: &http.Client{Timeout: 10 * time.Second}, Endpoint: c.roleEndpoint},
		}), nil
	case (c.AccessKey == "") != (c.SecretKey == ""):
		return nil, errors.New("credentials: wants both keys, or none")
	}
	return credentials.NewStaticV4(c.AccessKey, c.SecretKey, c.SessionToken), nil
}

// pairs are the credentials of a provider, without those of which one key is missing: a chain takes them for some, and
// asks none of the providers behind.
type completeKeys struct{ credentials.Provider }

func (p completeKeys) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := p.Provider.RetrieveWithCredContext(cc)
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return credentials.Value{}, err
	}
	return v, err
}

// client returns a client that makes each request once: who calls knows whether it may be made again.
func (s *Store) newClient(u *url.URL) (*minio.Core, error) {
	who, err := s.cfg.Credentials.provider()
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
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds: who, Secure: u.Scheme == "https", Transport: s.wrapTransport(transport, who, lookup == minio.BucketLookupPath),
		Region: s.cfg.Region, BucketLookup: lookup, MaxRetries: 1,
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
func (s *Store) httpTransport() (*http.Transport, error) {
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
