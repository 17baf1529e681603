package s3

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// An Original is valid only for the item and the bytes that it was written for, not for others with the same metadata.
func TestOriginal(t *testing.T) {
	original := storage.Original{Modified: time.UnixMilli(1).UTC(), Version: `"v"`}
	none := storage.Original{}
	at := func(item string) location { return location{testBucket, "s/" + item} }
	move := func(t *testing.T, s *Store, from, to string) {
		t.Helper()
		o, err := s.Stat(t.Context(), "s", from)
		if err == nil {
			err = s.copy(t.Context(), copySource{at(from), o}, at(to))
		}
		must(t, err)
	}
	for name, tt := range map[string]struct {
		options s3test.Options
		user    map[string]string
		size    int
		harm    func(*testing.T, *Store, *s3test.Server)
		item    string // the item to stat, if it is not "item"
		want    storage.Original
	}{
		"one request": {size: 10, want: original},
		"in parts":    {size: len(plenty), want: original},
		"copied to another key": {size: 10, harm: func(t *testing.T, s *Store, _ *s3test.Server) {
			move(t, s, "item", "other")
		}, item: "other", want: none},
		"and back": {size: 10, harm: func(t *testing.T, s *Store, _ *s3test.Server) {
			move(t, s, "item", "other")
			move(t, s, "other", "item")
		}, want: original},
		"the metadata of other bytes": {size: 10, harm: func(t *testing.T, s *Store, srv *s3test.Server) {
			var was http.Header
			srv.Edit(testBucket, "s/item", func(h http.Header) { was = h.Clone() })
			must(t, put(t.Context(), s, "item", 11, storage.PutOptions{}))
			srv.Edit(testBucket, "s/item", func(h http.Header) {
				for k, v := range was {
					if strings.HasPrefix(k, metaHeader) {
						h[k] = v
					}
				}
			})
		}, want: none},
		"edited by hand": {size: 10, harm: func(_ *testing.T, _ *Store, srv *s3test.Server) {
			srv.Edit(testBucket, "s/item", func(h http.Header) { h.Set(metaHeader+originalName, "yesterday") })
		}, want: none},
		"no digest of the service's own": {options: s3test.Options{OddETags: true, NoChecksums: true}, size: 10, want: none},
		"no room beside the properties": {size: 10, user: map[string]string{"k": strings.Repeat("v", maxMetadata-160)},
			want: none},
	} {
		t.Run(name, func(t *testing.T) {
			s, srv := direct(t, tt.options)
			h, err := digest.New(digest.MD5, digest.SHA256)
			must(t, err)
			_, _ = h.Write(plenty[:tt.size])
			err = put(t.Context(), s, "item", tt.size,
				storage.PutOptions{Original: original, Digests: h.Sum(), Properties: storage.Properties{User: tt.user}})
			must(t, err)
			if tt.harm != nil {
				tt.harm(t, s, srv)
			}
			item := "item"
			if tt.item != "" {
				item = tt.item
			}
			o, err := s.Stat(t.Context(), "s", item)
			if err != nil || o.Original != tt.want || !maps.Equal(o.Properties.User, tt.user) {
				t.Errorf("got original %+v and %d properties, %v, want %+v", o.Original, len(o.Properties.User), err, tt.want)
			}
		})
	}
}
