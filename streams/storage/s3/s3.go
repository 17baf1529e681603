// Package s3 is a storage driver for S3 and what speaks as it does.
//
// A space is a prefix of keys in one bucket, or a bucket of its own. An item's key is its id,
// as it is, after the prefix of its space; an id that a service cannot keep is refused with
// storage.ErrName, never changed. What is the driver's own lies below .millrace/ (see
// layout.go). Objects that others put there are items.
//
// Bytes are digested while they are uploaded and become visible when they agree with what is
// known of them: small ones in one request, whose checksums the service verifies, large ones in parts that
// are completed last. A version is the service's, where the bucket has versions, else the ETag, by which
// reads and writes are pinned. An ETag is told as an MD5 only where it is one.
//
// Every answer is judged in one place (judge.go): 404 is not 403, and a service that fails or asks for
// patience has said nothing about an item. An item that is found to be absent is absent only if Marker
// succeeds afterwards.
package s3

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// Config is how a Store is made. Zero values take the defaults in brackets.
type Config struct {
	ID       string // the store's id, in its marker
	Endpoint string // https://host[:port]; http for what is on the same machine
	Region   string // [us-east-1, or what the endpoint's name says]
	// Bucket holds all spaces, each below Prefix and its own name. Without it a space is a
	// bucket, called BucketPrefix and the space's name.
	Bucket, Prefix string
	BucketPrefix   string
	// PathStyle puts the bucket into the path, not into the host's name.
	PathStyle   bool
	Credentials Credentials
	// CA are further certificates to trust, PEM. Proxy is the URL of an HTTP proxy [of the environment].
	CA    []byte
	Proxy string
	// Encryption that the service does: AES256, or aws:kms with KMSKey [the bucket's own].
	Encryption, KMSKey string
	StorageClass       string // of what is written [the service's]
	RequesterPays      bool   // our account pays for what it reads
	// Restore asks for the return of archived objects, for RestoreDays [7], from RestoreTier [Standard].
	Restore     bool
	RestoreDays int
	RestoreTier string
	ReadOnly    bool
	// digests that are computed of what is put [md5 and sha256].
	digests []string
	// PartBytes is the size of a part [16 MiB]; what is larger than one goes in parts, parallel [4] at a time, and
	// is read in pieces, as many at a time.
	PartBytes int64
	parallel  int
	// leftover is the age after which an upload that was not completed is taken for that of a process that died [7 days].
	staleAfter time.Duration
	// Skipped, where it is set, is told by listings of keys that are no items, and why. It may be called by many at once.
	Skipped func(key, reason string)
	// Transport, where it is set, makes the requests; CA and Proxy do not count then.
	Transport http.RoundTripper
	now       func() time.Time // the machine's clock

	minPart int64 // bytes that all parts but the last have; tests use less than S3 takes [5 MiB]
}

