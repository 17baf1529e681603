package storagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

func (x *suite) put(t *testing.T) {
	s := x.store(t)
	for name, content := range map[string]string{
		"empty": "", "one byte": "x", "text": "some text\n", "zeros": "\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			before := time.Now().Add(-time.Minute)
			p := storage.Properties{MediaType: "text/plain; charset=utf-8",
				User: map[string]string{"Title": "é\n", "": "v", "k": ""}}
			if s.Capabilities().FoldsPropertyCase {
				p.User = map[string]string{"title": "v", "k": "w"}
			}
			o := put(t, s, name, content, func(o *storage.PutOptions) {
				o.Properties, o.Size, o.Compute = p, int64(len(content)), []string{digest.MD5, digest.SHA256, digest.SHA1}
			})
			if got := o.Digests.Only(digest.MD5, digest.SHA256); !maps.Equal(got, sums(content)) ||
				o.Digests[digest.SHA1] == "" {
				t.Errorf("Put: got digests %v, want %v and a sha1", o.Digests, sums(content))
			}
			if o.Modified.Before(before) {
				t.Errorf("Put: got time %v, want one after %v", o.Modified, before)
			}
			stat := has(t, s, name, content)
			if got := stat.Digests.Only(s.Capabilities().Digests...); len(got) != len(s.Capabilities().Digests) {
				t.Errorf("Stat: got digests %v, want those of %v", got, s.Capabilities().Digests)
			}
			if stat.Properties.MediaType != p.MediaType || !maps.Equal(stat.Properties.User, p.User) {
				t.Errorf("Stat: got properties %q, want %q", stat.Properties, p)
			}
			stat.Digests, o.Digests = nil, nil
			same(t, "Put", o, stat)
		})
	}
	_, err := tryPut(t, s, "i", "x", func(o *storage.PutOptions) { o.Compute = []string{"crc0"} })
	if !errors.Is(err, storage.ErrUnsupported) {
		t.Errorf("Put that computes an unknown algorithm: got %v, want ErrUnsupported", err)
	}
	lacks(t, s, "i")
}

func (x *suite) putLarge(t *testing.T) {
	s := x.store(t)
	content := strings.Repeat("0123456789abcde\n", 100_000) // 1.6 MB
	o := storage.PutOptions{Size: int64(len(content)), Digests: sums(content)}
	// A reader that returns few bytes at a time, and the last ones together with io.EOF.
	r := iotest.DataErrReader(iotest.HalfReader(strings.NewReader(content)))
	if _, err := s.Put(t.Context(), space, "large", r, o); err != nil {
		t.Fatalf("Put: %v", err)
	}
	has(t, s, "large", content)
}

func (x *suite) putCondition(t *testing.T) {
	s := x.store(t)
	_, err := tryPut(t, s, "d/a", "one", version("no such version"))
	wantErr(t, "Put on a version of an absent item", err, storage.ErrNotFound)
	lacks(t, s, "d/a")
	one := put(t, s, "d/a", "one", absent)
	_, err = tryPut(t, s, "d/a", "two", absent)
	wantErr(t, "Put where it must be absent", err, storage.ErrExists)
	same(t, "Stat", has(t, s, "d/a", "one"), one)
	two := put(t, s, "d/a", "two", version(one.Version))
	_, err = tryPut(t, s, "d/a", "three", version(one.Version))
	wantErr(t, "Put on an old version", err, storage.ErrChanged)
	has(t, s, "d/a", "two")
	if two.Version == one.Version || !two.Modified.After(one.Modified) &&
		s.Capabilities().TimeResolution <= time.Millisecond {
		t.Errorf("got version %q of %v after %q of %v, want a new and later one", two.Version, two.Modified, one.Version,
			one.Modified)
	}
}

