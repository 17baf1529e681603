package storagetest

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// copyFrom copies items within the store, and between it and its twin where there is one.
func (x *suite) copyFrom(t *testing.T) {
	s := x.store(t)
	c, ok := s.(storage.Copier)
	if !ok {
		t.Skip("the store is no Copier")
	}
	if !s.Capabilities().Copies {
		_, err := c.CopyFrom(t.Context(), space, "to", foreign(), storage.PutOptions{Size: storage.UnknownSize})
		wantErr(t, "CopyFrom", err, storage.ErrUnsupported)
		lacks(t, s, "to")
		return
	}
	content := strings.Repeat("some bytes ", 100_000)
	from := put(t, s, "from", content)
	copying := func(to string, edit ...func(*storage.PutOptions)) (storage.Copied, error) {
		t.Helper()
		return copyItem(t, s, c, to, edit...)
	}
	p := storage.Properties{MediaType: "text/plain", User: map[string]string{"k": "v"}}
	known := func(o *storage.PutOptions) {
		o.Digests, o.Size, o.Properties = sums(content), int64(len(content)), p
	}
	done, err := copying("d/to", absent, known)
	if err != nil || done.How == "" {
		t.Fatalf("CopyFrom: got %+v, %v, want a copy that says how it was made", done, err)
	}
	if done.Read && done.Object.Digests.Compare(sums(content)) != digest.Agree {
		t.Errorf("the store read the copy and tells digests %v, want %v", done.Object.Digests, sums(content))
	}
	stat := has(t, s, "d/to", content)
	if stat.Version != done.Object.Version || stat.Properties.MediaType != "text/plain" || stat.Properties.User["k"] != "v" {
		t.Errorf("got %+v, want what CopyFrom told: %+v", stat, done.Object)
	}
	has(t, s, "from", content)

	_, err = copying("d/to", absent)
	wantErr(t, "CopyFrom where it must be absent", err, storage.ErrExists)
	_, err = copying("d/to", version("no such version"))
	wantErr(t, "CopyFrom over another version", err, storage.ErrChanged)
	same(t, "Stat", has(t, s, "d/to", content), stat)
	if again, err := copying("d/to", version(stat.Version)); err != nil || again.Object.Version == stat.Version && s.Capabilities().UniqueVersions {
		t.Errorf("CopyFrom over the version that is there: got %+v, %v", again, err)
	}
	_, err = c.CopyFrom(t.Context(), noSpace, "to", place(t, s, "from", ""), storage.PutOptions{Size: storage.UnknownSize})
	wantErr(t, "CopyFrom into an absent space", err, storage.ErrNoSpace)
	_, err = c.CopyFrom(t.Context(), space, "to", foreign(), storage.PutOptions{Size: storage.UnknownSize})
	wantErr(t, "CopyFrom of a place of nobody", err, storage.ErrUnsupported)
	if done.Read {
		_, err = copying("to", func(o *storage.PutOptions) { o.Digests = sums("other") })
		wantErr(t, "CopyFrom of bytes with other digests", err, storage.ErrDigest)
	}
	lacks(t, s, "to")
	x.copyPinned(t, s, c, from)
	has(t, s, "from", "other bytes")
}

// copyPinned copies from a place whose item was replaced since.
func (x *suite) copyPinned(t *testing.T, s storage.Store, c storage.Copier, from storage.Object) {
	at := place(t, s, "from", from.Version)
	content, _, err := read(t, s, "from", from.Version)
	if err != nil || at.Object.Version != from.Version {
		t.Fatalf("got %+v, %v, want version %s", at.Object, err, from.Version)
	}
	put(t, s, "from", "other bytes")
	_, err = storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: "from", Version: "no such version"})
	wantErr(t, "Locate of another version", err, storage.ErrChanged)
	_, err = storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: "absent"})
	wantErr(t, "Locate of an absent item", err, storage.ErrNotFound)
	switch _, err := c.CopyFrom(t.Context(), space, "pinned", at, storage.PutOptions{Size: storage.UnknownSize}); {
	case errors.Is(err, storage.ErrChanged):
		lacks(t, s, "pinned")
	case err != nil:
		t.Errorf("CopyFrom of what was replaced since: %v", err)
	default:
		has(t, s, "pinned", content)
	}
}

