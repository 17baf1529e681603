// Package s3 is a storage driver for S3 and compatible services.
//
// A space is a key prefix in one bucket, or a bucket of its own. The key of an item is the
// prefix of its space followed by its id, unchanged; an id that the service cannot store is
// refused with storage.ErrName. Objects of the driver are below .millrace/ (see layout.go).
// Objects that other programs put below the prefix of a space are items.
//
// Put computes digests during the upload. The object becomes visible only if they agree with
// the expected ones: a small object is put in one request with checksums that the service
// verifies, a large one in parts and a final request to complete the upload. The version of
// an item is its version id if the bucket has versioning, otherwise its ETag; reads and
// conditional writes are pinned to it. An ETag is reported as MD5 only if the service is known
// to use the MD5.
//
// Responses are classified in one place (errors.go). A 403 is not an absence, and an error or a
// throttled request is not a fact about an item. A result that says that an item is absent is
// valid only if Marker succeeds afterwards.
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

// Config configures a Store. Zero values take the defaults in brackets.
type Config struct {
	ID       string // the store's id, in its marker
	Endpoint string // https://host[:port]; use http only on the same machine
	Region   string // [us-east-1, or the region in the endpoint's name]
	// Bucket holds all spaces, each below Prefix and its name. Without it each space is a bucket, named BucketPrefix
	// followed by the name of the space. A read-only store needs neither: then it has all buckets.
	Bucket, Prefix string
	BucketPrefix   string
	// PathStyle puts the bucket into the path instead of the host name.
	PathStyle   bool
	Credentials Credentials
	// CA holds further certificates to trust, in PEM. Proxy is the URL of an HTTP proxy [from the environment].
	CA    []byte
	Proxy string
	// Encryption by the service: AES256, or aws:kms with KMSKey [the default of the bucket].
	Encryption, KMSKey string
	StorageClass       string // of new objects [the default of the service]
	RequesterPays      bool   // the requester pays for reads
	// Restore requests the restoration of archived objects that are read, for RestoreDays [7] and at RestoreTier
	// [Standard].
	Restore     bool
	RestoreDays int
	RestoreTier string
	ReadOnly    bool
	// digests are the algorithms of the digests that Put computes and records [md5 and sha256].
	digests []string
	// PartBytes is the size of a part [16 MiB]. Larger objects are uploaded in parts and read in ranges of this size,
	// parallel [4] at a time.
	PartBytes int64
	parallel  int
	// staleAfter is the age from which an incomplete upload is taken to be that of a dead process [7 days].
	staleAfter time.Duration
	// Skipped, if set, is called by listings for each key that is not an item, with the reason. It must be safe for
	// concurrent use.
	Skipped func(key, reason string)
	// Clock, if set, is called after each response with how far the clock of the service is ahead. Both clocks may be
	// right if it is less than two seconds. It must be safe for concurrent use.
	Clock func(ahead time.Duration)
	// Transport, if set, makes the requests; CA and Proxy are then ignored.
	Transport http.RoundTripper
	now       func() time.Time // [the system clock]

	minPart int64 // minimum size of all parts except the last; tests use less than S3 allows [5 MiB]
}

// DefaultPartBytes is the default of Config.PartBytes.
const DefaultPartBytes = 16 << 20

// ReadRequests returns how many requests the reading of an object takes that is not empty.
func ReadRequests(size, partBytes int64) int64 { return max(1, (size+partBytes-1)/partBytes) }

func (c *Config) defaults() {
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.minPart = cmp.Or(c.minPart, minPart)
	c.PartBytes = max(cmp.Or(c.PartBytes, DefaultPartBytes), c.minPart)
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
		errs = append(errs, fmt.Errorf("endpoint %q: want http:// or https:// and a host, and no path", c.Endpoint))
	}
	if c.ID == "" {
		errs = append(errs, errors.New("the store has no id"))
	}
	switch {
	case c.Bucket != "" && c.BucketPrefix != "":
		errs = append(errs, errors.New("bucket and bucket_prefix exclude each other"))
	case c.Bucket == "" && c.BucketPrefix == "" && !c.ReadOnly:
		errs = append(errs, errors.New("want a bucket or a bucket_prefix"))
	case c.Bucket == "" && c.Prefix != "":
		errs = append(errs, errors.New("prefix needs a bucket"))
	}
	if !slices.Contains([]string{"", "AES256", "aws:kms"}, c.Encryption) {
		errs = append(errs, fmt.Errorf("encryption %q: want AES256 or aws:kms", c.Encryption))
	}
	return u, errors.Join(errs...)
}