// putVersions replaces an item quickly: each version differs from all before, also after a delete and, with
// UniqueVersions, for the same bytes.
func (x *suite) putVersions(t *testing.T) {
	s := x.store(t)
	seen := map[string]bool{}
	for i := range 50 {
		content := "same"
		if !s.Capabilities().UniqueVersions {
			content = fmt.Sprint("other ", i)
		}
		o := put(t, s, "i", content)
		if seen[o.Version] {
			t.Fatalf("version %q came twice", o.Version)
		}
		seen[o.Version] = true
		if i%5 == 0 {
			if _, err := s.Delete(t.Context(), space, "i", storage.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (x *suite) putDigests(t *testing.T) {
	s := x.store(t)
	wrong := sums("other")
	both := sums("good")
	both[digest.SHA256] = wrong[digest.SHA256]
	boom := errors.New("boom")
	const unknownAlgorithm = "crc0" // not computed by any store
	unknown := digest.Set{unknownAlgorithm: "0011223344556677"}
	tests := map[string]struct {
		edit func(*storage.PutOptions)
		want error
	}{
		"all wrong": {func(o *storage.PutOptions) { o.Digests = wrong }, storage.ErrDigest},
		"one wrong": {func(o *storage.PutOptions) { o.Digests = both }, storage.ErrDigest},
		"sha1 wrong": {func(o *storage.PutOptions) { o.Digests = digest.Set{digest.SHA1: strings.Repeat("0", 40)} },
			storage.ErrDigest},
		"shorter":            {func(o *storage.PutOptions) { o.Size = 5 }, storage.ErrDigest},
		"longer":             {func(o *storage.PutOptions) { o.Size = 3 }, storage.ErrDigest},
		"not empty":          {func(o *storage.PutOptions) { o.Size = 0 }, storage.ErrDigest},
		"nothing to compare": {func(o *storage.PutOptions) { o.Digests = unknown }, storage.ErrUnsupported},
		"refused by Verify": {func(o *storage.PutOptions) { o.Verify = func(digest.Set, int64) error { return boom } },
			boom},
	}
	for name, tt := range tests {
		for _, before := range []string{"", "old"} {
			t.Run(name+" over "+before, func(t *testing.T) {
				item := name + "/" + before
				if before != "" {
					put(t, s, item, before)
				}
				_, err := tryPut(t, s, item, "good", tt.edit)
				wantErr(t, "Put", err, tt.want)
				if before == "" {
					lacks(t, s, item)
				} else {
					has(t, s, item, before)
				}
			})
		}
	}
	var got digest.Set
	var size int64
	o := put(t, s, "good", "good", func(o *storage.PutOptions) {
		o.Digests = sums("good").Union(unknown)
		o.Verify = func(d digest.Set, n int64) error {
			got, size = maps.Clone(d), n
			if _, err := s.Stat(t.Context(), space, "good"); !errors.Is(err, storage.ErrNotFound) {
				t.Errorf("Stat while Verify judges: got %v, want ErrNotFound", err)
			}
			return nil
		}
	})
	if got.Compare(sums("good")) != digest.Agree || got[unknownAlgorithm] != "" || size != 4 {
		t.Errorf("Verify was told %v and %d, want what was computed of the stream", got, size)
	}
	if o.Digests[unknownAlgorithm] != unknown[unknownAlgorithm] {
		t.Errorf("Put: got %v, want the digest that was told too", o.Digests)
	}
	has(t, s, "good", "good")
}

// putBroken breaks streams at every stage: the old bytes stay, or the item stays absent.
func (x *suite) putBroken(t *testing.T) {
	s := x.store(t)
	boom := errors.New("boom")
	content := strings.Repeat("x", 300<<10)
	for name, n := range map[string]int{"at once": 0, "after a byte": 1, "late": 200 << 10, "at the end": len(content)} {
		for _, before := range []string{"", "old"} {
			t.Run(name+" over "+before, func(t *testing.T) {
				item := "d/" + name + before
				if before != "" {
					put(t, s, item, before)
				}
				r := FailingReader(strings.NewReader(content), n, boom)
				_, err := s.Put(t.Context(), space, item, r, storage.PutOptions{Size: storage.UnknownSize})
				wantErr(t, "Put", err, boom)
				if before == "" {
					lacks(t, s, item)
				} else {
					has(t, s, item, before)
				}
			})
		}
	}
	t.Run("an error that wraps EOF", func(t *testing.T) {
		r := FailingReader(strings.NewReader(content), 1000, fmt.Errorf("connection: %w", io.EOF))
		_, err := s.Put(t.Context(), space, "d/eof", r, storage.PutOptions{Size: storage.UnknownSize})
		wantErr(t, "Put", err, io.EOF)
		lacks(t, s, "d/eof")
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r := io.MultiReader(strings.NewReader(content), readerFunc(func(p []byte) (int, error) {
			cancel(boom)
			return copy(p, "more"), nil
		}))
		_, err := s.Put(ctx, space, "d/cancelled", r, storage.PutOptions{Size: storage.UnknownSize})
		wantErr(t, "Put", err, context.Canceled)
		lacks(t, s, "d/cancelled")
	})
	for o, err := range s.List(t.Context(), space, "") {
		if err != nil || o.Size != 3 {
			t.Errorf("List: got %+v, %v, want only what was there before", o, err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
