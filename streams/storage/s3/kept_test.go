package s3

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// filled returns a store with the space s.
func filled(t *testing.T, o s3test.Options, edit ...func(*Config)) (*Store, *s3test.Server) {
	t.Helper()
	srv := server(t, o)
	s := open(t, srv, edit...)
	must(t, s.CreateSpace(t.Context(), storage.Space{Name: "s"}))
	return s, srv
}

func putText(t *testing.T, s *Store, item, text string) {
	t.Helper()
	if _, err := s.Put(t.Context(), "s", item, strings.NewReader(text),
		storage.PutOptions{Size: int64(len(text)), KeepReplaced: true}); err != nil {
		t.Fatal(err)
	}
}

func keptTexts(t *testing.T, s *Store, items ...string) (texts []string) {
	t.Helper()
	for k, err := range s.Kept(t.Context(), "s", items) {
		must(t, err)
		r, _, err := s.OpenKept(t.Context(), storage.KeptRef{Space: "s", Item: k.Object.Item, ID: k.ID})
		must(t, err)
		b, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, k.Object.Item+"="+string(b))
	}
	return texts
}

// The versions of a few items are found between many others without reading all of them.
func TestKeptAmongManyOthers(t *testing.T) {
	s, _ := filled(t, s3test.Options{Versions: true})
	bucket, prefix, err := s.layout.space("s")
	must(t, err)
	for i := range maxSkipped + 1500 { // in the way of a common listing
		if _, err := s.core.PutObject(t.Context(), bucket, fmt.Sprintf("%sm%05d", prefix, i), bytes.NewReader(nil), 0, "", "",
			minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, item := range []string{"a", "m", "z", "z/below"} {
		putText(t, s, item, "one")
		putText(t, s, item, "two")
	}
	if _, err := s.Delete(t.Context(), "s", "z", storage.DeleteOptions{KeepDeleted: true}); err != nil {
		t.Fatal(err)
	}
	got := keptTexts(t, s, "a", "m", "none", "z", "zz")
	if want := []string{"a=one", "m=one", "z=one", "z=two"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A version from before versioning has the id null, and is read in ranges of that version.
func TestKeptNullVersion(t *testing.T) {
	o := s3test.Options{}
	s, srv := filled(t, o, func(c *Config) { c.PartBytes = testPart })
	large := strings.Repeat("from before ", testPart/5)
	putText(t, s, "a", large)
	srv.Version(true)
	must(t, s.Probe(t.Context()))
	bucket, key, err := s.itemKey("s", "a")
	must(t, err)
	if _, err := s.core.PutObject(t.Context(), bucket, key, strings.NewReader("now"), 3, "", "",
		minio.PutObjectOptions{}); err != nil { // by another program: nothing is quarantined
		t.Fatal(err)
	}
	if got := keptTexts(t, s, "a"); len(got) != 1 || got[0] != "a="+large {
		t.Errorf("got %d texts, want the one from before", len(got))
	}
	putText(t, s, "a", "later")
	got := keptTexts(t, s, "a")
	slices.Sort(got)
	if want := []string{"a=" + large, "a=now"}; !slices.Equal(got, want) {
		t.Errorf("got %.40q, want the null version and the one replaced", got)
	}
}

// A delete marker that is a second older than the version that it deletes does not change the order of the versions.
func TestKeptOfAnEarlierMarker(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2026, 3, 4, 5, 6, second, 0, time.UTC) }
	kept := keptOf("i", []minio.ObjectInfo{
		{VersionID: "marker", LastModified: at(24), IsLatest: true, IsDeleteMarker: true},
		{VersionID: "one", LastModified: at(24), Size: 3}, {VersionID: "two", LastModified: at(25)},
	})
	var got []string
	for _, k := range kept {
		got = append(got, fmt.Sprint(k.Object.Version, " ", k.Reason, " ", k.At.Second()))
	}
	if want := []string{"one replaced 25", "two deleted 25"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A version that a lifecycle rule removes between listing and opening is absent.
func TestKeptExpires(t *testing.T) {
	for name, o := range map[string]s3test.Options{"versions": {Versions: true}, "quarantine": {}} {
		t.Run(name, func(t *testing.T) {
			s, _ := filled(t, o)
			putText(t, s, "a", "one")
			putText(t, s, "a", "two")
			for k, err := range s.Kept(t.Context(), "s", []string{"a"}) {
				must(t, err)
				ref := storage.KeptRef{Space: "s", Item: "a", ID: k.ID}
				at, err := s.locateKept(ref)
				if err == nil {
					err = s.core.RemoveObject(t.Context(), at.bucket, at.key,
						minio.RemoveObjectOptions{VersionID: at.versionID})
				}
				must(t, err)
				_, _, open := s.OpenKept(t.Context(), ref)
				_, stat := s.StatKept(t.Context(), ref)
				if !errors.Is(open, storage.ErrNotFound) || !errors.Is(stat, storage.ErrNotFound) {
					t.Errorf("OpenKept: %v, StatKept: %v, want ErrNotFound", open, stat)
				}
			}
			if got := keptTexts(t, s, "a"); len(got) != 0 {
				t.Errorf("left is %q", got)
			}
		})
	}
}

// A service that fails is no absence.
func TestKeptUnknown(t *testing.T) {
	for _, o := range []s3test.Options{{Versions: true}, {}} {
		s, _ := filled(t, o)
		putText(t, s, "a", "one")
		putText(t, s, "a", "two")
		var ids []string
		for k, err := range s.Kept(t.Context(), "s", []string{"a"}) {
			must(t, err)
			ids = append(ids, k.ID)
		}
		away := openKnown(t, server(t, o), s.features.Load(), func(c *Config) { c.Transport = refusing{} })
		var last error
		for _, err := range away.Kept(t.Context(), "s", []string{"a"}) {
			last = err
		}
		_, _, open := away.OpenKept(t.Context(), storage.KeptRef{Space: "s", Item: "a", ID: ids[0]})
		for call, err := range map[string]error{"Kept": last, "OpenKept": open} {
			if err == nil || isAbsent(err) {
				t.Errorf("%s: got %v, want an error that is no absence", call, err)
			}
		}
	}
}

// refusing refuses all requests as a service does whose credentials are wrong.
type refusing struct{}

func (refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{}, Request: r,
		Body: io.NopCloser(strings.NewReader("<Error><Code>AccessDenied</Code></Error>"))}, nil
}

// A quarantined object has the properties and the digests of the item, and its original version.
func TestKeptQuarantineDescribes(t *testing.T) {
	s, _ := filled(t, s3test.Options{})
	o, err := s.Put(t.Context(), "s", "a", strings.NewReader("one"), storage.PutOptions{Size: 3,
		Properties: storage.Properties{MediaType: "text/plain", User: map[string]string{"k": "ä"}}})
	must(t, err)
	putText(t, s, "a", "two")
	for k, err := range s.Kept(t.Context(), "s", []string{"a"}) {
		must(t, err)
		full, err := s.StatKept(t.Context(), storage.KeptRef{Space: "s", Item: "a", ID: k.ID})
		if err != nil || full.Object.Version != o.Version || !full.Object.Modified.IsZero() || !full.Expires ||
			full.Object.Digests.Compare(o.Digests) != digest.Agree || full.Object.Properties.User["k"] != "ä" ||
			full.Object.Properties.MediaType != "text/plain" || k.Object.Version != o.Version {
			t.Errorf("got %+v, %v, want what %+v was", full, err, o)
		}
	}
}

// Quarantined objects of a held space stay.
func TestExpireHolds(t *testing.T) {
	s, _ := filled(t, s3test.Options{})
	putText(t, s, "a", "one")
	putText(t, s, "a", "two")
	for _, tt := range []struct {
		held string
		want storage.Expired
	}{{"s", storage.Expired{Held: 1}}, {"other", storage.Expired{Retained: 1, Bytes: 3}}} {
		done, err := s.Expire(t.Context(), storage.ExpireOptions{RetainedBefore: time.Now().Add(time.Hour),
			Hold: func(space string) bool { return space == tt.held }})
		if err != nil || done != tt.want {
			t.Errorf("with %q held: got %+v, %v, want %+v", tt.held, done, err, tt.want)
		}
	}
}
