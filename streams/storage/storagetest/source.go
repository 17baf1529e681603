package storagetest

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

// foreign returns a place of an unknown driver.
func foreign() storage.Location {
	return storage.Location{Kind: "foreign", Handle: struct{}{}, Object: storage.Object{Item: "x"},
		Close: io.NopCloser(nil).Close}
}

// putSource puts bytes with a Source: the stored bytes are those of the Put, whatever the place contains.
func (x *suite) putSource(t *testing.T) {
	s := x.store(t)
	size := int(max(s.Capabilities().MinSourceBytes, 100) + 7)
	content := strings.Repeat("some ", size/5+1)[:size]
	other := content[:size/2] + "x" + content[size/2+1:]
	for name, tt := range map[string]struct {
		located, current, given string // content when it is located; content during the Put; bytes of the Put
		known                   digest.Set
		want                    error
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
			if tt.located != "" {
				put(t, s, from, tt.located)
				if it, err := storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: from}); err == nil {
					at = it
				} else if s.Capabilities().MinSourceBytes > 0 || !errors.Is(err, storage.ErrUnsupported) {
					t.Fatalf("Locate: %v", err)
				}
			}
			switch {
			case tt.current == tt.located:
			case tt.current != "":
				put(t, s, from, tt.current)
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
			got, o, err := read(t, s, to, "") // Open may return fewer digests than Stat
			if err != nil || got != content || o.Size != int64(size) || o.Digests.Compare(sums(content)) == digest.Disagree {
				t.Errorf("got %d bytes, %+v, %v, want the %d that were put", len(got), o, err, size)
			}
		})
	}
	if s.Capabilities().MinSourceBytes == 0 {
		return
	}
	put(t, s, "located", content)
	_, err := storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: "located", Version: "no such version"})
	wantErr(t, "Locate of another version", err, storage.ErrChanged)
	_, err = storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: "absent"})
	wantErr(t, "Locate of an absent item", err, storage.ErrNotFound)
}

// putTooLarge puts an item with a Size above the limit: no byte of it is read.
func (x *suite) putTooLarge(t *testing.T) {
	s := x.store(t)
	never := readerFunc(func([]byte) (int, error) {
		t.Error("bytes of a too large item were read")
		return 0, io.EOF
	})
	_, err := s.Put(t.Context(), space, "i", never, storage.PutOptions{Size: s.Capabilities().MaxItemBytes + 1})
	wantErr(t, "Put of a too large item", err, storage.ErrTooLarge)
	lacks(t, s, "i")
}
