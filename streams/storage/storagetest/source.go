package storagetest

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/millrace/millrace/streams/digest"
	"github.com/millrace/millrace/streams/storage"
)

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
	if s.Capabilities().SourceFrom == 0 {
		return
	}
	put(t, s, "located", content)
	_, err := storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: "located", Version: "no such version"})
	wantErr(t, "Locate of another version", err, storage.ErrChanged)
	_, err = storage.Locate(t.Context(), s, storage.Ref{Space: space, Item: "absent"})
	wantErr(t, "Locate of an absent item", err, storage.ErrNotFound)
}

// putTooLarge puts what says beforehand that it is too large: nothing of it is read.
func (x *suite) putTooLarge(t *testing.T) {
	s := x.store(t)
	never := readerFunc(func([]byte) (int, error) {
		t.Error("bytes were read of what is too large")
		return 0, io.EOF
	})
	_, err := s.Put(t.Context(), space, "i", never, storage.PutOptions{Size: s.Capabilities().MaxItemBytes + 1})
	wantErr(t, "Put of what is too large", err, storage.ErrTooLarge)
	lacks(t, s, "i")
}