func copyItem(t tb, s storage.Store, c storage.Copier, to string, edit ...func(*storage.PutOptions)) (storage.Copied, error) {
	o := storage.PutOptions{Size: storage.UnknownSize}
	for _, e := range edit {
		e(&o)
	}
	at, err := storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: "from"})
	if err != nil {
		t.Fatalf("Locate: %v", err)
	}
	done, err := c.CopyFrom(t.Context(), space, to, at, o)
	return done, errors.Join(err, at.Close())
}

// place locates an item until the test ends.
func place(t *testing.T, s storage.Store, item, version string) storage.Place {
	t.Helper()
	at, err := storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: item, Version: version})
	if err != nil {
		t.Fatalf("Locate(%q): %v", item, err)
	}
	t.Cleanup(func() {
		if err := at.Close(); err != nil {
			t.Error(err)
		}
	})
	return at
}

// foreign is a place that no driver knows.
func foreign() storage.Place {
	return storage.Place{Kind: "nobody's", At: struct{}{}, Object: storage.Object{Item: "x"}, Close: io.NopCloser(nil).Close}
}

// putSource puts bytes of which it is said where they lie already: what is stored is what is put, whatever lies there.
func (x *suite) putSource(t *testing.T) {
	s := x.store(t)
	size := int(max(s.Capabilities().SourceFrom, 100) + 7)
	content := strings.Repeat("some ", size/5+1)[:size]
	other := content[:size/2] + "x" + content[size/2+1:]
	for name, tt := range map[string]struct {
		lies, then, given string // what lies there when it is located, and then; what is put
		known             digest.Set
		want              error
	}{
		"the same":        {content, content, content, sums(content), nil},
		"other bytes":     {other, other, content, sums(content), nil},
		"other bytes now": {content, other, content, nil, nil},
		"fewer bytes":     {content, content[:100], content, sums(content), nil},
		"gone":            {content, "", content, sums(content), nil},
		"nowhere":         {"", "", content, sums(content), nil},
		"not as known":    {content, content, content, sums(other), storage.ErrDigest},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := "from/"+name, "to/"+name
			at := foreign()
			if tt.lies != "" {
				put(t, s, from, tt.lies)
				if it, err := storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: from}); err == nil {
					at = it
				} else if s.Capabilities().SourceFrom > 0 || !errors.Is(err, storage.ErrUnsupported) {
					t.Fatalf("Locate: %v", err)
				}
			}
			switch {
			case tt.then == tt.lies:
			case tt.then != "":
				put(t, s, from, tt.then)
			default:
				if _, err := s.Delete(t.Context(), space, from, storage.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			_, err := tryPut(t, s, to, tt.given, func(o *storage.PutOptions) {
				o.Size, o.Digests, o.Source = int64(size), tt.known, &at
			})
			if err := at.Close(); err != nil {
				t.Error(err)
			}
			if wantErr(t, "Put", err, tt.want); tt.want != nil {
				lacks(t, s, to)
				return
			}
			got, o, err := read(t, s, to, "") // Open of what is large may tell fewer digests than Stat: of a piece there may be none
			if err != nil || got != content || o.Size != int64(size) || o.Digests.Compare(sums(content)) == digest.Disagree {
				t.Errorf("got %d bytes, %+v, %v, want the %d that were put", len(got), o, err, size)
			}
		})
	}
}

// putTooLarge puts what says beforehand that it is too large: nothing of it is read.
func (x *suite) putTooLarge(t *testing.T) {
	s := x.store(t)
	bound := s.Capabilities().MaxItemBytes
	if bound == 0 {
		t.Skip("items have no bound")
	}
	never := readerFunc(func([]byte) (int, error) {
		t.Error("bytes were read of what is too large")
		return 0, io.EOF
	})
	_, err := s.Put(t.Context(), space, "i", never, storage.PutOptions{Size: bound + 1})
	wantErr(t, "Put of what is too large", err, storage.ErrTooLarge)
	lacks(t, s, "i")
}
