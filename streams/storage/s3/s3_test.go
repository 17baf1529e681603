package s3

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
	"github.com/millrace/millrace/streams/storage/storagetest"
)

const (
	testBucket = "archive"
	testPart   = 128 << 10 // minimum size of parts, in bytes
)

func server(t testing.TB, o s3test.Options) *s3test.Server {
	t.Helper()
	o.MinPart = testPart
	srv := s3test.New(o)
	t.Cleanup(srv.Close)
	return srv
}

// open returns a store that has probed its server.
func open(t testing.TB, srv *s3test.Server, edit ...func(*Config)) *Store {
	t.Helper()
	s := openKnown(t, srv, new(Features), edit...)
	if !s.cfg.ReadOnly {
		must(t, s.Probe(t.Context()))
	}
	return s
}

// factsOf returns the features that Probe finds for a server with these options.
func factsOf(o s3test.Options) Features {
	holds, sums := !o.NoConditions, !o.NoChecksums
	return Features{
		IfNoneMatch: holds, IfMatch: holds, DeleteMatch: holds, Complete: holds, Atomic: holds, DeletesOnce: holds,
		ETagIsMD5: !o.OddETags, SHA256: sums, CRC64NVME: sums, Versions: o.Versions, OddKeys: !o.CleanKeys,
		Hides:       o.HideBelow,
		CopiesParts: sums || !o.OddETags,
	}
}

// openKnown returns a store with the features f of its server, without a probe.
func openKnown(t testing.TB, srv *s3test.Server, f *Features, edit ...func(*Config)) *Store {
	t.Helper()
	cfg := Config{ID: "acme/1", Endpoint: srv.URL(), Bucket: testBucket, PathStyle: true,
		Credentials: Credentials{AccessKey: "key", SecretKey: "secret"}, minPart: testPart}
	for _, e := range edit {
		e(&cfg)
	}
	s, err := New(cfg)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	if cfg.Bucket != "" {
		_ = s.makeBucket(t.Context(), cfg.Bucket) // or it is there
	} else {
		bucket, _ := s.layout.control()
		_ = s.makeBucket(t.Context(), bucket)
	}
	s.features.Store(f)
	return s
}

// The contract, on services with different features.
func TestContract(t *testing.T) {
	versions := []string{"PutVersions", "OpenPinned", "OpenWhileChange", "Delete", "Properties", "SpaceErrors",
		"RaceReplace", "RaceDelete", "Kept", "KeptOddIDs"}
	conditions := []string{"PutCondition", "Properties", "Delete", "Keep", "RacePut", "RaceReplace", "RaceDelete"}
	sums := []string{"Put", "PutLarge", "PutDigests", "PutBroken", "List", "Keep"}
	for name, tt := range map[string]struct {
		o    s3test.Options
		only []string // the parts that depend on the missing features; make integration runs all parts
	}{
		"all":           {},
		"no conditions": {s3test.Options{NoConditions: true}, conditions},
		"no checksums":  {s3test.Options{NoChecksums: true}, sums},
		"odd ETags":     {s3test.Options{OddETags: true}, sums},
		"versions":      {s3test.Options{Versions: true}, versions},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if need.Amount(0, 1, 1) > 0 {
				tt.only = nil
			}
			o, srv := tt.o, server(t, tt.o)
			var n atomic.Int64
			prefix := func(c *Config) {
				if c.Prefix, c.PartBytes = fmt.Sprintf("p%d", n.Add(1)), testPart; name != "all" {
					through(srv)(c)
				}
			}
			except := []string{}
			if name != "all" { // TestPutFromSource has what they do
				except = append(except, "PutSource")
			}
			if o.Versions { // the bucket keeps what is replaced, and whatever else
				except = append(except, "Keep")
			}
			facts := open(t, srv, prefix).Features()
			storagetest.Run(t, func(t *testing.T) storage.Store { return openKnown(t, srv, &facts, prefix) },
				storagetest.Only(tt.only...), storagetest.Except(except...),
				storagetest.WithKept(func(t *testing.T, s storage.Store, space, item string) (all [][]byte) {
					at := s.(*Store).layout.prefix + controlPrefix + "kept/" + escape(space) + "/" + hashName(item) + "/"
					for _, key := range srv.Keys(testBucket, at) {
						b, _ := srv.Object(testBucket, key)
						all = append(all, b)
					}
					return all
				}),
				storagetest.WithTwin(func(t *testing.T, s storage.Store, id string) storage.Store {
					cfg := s.(*Store).cfg
					return openKnown(t, srv, &facts, func(c *Config) {
						*c = cfg
						if id != "" {
							c.ID = id
						}
					})
				}),
				storagetest.WithRefused(func(item string, _ []string) bool { return len(item) > storage.MaxItemID-30 }))
		})
	}
}

