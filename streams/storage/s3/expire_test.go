package s3

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// Expire aborts stale uploads, also below .millrace, and removes expired objects from quarantine, in both layouts.
func TestExpire(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"one bucket":              func(c *Config) { c.Prefix = "p" },
		"a bucket for each space": func(c *Config) { c.Bucket, c.BucketPrefix = "", "acme-" },
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			srv := server(t, s3test.Options{})
			s := open(t, srv, edit, func(c *Config) { c.now = func() time.Time { return now } })
			ctx := t.Context()
			put := func(space, text string) {
				t.Helper()
				o := storage.PutOptions{Size: int64(len(text)), KeepReplaced: true}
				if _, err := s.Put(ctx, space, "a-b", strings.NewReader(text), o); err != nil {
					t.Fatal(err)
				}
			}
			for _, space := range []string{"one", "two"} {
				must(t, s.CreateSpace(ctx, storage.Space{Name: space}))
				put(space, "first")
				put(space, "second") // quarantines "first"
				bucket, key, err := s.layout.item(space, "large")
				if err == nil {
					_, err = s.core.NewMultipartUpload(ctx, bucket, key, minio.PutObjectOptions{})
				}
				must(t, err)
			}
			bucket, own := s.layout.control()
			for _, name := range []string{"kept/one/cut", "probe/cut"} { // processes that ended while they copied
				at := location{bucket, own + name}
				if _, err := s.core.NewMultipartUpload(ctx, at.bucket, at.key, minio.PutObjectOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			must(t, s.putControl(ctx, "kept/one/theirs", []byte("not ours")))
			now = now.Add(40 * 24 * time.Hour)
			put("one", "third") // quarantines "second"

			s.cfg.staleAfter = 24 * time.Hour
			begun := time.Now()
			s.cfg.now = func() time.Time { return begun } // by which uploads are young
			done, err := s.Expire(ctx, storage.ExpireOptions{})
			if err != nil || done != (storage.Expired{}) || srv.Uploads() != 4 {
				t.Errorf("nothing is of no use: %+v, %v, %d uploads", done, err, srv.Uploads())
			}
			s.cfg.staleAfter = -time.Hour // by which all are old
			want, reported := storage.Expired{Uploads: 4, Retained: 2, Bytes: 10}, storage.Expired{}
			each := func(more storage.Expired) { reported.Add(storage.ExpireOptions{}, more) }
			before := now.Add(-30 * 24 * time.Hour)
			done, err = s.Expire(ctx, storage.ExpireOptions{RetainedBefore: before, Each: each})
			if err != nil || done != want || reported != want || srv.Uploads() != 0 {
				t.Errorf("got %+v, reported %+v, %v, %d uploads are left; want %+v", done, reported, err, srv.Uploads(), want)
			}
			var texts []string
			for _, key := range srv.Keys(bucket, own+"kept/") {
				b, _ := srv.Object(bucket, key)
				texts = append(texts, string(b))
			}
			if got := strings.Join(texts, ","); got != "second,not ours" && got != "not ours,second" {
				t.Errorf("kept are %q, want what is young and what others have put there", got)
			}
			if o, err := s.Stat(ctx, "one", "a-b"); err != nil || o.Size != 5 {
				t.Errorf("the item is %+v, %v", o, err)
			}
		})
	}
}

// A failed listing is not an empty one, and Expire also returns the removals before the error.
func TestExpireFails(t *testing.T) {
	broken := ""
	srv := server(t, s3test.Options{Before: func(w http.ResponseWriter, r *http.Request) bool {
		q := r.URL.Query()
		if broken == "" || !(broken == "uploads" && q.Has("uploads") ||
			broken == "kept" && strings.Contains(q.Get("prefix"), "kept/")) {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>No.</Message></Error>`))
		return true
	}})
	s := open(t, srv)
	ctx := t.Context()
	must(t, s.CreateSpace(ctx, storage.Space{Name: "one"}))
	for _, text := range []string{"1", "22"} {
		if _, err := s.Put(ctx, "one", "a", strings.NewReader(text),
			storage.PutOptions{Size: int64(len(text)), KeepReplaced: true}); err != nil {
			t.Fatal(err)
		}
	}
	later := time.Now().Add(time.Hour)
	broken = "kept"
	done, err := s.Expire(ctx, storage.ExpireOptions{RetainedBefore: later})
	if err == nil || errors.Is(err, storage.ErrNoSpace) || done != (storage.Expired{}) {
		t.Errorf("what is kept cannot be listed: %+v, %v", done, err)
	}
	broken = "uploads"
	if done, err := s.Expire(ctx, storage.ExpireOptions{RetainedBefore: later}); err == nil ||
		done != (storage.Expired{Retained: 1, Bytes: 1}) {
		t.Errorf("uploads cannot be listed: %+v, %v, want what is kept removed all the same", done, err)
	}
}

func TestQuarantinedAt(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)
	for key, want := range map[string]time.Time{
		"p/.millrace/kept/s/abc/20260301T120000.000000005Z-etag": at,
		"p/.millrace/kept/s/abc/20260301T120000.000000005Z-e-2":  at,
		"p/.millrace/kept/s/abc/20260301T120000.000000005Z":      {},
		"p/.millrace/kept/s/abc/20260301T120000.000000005Z-":     {},
		"p/.millrace/kept/s/abc/20261301T120000.000000005Z-etag": {},
		"p/.millrace/kept/s/abc/etag":                            {},
		"":                                                       {},
	} {
		if got, ok := quarantinedAt(key); ok != !want.IsZero() || ok && !got.Equal(want) {
			t.Errorf("keptAt(%q) = %v, %t, want %v", key, got, ok, want)
		}
	}
}
