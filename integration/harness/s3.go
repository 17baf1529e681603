package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/notification"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage/s3/s3proc"
)

// Environment variables.
const (
	// EnvS3 is the URL of a running S3 server, to use instead of those that make servers builds.
	EnvS3 = "MILLRACE_TEST_S3"
	// EnvS3Access and EnvS3Secret are its credentials, which must allow creating and deleting buckets.
	EnvS3Access = "MILLRACE_TEST_S3_ACCESS"
	EnvS3Secret = "MILLRACE_TEST_S3_SECRET" //nolint:gosec // a name
)

// The programs that make servers builds.
const (
	Versitygw = "versitygw"
	MinIO     = "minio"
	NamedS3   = "named" // the server of EnvS3
)

// S3Kinds returns the servers that tests use: the one of EnvS3, or those that make servers builds.
func S3Kinds() []string {
	if os.Getenv(EnvS3) != "" {
		return []string{NamedS3}
	}
	return []string{Versitygw, MinIO}
}

// S3Options describes the server that a test needs.
type S3Options struct {
	Kind     string // one of S3Kinds
	Own      bool   // the test breaks or configures the server, so a named one is not usable
	Versions bool   // the server supports versioning
	Env      []string
	Args     []string
}

// S3Server is an S3 server that runs until its test ends.
type S3Server struct {
	Kind                string
	URL, Access, Secret string

	cfg       s3proc.Config
	proc      *s3proc.Server // nil: named server, which tests must not break
	runPrefix string         // starts the names of all buckets
	buckets   atomic.Int64
	client    *minio.Core
}

// S3 starts a server. It skips or fails t if that is not possible.
func S3(t testing.TB, o S3Options) *S3Server {
	t.Helper()
	need.Integration(t)
	s := &S3Server{Kind: o.Kind, runPrefix: "t" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	if named := os.Getenv(EnvS3); named != "" {
		if o.Own {
			need.Missing(t, need.Server(), EnvS3+" names a server that others may use")
		}
		s.Kind, s.URL, s.Access, s.Secret = NamedS3, named, os.Getenv(EnvS3Access), os.Getenv(EnvS3Secret)
	} else {
		program, err := filepath.Abs(filepath.Join(root(t), "bin", "peers", o.Kind))
		if err != nil {
			t.Fatal(err)
		}
		s.cfg = s3proc.Config{Program: program, Dir: t.TempDir(), Versions: o.Versions, Env: o.Env, Args: o.Args}
		s.start(t)
		t.Cleanup(func() {
			if err := s.proc.Close(); err != nil {
				t.Errorf("stop %s: %v", s.Kind, err)
			}
		})
	}
	if err := s.connect(); err != nil {
		t.Fatalf("%s at %s: %v", s.Kind, s.URL, err)
	}
	if s.proc == nil {
		t.Cleanup(func() { s.cleanUp(t) })
	}
	return s
}

// root returns the module's directory. Tests run in the directory of their package.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("no go.mod above")
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("find the module: %v", err)
	return ""
}

func (s *S3Server) start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	p, err := s3proc.Start(ctx, s.cfg)
	if errors.Is(err, s3proc.ErrNotInstalled) {
		need.Missing(t, need.S3(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.proc, s.URL, s.Access, s.Secret = p, p.URL, p.Access, p.Secret
	s.cfg.Port, s.cfg.Access, s.cfg.Secret = p.Port, p.Access, p.Secret
}

func (s *S3Server) connect() error {
	u, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	s.client, err = minio.NewCore(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(s.Access, s.Secret, ""), Secure: u.Scheme == "https",
		BucketLookup: minio.BucketLookupPath,
	})
	return err
}

// Kill kills the server at once.
func (s *S3Server) Kill(t testing.TB) {
	t.Helper()
	if err := s.proc.Kill(); err != nil {
		t.Fatal(err)
	}
}

// Restart starts the server again at the same address with the same data.
func (s *S3Server) Restart(t testing.TB) {
	t.Helper()
	s.start(t)
}

// LogTail returns the end of the server's log.
func (s *S3Server) LogTail() string {
	if s.proc == nil {
		return ""
	}
	return s.proc.LogTail()
}

// NewName returns a new unique bucket name or bucket prefix of at most 20 letters and digits.
func (s *S3Server) NewName() string {
	return s.runPrefix + "n" + strconv.FormatInt(s.buckets.Add(1), 36)
}

// Bucket creates a bucket, optionally with versioning.
func (s *S3Server) Bucket(t testing.TB, name string, versions bool) {
	t.Helper()
	if err := s.client.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}); err != nil {
		t.Fatalf("create bucket: %v", err)
	}
	if !versions {
		return
	}
	if err := s.client.EnableVersioning(t.Context(), name); err != nil {
		t.Fatalf("enable versions of a bucket: %v", err)
	}
}

