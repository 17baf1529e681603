package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/emit"
	"github.com/millrace/millrace/streams/storage/limit"
	"github.com/millrace/millrace/streams/storage/outbox"
	"github.com/millrace/millrace/streams/storage/s3"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

// realS3 is a server and the layout of the stores on it.
type realS3 struct {
	*harness.S3Server
	perSpace, versions bool

	bucket   string      // of all stores, except those with a bucket for each space
	features s3.Features // of the server, probed once
	marker   []byte      // a marker with the features
	places   atomic.Int64
}

// newRealS3 probes the features of the server.
func newRealS3(t *testing.T, server *harness.S3Server, perSpace, versions bool) *realS3 {
	t.Helper()
	r := &realS3{S3Server: server, perSpace: perSpace, versions: versions}
	if !perSpace {
		r.bucket = r.NewName()
		r.Bucket(t, r.bucket, versions)
	}
	s := openS3(t, r.config(t))
	must(t, s.WriteMarker(t.Context()))
	r.features = s.Features()
	bucket, key := s.own("marker.json")
	r.marker = r.Get(t, bucket, key)
	t.Logf("%s: %+v", r.Kind, r.features)
	return r
}

// config returns the configuration of an empty location on the server, with existing buckets.
func (r *realS3) config(t *testing.T) s3.Config {
	t.Helper()
	cfg := s3.Config{
		ID: "acme/1", Endpoint: r.URL, PathStyle: true, PartBytes: 5 << 20,
		Credentials: s3.Credentials{AccessKey: r.Access, SecretKey: r.Secret},
	}
	if r.perSpace {
		cfg.BucketPrefix = r.NewName() + "-"
		r.Bucket(t, cfg.BucketPrefix+"millrace", false)
		return cfg
	}
	cfg.Bucket, cfg.Prefix = r.bucket, fmt.Sprintf("p%d", r.places.Add(1))
	return cfg
}

// A placedS3 is a store with its configuration.
type locatedS3 struct {
	*s3.Store
	cfg s3.Config
}

func openS3(t *testing.T, cfg s3.Config) *locatedS3 {
	t.Helper()
	s, err := s3.New(cfg)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return &locatedS3{s, cfg}
}

// own returns the location of an object of the driver itself.
func (s *locatedS3) own(name string) (bucket, key string) {
	if s.cfg.Bucket == "" {
		return s.cfg.BucketPrefix + "millrace", ".millrace/" + name
	}
	return s.cfg.Bucket, s.cfg.Prefix + "/.millrace/" + name
}

func (r *realS3) open(t *testing.T) storage.Store {
	t.Helper()
	return r.at(t, r.config(t))
}

// at returns a store at a location without a marker, with the features of its server.
func (r *realS3) at(t *testing.T, cfg s3.Config) *locatedS3 {
	t.Helper()
	s := openS3(t, cfg)
	bucket, key := s.own("marker.json")
	r.Put(t, bucket, key, string(r.marker))
	must(t, s.Marker(t.Context()))
	r.Delete(t, bucket, key)
	return s
}

// spaced returns a store that has a space "s".
func (r *realS3) spaced(t *testing.T, cfg s3.Config) *locatedS3 {
	t.Helper()
	s := r.at(t, cfg)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	return s
}

// kept returns the quarantined bytes of an item.
func (r *realS3) kept(t *testing.T, s storage.Store, space, item string) (all [][]byte) {
	t.Helper()
	sum := sha256.Sum256([]byte(item))
	bucket, at := s.(*locatedS3).own("kept/" + space + "/" + hex.EncodeToString(sum[:]) + "/")
	for _, key := range r.Keys(t, bucket, at) {
		all = append(all, r.Get(t, bucket, key))
	}
	return all
}

func (r *realS3) options() []storagetest.Option {
	opts := []storagetest.Option{
		storagetest.WithKept(r.kept),
		storagetest.WithTwin(func(t *testing.T, s storage.Store, id string) storage.Store {
			cfg := s.(*locatedS3).cfg
			if id != "" {
				cfg.ID = id
				return openS3(t, cfg)
			}
			return r.at(t, cfg)
		}),
		storagetest.WithRefused(r.mayRefuse),
	}
	if r.perSpace {
		bucket := regexp.MustCompile(`^[a-z0-9][a-z0-9-]*[a-z0-9]$`)
		opts = append(opts,
			storagetest.WithRefusedSpaces(func(name string) bool { return len(name) > 40 || !bucket.MatchString("x"+name) }))
	}
	var except []string
	if r.versions { // the bucket keeps all replaced objects as versions
		except = append(except, "Keep", "PutSource")
	}
	if r.perSpace { // as in one bucket, and slow
		except = append(except, "ListLong", "PutSource")
	}
	if r.Kind == harness.Versitygw { // it answers 500 to a HEAD during a delete, and several concurrent deletes succeed
		except = append(except, "RaceDelete")
	}
	return append(opts, storagetest.Except(except...))
}