// A Store is a storage.Store in an object storage service.
type Store struct {
	cfg          Config
	core         *minio.Core
	layout       layout
	pool         *digest.Pool    // of Config.digests and the checksum of most services
	http         *http.Transport // nil: Config.Transport is used
	transport    *transport
	base         atomic.Pointer[url.URL] // see requestBase
	writeBuffers *bufferPool             // of all writes
	readBuffers  *bufferPool             // of all readers, for reading ahead
	// trustedLink: a third party cannot change requests, because of TLS or a loopback connection.
	trustedLink bool

	features atomic.Pointer[Features]

	mu            sync.Mutex             // guards the fields below
	knownSpaces   map[string]time.Time   // spaces, with the time they were last seen
	freeAncestors map[location]time.Time // keys without an object, with the time of the check
	// puts counts the active Puts by space and id, and putsBelow those below each id. Used only with services that do
	// not list items below an item.
	puts, putsBelow map[location]int
	activeUploads   map[string]bool // ids of the uploads in use by this process
}

var _ storage.Store = (*Store)(nil)

// Features are the features of a service as found by Probe.
type Features struct {
	IfNoneMatch bool `json:"if_none_match"` // PUT with If-None-Match: *
	IfMatch     bool `json:"if_match"`      // PUT with If-Match
	DeleteMatch bool `json:"delete_match"`  // DELETE with If-Match
	Complete    bool `json:"complete"`      // CompleteMultipartUpload with conditions
	ETagIsMD5   bool `json:"etag_is_md5"`   // the ETag of an object put in one request is its MD5
	SHA256      bool `json:"sha256"`        // it verifies and returns x-amz-checksum-sha256
	CRC64NVME   bool `json:"crc64nvme"`     // the same for x-amz-checksum-crc64nvme, also for multipart objects
	Versions    bool `json:"versions"`      // the bucket keeps replaced objects as versions
	Atomic      bool `json:"atomic"`        // of concurrent writes with the same condition only one succeeds
	DeletesOnce bool `json:"deletes_once"`  // the same for concurrent deletes
	OddKeys     bool `json:"odd_keys"`      // a//b, a/./b and a/b are three keys, and keys may contain a zero byte
	Hides       bool `json:"hides"`         // if a exists, a/b can be put but is not listed
	CopiesParts bool `json:"copies_parts"`  // UploadPartCopy returns a checksum that proves the content
}

// New returns a Store. It makes no requests: the features of the service are unknown until Marker or Probe succeeds.
func New(cfg Config) (*Store, error) {
	u, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("s3 store: %w", err)
	}
	cfg.defaults()
	s := &Store{
		cfg: cfg, layout: newLayout(cfg),
		knownSpaces: map[string]time.Time{}, freeAncestors: map[location]time.Time{}, activeUploads: map[string]bool{},
		puts: map[location]int{}, putsBelow: map[location]int{},
		writeBuffers: newBufferPool(cfg.PartBytes, 2*cfg.parallel), readBuffers: newBufferPool(cfg.PartBytes, 2*cfg.parallel),
	}
	s.trustedLink = u.Scheme == "https" || u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
	if s.pool, err = digest.NewPool(append(slices.Clone(cfg.digests), digest.CRC64NVME)...); err != nil {
		return nil, err
	}
	if s.core, err = s.newClient(u); err != nil {
		return nil, fmt.Errorf("s3 store: %w", err)
	}
	s.features.Store(new(Features))
	return s, nil
}

// Features returns the known features of the service: all false until Probe or Marker succeeds.
func (s *Store) Features() Features { return *s.features.Load() }

// Close closes idle connections.
func (s *Store) Close() error {
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
	return nil
}

// Capabilities implements storage.Store. They are those of a minimal service until Probe or Marker succeeds.
func (s *Store) Capabilities() storage.Capabilities {
	f := s.features.Load()
	var sourceFrom int64
	if f.CopiesParts {
		sourceFrom = s.cfg.PartBytes + 1 // the smallest multipart upload
	}
	return storage.Capabilities{
		Kind: "s3", TimeResolution: time.Second,
		ConditionalPut: f.IfNoneMatch && f.IfMatch && f.Atomic, ConditionalDelete: f.DeleteMatch && f.DeletesOnce,
		UniqueVersions: f.Versions, KeepsReplaced: true, Digests: slices.Clone(s.cfg.digests), ReadOnly: s.cfg.ReadOnly,
		MaxItemBytes: maxObject, MaxPropertyBytes: maxMetadata, MinSourceBytes: sourceFrom,
	}
}

// Limits of S3, in bytes except maxParts.
const (
	maxObject   = 5 << 40
	maxSingle   = 5 << 30 // of an object put or copied in one request
	maxParts    = 10_000
	minPart     = 5 << 20 // of a part, except the last one
	maxMetadata = 2 << 10 // names and values of user metadata
)