// Keys returns the keys in a bucket that start with prefix, sorted.
func (s *S3Server) Keys(t testing.TB, bucket, prefix string) (keys []string) {
	t.Helper()
	for o := range s.client.ListObjectsIter(t.Context(), bucket,
		minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			t.Fatalf("list bucket %s: %v", bucket, o.Err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// Uploads returns the number of unfinished multipart uploads below prefix.
func (s *S3Server) Uploads(t testing.TB, bucket, prefix string) int {
	t.Helper()
	page, err := s.client.ListMultipartUploads(t.Context(), bucket, prefix, "", "", "", 1000)
	if err != nil {
		t.Fatalf("list uploads of bucket %s: %v", bucket, err)
	}
	return len(page.Uploads)
}

// Get returns an object's bytes.
func (s *S3Server) Get(t testing.TB, bucket, key string) []byte {
	t.Helper()
	body, info, _, err := s.client.GetObject(t.Context(), bucket, key, minio.GetObjectOptions{})
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	defer body.Close()
	b := make([]byte, info.Size)
	if _, err := io.ReadFull(body, b); err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return b
}

// Put puts an object with another client than millrace.
func (s *S3Server) Put(t testing.TB, bucket, key, content string) {
	t.Helper()
	_, err := s.client.Client.PutObject(t.Context(), bucket, key, strings.NewReader(content), int64(len(content)),
		minio.PutObjectOptions{})
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
}

// PutParts puts an object in parts of 5 MiB with another client than millrace, which sends a checksum of each part.
// whole: the service also stores one of the whole object, a CRC64NVME; else that of the checksums, a SHA-256.
func (s *S3Server) PutParts(t testing.TB, bucket, key string, content []byte, whole bool) {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewStaticV4(s.Access, s.Secret, ""), Secure: u.Scheme == "https",
		BucketLookup: minio.BucketLookupPath, TrailingHeaders: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	o := minio.PutObjectOptions{PartSize: 5 << 20, Checksum: minio.ChecksumSHA256}
	if whole {
		o.Checksum = minio.ChecksumCRC64NVME
	}
	_, err = client.PutObject(t.Context(), bucket, key, bytes.NewReader(content), int64(len(content)), o)
	if err != nil {
		t.Fatalf("put %q in parts: %v", key, err)
	}
}

// Attributes returns what GetObjectAttributes reports of an object.
func (s *S3Server) Attributes(t testing.TB, bucket, key string) *minio.ObjectAttributes {
	t.Helper()
	a, err := s.client.GetObjectAttributes(t.Context(), bucket, key, minio.ObjectAttributesOptions{})
	if err != nil {
		t.Fatalf("get the attributes of %q: %v", key, err)
	}
	return a
}

// Delete deletes an object with another client than millrace.
func (s *S3Server) Delete(t testing.TB, bucket, key string) {
	t.Helper()
	if err := s.client.RemoveObject(t.Context(), bucket, key, minio.RemoveObjectOptions{}); err != nil {
		t.Fatalf("delete %q: %v", key, err)
	}
}

// Notify enables notifications about the objects of a bucket. target is the type of a target in the server's
// environment, "kafka" or "webhook", and name is its name.
func (s *S3Server) Notify(t testing.TB, bucket, target, name string) {
	t.Helper()
	c := notification.NewConfig(notification.NewArn("minio", "sqs", "", name, target))
	c.AddEvents(notification.ObjectCreatedAll, notification.ObjectRemovedAll)
	var all notification.Configuration
	all.AddQueue(c)
	if err := s.client.SetBucketNotification(t.Context(), bucket, all); err != nil {
		t.Fatalf("enable notifications of %s: %v", bucket, err)
	}
}

// cleanUp deletes the buckets of the test from a named server.
func (s *S3Server) cleanUp(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startLimit)
	defer cancel()
	all, err := s.client.ListBuckets(ctx)
	for _, b := range all {
		if strings.HasPrefix(b.Name, s.runPrefix) {
			err = cmp.Or(err, s.remove(ctx, b.Name))
		}
	}
	if err != nil {
		t.Errorf("delete buckets on %s: %v", s.URL, err)
	}
}

func (s *S3Server) remove(ctx context.Context, bucket string) error {
	all := minio.ListObjectsOptions{Recursive: true, WithVersions: true}
	for o := range s.client.ListObjectsIter(ctx, bucket, all) {
		if o.Err != nil {
			return o.Err
		}
		if err := s.client.RemoveObject(ctx, bucket, o.Key, minio.RemoveObjectOptions{VersionID: o.VersionID}); err != nil {
			return err
		}
	}
	return s.client.RemoveBucket(ctx, bucket)
}

// Assume returns temporary credentials with which only a policy's actions are allowed. The server must be MinIO.
func (s *S3Server) Assume(t testing.TB, policy string) (access, secret, token string) {
	t.Helper()
	got, err := credentials.NewSTSAssumeRole(s.URL, credentials.STSAssumeRoleOptions{
		AccessKey: s.Access, SecretKey: s.Secret, Policy: policy,
	})
	if err != nil {
		t.Fatal(err)
	}
	v, err := got.GetWithContext(nil)
	if err != nil {
		t.Fatalf("assume a role: %v", err)
	}
	return v.AccessKeyID, v.SecretAccessKey, v.SessionToken
}