// Ids that a service would confuse with others are refused, if it treats keys as paths or hides objects below others.
func TestContractOfOddServices(t *testing.T) {
	for name, tt := range map[string]struct {
		o       s3test.Options
		refuses func(item string, beside []string) bool
		only    []string
	}{
		"keys are paths": {s3test.Options{CleanKeys: true}, func(item string, _ []string) bool { return isOddKey(item) },
			[]string{"OddIDs", "Nesting", "List"}},
		"hides": {s3test.Options{CleanKeys: true, HideBelow: true},
			func(item string, beside []string) bool {
				return isOddKey(item) || nests(item, beside)
			}, []string{"OddIDs", "RaceNeighbours"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := server(t, tt.o)
			var n atomic.Int64
			facts := open(t, srv, through(srv)).Features()
			if need.Amount(0, 1, 1) > 0 {
				tt.only = []string{"OddIDs", "Nesting", "List", "RaceNeighbours", "Put", "SpaceErrors", "BadNames"}
			}
			storagetest.Run(t, func(t *testing.T) storage.Store {
				return openKnown(t, srv, &facts, through(srv), func(c *Config) { c.Prefix = fmt.Sprintf("p%d", n.Add(1)) })
			}, storagetest.Only(tt.only...),
				storagetest.WithRefused(func(item string, beside []string) bool {
					return len(item) > storage.MaxItemID-30 || tt.refuses(item, beside)
				}))
		})
	}
}

// nests reports whether an item is below or above another one.
func nests(item string, beside []string) bool {
	return slices.ContainsFunc(beside, func(other string) bool {
		return strings.HasPrefix(item, other+"/") || strings.HasPrefix(other, item+"/")
	})
}

// An id cannot lead out of its space.
func TestNoWayOut(t *testing.T) {
	srv := server(t, s3test.Options{CleanKeys: true})
	s := open(t, srv)
	for _, name := range []string{"mine", "theirs"} {
		must(t, s.CreateSpace(t.Context(), storage.Space{Name: name}))
	}
	_, err := s.Put(t.Context(), "mine", "../theirs/item", strings.NewReader("x"),
		storage.PutOptions{Size: storage.UnknownSize})
	if !errors.Is(err, storage.ErrName) {
		t.Errorf("Put: got %v, want ErrName", err)
	}
	if _, err := s.Stat(t.Context(), "theirs", "item"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Stat in the other space: got %v, want ErrNotFound", err)
	}
}

// The contract with a bucket for each space.
func TestContractOfBuckets(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(t *testing.T) storage.Store {
		return open(t, server(t, s3test.Options{}), func(c *Config) { c.Bucket, c.BucketPrefix = "", "acme-" })
	}, storagetest.WithRefusedSpaces(func(name string) bool {
		return !isBucket("acme-" + name)
	}), storagetest.Only("Spaces", "SpaceErrors", "Marker"))
}

// unescape is the inverse of escape for all names.
func TestEscape(t *testing.T) {
	for _, name := range []string{"a", "a/b", ".", "..", ".millrace", "%2F", "Ä", "with space", strings.Repeat("é", 100)} {
		piece := escape(name)
		if back, ok := unescape(piece); !ok || back != name || strings.ContainsAny(piece, "/ ") || piece[0] == '.' {
			t.Errorf("%q became %q and came back as %q (%t)", name, piece, back, ok)
		}
	}
	for _, piece := range []string{"", "%2f", "%", "a b", ".hidden", "%41"} {
		if name, ok := unescape(piece); ok {
			t.Errorf("%q is taken for %q", piece, name)
		}
	}
}

func TestProbe(t *testing.T) {
	for name, o := range map[string]s3test.Options{
		"all": {}, "no conditions": {NoConditions: true}, "no checksums": {NoChecksums: true}, "odd ETags": {OddETags: true},
		"versions": {Versions: true}, "keys are paths": {CleanKeys: true}, "hides": {HideBelow: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := server(t, o)
			s := open(t, srv, through(srv))
			want := factsOf(o)
			if got := *s.features.Load(); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if left := srv.Keys(testBucket, ""); len(left) > 0 || srv.Uploads() > 0 {
				t.Errorf("the probe left %q and %d uploads", left, srv.Uploads())
			}
			must(t, s.WriteMarker(t.Context()))
			again, err := New(s.cfg)
			must(t, err)
			if err := again.Marker(t.Context()); err != nil || *again.features.Load() != want {
				t.Errorf("by its marker (%v): got %+v, want %+v", err, *again.features.Load(), want)
			}
		})
	}
}

// The service refuses bytes that are damaged in transit, and stores nothing.
func TestDamagedOnTheWay(t *testing.T) {
	for name, o := range map[string]s3test.Options{"checksums": {}, "none": {NoChecksums: true}} {
		t.Run(name, func(t *testing.T) {
			var damage atomic.Bool
			o.Before = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/item") && damage.Load() {
					r.Body = &flip{r.Body}
				}
				return false
			}
			srv := server(t, o)
			s := open(t, srv)
			must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
			damage.Store(true)
			_, err := s.Put(t.Context(), "s", "item", strings.NewReader("some bytes"),
				storage.PutOptions{Size: storage.UnknownSize})
			if err == nil || !strings.Contains(err.Error(), "damaged in transit") {
				t.Errorf("Put: %v", err)
			}
			if keys := srv.Keys(testBucket, "s/"); slices.Contains(keys, "s/item") {
				t.Error("damaged bytes are there")
			}
		})
	}
}

type flip struct {
	r interface {
		Read([]byte) (int, error)
		Close() error
	}
}

func (f *flip) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if n > 0 {
		b[0] ^= 1
	}
	return n, err
}

func (f *flip) Close() error { return f.r.Close() }
