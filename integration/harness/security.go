package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Login of clients with Options.Secure, by PLAIN and SCRAM-SHA-256.
const (
	User     = "app"
	Password = "app-secret" //nolint:gosec // only for brokers of one test
)

// storeFile is the file name of the broker's key and certificate.
const storeFile = "broker.pem"

// tlsFiles is a certificate for loopback, created for one test.
type tlsFiles struct {
	store  []byte // key and certificate, as the brokers read them
	client *tls.Config
}

func newTLSFiles() (*tlsFiles, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(chain)
	return &tlsFiles{
		store:  append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), chain...),
		client: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}, nil
}

func (s *tlsFiles) write(dir string) error {
	return os.WriteFile(filepath.Join(dir, storeFile), s.store, 0o600)
}

// properties returns broker settings for TLS and login. dir is the directory of storeFile as the broker sees it.
// addUser adds the SCRAM user after the cluster has started.
func (s *tlsFiles) properties(dir string) map[string]string {
	const jaas = "org.apache.kafka.common.security."
	return map[string]string{
		"listener.security.protocol.map":               "CLIENT:SASL_SSL,PEER:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
		"listener.name.client.plain.sasl.jaas.config": fmt.Sprintf("%splain.PlainLoginModule required user_%s=%q;",
			jaas, User, Password),
		"listener.name.client.scram-sha-256.sasl.jaas.config": jaas + "scram.ScramLoginModule required;",
		"listener.name.client.ssl.keystore.type":              "PEM",
		"listener.name.client.ssl.keystore.location":          filepath.Join(dir, storeFile),
	}
}