// mayRefuse reports whether S3, or a server that stores objects as files, may refuse an id.
func (r *realS3) mayRefuse(item string, beside []string) bool {
	longest := 255
	if r.Kind == harness.Versitygw {
		longest = 200 // it replaces files through a file with a longer name
	}
	pieces := strings.Split(item, "/")
	if n := len(pieces); n > 1 && pieces[n-1] == "" && len(pieces[n-2]) > longest-len("__XLDIR__") {
		return true // MinIO appends that to the last name of an id that ends in a slash
	}
	for i, p := range pieces {
		if trimmed := strings.TrimSpace(p); trimmed == "." || trimmed == ".." || p == "" && (i < len(pieces)-1 || i == 0) ||
			len(p) > longest {
			return true
		}
	}
	if item == "/" || len(item) > storage.MaxItemID-30 || strings.ContainsRune(item, 0) || strings.TrimSpace(item) == "" {
		return true
	}
	file := strings.TrimSuffix(item, "/")
	return file != item && r.Kind == harness.Versitygw || slices.ContainsFunc(beside, func(other string) bool {
		other = strings.TrimSuffix(other, "/")
		return file == other || strings.HasPrefix(file, other+"/") || strings.HasPrefix(other, file+"/")
	})
}

// TestS3Contract runs the store contract on servers, in both layouts, with and without versioning.
func TestS3Contract(t *testing.T) {
	t.Parallel()
	for _, kind := range harness.S3Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := harness.S3(t, harness.S3Options{Kind: kind, Versions: true})
			for name, as := range map[string]struct{ perSpace, versions bool }{
				"one bucket":                {},
				"one bucket, with versions": {versions: true},
				"a bucket for each space":   {perSpace: true},
			} {
				t.Run(name, func(t *testing.T) {
					r := newRealS3(t, server, as.perSpace, as.versions)
					storagetest.Run(t, r.open, r.options()...)
				})
			}
		})
	}
}

// TestS3Decorators runs a part of the contract through each decorator on a server.
func TestS3Decorators(t *testing.T) {
	t.Parallel()
	r := newRealS3(t, harness.S3(t, harness.S3Options{Kind: harness.S3Kinds()[0]}), false, false)
	opts := []storagetest.Option{
		storagetest.WithRefused(r.mayRefuse),
		storagetest.Only("Put", "PutCondition", "PutDigests", "PutBroken", "OpenPinned", "List", "Delete", "Properties",
			"SpaceErrors"),
	}
	for name, around := range map[string]func(t *testing.T, s storage.Store) storage.Store{
		"emit": func(t *testing.T, s storage.Store) storage.Store {
			box, err := outbox.Open(outbox.Config{Dir: t.TempDir()})
			must(t, err)
			e, err := emit.New(s, emit.Config{Account: "acme", Store: "1", Unmarked: true, Outbox: box}, &memoryPublisher{})
			must(t, err)
			return e
		},
		"limit": func(_ *testing.T, s storage.Store) storage.Store {
			rates := limit.Rates{Concurrency: 4, RequestsPerSecond: 1e5, BytesPerSecond: 1e10}
			return limit.New(s, limit.NewBreaker(limit.Config{Threshold: 1, Open: time.Hour}),
				limit.NewThrottle(rates, nil))
		},
		"faults": func(_ *testing.T, s storage.Store) storage.Store { return storagetest.NewFaulty(s) },
	} {
		t.Run(name, func(t *testing.T) {
			storagetest.Run(t, func(t *testing.T) storage.Store { return around(t, r.open(t)) }, opts...)
		})
	}
	t.Run("readonly", func(t *testing.T) {
		storagetest.RunReadOnly(t, func(t *testing.T, spaces map[string]map[string]string) storage.Store {
			s := r.at(t, r.config(t))
			must(t, s.WriteMarker(t.Context()))
			for name, items := range spaces {
				must(t, s.CreateSpace(t.Context(), storage.Space{Name: name}))
				for item, content := range items {
					if _, err := s.Put(t.Context(), name, item, strings.NewReader(content),
						storage.PutOptions{Size: int64(len(content))}); err != nil {
						t.Fatal(err)
					}
				}
			}
			return storage.ReadOnly(s)
		}, storagetest.WithRefused(r.mayRefuse), storagetest.Only("Refuses", "BadNames"))
	})
}