func (c *Config) defaults() {
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.minPart = cmp.Or(c.minPart, minPart)
	c.PartBytes = max(cmp.Or(c.PartBytes, 16<<20), c.minPart)
	c.parallel = max(cmp.Or(c.parallel, 4), 1)
	c.staleAfter = cmp.Or(c.staleAfter, 7*24*time.Hour)
	c.RestoreDays = cmp.Or(c.RestoreDays, 7)
	c.RestoreTier = cmp.Or(c.RestoreTier, string(minio.TierStandard))
	if c.digests == nil {
		c.digests = []string{digest.MD5, digest.SHA256}
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.Skipped == nil {
		c.Skipped = func(string, string) {}
	}
}

func (c *Config) check() (*url.URL, error) {
	var errs []error
	u, err := url.Parse(c.Endpoint)
	switch {
	case err != nil:
		errs = append(errs, fmt.Errorf("endpoint: %w", err))
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "":
		errs = append(errs, fmt.Errorf("endpoint %q: wants http:// or https:// and a host, and no path", c.Endpoint))
	}
	if c.ID == "" {
		errs = append(errs, errors.New("the store has no id"))
	}
	switch {
	case c.Bucket != "" && c.BucketPrefix != "":
		errs = append(errs, errors.New("bucket and bucket_prefix exclude each other"))
	case c.Bucket == "" && c.BucketPrefix == "":
		errs = append(errs, errors.New("wants a bucket, or a bucket_prefix"))
	case c.Bucket == "" && c.Prefix != "":
		errs = append(errs, errors.New("prefix is for one bucket"))
	}
	if !slices.Contains([]string{"", "AES256", "aws:kms"}, c.Encryption) {
		errs = append(errs, fmt.Errorf("encryption %q: wants AES256 or aws:kms", c.Encryption))
	}
	return u, errors.Join(errs...)
}

// A Store is a storage.Store in an object storage service.
type Store struct {
	cfg          Config
	core         *minio.Core
	layout       layout
	pool         *digest.Pool
	http         *http.Transport // nil: the caller's
	writeBuffers *bufferPool     // of what is written
	readBuffers  *bufferPool     // of what is read ahead, by all readers
	// private: nobody between this process and the service can change what is sent
	trustedLink bool

	features atomic.Pointer[Facts]

	mu            sync.Mutex
	knownSpaces   map[string]time.Time   // spaces, and when they were last seen; guarded by mu
	freeAncestors map[location]time.Time // keys below which items may be put, and when that was seen; guarded by mu
	// putting are the items that are put at services that hide what lies below an item, by space and id, and below counts
	// those below each; guarded by mu
	puts, putsBelow map[location]int
	// working are the uploads that this process is at work on; guarded by mu
	activeUploads map[string]bool
}

var _ storage.Store = (*Store)(nil)

// Facts are what a service was found to do, when it was tried.
type Facts struct {
	IfNoneMatch bool `json:"if_none_match"` // a PUT on condition of absence
	IfMatch     bool `json:"if_match"`      // a PUT on condition of an ETag
	DeleteMatch bool `json:"delete_match"`  // a DELETE on condition of an ETag
	Complete    bool `json:"complete"`      // the same of the end of an upload in parts
	ETagIsMD5   bool `json:"etag_is_md5"`   // of an object that was put in one request
	SHA256      bool `json:"sha256"`        // it verifies and tells x-amz-checksum-sha256
	CRC64NVME   bool `json:"crc64nvme"`     // the same, of whole objects in parts too
	Versions    bool `json:"versions"`      // the bucket keeps what is replaced
	Atomic      bool `json:"atomic"`        // of those who wrote on the same condition at once, no two succeeded
	DeletesOnce bool `json:"deletes_once"`  // the same of those who deleted
	OddKeys     bool `json:"odd_keys"`      // a//b, a/./b and a/b are three keys, and a zero byte may be in one
	Hides       bool `json:"hides"`         // it keeps a/b beside a, and does not list it
	CopiesParts bool `json:"copies_parts"`  // it copies parts by itself, and proves what they are
}

// New returns a Store. It asks nobody: what the service can do is known when the marker has been read, or Probe
// has tried it.
func New(cfg Config) (*Store, error) {
	u, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("s3 store: %w", err)
	}
	cfg.defaults()
	s := &Store{
		cfg: cfg, layout: newLayout(cfg), knownSpaces: map[string]time.Time{}, freeAncestors: map[location]time.Time{}, activeUploads: map[string]bool{},
		puts: map[location]int{}, putsBelow: map[location]int{},
		writeBuffers: newBufferPool(cfg.PartBytes, 2*cfg.parallel), readBuffers: newBufferPool(cfg.PartBytes, 2*cfg.parallel),
	}
	s.trustedLink = u.Scheme == "https" || u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
	if s.pool, err = digest.NewPool(cfg.digests...); err != nil {
		return nil, err
	}
	if s.core, err = s.newClient(u); err != nil {
		return nil, fmt.Errorf("s3 store: %w", err)
	}
	s.features.Store(new(Facts))
	return s, nil
}

// Facts are what is known of the service: all false before Probe or Marker have told.
func (s *Store) Facts() Facts { return *s.features.Load() }

// Close lets go of idle connections.
func (s *Store) Close() error {
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
	return nil
}

// Capabilities says what is known of the service: without a marker that tells what was tried, it can do little.
func (s *Store) Capabilities() storage.Capabilities {
	f := s.features.Load()
	var sourceFrom int64
	if f.CopiesParts {
		sourceFrom = s.cfg.PartBytes + 1 // what goes in parts
	}
	return storage.Capabilities{
		Kind: "s3", TimeResolution: time.Second,
		ConditionalPut: f.IfNoneMatch && f.IfMatch && f.Atomic, ConditionalDelete: f.DeleteMatch && f.DeletesOnce, UniqueVersions: f.Versions,
		KeepsReplaced: true, Digests: slices.Clone(s.cfg.digests), ReadOnly: s.cfg.ReadOnly,
		MaxItemBytes: maxObject, MaxPropertyBytes: maxMetadata, SourceFrom: sourceFrom,
	}
}

// What S3 keeps.
const (
	maxObject   = 5 << 40 // bytes of an object
	maxSingle   = 5 << 30 // bytes of one that is put or copied in one request
	maxParts    = 10_000
	minPart     = 5 << 20
	maxMetadata = 2 << 10 // names and values
)
